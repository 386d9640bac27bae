from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.kubelet_plugin.prepare.effects import Effect, gpu_and_part, part_on_gpu, wanted_besides
from support.plugin import device_name


def effect(kind: str, number: int = 0) -> Effect:
    return Effect(kind, device_name(number), device_name(number))


@pytest.mark.parametrize("in_use", [True, False])
def test_a_new_plan_forgets_nothing_of_the_earlier_one(in_use: bool) -> None:
    kept, stale = effect("a"), effect("old")
    assert wanted_besides((kept, stale), (effect("b"), kept), in_use=in_use) == (stale, effect("b"), kept)
    assert wanted_besides((kept, stale), (), in_use=in_use) == (kept, stale)
    assert wanted_besides((), (kept,), in_use=in_use) == (kept,)


def test_while_containers_may_run_a_new_plan_replaces_what_was_wanted_of_the_same_thing() -> None:
    earlier, now = replace(effect("a"), parameters={"p": 1}), replace(effect("a"), parameters={"p": 2})
    assert wanted_besides((earlier,), (now,), in_use=True) == (now,)
    assert wanted_besides((earlier,), (now,), in_use=False) == (earlier, now)
    elsewhere = replace(now, thing="another")
    assert wanted_besides((earlier,), (elsewhere,), in_use=True) == (earlier, elsewhere)


def test_a_part_of_a_gpu_is_named_with_it() -> None:
    assert gpu_and_part(part_on_gpu(device_name(0), "pod-uid")) == (device_name(0), "pod-uid")


def test_an_effect_is_named_with_its_device_and_share() -> None:
    assert str(effect("a")) == f"a of {device_name(0)}"
    assert str(replace(effect("a"), share_id="x")) == f"a of {device_name(0)} for share x"
