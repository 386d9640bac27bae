"""Causes in the words and order of 1.37. tests/transcripts hold whole answers of a real server."""

from __future__ import annotations

import random

from dracaena.demo.apiserver.declared import newer
from dracaena.demo.apiserver.fields import FieldError, declared, duplicate, invalid, required
from dracaena.demo.apiserver.schema import structs

CLAIM = structs()["ResourceClaim"]
REQUESTS = "spec.devices.requests"


def test_declared_causes_come_last_in_the_order_of_the_fields_and_lists_before_their_items() -> None:
    walked = [
        *declared([duplicate(f"{REQUESTS}[10]", {"name": "a"})]),
        *declared([required(f"{REQUESTS}[2].exactly.tolerations[0].operator")]),
        *declared([required(f"{REQUESTS}[10].exactly.allocationMode")]),
        *declared([required("spec.devices.constraints[0].matchAttribute")]),
        *declared([required("status.allocation.devices.results[0].driver")]),
        *declared([required("status.allocation.devices.config[0].source")]),
    ]
    plain = [required("metadata.name"), invalid("spec.devices", "", "no")]
    shuffled = list(walked)
    random.Random(7).shuffle(shuffled)
    given = [shuffled[0], plain[0], *shuffled[1:3], plain[1], *shuffled[3:]]
    assert [str(error) for error in newer(given, CLAIM)] == [str(error) for error in (*plain, *walked)]


def test_a_cause_is_said_once_and_in_the_newer_words() -> None:
    old, new = required("metadata.uid", "old"), required("metadata.uid", "new")
    twice = [FieldError(old.type, old.field, old.value, old.detail, newer=(new,))] * 2
    assert newer(twice, CLAIM) == [new]


def test_an_item_that_is_there_twice_is_shown_with_its_fields_in_order() -> None:
    (error,) = newer(declared([duplicate(f"{REQUESTS}[1]", {"exactly": {}, "name": "a"})]), CLAIM)
    assert error.body() == 'Duplicate value: {"name":"a","exactly":{}}'
