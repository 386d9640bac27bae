"""Whatever is damaged and fails on a node: no GPU is given twice, pods keep what they have, and nothing is left over.
Planted faults show that the simulator would see it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

import pytest

from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.ports import KubeletView
from support.damaged_node_simulator import DamagedNodeSimulator, FailingDriver, FailingSteps
from support.node_simulator import Crashed, SlowClaims, ViolationError
from support.plugin import FakeKubelet
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


def finds_no_claim_of_a_pod(patch: pytest.MonkeyPatch) -> None:
    """What has lost its name gets it back from nobody."""
    patch.setattr(SlowClaims, "find_claim", lambda self, namespace, name: None)


def overlooks_specs(patch: pytest.MonkeyPatch) -> None:
    """What has lost its checkpoint holds nothing."""
    names, stamps = DocumentFolder.names, DocumentFolder.stamps

    def seen_names(self: DocumentFolder, suffix: str) -> tuple[str, ...]:
        return () if self.folder.name == "cdi" else names(self, suffix)

    def seen_stamps(self: DocumentFolder, suffix: str) -> Mapping[str, Hashable]:
        return {} if self.folder.name == "cdi" else stamps(self, suffix)

    patch.setattr(DocumentFolder, "names", seen_names)
    patch.setattr(DocumentFolder, "stamps", seen_stamps)


def takes_each_claim_for_unknown_to_kubelet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeKubelet, "look", lambda self: KubeletView("always", frozenset()))


def notes_a_change_when_it_is_made(patch: pytest.MonkeyPatch) -> None:
    """What is written before a change of the driver comes after it: too late where the plugin is killed between."""
    rename, step = FailingSteps.rename, DamagedNodeSimulator.driver_step
    notes: list[tuple[Path, bytes | None]] = []

    def noted(self: FailingSteps, source: Path, target: Path, folder: int) -> None:
        before = target.read_bytes() if target.exists() else None
        rename(self, source, target, folder)
        notes.append((target, before))

    def late(self: DamagedNodeSimulator) -> None:
        try:
            step(self)
        except Crashed:
            target, before = notes[-1]
            target.unlink(missing_ok=True) if before is None else target.write_bytes(before)
            raise

    patch.setattr(FailingSteps, "rename", noted)
    patch.setattr(DamagedNodeSimulator, "driver_step", late)


def believes_that_a_limit_is_gone(patch: pytest.MonkeyPatch) -> None:
    limit = FailingDriver.limit

    def kept(self: FailingDriver, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        if limit_bytes is not None:
            limit(self, gpu, cgroup, limit_bytes)

    patch.setattr(FailingDriver, "limit", kept)


@pytest.mark.search
@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (finds_no_claim_of_a_pod, 0),
        (overlooks_specs, 0),
        (takes_each_claim_for_unknown_to_kubelet, 30),
        (notes_a_change_when_it_is_made, 8),
        (believes_that_a_limit_is_gone, 0),
    ],
)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], found_by: int
) -> None:
    plant(monkeypatch)
    with pytest.raises(ViolationError):
        run(tmp_path, found_by)
