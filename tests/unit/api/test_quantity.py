"""Quantities: exact amounts, canonical text, and bounded cost for every text."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.quantity import (
    MAX_DIGITS,
    MAX_EXPONENT,
    NANO,
    Quantity,
    QuantityError,
    format_bytes,
    parse_bytes,
    parse_quantity,
    read_quantity,
)

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
EXPONENTS = {f"{letter}{power}": power for letter in "eE" for power in range(-30, 40)}
INT64_MAX = 2**63 - 1


def as_said(sign: str, whole: str, fraction: str, suffix: str) -> Fraction:
    """The amount by the words of the API, in no hurry: sign × number × suffix, up to a billionth, binary ones cut."""
    number = Fraction(int(whole + fraction), 10 ** len(fraction))
    if suffix in BINARY:
        number = min(number * 1024 ** BINARY[suffix], Fraction(INT64_MAX))
    else:
        number *= Fraction(10) ** (DECIMAL | EXPONENTS)[suffix]
    rounded = Fraction(math.ceil(number * NANO), NANO)
    return -rounded if sign == "-" else rounded


def as_written(amount: Fraction, suffix: str) -> str:
    """The canonical text, found by trying every suffix, from the largest."""
    if suffix in BINARY and amount.denominator == 1 and abs(amount) >= 1024:
        choices = {name: Fraction(1024) ** power for name, power in ({"": 0} | BINARY).items()}
    elif suffix in EXPONENTS:
        choices = {f"e{power}" if power else "": Fraction(10) ** power for power in range(-9, 90, 3)}
    else:
        choices = {name: Fraction(10) ** power for name, power in DECIMAL.items()}
    if not amount:
        return "0"
    unit = max(unit for unit in choices.values() if (amount / unit).denominator == 1)
    return f"{amount / unit}{next(name for name in choices if choices[name] == unit)}"


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
        "-1e61",
        "10e60",
        "1e999999999",
        "9" * 61,
        "9" * 300,
        "0" * 257,
    ],
)
def test_what_is_no_quantity_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity|is more than any quantity"):
        parse_quantity(text)


@settings(derandomize=True)
@given(
    st.sampled_from(["", "-", "+"]),
    st.text("0123456789", min_size=1, max_size=20),
    st.text("0123456789", max_size=20),
    st.sampled_from([*DECIMAL, *BINARY, *EXPONENTS]),
)
def test_a_quantity_is_what_its_text_says_and_is_written_with_the_largest_suffix(
    sign: str, whole: str, fraction: str, suffix: str
) -> None:
    quantity = parse_quantity(f"{sign}{whole}{'.' * bool(fraction)}{fraction}{suffix}")
    amount = as_said(sign, whole, fraction, suffix)
    assert Fraction(quantity.nano, NANO) == amount
    assert str(quantity) == as_written(amount, suffix)


@pytest.mark.parametrize("text", [".", "m", "Ki", "e3", "+"])
def test_kubernetes_reads_a_number_without_digits_as_nothing_and_we_refuse_it(text: str) -> None:
    assert read_quantity(text).quantity == Quantity(0)
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "quantities must match the regular expression"),
        ("1 Gi", "quantities must match the regular expression"),
        ("1mm", "unable to parse quantity's suffix"),
        (f"1e{MAX_EXPONENT + 1}", "unable to parse quantity's suffix"),
        ("9" * (MAX_DIGITS + 1), "unable to parse numeric part of quantity"),
        ("Ei", "unable to parse numeric part of quantity"),
    ],
)
def test_what_kubernetes_refuses_is_refused_in_its_words(text: str, message: str) -> None:
    with pytest.raises(QuantityError, match=message):
        read_quantity(text)


def test_the_form_in_memory_tells_what_is_tried_as_int64() -> None:
    """`isInteger` of CEL is false for "1Pi", and for "1.0"."""
    forms = {text: read_quantity(text)[1:] for text in ("5", "1.0", "1k", "1Ti", "1Pi", "9" * 18, "9" * 19)}
    assert forms == {
        "5": (0, False),
        "1.0": (1, False),
        "1k": (-3, False),
        "1Ti": (0, False),
        "1Pi": (9, True),
        "9" * 18: (0, False),
        "9" * 19: (9, True),
    }


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


@settings(derandomize=True)
@given(st.integers(-(10**30), 10**30), st.sampled_from(["decimal", "exponential"]))
def test_the_canonical_text_reads_as_the_same_amount(nano: int, notation: str) -> None:
    quantity = Quantity(nano, notation)  # type: ignore[arg-type]
    assert parse_quantity(str(quantity)) == quantity


@settings(derandomize=True)
@given(st.integers(0, 2**63 - 1))
def test_bytes_read_back_as_themselves(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count
    assert parse_quantity(format_bytes(count)) == Quantity(count * NANO)
