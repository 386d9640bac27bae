"""Whatever stands in Retry-After: a wait within bounds, or none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.kube.errors import TooManyRequestsError, error_for
from dracaena.kube.retry_after import LONGEST_S, retry_after_s

DATE = "Sun, 22 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("asked", "wait_s"),
    [
        ("1", 1.0),
        (" 30 ", 30.0),
        ("0", None),
        ("120", LONGEST_S),
        ("3600", LONGEST_S),
        ("9" * 10_000, LONGEST_S),
        ("-5", None),
        ("1.5", None),
        ("1e3", None),
        ("٣", None),
        ("", None),
        ("soon", None),
        ("Sun, 22 Nov 2026 10:00:45 GMT", 45.0),
        ("Sun, 22 Nov 2026 11:00:20 +0100", 20.0),
        ("Sun, 22 Nov 2026 10:00:20 -0000", 20.0),
        ("Sunday, 22-Nov-26 10:00:30 GMT", 30.0),
        ("Sun Nov 22 10:00:30 2026", 30.0),
        ("Sun, 22 Nov 2026 09:59:00 GMT", None),
        ("Mon, 22 Nov 2027 10:00:00 GMT", LONGEST_S),
        ("Sun, 22 Nov 2026 10:00:20 +99999999999999", None),
        ("Sun, 99 Nov 2026 10:00:00 GMT", None),
    ],
)
def test_seconds_and_dates(asked: str, wait_s: float | None) -> None:
    assert retry_after_s({"Retry-After": asked, "Date": DATE}) == wait_s


def test_a_date_tells_nothing_when_the_server_does_not_say_what_time_it_is() -> None:
    for headers in ({}, {"Date": "yesterday"}):
        assert retry_after_s({"Retry-After": DATE, **headers}) is None


@pytest.mark.parametrize(
    ("details", "wait_s"),
    [
        ({"retryAfterSeconds": 5}, 5.0),
        ({"retryAfterSeconds": 0}, None),
        ({"retryAfterSeconds": -(10**400)}, None),
        ({"retryAfterSeconds": 10**400}, LONGEST_S),
        ({"retryAfterSeconds": "5"}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_a_status_object_counts_where_there_is_no_header(details: object, wait_s: float | None) -> None:
    assert retry_after_s({}, details) == wait_s
    assert retry_after_s({"Retry-After": "9"}, details) == 9.0


@given(st.text(), st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_nothing_that_a_proxy_sends_breaks_it(asked: str, date: str, seconds: object) -> None:
    found = retry_after_s({"Retry-After": asked, "Date": date})
    assert found is None or 0 < found <= LONGEST_S
    found = retry_after_s({}, {"retryAfterSeconds": seconds})
    assert found is None or 0 < found <= LONGEST_S


def test_a_status_of_any_shape_is_an_error_with_its_wait() -> None:
    error = error_for("GET x", 429, b'{"details": {"retryAfterSeconds": 4}}')
    assert isinstance(error, TooManyRequestsError)
    assert error.retry_after_s == 4.0
    for body in (b'{"details": [1]}', b'{"details": 1}', b"[]", b"\xff", b""):
        assert error_for("GET x", 429, body).retry_after_s is None
