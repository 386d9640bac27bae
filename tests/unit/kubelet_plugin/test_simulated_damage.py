"""Whatever is damaged and fails on a node: no GPU is given twice, pods keep what they have, and nothing is left over.
Planted faults show that the simulator would see it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.api.names import ClaimUid
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.last_guard import LastGuard
from dracaena.kubelet_plugin.claims.recovery import ClaimRecovery
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Broken, Checkpoint
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.upkeep.sweeper import Sweeper
from support.damaged_node_simulator import DamagedNodeSimulator
from support.node_simulator import ViolationError
from support.seeds import sampled

STEPS = 150


def run(folder: Path, seed: int) -> DamagedNodeSimulator:
    simulator = DamagedNodeSimulator(folder / str(seed), seed)
    for _ in range(STEPS):
        simulator.step()
    simulator.drain()
    return simulator


@pytest.mark.parametrize("seed", sampled(range(400), 6, 60))
def test_no_damage_takes_a_device_from_a_pod_or_gives_it_to_two(tmp_path: Path, seed: int) -> None:
    simulator = run(tmp_path, seed)
    if seed in (0, 4):
        assert simulator.restored > 0


def rolls_back_what_is_rebuilt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeClaims, "spec_is_seen", lambda self, uid: False)
    begin = NodeClaims.start
    patch.setattr(NodeClaims, "start", lambda self, prepared, **how: begin(self, prepared))


def counts_as_planned_before_its_effects_are_made(patch: pytest.MonkeyPatch) -> None:
    begin = NodeClaims.start

    def start(self: NodeClaims, prepared: PreparedClaim, *, lost: bool = False) -> Checkpoint:
        started = dataclasses.replace(begin(self, prepared, lost=lost), planned=True)
        return self._write(started)

    patch.setattr(NodeClaims, "start", start)


def guards_nothing_of_lost_checkpoints(patch: pytest.MonkeyPatch) -> None:
    whole = LastGuard.refuse_held

    def unsure(self: NodeClaims) -> tuple[tuple[Broken, PreparedClaim], ...]:
        return tuple((each, self.salvage(each)) for each in self.broken())

    def refuse_held(self: LastGuard, plan: PreparedClaim, pool: PublishedPool) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(NodeClaims, "unsure", unsure)
            whole(self, plan, pool)

    patch.setattr(LastGuard, "refuse_held", refuse_held)


def drops_specs_of_forced_deletions(patch: pytest.MonkeyPatch) -> None:
    settle = Sweeper._settle_lost
    patch.setattr(Sweeper, "_settle_lost", lambda self, uids, _, pods: settle(self, uids, set(), pods))


def unprepares_only_what_has_a_checkpoint(patch: pytest.MonkeyPatch) -> None:
    whole = DeviceState._take_back

    def take_back(self: DeviceState, uid: ClaimUid) -> None:
        if self._claims.of(uid) is not None:
            whole(self, uid)

    patch.setattr(DeviceState, "_take_back", take_back)


def removes_a_spec_before_it_is_written_down(patch: pytest.MonkeyPatch) -> None:
    whole = DeviceState._hold

    def hold(self: DeviceState, claim: ResourceClaim, pool: PublishedPool, reason: str) -> None:
        self._claims.remove_spec(ClaimUid(claim.metadata.uid))
        whole(self, claim, pool, reason)

    patch.setattr(DeviceState, "_hold", hold)


def does_not_try_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClaimRecovery, "_prepare_or_take_back", lambda self, reference: None)


@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (rolls_back_what_is_rebuilt, 4),
        (counts_as_planned_before_its_effects_are_made, 0),
        (guards_nothing_of_lost_checkpoints, 40),
        (drops_specs_of_forced_deletions, 8),
        (unprepares_only_what_has_a_checkpoint, 0),
        (removes_a_spec_before_it_is_written_down, 20),
        (does_not_try_again, 4),
    ],
)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], found_by: int
) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        run(tmp_path, found_by)
