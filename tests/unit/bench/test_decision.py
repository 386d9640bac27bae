"""The clusters in which decisions are measured (tests/bench/decision.py)."""

from __future__ import annotations

import json

import pytest

from bench.decision import KINDS, SliceTemplate, slice_document
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_that_is_filled_in_is_the_one_that_is_made(kind: str) -> None:
    machine = read_machine(kind)
    template = SliceTemplate(machine)
    for number, name in enumerate(("a", "gpu-node-00001.example.com")):
        assert json.loads(template.text(name, number)) == slice_document(name, machine, number)
