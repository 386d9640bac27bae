"""The section on claims that say more than a number: each form gets the answer that it is timed for."""

from __future__ import annotations

import pytest

from bench.decision import World
from bench.semantics import FREE_FORMS, FREE_WARM, free_ms
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.allocation.result import Allocation


@pytest.fixture(scope="module")
def world() -> World:
    return World(4)


@pytest.mark.parametrize("form", FREE_FORMS)
def test_a_claim_on_free_nodes_is_answered_as_expected(world: World, form: str) -> None:
    make, expected = FREE_FORMS[form]
    assert len(free_ms(world, make(), expected)) == 1 + FREE_WARM


def test_another_answer_ends_the_measurement(world: World) -> None:
    make, expected = FREE_FORMS["all GPUs of a node"]
    assert expected is Allocation
    with pytest.raises(AssertionError):
        free_ms(world, make(), NoFit)
