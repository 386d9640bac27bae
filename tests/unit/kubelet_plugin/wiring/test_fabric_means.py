"""Fabric Manager on a node: readings with its partitions, through its library in processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Machine
from dracaena.host.adapters.files.lock import GpuLocks
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.adapters.programs.fabric_manager import FabricManagerLibrary
from dracaena.kubelet_plugin.changes.fabric_readings import FabricReadings
from dracaena.kubelet_plugin.changes.kinds.fabric_partition import FabricPartitions
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.node.live_machine import FABRIC_S, REREAD_S, LiveMachine, as_read
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.wiring.fabric_means import LOCK, fabric_readings, with_missing_setting
from dracaena.process.clock import SystemClock
from support import fake_fabric_manager
from support.clock import FakeClock
from support.fake_fabric_manager import DOWN, FakeFabricManager, load, save
from support.machines import plain_machine
from support.passthrough import NO_GPUS
from support.plugin import node_claims


class Source:
    """A reading of two GPUs with modules 1 and 3."""

    def __init__(self) -> None:
        machine = plain_machine(2)
        gpus = tuple(
            replace(gpu, module_id=module, pci_bus_id=f"0000:0{module}:00.0")
            for gpu, module in zip(machine.gpus, (1, 3), strict=True)
        )
        self.machine: Machine = replace(machine, gpus=gpus)

    def read_all(self) -> Reading:
        return Reading(self.machine)

    def doing(self) -> str:
        return ""

    def close(self) -> None:
        pass


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "fabric.json"
    save(FakeFabricManager(), made)
    return made


def played(file: Path, folder: Path) -> FabricReadings:
    program = (sys.executable, "-P", fake_fabric_manager.__file__, str(file))
    manager = FabricManagerLibrary("/run/fm.sock", library="played", program=program, change_s=30.0, talk_s=30.0)
    claims, clock = node_claims(folder), SystemClock()
    ledger = Ledger(DocumentFolder(folder / "ledger", synced=False), claims, claims.boot_id)
    partitions = FabricPartitions(manager, GpuLocks(folder / "locks", clock).of(LOCK), ledger, clock)
    return FabricReadings(manager, partitions, ledger, claims)


def change(file: Path, work: Callable[[FakeFabricManager], None]) -> None:
    manager = load(file)
    work(manager)
    save(manager, file)


def test_a_reading_has_the_partitions_as_they_are_then(file: Path, tmp_path: Path) -> None:
    partitions, before = played(file, tmp_path), Source().read_all()
    reading = partitions.read(before)
    assert reading.machine.fabric is not None
    assert len(reading.machine.fabric.partitions) == 15
    assert reading.machine.topology.link(0, 1).nvlinks == 18
    change(file, lambda manager: manager.restart(resuming=True))
    assert partitions.read(before) == reading  # it was told that none is active
    change(file, lambda manager: setattr(manager, "life", DOWN))
    silent = partitions.read(before)
    assert silent.machine.topology.link(0, 1).nvlinks == 0
    assert [trouble.reason for trouble in silent.troubles] == ["FabricManagerNotReady"]


@pytest.mark.parametrize("on", [True, False])
def test_where_there_are_partitions_it_is_read_more_often(file: Path, tmp_path: Path, *, on: bool) -> None:
    """Fabric Manager ends 60 s after it was started anew, if nobody tells it what is active."""
    machines: list[Machine] = []
    complete = played(file, tmp_path).read if on else as_read
    live = LiveMachine(Source(), FakeClock(), on_change=machines.append, complete=complete)
    live._gpu_driver.start()
    try:
        assert live.look() == (FABRIC_S if on else REREAD_S)
    finally:
        live._gpu_driver.stop()
    assert [machine.fabric is not None for machine in machines] == [on]


def test_files_of_the_host_are_those_that_this_process_sees(tmp_path: Path) -> None:
    seen = tmp_path / "driver-root"
    (seen / "opt").mkdir(parents=True)
    (seen / "opt/libnvfm.so.1").write_bytes(b"no library")

    def failure(**settings: Any) -> str:
        node: Any = SimpleNamespace(
            settings=PluginSettings(node_name="n", driver_root_mount=str(seen), **settings),
            gpu_lock=GpuLocks(tmp_path / "locks", SystemClock()).of,
            clock=SystemClock(),
            claims=node_claims(tmp_path),
            ledger=Ledger(DocumentFolder(tmp_path / "ledger"), node_claims(tmp_path), "boot-1"),
        )
        (trouble,) = fabric_readings(node).read(Source().read_all()).troubles
        return trouble.text

    assert f"no libnvfm.so.1 below {seen}" in failure()
    assert f"{seen}/opt/libnvfm.so.1" in failure(fabric_manager_library="/opt/libnvfm.so.1")
    assert f"{seen}/opt/other.so" in failure(fabric_manager_library="/opt/other.so")


def test_a_recorded_machine_has_no_fabric_manager() -> None:
    settings = PluginSettings(node_name="n", machine="dgx-h100", fabric_partitions=True)
    with pytest.raises(BadInputError, match="`machine` cannot be combined with `fabric-partitions`"):
        settings.refuse_combinations()


@pytest.mark.parametrize(("mode", "gpus", "told"), [(1, 2, True), (1, 1, False), (0, 8, False), (None, 8, False)])
def test_a_mode_that_the_settings_do_not_know_of_is_told(mode: int | None, gpus: int, *, told: bool) -> None:
    reading = Reading(plain_machine(gpus))
    found = with_missing_setting(reading, mode)
    assert found.machine == reading.machine
    assert ["setting `fabric-partitions` is off" in trouble.text for trouble in found.troubles] == [True] * told


@pytest.mark.parametrize(("mode", "parents", "told"), [(2, 1, True), (2, 0, False), (1, 1, False), (None, 1, False)])
def test_vgpus_whose_partitions_nobody_activates_are_told(mode: int | None, parents: int, *, told: bool) -> None:
    machine = replace(NO_GPUS, vgpu_parents=frozenset(["0000:18:00.0"][:parents]))
    found = with_missing_setting(Reading(machine), mode)
    assert found.machine == machine
    assert ["cuInit fails with 802" in trouble.text for trouble in found.troubles] == [True] * told
