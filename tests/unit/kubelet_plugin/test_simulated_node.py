"""Whatever happens on a node in whatever order: no GPU reaches two claims, no container gets what is not its own, the
driver holds each share to its part, and nothing stays held once all has ended. Planted faults show that the simulators
would see it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from dracaena.kubelet_plugin.changes import engine
from dracaena.kubelet_plugin.changes.change import ThingPlan, wanted
from dracaena.kubelet_plugin.changes.kinds import time_slices
from dracaena.kubelet_plugin.changes.kinds.memory_limits import MemoryLimits
from dracaena.kubelet_plugin.claims import last_guard
from dracaena.kubelet_plugin.claims import reconciler as claim_reconciler
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.reconciler import ClaimReconciler
from dracaena.kubelet_plugin.effects.claim_effects import ClaimEffects
from dracaena.kubelet_plugin.ports import KubeletView
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.upkeep.effect_renewal import EffectRenewal
from support.node_simulator import Simulator, ViolationError
from support.plugin import FakeKubelet
from support.seeds import sampled
from support.share_simulator import ShareSimulator

S = TypeVar("S", bound=Simulator)

STEPS = 150
SEEDS = (*range(12), 14, 53)
"""Each planted fault shows in one of these, two of them only in the last two."""


def run(folder: Path, seed: int, kind: type[S]) -> S:
    simulator = kind(folder / str(seed), seed)
    for _ in range(STEPS):
        simulator.step()
    simulator.drain()
    return simulator


@pytest.mark.parametrize("seed", sampled(range(400), 4, 60))
def test_no_gpu_reaches_two_claims_whatever_happens(tmp_path: Path, seed: int) -> None:
    simulator = run(tmp_path, seed, Simulator)
    if seed in SEEDS:  # one of many others may start or refuse none
        assert simulator.started > 0
        assert simulator.refused > 0


@pytest.mark.parametrize("seed", sampled(range(400), 4, 60))
def test_the_driver_holds_each_share_to_its_part_whatever_happens(tmp_path: Path, seed: int) -> None:
    simulator = run(tmp_path, seed, ShareSimulator)
    if seed in range(4):  # one of many others may make nothing again
        assert simulator.started > 0
        assert simulator.renewed > 0


Plant = Callable[[pytest.MonkeyPatch], None]


def no_guard_of_nodes(patch: pytest.MonkeyPatch) -> None:
    for module in (last_guard, claim_reconciler):
        patch.setattr(module, "held_nodes", lambda wanted, others: ())


def no_following(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimReconciler, "reconcile", lambda self, pool: {})
    patch.setattr(last_guard.LastGuard, "refuse_stale", lambda self, prepared: None)


def no_look_at_what_the_driver_says(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(last_guard.LastGuard, "refuse_stale", lambda self, prepared: None)


def old_sweeper(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeKubelet, "look", lambda self: KubeletView("always", frozenset()))


def old_recovery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeClaims, "may_be_in_use", lambda self, uid: False)


def whole_beside_share(patch: pytest.MonkeyPatch) -> None:
    def goes_with(self: PreparedDevice, other: PreparedDevice) -> bool:
        return any(d.admin_access or d.share_id is not None for d in (self, other))

    patch.setattr(PreparedDevice, "goes_with", goes_with)


def spec_of_a_claim_that_is_aside_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeClaims, "remove_spec", lambda self, uid: None)


def prepares_what_was_unprepared(patch: pytest.MonkeyPatch) -> None:
    whole = DeviceState._prepare_once
    patch.setattr(DeviceState, "_prepare_once", lambda *given, resumes: whole(*given, resumes=False))


@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (no_guard_of_nodes, 2),
        (no_following, 0),
        (no_look_at_what_the_driver_says, 0),
        (old_sweeper, 53),
        (old_recovery, 14),
        (whole_beside_share, 2),
        (spec_of_a_claim_that_is_aside_stays, 0),
        (prepares_what_was_unprepared, 0),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, found_by: int) -> None:
    plant(monkeypatch)
    for seed in (found_by, *(seed for seed in SEEDS if seed != found_by)):
        try:
            run(tmp_path, seed, Simulator)
        except ViolationError:
            return
    pytest.fail(f"not found in {len(SEEDS)} runs")


def takes_what_is_set_aside_for_renewed(patch: pytest.MonkeyPatch) -> None:
    whole = ClaimEffects.follow
    patch.setattr(ClaimEffects, "follow", lambda *given: whole(*given) or True)


def renews_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EffectRenewal, "look", lambda self: True)


def leaves_limits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryLimits, "undo", lambda *given: None)


def leaves_intervals(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(time_slices, "_back", lambda *given: ThingPlan())  # or a sweep would find what an unprepare leaves


def sees_no_other_shares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimEffects, "_others", lambda *given: ())
    patch.setattr(engine, "wanted", lambda thing, noted, now, unsure, call: wanted(thing, {}, (), (), call))


@pytest.mark.search
@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (takes_what_is_set_aside_for_renewed, 17),
        (renews_nothing, 0),
        (leaves_limits, 2),
        (leaves_intervals, 2),
        (sees_no_other_shares, 0),
    ],
)
def test_a_share_that_nothing_holds_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, found_by: int
) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        run(tmp_path, found_by, ShareSimulator)
