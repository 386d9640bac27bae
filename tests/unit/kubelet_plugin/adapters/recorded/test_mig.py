"""MIG instances of recorded GPUs: answers as those of the real pynvml on the fake driver, and kept in files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import PermanentError
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig_geometry import MigPlacement
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.kubelet_plugin.adapters.nvml.mig_control import NvmlMigControl
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.adapters.recorded.mig import RecordedMig, access_minors
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance, MigRefusedError
from dracaena.kubelet_plugin.ports import MigControl
from support import mig_node
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.seeds import sampled

MACHINES = ("a100-sxm4-x4", "a30-x2", "h100-x1")
H100 = read_machine("h100-x1")
GPU = H100.gpus[0].uuid
SMALL = H100.gpus[0].mig_profiles[0]
STEPS = 40
"""At least: a walk goes on until it has made something."""
MOST_STEPS = 400


def recorded(machine: Machine, folder: Path, boot: str = "boot-1") -> RecordedMig:
    gpus = {gpu.uuid: gpu for gpu in machine.gpus}

    def read_gpu(uuid: str) -> Gpu:
        return gpus[uuid]

    return RecordedMig(read_gpu, DocumentFolder(folder, synced=False), boot)


def answer(call: Callable[[MigControl], Any], control: MigControl) -> Any:
    try:
        return call(control)
    except MigRefusedError as error:
        return f"refused: {error.reason}", error.did_nothing, error.call.startswith("nvmlDeviceCreate")


def step(random_: random.Random, gpu: Gpu) -> Callable[[MigControl], Any]:
    """One call, most of them such as the plugin makes."""
    number, profile = random_.randint(1, 4), random_.choice(gpu.mig_profiles)
    start = random_.randint(0, 7)
    sizes = {place.start: place.size for place in profile.placements}
    placement = MigPlacement(start, sizes.get(start, 1))
    enabled = random_.random() < 0.8
    slices = random_.choice([each.compute_slices for each in gpu.mig_profiles])

    def compute(control: MigControl) -> Any:
        """Of the size that the instance has, as the plugin makes it."""
        found = {each.number: each.profile for each in control.instances(gpu.uuid, gpu.mig_profiles)}
        known = {each.name: each.compute_slices for each in gpu.mig_profiles}
        return control.create_compute_instance(gpu.uuid, number, known[found[number]] if number in found else slices)

    def device(control: MigControl) -> Any:
        found = control.mig_device(gpu.uuid, number)
        return found if found is None else (found[0], found[1].startswith("MIG-"))

    calls: list[tuple[int, Callable[[MigControl], Any]]] = [
        (1, lambda control: control.set_mode(gpu.uuid, enabled=enabled)),
        (6, lambda control: control.create_gpu_instance(gpu.uuid, profile, placement)),
        (4, compute),
        (1, lambda control: control.destroy_compute_instances(gpu.uuid, number)),
        (2, lambda control: control.destroy_gpu_instance(gpu.uuid, number)),
        (1, device),
    ]
    return random_.choices([call for _, call in calls], [weight for weight, _ in calls])[0]


@pytest.mark.parametrize("seed", sampled(range(300), 5, 40))
def test_every_call_is_answered_as_by_the_driver(seed: int, tmp_path: Path) -> None:
    random_ = random.Random(seed)
    machine = read_machine(random_.choice(MACHINES))
    hardware = FakeMigHardware(machine)
    library = NvmlLibrary(lambda: FakeMigNvml(hardware))
    driver = NvmlMigControl(library)
    made = 0
    try:
        for at in range(MOST_STEPS):
            if at >= STEPS and made:
                break
            gpu = random_.choice(machine.gpus[1:3] or machine.gpus)  # of the A100s one in MIG mode and one out of it
            call = step(random_, gpu)
            files = recorded(machine, tmp_path)  # a plugin that is started anew each time
            assert answer(call, files) == answer(call, driver)
            assert files.mode(gpu.uuid) == driver.mode(gpu.uuid)
            found = files.instances(gpu.uuid, gpu.mig_profiles)
            assert found == driver.instances(gpu.uuid, gpu.mig_profiles)
            made = max(made, len(found))
    finally:
        library.close()
    assert made > 0


def test_a_reboot_leaves_no_instance_and_the_mode_as_recorded(tmp_path: Path) -> None:
    before = recorded(H100, tmp_path)
    before.set_mode(GPU, enabled=True)
    before.create_gpu_instance(GPU, SMALL, SMALL.placements[0])
    assert before.instances(GPU, (SMALL,)) == (GpuInstance(1, SMALL.name, SMALL.placements[0], has_compute=False),)
    after = recorded(H100, tmp_path, "boot-2")
    assert after.mode(GPU) == (False, False)
    assert after.instances(GPU, (SMALL,)) == ()


def test_no_two_devices_of_a_boot_have_one_uuid(tmp_path: Path) -> None:
    control, found = recorded(H100, tmp_path), set()
    control.set_mode(GPU, enabled=True)
    for _ in range(3):
        number = control.create_gpu_instance(GPU, SMALL, SMALL.placements[0])
        control.create_compute_instance(GPU, number, SMALL.compute_slices)
        device = control.mig_device(GPU, number)
        assert device is not None
        found.add(device[1])
        control.destroy_compute_instances(GPU, number)
        control.destroy_gpu_instance(GPU, number)
    assert len(found) == 3


def test_a_file_that_is_broken_is_named_with_who_must_act(tmp_path: Path) -> None:
    (tmp_path / f"{GPU}.json").write_text("{", encoding="utf-8")
    with pytest.raises(PermanentError, match=rf"remove {GPU}\.json from the plugin's folder once no claim"):
        recorded(H100, tmp_path).mode(GPU)


def test_nodes_are_numbered_as_the_driver_does() -> None:
    for gpu, gpu_instance, compute in ((0, 1, 0), (0, 7, 0), (3, 13, 7)):
        assert access_minors(gpu, gpu_instance, compute) == mig_node.access_minors(gpu, gpu_instance, compute)
