"""Whatever happens on a node in whatever order: no GPU reaches two claims, no container gets what is not its own, and
nothing stays held once all has ended, also where the driver gives GPUs new numbers beneath containers that run, and
while kubelet is away. Planted faults show that the simulator would see it. What claims change on a node is searched by
test_whole_node.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.kubelet_plugin.claims import last_guard
from dracaena.kubelet_plugin.claims import reconciler as claim_reconciler
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.reconciler import ClaimReconciler
from dracaena.kubelet_plugin.ports import KubeletView
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from dracaena.kubelet_plugin.store.claims import NodeClaims
from support.node_simulator import Simulator, ViolationError
from support.plugin import FakeKubelet
from support.seeds import sampled

STEPS = 150
SEEDS = (*range(12), 14, 53)
"""Each planted fault shows in one of these, two of them only in the last two."""


def run(folder: Path, seed: int) -> Simulator:
    simulator = Simulator(folder / str(seed), seed)
    for _ in range(STEPS):
        simulator.step()
    simulator.drain()
    return simulator


@pytest.mark.parametrize("seed", sampled(range(400), 4, 60))
def test_no_gpu_reaches_two_claims_whatever_happens(tmp_path: Path, seed: int) -> None:
    simulator = run(tmp_path, seed)
    if seed in SEEDS:  # one of many others may start or refuse none
        assert simulator.started > 0
        assert simulator.refused > 0


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
            run(tmp_path, seed)
        except ViolationError:
            return
    pytest.fail(f"not found in {len(SEEDS)} runs")
