"""One GPU into its layout, with each call refused once and the process killed around each call and each write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid, DeviceName, gpu_device_name
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.host.gpu_driver.thread import WedgedError
from dracaena.kubelet_plugin.changes.change import NODE_LABEL, ForOwner
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout
from dracaena.kubelet_plugin.labels.follower import BlockedError, InUseError
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE, Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.fake_mig import CHANGES, IN_USE
from support.layout_node import BOOT, WHOLE, LayoutNode, layout, layout_node
from support.mig_node import HungStep, ask_at_once

MIXED = layout(g1=2, g2=1, g3=1)
STEPS = [pytest.param(number, marks=[pytest.mark.search] if number % 12 != 5 else []) for number in range(1, 60)]
"""More than any change takes."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LayoutNode]:
    with layout_node(tmp_path) as made:
        yield made


@pytest.fixture
def ampere(tmp_path: Path) -> Iterator[LayoutNode]:
    with layout_node(tmp_path, "Ampere") as made:
        yield made


def there(node: LayoutNode, ordinal: int = 0) -> list[tuple[str, int]]:
    return [(profile, start) for profile, start, _ in node.hardware.layout(ordinal)]


def test_a_gpu_is_divided_as_its_layout_says_at_places_that_hold_it(node: LayoutNode) -> None:
    node.bring(MIXED)
    assert node.hardware.layout(0) == [("1g.10gb", 2, 1), ("1g.10gb", 3, 1), ("2g.20gb", 0, 1), ("3g.40gb", 4, 1)]
    assert node.made() == there(node)
    assert node.is_at_rest()
    assert node.hardware.layout(1) == []


def test_another_layout_keeps_what_both_have_and_replaces_the_rest(node: LayoutNode) -> None:
    node.bring(MIXED)
    uuids = {each.placement.start: dict(each.compute) for each in node.hardware.gpus[0].instances.values()}
    node.bring(layout(g1=4, g3=1))
    assert node.counts() == {"1g.10gb": 4, "3g.40gb": 1}
    now = {each.placement.start: dict(each.compute) for each in node.hardware.gpus[0].instances.values()}
    assert now[4] == uuids[4], "the 3g stayed"
    assert node.made() == there(node)


def test_a_gpu_stays_in_mig_mode_between_two_layouts_that_have_nothing_in_common(node: LayoutNode) -> None:
    """A monitor that holds the GPU open would keep it from coming back."""
    node.bring(layout(g1=7))
    node.hardware.gpus[0].watched = True
    node.bring(layout(g7=1))
    assert node.counts() == {"7g.80gb": 1}


def test_a_note_that_cannot_be_read_makes_its_instance_somebody_elses(node: LayoutNode, tmp_path: Path) -> None:
    node.bring(layout(g1=1))
    (note,) = tmp_path.glob("*.json")
    note.write_bytes(b"torn")
    for wanted in (WHOLE, MIXED):
        with pytest.raises(BlockedError, match=r"no layout made \(1g.10gb at 0\)"):
            node.bring(wanted)
    assert note.read_bytes() == b"torn"
    node.hardware.gpus[0].instances.clear()
    node.bring(MIXED)
    assert node.made() == there(node)


def test_no_sweep_undoes_a_layout_and_an_instance_that_is_gone_is_made_again_by_its_next_change(
    node: LayoutNode,
) -> None:
    node.bring(MIXED)
    node.hardware.gpus[0].instances.popitem()
    told: list[object] = []
    assert (node.engine.sweep(MIG_INSTANCE, lambda *troubles: told.extend(troubles)), told) == (0, [[], []])
    node.bring(MIXED)
    assert (node.counts(), node.made()) == (dict(MIXED.counts), there(node))


def test_a_layout_without_mig_makes_a_gpu_whole(node: LayoutNode) -> None:
    node.bring(layout(g1=7))
    node.bring(WHOLE)
    assert (node.hardware.layout(0), node.hardware.gpus[0].mode, node.made()) == ([], False, [])
    node.bring(WHOLE)
    assert not node.hardware.gpus[0].mode


def test_mig_mode_alone_is_a_layout_too(node: LayoutNode) -> None:
    node.bring(layout(g1=7))
    node.bring(layout())
    assert (node.hardware.layout(0), node.hardware.gpus[0].mode) == ([], True)


def test_ampere_is_divided_in_the_mode_that_it_is_in(ampere: LayoutNode) -> None:
    ampere.bring(GpuLayout("mine", enabled=True, counts={"1g.5gb": 7}))
    assert ampere.counts() == {"1g.5gb": 7}
    with pytest.raises(BlockedError, match="Ampere changes it by a reset: drain the node, then `nvidia-smi -i"):
        ampere.bring(WHOLE)
    assert ampere.counts() == {"1g.5gb": 7}
    assert ampere.is_at_rest()
    ampere.hardware.gpus[1].mode = ampere.hardware.gpus[1].pending = False
    with pytest.raises(BlockedError, match="is to be on"):
        ampere.bring(GpuLayout("mine", enabled=True, counts={"1g.5gb": 7}), ordinal=1)
    assert not ampere.hardware.gpus[1].pending


def test_a_gpu_that_an_admin_takes_out_of_mig_mode_in_the_middle_of_a_change_is_at_rest_once_that_was_read(
    ampere: LayoutNode,
) -> None:
    """Only a reset would bring it back into MIG mode, and it is to be used whole."""
    sevenths = GpuLayout("mine", enabled=True, counts={"1g.5gb": 7})
    ampere.fake.once["nvmlGpuInstanceCreateComputeInstance"] = IN_USE
    ampere.fake.once["nvmlGpuInstanceDestroy"] = IN_USE
    with pytest.raises(TemporaryError, match="says IN_USE"):
        ampere.bring(sevenths)
    assert len(ampere.made()) == 1
    there_now = ampere.hardware.gpus[0]
    there_now.instances.clear()
    there_now.mode = there_now.pending = False
    with pytest.raises(BlockedError, match="is to be on"):
        ampere.bring(sevenths)
    assert not ampere.is_at_rest(), "claims would be prepared by a reading of before"
    machine = ampere.hardware.machine
    read = replace(machine.gpus[0], mig_enabled=False)
    ampere.hardware.machine = replace(machine, gpus=(read, *machine.gpus[1:]))
    with pytest.raises(BlockedError, match="is to be on"):
        ampere.bring(sevenths)
    assert (ampere.is_at_rest(), ampere.made()) == (True, [])


def test_a_claim_gets_a_place_of_a_layout_once_its_instance_was_destroyed_and_gives_it_back(node: LayoutNode) -> None:
    """An admin has changed the GPU's entry to `as: mig`: no label ends what the layout had."""
    node.bring(layout(g1=1))
    (thing,) = node.changes.made(node.gpu())
    (asked,) = node.engine.asked_by(thing, NODE_LABEL)
    effect = Effect(MIG_INSTANCE, gpu_device_name(node.gpu().uuid), DeviceName(thing.name), parameters=asked)
    claim = PreparedClaim(ClaimReference("default", "one", ClaimUid("one-uid")), (), wants=(effect,))
    claims: Any = node.engine._claims
    claims.good[claim.claim.uid] = Checkpoint(State.STARTED, BOOT, claim)
    begins, ends = ForOwner(begins=claim.claim.uid), ForOwner(ends=claim.claim.uid)
    with pytest.raises(TemporaryError, match=r"is taken by GPU instance .* remove it with `nvidia-smi mig -dci`"):
        node.engine.settle([thing], begins, lambda: 1.0).check()
    node.engine.settle([thing], ends, lambda: 1.0).check()
    assert (there(node), node.made()) == ([("1g.10gb", 0)], [("1g.10gb", 0)])
    node.hardware.gpus[0].instances.clear()
    node.engine.settle([thing], ends, lambda: 1.0).check()
    assert there(node) == [], "the end of a claim made what a layout had"
    node.engine.settle([thing], begins, lambda: 1.0).check()
    assert (there(node), node.made()) == ([("1g.10gb", 0)], [])
    node.engine.settle([thing], ends, lambda: 1.0).check()
    assert (there(node), node.ledger.things(MIG_INSTANCE)) == ([], ())


def test_what_others_made_stays_and_so_does_the_gpu(node: LayoutNode) -> None:
    node.hardware.put(0, "1g.10gb", 6)
    for wanted in (MIXED, WHOLE):
        with pytest.raises(BlockedError, match=r"no layout made \(1g.10gb at 6\).*`nvidia-smi mig -i 0 -dci`"):
            node.bring(wanted)
    assert node.hardware.layout(0) == [("1g.10gb", 6, 1)]
    assert node.is_at_rest()


def test_an_instance_that_replaced_one_of_ours_under_another_number_is_not_ours(node: LayoutNode) -> None:
    node.bring(layout(g1=1))
    gpu = node.hardware.gpus[0]
    gpu.instances = {5: next(iter(gpu.instances.values()))}
    with pytest.raises(BlockedError, match="no layout made"):
        node.bring(WHOLE)
    assert len(gpu.instances) == 1


def test_an_instance_that_replaced_one_of_ours_under_the_same_number_is_not_ours(node: LayoutNode) -> None:
    node.bring(layout(g1=1))
    gpu = node.hardware.gpus[0]
    (number,) = gpu.instances
    gpu.instances.clear()
    node.hardware.put(0, "1g.10gb", 0)
    assert list(gpu.instances) == [number]
    for wanted in (WHOLE, MIXED):
        with pytest.raises(BlockedError, match=r"no layout made \(1g.10gb at 0\)"):
            node.bring(wanted)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 1)]


def test_one_of_ours_whose_compute_instance_somebody_destroyed_is_theirs(node: LayoutNode) -> None:
    node.bring(layout(g1=1))
    next(iter(node.hardware.gpus[0].instances.values())).compute.clear()
    for wanted in (WHOLE, MIXED):
        with pytest.raises(BlockedError, match=r"no layout made \(1g.10gb at 0\)"):
            node.bring(wanted)
    assert node.hardware.layout(0) == [("1g.10gb", 0, 0)]


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_TIMEOUT, pynvml.NVML_ERROR_UNKNOWN])
@pytest.mark.parametrize("symbol", CHANGES)
def test_a_change_that_was_made_by_a_call_that_failed_is_finished_by_the_next_try(
    node: LayoutNode, symbol: str, code: int
) -> None:
    node.bring(layout(g1=2))
    for wanted in (MIXED, WHOLE, MIXED):
        node.fake.late[symbol] = code
        with suppress(TemporaryError):
            node.bring(wanted)
        node.fake.late.clear()
        node.bring(wanted)
        assert node.counts() == dict(wanted.counts)
        assert node.hardware.gpus[0].mode == wanted.enabled
        assert node.is_at_rest()


def test_a_gpu_that_somebody_uses_is_left_alone(node: LayoutNode) -> None:
    node.bring(layout(g1=7))
    before = node.hardware.layout(0)
    node.user = "claim default/train has a part of it"
    with pytest.raises(InUseError, match="claim default/train"):
        node.bring(MIXED)
    node.user = None
    next(iter(node.hardware.gpus[0].instances.values())).busy = True
    with pytest.raises(InUseError, match="1 processes run on GPU 0, among them 4001"):
        node.bring(MIXED)
    next(iter(node.hardware.gpus[0].instances.values())).busy = False
    for pids in (node.hardware.gpus[0].pids, node.hardware.gpus[0].graphics_pids):
        pids.append(77)
        with pytest.raises(InUseError, match="77"):
            node.bring(MIXED)
        assert node.hardware.layout(0) == before
        assert node.is_at_rest()
        pids.clear()
    node.bring(MIXED)
    assert node.counts() == dict(MIXED.counts)


def test_a_monitor_that_holds_the_gpu_open_delays_the_change_of_its_mode_and_the_gpu_is_at_rest(
    node: LayoutNode,
) -> None:
    node.hardware.gpus[0].watched = True
    with pytest.raises(TemporaryError, match="nvmlDeviceSetMigMode says IN_USE"):
        node.bring(MIXED)
    assert node.is_at_rest(), "nothing was done, so nothing has to be finished"
    node.hardware.gpus[0].watched = False
    node.bring(layout())
    node.hardware.gpus[0].watched = True
    with pytest.raises(TemporaryError, match="nvmlDeviceSetMigMode says IN_USE"):
        node.bring(WHOLE)
    assert (node.is_at_rest(), node.hardware.gpus[0].mode) == (True, True)
    node.hardware.gpus[0].watched = False
    node.bring(MIXED)
    assert node.counts() == dict(MIXED.counts)


def test_a_change_killed_before_its_first_step_and_then_refused_is_at_rest_too(node: LayoutNode) -> None:
    node.notes.begin(node.gpu().uuid, MIXED, lambda: None)
    node.hardware.gpus[0].watched = True
    with pytest.raises(TemporaryError, match="IN_USE"):
        node.bring(MIXED)
    assert node.is_at_rest()


def test_a_change_of_the_mode_that_may_have_been_made_and_one_after_other_steps_have_to_be_finished(
    node: LayoutNode,
) -> None:
    node.fake.once["nvmlDeviceSetMigMode"] = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(TemporaryError, match="UNKNOWN"):
        node.bring(MIXED)
    assert node.notes.changing() == {node.gpu().uuid}
    node.bring(MIXED)
    node.hardware.gpus[0].watched = True
    with pytest.raises(TemporaryError, match="IN_USE"):
        node.bring(WHOLE)
    assert (node.hardware.layout(0), node.is_at_rest()) == ([], False)
    with pytest.raises(TemporaryError, match="IN_USE"):
        node.bring(WHOLE)
    assert not node.is_at_rest(), "what was read of it may be of before"


def test_a_layout_that_turns_out_to_be_impossible_in_mig_mode_leaves_the_gpu_whole(node: LayoutNode) -> None:
    node.fake.places_need_mode = True
    with pytest.raises(BlockedError, match="no room for 8 x"):
        node.changes.change(node.gpu(), layout(g1=8), lambda: None)
    assert not node.hardware.gpus[0].mode
    assert node.is_at_rest()


def test_what_was_done_is_given_to_nobody_before_it_was_read(node: LayoutNode) -> None:
    node.changes.change(node.gpu(), MIXED, lambda: None)
    assert node.notes.changing() == {node.gpu().uuid}
    node.notes.rest(node.gpu().uuid, WHOLE)  # somebody else began something else since
    assert not node.is_at_rest()
    node.notes.rest(node.gpu().uuid, MIXED)
    assert (node.is_at_rest(), node.made()) == (True, there(node))


def test_a_driver_that_does_not_answer_is_asked_again_for_the_same(node: LayoutNode) -> None:
    def hang(what: str, work: object, _deadline_s: float) -> object:
        assert callable(work)
        done = work()
        if what.startswith("making 3g"):
            raise WedgedError(f"{what}: no answer")
        return done

    node.ask = hang
    with pytest.raises(EffectPendingError, match="no answer"):
        node.bring(MIXED)
    assert not node.is_at_rest()
    node.start()
    node.ask = lambda _what, work, _deadline_s: work()
    node.bring(MIXED)
    assert node.counts() == dict(MIXED.counts)
    assert node.made() == there(node)


@pytest.mark.parametrize("step", ["reading the MIG mode", "destroying GPU instance"])
@pytest.mark.parametrize("target", [layout(g7=1), WHOLE], ids=["divided", "whole"])
def test_what_a_layout_made_is_known_when_the_driver_was_released_in_the_middle_of_its_change_and_not_unloaded(
    node: LayoutNode, target: GpuLayout, step: str
) -> None:
    def released(what: str, work: Callable[[], object], _deadline_s: float) -> object:
        if what.startswith(step) and not node.is_at_rest():
            raise GpuDriverReleasedError(f"{what}: the driver was released")
        return work()

    node.bring(MIXED)
    made = there(node)
    node.ask = released
    with pytest.raises(TemporaryError, match="the driver was released"):
        node.bring(target)
    assert (node.made(), there(node)) == (made, made)
    node.ask = ask_at_once
    node.bring(target)
    assert (node.counts(), node.is_at_rest()) == (dict(target.counts), True)


@pytest.mark.parametrize("number", STEPS)
@pytest.mark.parametrize("is_done", [True, False], ids=["done late", "not begun"])
@pytest.mark.parametrize("target", [MIXED, WHOLE], ids=["divided", "whole"])
def test_a_driver_that_hangs_at_any_step_is_brought_to_the_same_end(
    tmp_path: Path, target: GpuLayout, is_done: bool, number: int
) -> None:
    with layout_node(tmp_path) as node:
        node.hardware.put(1, "1g.10gb", 0)
        node.bring(layout(g4=1, g2=1))
        node.ask = HungStep(number, is_done=is_done)
        with suppress(DracaenaError):
            node.bring(target)
        assert len(there(node)) <= len(node.made()), "an instance that is not noted"
        node.start()
        node.ask = ask_at_once
        node.bring(target)
        assert node.counts() == dict(target.counts)
        assert (node.made(), node.is_at_rest()) == (there(node), True)
        assert node.hardware.layout(1) == [("1g.10gb", 0, 1)]


def test_after_a_reboot_nothing_is_ours(node: LayoutNode) -> None:
    node.bring(MIXED)
    node.hardware.gpus[0].instances.clear()
    node.hardware.gpus[0].mode = False
    node.start(boot="boot-2")
    assert node.made() == []
    node.bring(layout(g1=1))
    assert node.made() == there(node) == [("1g.10gb", 0)]
