"""Quantities, times and the decoder, without a server."""

from __future__ import annotations

import pytest

from dracaena.demo.apiserver.decode import UnreadableError, decode, zero
from dracaena.demo.apiserver.resources import KINDS
from dracaena.demo.apiserver.schema import structs
from dracaena.demo.apiserver.times import canonical_time


def stored(quantity: str) -> str:
    document = decode(structs()["Node"], {"status": {"capacity": {"cpu": quantity}}}).document
    text: str = document["status"]["capacity"]["cpu"]
    return text


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
        ("-1e30", "-1e30"),
        ("9223372036854775807", "9223372036854775807"),
    ],
)
def test_a_quantity_is_stored_in_its_canonical_form(text: str, canonical: str) -> None:
    assert stored(text) == canonical


@pytest.mark.parametrize("text", ["", "x", "1X", "1.2.3", "1 Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="quantities must match"):
        stored(text)


@pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "1mm"])
def test_a_suffix_or_exponent_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError, match="unable to parse quantity's suffix"):
        stored(text)


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
    with pytest.raises(ValueError, match=r"no time|out of range"):
        canonical_time(text, form)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_decoding_an_empty_object_twice_gives_the_same(kind):
    assert decode(kind.struct, zero(kind.struct)).document == decode(kind.struct, {}).document


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
