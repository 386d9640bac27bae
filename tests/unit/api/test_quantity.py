"""Quantities: exact amounts, canonical text, and bounded cost for every text."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.quantity import NANO, Quantity, format_bytes, parse_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount", "canonical"),
    [
        ("0", 0, "0"),
        ("1", 1, "1"),
        ("-3", -3, "-3"),
        ("+3", 3, "3"),
        ("007", 7, "7"),
        (".5", Fraction(1, 2), "500m"),
        ("1.", 1, "1"),
        ("1000", 1000, "1k"),
        ("1024", 1024, "1024"),
        ("1500m", Fraction(3, 2), "1500m"),
        ("2000m", 2, "2"),
        ("1Ki", 1024, "1Ki"),
        ("1024Mi", 2**30, "1Gi"),
        ("1536Mi", 1536 * 2**20, "1536Mi"),
        ("0.5Gi", 2**29, "512Mi"),
        ("0.5Ki", 512, "512"),
        ("0.3Ki", Fraction(3072, 10), "307200m"),
        ("1e3", 1000, "1e3"),
        ("12E2", 1200, "1200"),
        ("1e-3", Fraction(1, 1000), "1e-3"),
        ("1E", 10**18, "1E"),
        ("5u", Fraction(5, 10**6), "5u"),
        # Finer than a billionth: rounded away from zero, so that something stays something.
        ("0.1n", Fraction(1, NANO), "1n"),
        ("-1e-40", Fraction(-1, NANO), "-1e-9"),
        ("1.0000000001", 1 + Fraction(1, NANO), "1000000001n"),
        # Binary amounts are cut at 2^63-1.
        ("16Ei", 2**63 - 1, "9223372036854775807"),
    ],
)
def test_a_quantity_is_read_exactly_and_written_as_the_server_does(text: str, amount: Fraction, canonical: str) -> None:
    quantity = parse_quantity(text)
    assert Fraction(quantity.nano, NANO) == amount
    assert str(quantity) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 ",
        "one",
        "1K",
        "1ki",
        "1mi",
        "--1",
        "1.2.3",
        "e3",
        "Ki",
        ".",
        "1e",
        "1Gi5",
        "٣",
        "1e61",
        "1e999999999",
        "9" * 300,
    ],
)
def test_what_is_no_quantity_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no quantity|is more than any quantity"):
        parse_quantity(text)


def test_quantities_compare_by_amount_however_they_are_written() -> None:
    assert parse_quantity("1Gi") == parse_quantity("1024Mi") == parse_quantity("1073741824")
    assert hash(parse_quantity("1k")) == hash(parse_quantity("1e3"))
    assert sorted(map(parse_quantity, ("1Gi", "1G", "500m", "-1"))) == [
        parse_quantity(text) for text in ("-1", "500m", "1G", "1Gi")
    ]


@pytest.mark.parametrize(
    ("text", "whole"), [("1", 1), ("1001m", 2), ("-1001m", -2), ("1n", 1), ("0", 0), ("3Ki", 3072)]
)
def test_whole_ones_are_rounded_away_from_zero(text: str, whole: int) -> None:
    assert parse_quantity(text).whole() == whole


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.integers(-(10**30), 10**30), st.sampled_from(["decimal", "exponential"]))
def test_the_canonical_text_reads_as_the_same_amount(nano: int, notation: str) -> None:
    quantity = Quantity(nano, notation)  # type: ignore[arg-type]
    assert parse_quantity(str(quantity)) == quantity


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_bytes_read_back_as_themselves(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count
    assert parse_quantity(format_bytes(count)) == Quantity(count * NANO)
