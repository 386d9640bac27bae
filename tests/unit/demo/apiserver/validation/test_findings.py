"""Findings of the product as the causes that a real server gives; whole answers are in tests/transcripts."""

from __future__ import annotations

import pytest

from dracaena.demo.apiserver.fields import FieldError
from dracaena.demo.apiserver.validation.findings import causes
from dracaena.validation.field import Field
from dracaena.validation.findings import Breach, CelPosition
from dracaena.validation.syntax import DNS_LABEL


def test_a_cause_has_the_breach_its_place_and_what_was_seen_and_expected() -> None:
    (cause,) = causes(lambda field: field.at("a").below(2, 7).error("odd", "even"), {"a": []}, "spec.b[1]")
    assert cause == FieldError(Breach.INVALID, "spec.b[1].a[2]", "7: odd, expected even")
    assert str(cause) == "spec.b[1].a[2]: Invalid value: 7: odd, expected even"


@pytest.mark.parametrize("breach", Breach)
def test_every_breach_has_a_title(breach: Breach) -> None:
    (cause,) = causes(lambda field: field.error("x", "y", breach=breach), None, "spec")
    assert cause.body().endswith(": nothing: x, expected y")


def test_keys_of_maps_stand_in_brackets_and_a_wrong_key_is_a_fault_of_its_map() -> None:
    def check(field: Field) -> None:
        entry = field.at("attributes").below("a.b/c", {})
        entry.error("no value", "one")
        entry.at("string").error("long", "short", breach=Breach.TOO_LONG)
        entry.check_form("A_", DNS_LABEL, is_of_key=True)

    assert [(cause.field, cause.breach) for cause in causes(check, {}, "spec.devices[0]")] == [
        ("spec.devices[0].attributes[a.b/c]", Breach.INVALID),
        ("spec.devices[0].attributes[a.b/c].string", Breach.TOO_LONG),
        ("spec.devices[0].attributes", Breach.INVALID),
    ]


def test_a_place_in_an_expression_is_named() -> None:
    at = CelPosition(1, 7, "device.x\n      ^")
    (cause,) = causes(lambda field: field.error("CEL: no x", "another", at), "device.x", "e")
    assert cause.detail == '"device.x": CEL: no x (line 1, column 7), expected another'


def test_what_a_server_accepts_is_no_cause() -> None:
    def check(field: Field) -> None:
        field.warn("strange", "usual")
        field.never("too much", "less")

    assert causes(check, 1, "spec") == []
