"""A recorded machine with what its GPUs are divided into now."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.recorded.mig import RecordedMig, access_minors
from dracaena.kubelet_plugin.adapters.recorded.node import RecordedNode
from dracaena.kubelet_plugin.discovery.mig.instances import MigRefusedError
from dracaena.kubelet_plugin.ports import GpuGoneError

A100S = read_machine("a100-sxm4-x4")  # 0 and 1 were in MIG mode when it was recorded
IN_MODE = A100S.gpus[1]
BOOT = "boot-1"


def node(folder: Path, machine: Machine = A100S, boot: str = BOOT) -> RecordedNode:
    """As each process of the plugin has it."""
    return RecordedNode(machine, DocumentFolder(folder, synced=False), boot)


def division(folder: Path, machine: Machine = A100S) -> RecordedMig:
    """What divides its GPUs, in any process."""
    by_uuid = {gpu.uuid: gpu for gpu in machine.gpus}

    def gpu(uuid: str) -> Gpu:
        if uuid not in by_uuid:
            raise GpuGoneError(uuid)
        return by_uuid[uuid]

    return RecordedMig(gpu, DocumentFolder(folder, synced=False), BOOT)


def make(control: RecordedMig, profile: str, start: int, *, compute: bool = True) -> int:
    found = next(each for each in IN_MODE.mig_profiles if each.name == profile)
    placement = next(each for each in found.placements if each.start == start)
    number = control.create_gpu_instance(IN_MODE.uuid, found, placement)
    if compute:
        control.create_compute_instance(IN_MODE.uuid, number, found.compute_slices)
    return number


def test_an_undivided_machine_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    assert node(tmp_path).read_all().machine == A100S


def test_what_is_made_is_read_by_the_next_process_and_is_gone_after_a_reboot(tmp_path: Path) -> None:
    number = make(division(tmp_path), "3g.20gb", 4)
    make(division(tmp_path), "1g.5gb", 0, compute=False)  # no MIG device yet
    machine = node(tmp_path).read_all().machine
    machine.check()
    profile = next(each for each in IN_MODE.mig_profiles if each.name == "3g.20gb")
    identity = division(tmp_path).mig_device(IN_MODE.uuid, number)
    assert identity is not None
    assert machine.mig_devices == (
        MigDevice(
            parent_uuid=IN_MODE.uuid,
            uuid=identity[1],
            gpu_instance_id=number,
            compute_instance_id=0,
            profile="3g.20gb",
            start=4,
            size=4,
            memory_bytes=profile.memory_bytes,
            multiprocessors=profile.multiprocessors,
            access_minors=access_minors(IN_MODE.minor or 0, number, 0),
        ),
    )
    assert machine.empty_gpu_instances == (EmptyGpuInstance(IN_MODE.uuid, number + 1, "1g.5gb", 0, 1),)
    assert replace(machine, mig_devices=(), empty_gpu_instances=()) == A100S
    assert node(tmp_path, boot="boot-2").read_all().machine == A100S


def test_the_mode_of_now_is_read(tmp_path: Path) -> None:
    h100 = read_machine("h100-x1")
    played = node(tmp_path, h100)
    assert played.read_all().machine.gpus[0].mig_enabled is False
    division(tmp_path, h100).set_mode(h100.gpus[0].uuid, enabled=True)
    assert node(tmp_path, h100).read_all().machine.gpus[0].mig_enabled is True


def test_recorded_devices_stay_only_on_gpus_whose_profiles_were_not_recorded(tmp_path: Path) -> None:
    one, other = (MigDevice(gpu.uuid, f"MIG-{gpu.uuid[4:]}", 7, 0, "1g.5gb", start=3, size=1) for gpu in A100S.gpus[:2])
    gpus = (replace(A100S.gpus[0], mig_profiles=()), *A100S.gpus[1:])
    machine = replace(A100S, gpus=gpus, mig_devices=(one, other))
    assert node(tmp_path, machine).read_all().machine == replace(machine, mig_devices=(one,))


def test_nothing_runs_on_it_and_its_pci_ids_are_not_known(tmp_path: Path) -> None:
    control = division(tmp_path)
    assert control.processes(IN_MODE.uuid) == ()
    with pytest.raises(PermanentError, match="has no PCI ID: choose a layout without device-filter"):
        control.device_id(IN_MODE.uuid)
    with pytest.raises(MigRefusedError, match="NOT_FOUND"):
        control.processes("GPU-other")
