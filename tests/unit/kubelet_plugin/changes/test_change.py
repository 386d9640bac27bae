"""Who wants a thing: the claims that say so, and those that cannot be read and were noted."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import pytest

from dracaena.kubelet_plugin.changes.change import SWEEP, ForOwner, Thing, Wants, wanted
from dracaena.kubelet_plugin.prepare.effects import Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from support.plugin import device_name, prepared_claim

GPU = device_name(0)
THING = Thing("kind", GPU)
LONG, NOTED = ({"interval": "Long"},), ({"interval": "Short"},)


def checkpoint(name: str, state: State, *, answered: bool = False) -> Checkpoint:
    """The checkpoint of a claim that wants the thing."""
    claim = dataclasses.replace(prepared_claim(name), wants=(Effect("kind", GPU, GPU, None, {"interval": "Long"}),))
    return Checkpoint(state, "boot", claim, answered=answered)


def rebuilt(name: str) -> Checkpoint:
    return Checkpoint(State.STARTED, "boot", prepared_claim(name), answered=True, provisional=True)


@pytest.mark.parametrize(
    ("checkpoints", "noted", "unsure", "call", "expected"),
    [
        ([checkpoint("a", State.DONE)], {}, (), SWEEP, {"a-uid": LONG}),
        ([checkpoint("a", State.STARTED)], {}, (), SWEEP, {}),
        ([checkpoint("a", State.STARTED)], {}, (), ForOwner(begins="a-uid"), {"a-uid": LONG}),
        ([checkpoint("a", State.STARTED)], {}, (), ForOwner(begins="b-uid"), {}),
        ([checkpoint("a", State.STARTED)], {"a-uid": NOTED}, (), SWEEP, {"a-uid": LONG}),
        ([checkpoint("a", State.STARTED, answered=True)], {}, (), SWEEP, {"a-uid": LONG}),
        ([checkpoint("a", State.DONE)], {"a-uid": NOTED}, (), ForOwner(ends="a-uid"), {}),
        ([], {"a-uid": NOTED}, (), SWEEP, {}),
        ([], {"a-uid": NOTED}, ("a-uid",), SWEEP, {"a-uid": NOTED}),
        ([], {}, ("a-uid",), SWEEP, {}),
        ([], {"a-uid": NOTED}, ("a-uid",), ForOwner(ends="a-uid"), {}),
        ([rebuilt("a")], {"a-uid": NOTED}, (), SWEEP, {"a-uid": NOTED}),
        ([rebuilt("a")], {}, (), SWEEP, {}),
    ],
)
def test_who_wants_a_thing(
    checkpoints: Collection[Checkpoint], noted: Wants, unsure: Collection[str], call: ForOwner, expected: Wants
) -> None:
    assert wanted(THING, noted, checkpoints, unsure, call) == expected
