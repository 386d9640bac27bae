"""A fake driver and a fake /sys made from each recorded machine are read as that machine.

What may differ, and why:
* a field that the recording does not have may be there: a driver tells its PCI addresses and counts its links;
* a card that a recording shows as SYS to a GPU of its own NUMA node is read as NODE: a recording of printed text has
  what the tool printed, sysfs has the two NUMA nodes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dracaena.api.links import LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.kubelet_plugin.adapters.kernel.mig_access import MigAccess
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.adapters.nvml.machine import REOPEN_S, NvmlMachine
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from support.clock import FakeClock
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.fake_nvml import FakeNvml
from support.fake_nvml_values import FakeMig
from support.fake_sysfs import write_machine
from support.machines import divided_machine


def read_as_live(machine: Machine, sys_root: Path) -> Machine:
    write_machine(sys_root, machine)
    fake = FakeMigNvml(FakeMigHardware(machine)) if any(gpu.mig_profiles for gpu in machine.gpus) else FakeNvml(machine)
    reader = NvmlReader(NvmlLibrary(lambda: fake), mig_profiles=True)
    source = NvmlMachine(machine.name, reader, Sysfs(str(sys_root)))
    try:
        return source.read()
    finally:
        source.close()


@pytest.mark.parametrize("name", machine_names())
def test_gpus_are_read_back(name: str, tmp_path: Path) -> None:
    recorded = read_machine(name)
    live = read_as_live(recorded, tmp_path)
    assert (live.name, live.driver_version) == (name, recorded.driver_version)
    assert len(live.gpus) == len(recorded.gpus)
    for found, known in zip(live.gpus, recorded.gpus, strict=True):
        # NVML numbers profiles otherwise than machines list them.
        assert sorted(found.mig_profiles, key=str) == sorted(known.mig_profiles, key=str)
        for field in Gpu.__dataclass_fields__.keys() - {"mig_profiles"}:
            if getattr(known, field) is not None:
                assert getattr(found, field) == getattr(known, field), field


@pytest.mark.parametrize("name", machine_names())
def test_pairs_and_numa_nodes_are_read_back(name: str, tmp_path: Path) -> None:
    recorded = read_machine(name)
    live = read_as_live(recorded, tmp_path)
    assert live.topology.pairs == recorded.topology.pairs
    assert live.topology.numa_nodes == recorded.topology.numa_nodes


@pytest.mark.parametrize("name", machine_names())
def test_cards_are_read_back(name: str, tmp_path: Path) -> None:
    recorded = read_machine(name)
    live = read_as_live(recorded, tmp_path)
    assert [nic.name for nic in live.topology.nics] == [nic.name for nic in recorded.topology.nics]
    for found, known in zip(live.topology.nics, recorded.topology.nics, strict=True):
        for level, true_level, numa in zip(found.levels, known.levels, recorded.topology.numa_nodes, strict=True):
            same_node = true_level == LinkLevel.SYS and numa == found.numa_node
            assert level == (LinkLevel.NODE if same_node else true_level)


def test_a_driver_without_sysfs_leaves_out_what_sysfs_tells(tmp_path: Path) -> None:
    recorded = read_machine("hgx-h100")
    source = NvmlMachine("bare", NvmlReader(NvmlLibrary(lambda: FakeNvml(recorded))), Sysfs(str(tmp_path)))
    live = source.read()
    source.close()
    assert set(live.topology.numa_nodes) == {None}
    assert {gpu.pcie_root for gpu in live.gpus} == {None}
    assert live.topology.pairs == recorded.topology.pairs


def test_a_mig_device_is_read_with_the_nodes_that_open_it(tmp_path: Path) -> None:
    machine = divided_machine()
    places = {(1, 0): (100, 101), (1, 1): (100, 102), (3, 0): (103, 104)}
    lines = {
        f"gpu1/gi{gi}/access {one}\ngpu1/gi{gi}/ci{ci}/access {other}" for (gi, ci), (one, other) in places.items()
    }
    table = tmp_path / "proc/driver/nvidia-caps/mig-minors"
    table.parent.mkdir(parents=True)
    table.write_text("\n".join(sorted(lines)), encoding="ascii")
    migs = tuple(
        FakeMig(
            parent=1,
            number=number,
            uuid=mig.uuid,
            name=f"NVIDIA H100 80GB HBM3 MIG {mig.profile}",
            gpu_instance=mig.gpu_instance_id,
            compute_instance=mig.compute_instance_id,
            start=mig.start,
            size=mig.size,
            memory_mib=9984,
            multiprocessors=16,
        )
        for number, mig in enumerate(machine.mig_devices)
    )
    library = FakeNvml(replace(machine, mig_devices=()), migs)
    sysfs, access = Sysfs(str(tmp_path / "sys")), MigAccess(str(tmp_path / "proc"))
    source = NvmlMachine("divided", NvmlReader(NvmlLibrary(lambda: library)), sysfs, access)
    try:
        found = source.read()
    finally:
        source.close()
    assert [gpu.mig_enabled for gpu in found.gpus] == [False, True]
    told = {
        (mig.profile, mig.attributes.gpu_slices, mig.attributes.compute_slices)
        for mig in found.mig_devices
        if mig.attributes
    }
    assert told == {("1c.3g.40gb", 3, 1), ("1g.10gb", 1, 1)}
    assert tuple(replace(mig, attributes=None) for mig in found.mig_devices) == tuple(
        replace(mig, access_minors=places[mig.gpu_instance_id, mig.compute_instance_id]) for mig in machine.mig_devices
    )


class Reopened:
    """A node with two GPUs whose driver counts how often it is opened."""

    def __init__(self, root: Path, *, listens: bool) -> None:
        machine = read_machine("hgx-h100")
        write_machine(root, machine)
        self.nvml, self.clock = FakeNvml(machine), FakeClock()
        library = NvmlLibrary(lambda: self.nvml)
        self.source = NvmlMachine("node", NvmlReader(library), Sysfs(str(root)), clock=self.clock, listens=listens)

    def openings(self) -> int:
        return self.nvml.calls.count("nvmlInitWithFlags")


def test_nvml_is_held_open_only_for_who_listens_to_events(tmp_path: Path) -> None:
    for listens in (False, True):
        node = Reopened(tmp_path / str(listens), listens=listens)
        node.source.read_all()
        assert node.nvml.opened == int(listens)
        node.source.close()
        assert node.nvml.opened == 0


def test_while_a_gpu_is_lost_nvml_is_opened_anew_now_and_then_and_nothing_is_missed(tmp_path: Path) -> None:
    node = Reopened(tmp_path, listens=True)
    node.source.poll()
    node.nvml.lost.add(3)
    for _ in range(int(REOPEN_S / 15)):
        node.source.poll()
        assert node.openings() == 1
        node.clock.advance(15)
    assert node.nvml.report_xid(0, 48)
    node.source.poll()
    assert node.openings() == 2
    assert [(event.xid, event.uuid) for event in node.source.events() if event.xid] == [
        (48, node.nvml.machine.gpus[0].uuid)
    ]
    node.nvml.lost.clear()
    node.source.poll()
    node.clock.advance(2 * REOPEN_S)
    node.source.poll()
    assert node.openings() == 2
    node.source.close()
