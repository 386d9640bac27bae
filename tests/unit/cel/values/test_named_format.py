from __future__ import annotations

import datetime as dt
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.values.named_format import NAMED_FORMATS

LETTERS_AND_DIGITS = set("abcdefghijklmnopqrstuvwxyz0123456789")


def is_valid(name: str, text: str) -> bool:
    return NAMED_FORMATS[name].problems(text) == []


def is_label(text: str) -> bool:
    """RFC 1123, character by character."""
    ends = bool(text) and text[0] in LETTERS_AND_DIGITS and text[-1] in LETTERS_AND_DIGITS
    return ends and set(text) <= LETTERS_AND_DIGITS | {"-"} and len(text) <= 63


@settings(derandomize=True)
@given(st.one_of(st.text("ab1-.A_é\n", max_size=8), st.text("a", min_size=60, max_size=66)))
def test_names_are_valid_by_the_rules_of_dns(text: str) -> None:
    assert is_valid("dns1123Label", text) == is_label(text)
    assert is_valid("dns1035Label", text) == (is_label(text) and not text[0].isdigit())
    parts = text.split(".")
    assert is_valid("dns1123Subdomain", text) == all(is_label(part[:63]) for part in parts)


@pytest.mark.parametrize(
    ("name", "text", "valid"),
    [
        ("dns1123Subdomain", "a." * 126 + "a", True),
        ("dns1123Subdomain", "a." * 127 + "a", False),
        ("dns1123LabelPrefix", "my-name-", True),
        ("dns1123LabelPrefix", "-", False),
        ("dns1035LabelPrefix", "é-", False),
        ("dns1123SubdomainPrefix", "a.b-", True),
        ("qualifiedName", "example.com/My_Name.1", True),
        ("qualifiedName", "a/b/c", False),
        ("qualifiedName", "/b", False),
        ("qualifiedName", "a/", False),
        ("labelValue", "", True),
        ("labelValue", "a" * 64, False),
        ("uri", "/path", True),
        ("uri", "path", False),
        ("byte", "QQ==", True),
        ("byte", "QQ=", False),
        ("byte", "", False),
        ("byte", "QQ==\n", False),
        ("uuid", "not-one", False),
        ("datetime", "2021-01-01T00:00:00Z", True),
        ("datetime", "2021-01-01t23:59:59.5-07:00", True),
        ("datetime", "2021-01-01T24:00:00Z", False),
        ("datetime", "2021-01-01", False),
        ("date", "0000-02-29", True),
        ("date", "1900-02-29", False),
        ("date", "2021-1-1", False),
    ],
)
def test_a_text_is_valid_for_a_format_or_not(name: str, text: str, valid: bool) -> None:
    assert is_valid(name, text) == valid


def test_all_that_is_wrong_with_a_name_is_told() -> None:
    problems = NAMED_FORMATS["dns1123Label"].problems("A" * 64)
    assert [problem.split(" (")[0][:40] for problem in problems] == [
        "must be no more than 63 characters",
        "a lowercase RFC 1123 label must consist ",
    ]
    assert NAMED_FORMATS["dns1123Label"].problems("a.b") == ["must not contain dots"]


@settings(derandomize=True)
@given(st.dates(), st.uuids(), st.integers(1, 12), st.integers(1, 31))
def test_dates_and_uuids_are_what_the_standard_library_takes(
    date: dt.date, identifier: uuid.UUID, month: int, day: int
) -> None:
    assert is_valid("date", date.isoformat())
    assert is_valid("uuid", str(identifier))
    assert is_valid("uuid", identifier.hex.upper())
    text = f"{date.year:04}-{month:02}-{day:02}"
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        assert not is_valid("date", text)
    else:
        assert is_valid("date", text)


def test_formats_are_equal_by_name() -> None:
    assert NAMED_FORMATS["uuid"] == NAMED_FORMATS["uuid"]
    assert len(set(NAMED_FORMATS.values())) == len(NAMED_FORMATS) == 13
