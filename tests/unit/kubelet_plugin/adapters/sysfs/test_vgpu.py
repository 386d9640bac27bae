"""vGPUs as they are read from the files of a kernel, and what stands there that no kernel writes."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from pathlib import Path
from uuid import UUID

import pytest

from dracaena.api.vgpu import Vgpu
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.sysfs.vgpu import SysfsVgpu
from dracaena.kubelet_plugin.discovery.vm.vgpus import ExistingVgpus, VgpuBus, existing_vgpus, gpus_with_numbered_types
from support.fake_pci import FakePciBus
from support.fake_vgpu import A100_TYPES, H200_TYPES, T4_TYPES, FakeVgpus

T4, A100, H200 = "0000:18:00.0", "0000:41:00.0", "0000:81:00.0"
FIRST, SECOND = "aa618089-8b16-4d01-a136-25a0f3c73123", "bb618089-8b16-4d01-a136-25a0f3c73124"


@pytest.fixture
def vgpus(tmp_path: Path) -> FakeVgpus:
    made = FakeVgpus(FakePciBus(tmp_path))
    made.add_gpu(T4, T4_TYPES)
    return made


def bus_of(vgpus: FakeVgpus) -> VgpuBus:
    return SysfsVgpu(str(vgpus.root)).read()


def read(vgpus: FakeVgpus) -> ExistingVgpus:
    return existing_vgpus(bus_of(vgpus))


def problem(vgpus: FakeVgpus) -> str:
    found = read(vgpus)
    assert found.vgpus == ()
    (refused,) = found.refused
    assert refused.address in (FIRST, H200[:-4] + "04.0")
    return refused.reason


def test_a_mediated_device_is_read_with_its_gpu_type_group_and_framebuffer(vgpus: FakeVgpus) -> None:
    vgpus.create(T4, 231, FIRST)
    (found,) = read(vgpus).vgpus
    assert found == Vgpu(FIRST, T4, "nvidia-231", "GRID T4-2Q", 101, 2048 << 20)
    assert (found.device_name, found.resource, found.is_mediated) == (f"vgpu-{FIRST}", "nvidia.com/GRID_T4-2Q", True)
    assert (found.type.name, found.type.is_mig_backed) == ("T4-2Q", False)


def test_a_mediated_device_of_a_virtual_function_is_of_the_physical_gpu(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu(A100, A100_TYPES, mdev=False, group=2)
    function, *_ = vgpus.add_functions(A100, 4, mdev=True)
    vgpus.create(function, 475, FIRST)
    (found,) = read(vgpus).vgpus
    assert (found.parent, found.type.name, found.type.is_mig_backed) == (A100, "A100-1-5C", True)
    assert found.framebuffer_bytes == 4864 << 20, "as the description says, not by the 5 in its name"


def test_a_virtual_function_with_a_type_is_a_vgpu_and_one_without_is_none(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    functions = vgpus.add_functions(H200, 4)
    assert read(vgpus).vgpus == ()
    vgpus.set_type(functions[1], 1414)
    (found,) = read(vgpus).vgpus
    assert (found.identity, found.parent, found.type_id) == (functions[1], H200, "1414")
    assert (found.type_name, found.framebuffer_bytes) == ("NVIDIA H200X-1-18C", None)
    assert (found.device_name, found.is_mediated) == ("vgpu-0000-81-04-1", False)


def test_a_gpu_that_is_full_lists_no_types_so_its_vgpus_have_no_name_until_the_driver_tells(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    function, *_ = vgpus.add_functions(H200, 1)
    vgpus.set_type(function, 1428)
    assert gpus_with_numbered_types(bus_of(vgpus)) == (PciAddress.parse(H200),)
    assert "type 1428 has no name: no virtual function of GPU 0000:81:00.0 has room" in problem(vgpus)


def test_gpus_of_the_vgpu_manager_are_told_also_while_they_have_no_vgpu(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    vgpus.bus.add("0000:a1:00.0", 3, driver="nvidia")
    assert read(vgpus).parents == {PciAddress.parse(T4)}, "before sriov-manage nothing says that the H200 is one"
    vgpus.add_functions(H200, 2)
    assert {str(one) for one in read(vgpus).parents} == {T4, H200}


def test_a_machine_without_a_pci_bus_has_none(tmp_path: Path) -> None:
    assert SysfsVgpu(str(tmp_path / "no")).read() == VgpuBus()


def test_mediated_devices_of_other_makers_are_nobodys_business(vgpus: FakeVgpus) -> None:
    vgpus.create(T4, 231, FIRST)
    (vgpus.bus.device(T4) / "vendor").write_text("0x8086\n")
    assert read(vgpus) == ExistingVgpus()


def test_names_that_are_no_uuids_are_passed_over(vgpus: FakeVgpus) -> None:
    vgpus.create(T4, 231, FIRST)
    for name in ("..x", FIRST.upper(), f"{FIRST}0", "0000:18:00.0"):
        (vgpus.root / "bus/mdev/devices" / name).symlink_to(vgpus.mdev(FIRST).resolve())
    assert [one.identity for one in read(vgpus).vgpus] == [FIRST]


def test_one_that_goes_while_it_is_read_is_not_told_of(vgpus: FakeVgpus) -> None:
    vgpus.create(T4, 231, FIRST)
    shutil.rmtree(vgpus.mdev(FIRST).resolve())
    assert read(vgpus) == ExistingVgpus(parents=frozenset({PciAddress(0, 0x18, 0, 0)}))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "/mdev_type/name says '', expected the name of a type"),
        (b"\xff\xfe\n", "/mdev_type/name says '\ufffd\ufffd', expected the name of a type"),
        (b"T4-2Q\nT4-4Q\n", r"/mdev_type/name says 'T4-2Q\\nT4-4Q', expected"),
        (b"x" * 300, "/mdev_type/name says '…', expected"),
        (b"GRID T4\n", "its type nvidia-231 is called 'GRID T4', expected a name as `NVIDIA A100-40C`"),
        (b"GRID T4-2X\n", "is called 'GRID T4-2X', expected"),
        (b"GRID =T4-2Q\n", "is called 'GRID =T4-2Q', expected"),
        (b"GRID " + b"T" * 70 + b"-2Q\n", "expected a name as"),
    ],
)
def test_a_type_without_a_name_is_refused_with_what_was_seen(vgpus: FakeVgpus, content: bytes, words: str) -> None:
    vgpus.create(T4, 231, FIRST)
    (vgpus.bus.device(T4) / "mdev_supported_types/nvidia-231/name").write_bytes(content)
    assert re.search(words, problem(vgpus)), problem(vgpus)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "says '', expected the number of a type, or 0"),
        (b"-1\n", "says '-1', expected"),
        (b"0x586\n", "says '0x586', expected"),
        (b"1414 1428\n", "says '1414 1428', expected"),
        (b"99999999999\n", "says '99999999999', expected"),
    ],
)
def test_a_current_type_that_is_no_number_is_refused(vgpus: FakeVgpus, content: bytes, words: str) -> None:
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    function, *_ = vgpus.add_functions(H200, 1)
    (vgpus.bus.device(function) / "nvidia/current_vgpu_type").write_bytes(content)
    assert words in problem(vgpus)


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("mdev_type", "../mdev_supported_types/i915-1", "mdev_type leads to 'i915-1', expected nvidia-<number>"),
        ("driver", "../../drivers/no driver", "driver leads to 'no driver', expected the name of a driver"),
        ("iommu_group", "../../seven", "iommu_group leads to 'seven', expected the number of a group"),
        ("driver", "../../drivers/vfio-pci", "it has driver vfio-pci, expected nvidia-vgpu-vfio or vfio_mdev"),
        ("driver", "", "it has no driver, expected"),
        ("iommu_group", "", "it is in no IOMMU group: turn the IOMMU on"),
        ("mdev_type", "", "mdev_type is missing, expected a link to nvidia-<number>"),
    ],
)
def test_links_that_lead_elsewhere_are_refused(vgpus: FakeVgpus, name: str, target: str, words: str) -> None:
    vgpus.create(T4, 231, FIRST)
    link = vgpus.mdev(FIRST) / name
    link.unlink()
    if target:
        link.symlink_to(target)
    assert words in problem(vgpus)


def test_files_that_never_answer_hold_up_nothing(vgpus: FakeVgpus) -> None:
    vgpus.create(T4, 231, FIRST)
    for name in ("name", "description"):
        file = vgpus.bus.device(T4) / "mdev_supported_types/nvidia-231" / name
        file.unlink()
        os.mkfifo(file)
    assert "/mdev_type/name says" in problem(vgpus)


def test_a_list_of_types_that_is_none_names_nothing(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    functions = vgpus.add_functions(H200, 2)
    vgpus.set_type(functions[0], 1414)
    for content in (
        b"\xff" * 100,
        b"1414 NVIDIA H200X-1-18C\n",
        b"0 : NVIDIA H200X-1-18C\n",
        b"1414 : \n",
        b"x" * 70_000,
    ):
        (vgpus.bus.device(functions[1]) / "nvidia/creatable_vgpu_types").write_bytes(content)
        assert "type 1414 has no name" in problem(vgpus)


def test_the_lists_of_one_gpu_name_no_type_of_another(vgpus: FakeVgpus) -> None:
    """A number may mean something else there."""
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    vgpus.add_gpu(A100, H200_TYPES, mdev=False, group=3)
    function, *_ = vgpus.add_functions(H200, 1)
    vgpus.add_functions(A100, 2)
    vgpus.set_type(function, 1428)
    assert "type 1428 has no name" in problem(vgpus)


def test_a_vgpu_that_shares_its_group_is_refused(vgpus: FakeVgpus) -> None:
    vgpus.create(T4, 231, FIRST)
    (vgpus.root / "kernel/iommu_groups/101/devices/0000:18:00.0").symlink_to(vgpus.bus.device(T4))
    assert "IOMMU group 101 also holds '0000:18:00.0', and whoever gets the group gets all" in problem(vgpus)
    (vgpus.root / "kernel/iommu_groups/101/devices" / FIRST).unlink()
    assert "IOMMU group 101 does not list it" in problem(vgpus)


def test_a_virtual_function_without_an_iommu_is_refused_and_a_mediated_device_needs_none(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    functions = vgpus.add_functions(H200, 2)
    vgpus.set_type(functions[0], 1414)
    vgpus.create(T4, 231, FIRST)
    (vgpus.root / "kernel/iommu_groups/101/name").write_text("vfio-noiommu\n")
    found = read(vgpus)
    assert [one.identity for one in found.vgpus] == [FIRST]
    assert "one of VFIO without an IOMMU" in found.refused[0].reason


def test_a_virtual_function_that_vfio_pci_has_is_no_vgpu_of_the_vgpu_manager(vgpus: FakeVgpus) -> None:
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    functions = vgpus.add_functions(H200, 2)
    vgpus.set_type(functions[0], 1414)
    link = vgpus.bus.device(functions[0]) / "driver"
    link.unlink()
    link.symlink_to("../../drivers/vfio-pci")
    assert "it has driver vfio-pci, expected nvidia" in problem(vgpus)


def test_the_fake_answers_as_the_kernel_does(vgpus: FakeVgpus) -> None:
    """What is made and removed is seen by the next reading, and what cannot be made fails with the kernel's number."""
    with pytest.raises(OSError, match="no such type") as unknown:
        vgpus.create(T4, 999, FIRST)
    assert unknown.value.errno == errno.ENOENT
    for number in range(8):
        vgpus.create(T4, 231, str(UUID(int=number, version=4)))
    with pytest.raises(OSError, match="no room"):
        vgpus.create(T4, 231, FIRST)
    with pytest.raises(OSError, match="no room"):
        vgpus.create(T4, 222, FIRST)
    assert len(read(vgpus).vgpus) == 8
    for one in read(vgpus).vgpus:
        vgpus.write(f"bus/mdev/devices/{one.identity}/remove", "1")
    assert read(vgpus).vgpus == ()
    vgpus.create(T4, 222, FIRST)
    vgpus.open_by.add(FIRST)
    with pytest.raises(OSError, match="a virtual machine has it"):
        vgpus.write(f"bus/mdev/devices/{FIRST}/remove", "1")


def run_at_random(root: Path, seed: int) -> None:
    """Make and remove vGPUs of both forms, and compare each reading with what was made."""
    random_ = random.Random(seed)
    vgpus = FakeVgpus(FakePciBus(root))
    vgpus.add_gpu(T4, T4_TYPES)
    vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=2)
    functions = vgpus.add_functions(H200, 8)
    made: dict[str, tuple[str, str]] = {}
    for _ in range(25):
        identity = random_.choice([*functions, *(str(UUID(int=number, version=4)) for number in range(1, 9))])
        try:
            if identity in functions:
                number = random_.choice([0, 0, 1414, 1428, 7])
                vgpus.set_type(identity, number)
                made.pop(identity, None)
                if number:
                    made[identity] = (H200, str(number))
            elif identity in made:
                vgpus.write(f"bus/mdev/devices/{identity}/remove", "1")
                del made[identity]
            else:
                number = random_.choice([222, 231, 7])
                vgpus.create(T4, number, identity)
                made[identity] = (T4, f"nvidia-{number}")
        except OSError:
            if identity in functions and identity in made:
                made.pop(identity)  # the kernel resets the type where it refuses another one
                vgpus.set_type(identity, 0)
        found = read(vgpus)
        seen = {one.identity: (one.parent, one.type_id) for one in found.vgpus}
        unnamed = {one.address for one in found.refused}
        assert {**seen, **{one: made[one] for one in unnamed}} == made
        assert all(made[one][1] == "1428" for one in unnamed), "only a GPU that is full lists no types"


@pytest.mark.parametrize("seed", range(8))
def test_each_reading_has_exactly_the_vgpus_that_were_made(tmp_path: Path, seed: int) -> None:
    run_at_random(tmp_path, seed)
