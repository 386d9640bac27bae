from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.quantity import MAX_DIGITS, MAX_EXPONENT, NANO
from dracaena.cel.errors import EvaluationError
from dracaena.cel.value import INT_MAX
from dracaena.cel.values.quantity import QuantityValue

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def amount(quantity: QuantityValue) -> Fraction:
    return Fraction(quantity.amount.nano, NANO)


def rounded_up(number: Fraction) -> Fraction:
    """Away from zero to a billionth."""
    billionths = -(-abs(number) * 10**9 // 1)
    return Fraction(billionths, 10**9) * (1 if number >= 0 else -1)


SIGNS = st.sampled_from(["", "-", "+"])
DIGITS = st.text("0123456789", min_size=1, max_size=25)
SUFFIXES = st.one_of(st.sampled_from([*DECIMAL, *BINARY]), st.integers(-30, 40).map(lambda exponent: f"e{exponent}"))


@st.composite
def written(draw: st.DrawFn) -> tuple[str, Fraction, bool]:
    """A text, the amount it says, and whether its suffix is a binary one."""
    sign, whole, fraction, suffix = draw(SIGNS), draw(DIGITS), draw(st.one_of(st.just(""), DIGITS)), draw(SUFFIXES)
    number = Fraction(int(whole + fraction), 10 ** len(fraction)) * (-1 if sign == "-" else 1)
    if suffix in BINARY:
        number *= 1024 ** BINARY[suffix]
    else:
        number *= Fraction(10) ** (DECIMAL[suffix] if suffix in DECIMAL else int(suffix[1:]))
    return f"{sign}{whole}{'.' * bool(fraction)}{fraction}{suffix}", number, suffix in BINARY


@settings(derandomize=True)
@given(written())
def test_a_quantity_is_the_amount_that_its_text_says(case: tuple[str, Fraction, bool]) -> None:
    text, number, binary = case
    wanted = rounded_up(number)
    if binary and abs(wanted) > INT_MAX:
        wanted = Fraction(INT_MAX) * (1 if wanted > 0 else -1)
    assert amount(QuantityValue.parse(text)) == wanted


@settings(derandomize=True)
@given(written(), written())
def test_arithmetic_and_order_are_exact(one: tuple[str, Fraction, bool], other: tuple[str, Fraction, bool]) -> None:
    left, right = QuantityValue.parse(one[0]), QuantityValue.parse(other[0])
    assert amount(left.add(right)) == amount(left) + amount(right)
    assert amount(left.subtract(right)) == amount(left) - amount(right)
    assert left.compare(right) == (amount(left) > amount(right)) - (amount(left) < amount(right))
    assert (left == right) == (amount(left) == amount(right))
    assert left.sign == (amount(left) > 0) - (amount(left) < 0)
    if left == right:
        assert hash(left) == hash(right)


@settings(derandomize=True)
@given(written())
def test_the_canonical_text_says_the_same_amount_and_is_its_own_canonical_text(
    case: tuple[str, Fraction, bool],
) -> None:
    quantity = QuantityValue.parse(case[0])
    again = QuantityValue.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)
    assert "." not in str(quantity)


@settings(derandomize=True)
@given(written())
def test_an_integer_is_the_amount_itself(case: tuple[str, Fraction, bool]) -> None:
    quantity = QuantityValue.parse(case[0])
    number = quantity.as_int()
    assert number is None or number == amount(quantity)
    assert (amount(quantity) * Fraction(10) ** quantity.scale).denominator == 1
    assert quantity.approximate() == pytest.approx(float(amount(quantity)), rel=1e-15)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("-0.0Gi", "0"),
        ("1024Ki", "1Mi"),
        ("1500Mi", "1500Mi"),
        ("1.5Gi", "1536Mi"),
        ("512", "512"),
        ("0.5Ki", "512"),
        ("1.0009765625Ki", "1025"),
        ("0.0001Ki", "102400u"),
        ("1000", "1k"),
        ("1500m", "1500m"),
        ("123456E", "123456E"),
        ("1000E", "1000E"),
        ("12e30", "12e30"),
        ("1e5", "100e3"),
        ("1e-9", "1e-9"),
        ("0.1n", "1n"),
        ("10Ei", "9223372036854775807"),
    ],
)
def test_the_canonical_text_has_no_fraction_and_the_largest_suffix(text: str, canonical: str) -> None:
    assert str(QuantityValue.parse(text)) == canonical


def test_a_sum_is_written_as_its_first_term_or_as_the_second_when_that_is_zero() -> None:
    assert str(QuantityValue.parse("1Ki").add(QuantityValue.parse("1k"))) == "2024"
    assert str(QuantityValue.parse("1Gi").add(QuantityValue.parse("1024Mi"))) == "2Gi"
    assert str(QuantityValue.parse("0").add(QuantityValue.parse("1Ki"))) == "1Ki"
    assert str(QuantityValue.parse("1k").subtract(QuantityValue.parse("1k")).add(QuantityValue.parse("1Ki"))) == "1Ki"
    assert str(QuantityValue.parse("1k").add(QuantityValue.of_int(500))) == "1500"


def test_the_smallest_int64_is_subtracted_with_the_right_sign() -> None:
    """The reference negates it in 64 bits, where it stays negative."""
    assert amount(QuantityValue.parse("1").subtract(QuantityValue.of_int(-(2**63)))) == 2**63 + 1


def test_a_comparison_does_not_change_what_is_compared() -> None:
    """In the reference a comparison with a large quantity makes a small one large: it is no integer any more."""
    small, large = QuantityValue.parse("5"), QuantityValue.parse("10E").add(QuantityValue.parse("10Ei"))
    assert small.compare(large) < 0
    assert small.as_int() == 5


@pytest.mark.parametrize("text", ["", " ", "1 ", "abc", "1.2.3", "1zz", "٣", "1\n", "0x1", "1_000"])
def test_what_has_not_the_form_of_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match="quantities must match"):
        QuantityValue.parse(text)


@pytest.mark.parametrize("text", ["1mm", "--1", "1e", "1Ee3", "1iK", f"1e{MAX_EXPONENT + 1}", "1e-" + "9" * 5000])
def test_an_unknown_suffix_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError, match="suffix"):
        QuantityValue.parse(text)


def test_numbers_that_are_too_long_to_work_with_are_refused() -> None:
    QuantityValue.parse("9" * MAX_DIGITS)
    with pytest.raises(EvaluationError, match="numeric part"):
        QuantityValue.parse("9" * (MAX_DIGITS + 1))
