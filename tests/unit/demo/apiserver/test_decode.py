"""Quantities, times and the decoder, without a server."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.demo.apiserver.decode import decode, zero
from dracaena.demo.apiserver.quantity import parse_quantity
from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.apiserver.schema import structs
from dracaena.demo.apiserver.times import canonical_time

SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "e3": Decimal(10**3),
}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1000", "1k"),
        ("1Ki", "1Ki"),
        ("512Ki", "512Ki"),
        ("1023", "1023"),
        ("0Mi", "0"),
        ("1e3", "1e3"),
        ("-5", "-5"),
        (".5", "500m"),
        ("100000000", "100M"),
        ("0.5Ki", "512"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("16Ei", "9223372036854775807"),
        ("-1e30", "-9223372036854775807"),
        ("9223372036854775807", "9223372036854775807"),
    ],
)
def test_a_quantity_has_one_canonical_form(text, canonical):
    assert str(parse_quantity(text)) == canonical


@pytest.mark.parametrize("text", ["", "x", "1X", "1.2.3", "Mi", "1 Gi", "+", "."])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="quantities must match"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1e999999999", "9223372036854775807"),
        ("1e-999999999", "1n"),
        ("0e999999999", "0"),
        ("-2e99999", "-9223372036854775807"),
    ],
)
def test_an_exponent_of_any_size_costs_nothing(text: str, canonical: str) -> None:
    assert parse_quantity(text).nano == parse_quantity(canonical).nano


@given(st.integers(-10_000, 10_000), st.integers(0, 999), st.sampled_from(sorted(SUFFIXES)))
def test_the_canonical_form_keeps_the_amount(whole, part, suffix):
    text = f"{whole}.{part:03}{suffix}"
    quantity = parse_quantity(text)
    exact = Decimal(f"{whole}.{part:03}") * SUFFIXES[suffix] * 10**9
    magnitude = abs(exact).to_integral_value(rounding="ROUND_CEILING")
    negative = text.startswith("-")
    assert quantity.nano == (-magnitude if negative else magnitude)
    assert parse_quantity(str(quantity)) == quantity
    assert str(parse_quantity(str(quantity))) == str(quantity)


@pytest.mark.parametrize(
    ("text", "form", "canonical"),
    [
        ("2026-01-01T01:00:00+01:00", "time", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.999Z", "time", "2026-01-01T00:00:00Z"),
        ("2026-01-01T00:00:00.123456Z", "microtime", "2026-01-01T00:00:00.123456Z"),
    ],
)
def test_times_are_written_in_utc(text, form, canonical):
    assert canonical_time(text, form) == canonical


@pytest.mark.parametrize(
    ("text", "form"), [("yesterday", "time"), ("2026-13-01T00:00:00Z", "time"), ("2026-01-01T00:00:00Z", "microtime")]
)
def test_what_is_no_time_is_refused(text, form):
    with pytest.raises(ValueError, match="parsing time"):
        canonical_time(text, form)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_decoding_an_empty_object_twice_gives_the_same(kind):
    empty = zero(kind.struct)
    assert decode(kind.struct, empty).document == empty


def test_every_type_of_the_tables_is_reachable():
    seen = set()

    def walk(type_):
        item = getattr(type_, "item", None)
        if item is not None:
            walk(item)
        elif hasattr(type_, "fields") and type_.name not in seen:
            seen.add(type_.name)
            for known in type_.fields.values():
                walk(known.type)

    for name in [*(kind.kind for kind in KINDS), "Binding", "DeleteOptions"]:
        walk(structs()[name])
    assert seen == structs().keys()
