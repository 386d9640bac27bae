"""One search over a whole node: claims of every kind, and all that goes wrong on it. Nothing is undone that a claim has
or may have, nothing is left over when all is quiet, nothing of others is overwritten, no device is given twice, and
prepare and unprepare end. Planted faults, one of each kind at least, show that the search would see it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.changes import engine
from dracaena.kubelet_plugin.changes.change import ForOwner, Thing, ThingPlan, wanted
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges
from dracaena.kubelet_plugin.changes.kinds.memory_limits import MemoryLimits
from dracaena.kubelet_plugin.changes.kinds.mig_instances import MigInstances, SeenPlace
from dracaena.kubelet_plugin.changes.kinds.vfio_gpus import NotedVfioGpu, VfioGpus
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.labels.cc_mode_notes import MODES as MODES_OF_GPUS
from dracaena.kubelet_plugin.labels.cc_modes import CcModes
from dracaena.kubelet_plugin.labels.mig_changes import MigLayoutChanges
from dracaena.kubelet_plugin.labels.mig_layouts import MigLayouts
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, MIG_INSTANCE
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from support.node_simulator import Crashed, FailingSteps, ViolationError
from support.played_hardware import PlayedDrivers, PlayedHardware, PlayedMig, Trips
from support.plugin import FakeClaims
from support.seeds import in_tiers
from support.whole_node import FLAVORS, MODES, PlayedModes, SteppedFabric
from support.whole_node_simulator import WholeNodeSimulator
from support.whole_plugin import PlayedGpus

STEPS = 40
BATCHES = 4
"""Of sequences, each of which takes a quarter of a second of a processor: 500 of them two minutes, 20,000 more than an
hour."""

Plant = Callable[[pytest.MonkeyPatch], None]


def run(folder: Path, seed: int) -> WholeNodeSimulator:
    simulator = WholeNodeSimulator(folder / str(seed), seed)
    for _ in range(STEPS):
        simulator.step()
    simulator.end()
    return simulator


@pytest.mark.timeout(24 * 3600)
@pytest.mark.parametrize("count", in_tiers(125, 500, 5_000))
@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_happens_each_claim_has_what_it_was_given_and_nothing_else_is_left(
    tmp_path: Path, batch: int, count: int
) -> None:
    started = {flavor.name: 0 for flavor in (*FLAVORS, MODES)}
    for seed in range(batch * count, (batch + 1) * count):
        simulator = run(tmp_path, seed)
        started[simulator.flavor.name] += simulator.started
    assert min(started.values()) > 0


# Planted faults


def notes_late(patch: pytest.MonkeyPatch, kind: type[Any], method: str) -> None:
    """What is written before a change comes after it: too late where the plugin is killed between the two."""
    rename, change = FailingSteps.rename, getattr(kind, method)
    notes: list[tuple[Path, bytes | None]] = []

    def noted(self: FailingSteps, source: Path, target: Path, folder: int) -> None:
        before = target.read_bytes() if target.exists() else None
        rename(self, source, target, folder)
        notes.append((target, before))

    def late(self: Any, *given: Any) -> Any:
        try:
            return change(self, *given)
        except Crashed:
            target, before = notes[-1]
            target.unlink(missing_ok=True) if before is None else target.write_bytes(before)
            raise

    patch.setattr(FailingSteps, "rename", noted)
    patch.setattr(kind, method, late)
    patch.setattr(WholeNodeSimulator, "kills", 20)


def nothing_is_noted_of(patch: pytest.MonkeyPatch, kind: str) -> None:
    write = Ledger.write

    def kept(self: Ledger, thing: Thing, note: Any) -> None:
        if thing.kind != kind:
            write(self, thing, note)

    patch.setattr(Ledger, "write", kept)


def limits_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    """Nor is the checkpoint of a claim that was prepared a proof that they are ours."""
    nothing_is_noted_of(patch, MEMORY_LIMIT)
    patch.setattr(MemoryLimits, "supposed", lambda self, wants: None)


def a_driver_is_noted_late(patch: pytest.MonkeyPatch) -> None:
    notes_late(patch, PlayedDrivers, "_count")


def a_partition_is_noted_late(patch: pytest.MonkeyPatch) -> None:
    notes_late(patch, SteppedFabric, "_count")


def an_instance_is_noted_late(patch: pytest.MonkeyPatch) -> None:
    notes_late(patch, PlayedMig, "create_gpu_instance")


def an_instance_is_known_by_its_number_alone(patch: pytest.MonkeyPatch) -> None:
    ours = SeenPlace.ours
    patch.setattr(SeenPlace, "ours", lambda seen, made: ours(seen, replace(made, uuid=None)))


def believes_in_changes(patch: pytest.MonkeyPatch, what: str) -> None:
    """A change is taken for done, and is not."""
    change = Trips.change
    patch.setattr(
        Trips, "change", lambda self, name, work: change(self, name, (lambda: None) if name == what else work)
    )


def mig_instances_stay(patch: pytest.MonkeyPatch) -> None:
    believes_in_changes(patch, "MIG instance's end")


def limits_stay(patch: pytest.MonkeyPatch) -> None:
    limit = PlayedHardware.limit

    def kept(self: PlayedHardware, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        if limit_bytes is not None:
            limit(self, gpu, cgroup, limit_bytes)

    patch.setattr(PlayedHardware, "limit", kept)


def an_interval_of_an_admin_is_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlayedHardware, "read", lambda self, gpu: TimeSliceInterval.DEFAULT)


def intervals_stay(patch: pytest.MonkeyPatch) -> None:
    whole = PlayedHardware.set

    def kept(self: PlayedHardware, gpu: str, interval: TimeSliceInterval) -> None:
        if interval is TimeSliceInterval.LONG:
            whole(self, gpu, interval)

    patch.setattr(PlayedHardware, "set", kept)


def partitions_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SteppedFabric, "deactivate", lambda self, partition: None)


def gpus_stay_with_vfio(patch: pytest.MonkeyPatch) -> None:
    write = PlayedDrivers.write

    def kept(self: PlayedDrivers, gpu: str, path: str, text: str) -> None:
        if not path.endswith("nvidia/bind"):
            write(self, gpu, path, text)

    patch.setattr(PlayedDrivers, "write", kept)


def a_gpu_is_bound_without_a_note(patch: pytest.MonkeyPatch) -> None:
    plan = VfioGpus.plan
    patch.setattr(VfioGpus, "plan", lambda *given: ThingPlan(act=plan(*given).act))


def of_the_gpus_of_a_claim_the_first_alone_is_noted(patch: pytest.MonkeyPatch) -> None:
    whole = VfioGpus.plan

    def plan(self: VfioGpus, wants: Any, seen: Any, note: Any) -> ThingPlan[Any, Any]:
        made = whole(self, wants, seen, note)
        return made if seen.address.startswith("0000:18") else ThingPlan(act=made.act)

    patch.setattr(VfioGpus, "plan", plan)


def a_sound_card_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    whole = VfioGpus.plan

    def plan(*given: Any) -> ThingPlan[Any, Any]:
        made = whole(*given)
        noted = None if made.noted is None else NotedVfioGpu(made.noted.functions[:1], made.noted.persistent)
        return ThingPlan(noted, made.act, made.stays)

    patch.setattr(VfioGpus, "plan", plan)


def a_driver_without_gpus_counts_as_one_that_says_nothing(patch: pytest.MonkeyPatch) -> None:
    minors = PlayedHardware.minors
    patch.setattr(PlayedHardware, "minors", lambda self: minors(self) or None)


def requests_stay(patch: pytest.MonkeyPatch) -> None:
    remove = FailingSteps.remove

    def kept(self: FailingSteps, path: Path, folder: int) -> None:
        if path.parent.name != "requests":
            remove(self, path, folder)

    patch.setattr(FailingSteps, "remove", kept)


def specs_stay(patch: pytest.MonkeyPatch) -> None:
    remove = FailingSteps.remove

    def kept(self: FailingSteps, path: Path, folder: int) -> None:
        if path.parent.name != "cdi":
            remove(self, path, folder)

    patch.setattr(FailingSteps, "remove", kept)


def a_reload_is_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlayedGpus, "opened", lambda self: 0)


def a_renewal_counts_although_its_claim_was_set_aside(patch: pytest.MonkeyPatch) -> None:
    follow = ClaimChanges.follow
    patch.setattr(ClaimChanges, "follow", lambda *given: follow(*given) or True)
    patch.setattr(WholeNodeSimulator, "loads", 6)


def specs_without_a_checkpoint_are_overlooked(patch: pytest.MonkeyPatch) -> None:
    names, stamps = DocumentFolder.names, DocumentFolder.stamps

    def seen_names(self: DocumentFolder, suffix: str) -> tuple[str, ...]:
        return () if self.folder.name == "cdi" else names(self, suffix)

    def seen_stamps(self: DocumentFolder, suffix: str) -> Mapping[str, Hashable]:
        return {} if self.folder.name == "cdi" else stamps(self, suffix)

    patch.setattr(DocumentFolder, "names", seen_names)
    patch.setattr(DocumentFolder, "stamps", seen_stamps)


def no_claim_of_a_pod_is_found(patch: pytest.MonkeyPatch) -> None:
    """What has lost its name gets it back from nobody."""
    patch.setattr(FakeClaims, "find_claim", lambda self, namespace, name: None)


def what_other_claims_want_is_overlooked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine, "wanted", lambda thing, noted, now, unsure, call: wanted(thing, {}, (), (), call))


def layouts_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    nothing_is_noted_of(patch, MigLayouts.name)
    nothing_is_noted_of(patch, MIG_INSTANCE)


def what_a_layout_does_not_name_stays(patch: pytest.MonkeyPatch) -> None:
    settle = MigLayoutChanges._settle

    def begins(self: MigLayoutChanges, things: Any, call: ForOwner) -> None:
        if call.begins:
            settle(self, things, call)

    patch.setattr(MigLayoutChanges, "_settle", begins)


def instances_of_layouts_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    nothing_is_noted_of(patch, MigInstances.name)


def modes_are_not_noted(patch: pytest.MonkeyPatch) -> None:
    nothing_is_noted_of(patch, MODES_OF_GPUS.kind)


def nobody_uses_what_a_label_is_about(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GpuUsers, "holding", lambda self, gpu: None)


def a_change_that_has_begun_goes_with_its_label(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CcModes, "goals", lambda self, begun, targets: targets or {})


def gpus_that_are_in_the_mode_are_not_reset(patch: pytest.MonkeyPatch) -> None:
    """A mode that was written without a reset takes effect with the next one."""
    switch = PlayedModes.switch

    def once(self: PlayedModes, address: str, mode: str) -> None:
        if self.query(address) != mode:
            switch(self, address, mode)

    patch.setattr(PlayedModes, "switch", once)
    patch.setattr(WholeNodeSimulator, "kills", 20)


@pytest.mark.search
@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (no_claim_of_a_pod_is_found, 19),
        (what_other_claims_want_is_overlooked, 0),
        (limits_are_not_noted, 2),
        (a_driver_is_noted_late, 120),
        (a_partition_is_noted_late, 4),
        (an_instance_is_noted_late, 228),
        (an_instance_is_known_by_its_number_alone, 12),
        (mig_instances_stay, 3),
        (limits_stay, 2),
        (an_interval_of_an_admin_is_not_read, 2),
        (intervals_stay, 2),
        (partitions_stay, 7),
        (gpus_stay_with_vfio, 0),
        (a_gpu_is_bound_without_a_note, 0),
        (of_the_gpus_of_a_claim_the_first_alone_is_noted, 1),
        (a_sound_card_is_not_noted, 0),
        (a_driver_without_gpus_counts_as_one_that_says_nothing, 1251),
        (requests_stay, 5),
        (specs_stay, 0),
        (a_reload_is_not_seen, 80),
        (specs_without_a_checkpoint_are_overlooked, 1),
        (a_renewal_counts_although_its_claim_was_set_aside, 1251),
        (layouts_are_not_noted, 65),
        (what_a_layout_does_not_name_stays, 131),
        (instances_of_layouts_are_not_noted, 65),
        (nobody_uses_what_a_label_is_about, 140),
        (nobody_uses_what_a_label_is_about, 54),
        (modes_are_not_noted, 22),
        (a_change_that_has_begun_goes_with_its_label, 22),
        (gpus_that_are_in_the_mode_are_not_reset, 2534),
    ],
)
def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, found_by: int) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        run(tmp_path, found_by)
