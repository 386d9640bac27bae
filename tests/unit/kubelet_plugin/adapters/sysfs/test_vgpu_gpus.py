"""GPUs of the vGPU manager on a fake /sys: what can be made where, before and after something was made."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.sysfs.vgpu_gpus import SysfsVgpuGpus
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import OfferedType, VgpuGpu
from support.fake_pci import AUDIO_CLASS, FakePciBus
from support.fake_vgpu import T4_TYPES, FakeVgpus
from support.vgpu_layout_node import A100, H200, T4, VgpuLayoutNode

UUID = "aa618089-8b16-4d01-a136-25a0f3c73123"


@pytest.fixture
def node(tmp_path: Path) -> VgpuLayoutNode:
    return VgpuLayoutNode(tmp_path)


def rooms(gpu: VgpuGpu) -> list[dict[str, int]]:
    return [{number: room for number, room in each.room.items() if room} for each in gpu.functions]


def test_gpus_are_listed_by_address_with_their_pci_ids_and_functions(node: VgpuLayoutNode) -> None:
    assert [(gpu.index, gpu.address, gpu.device_id) for gpu in node.gpus()] == [
        (0, T4, 0x233010DE), (1, A100, 0x233010DE), (2, H200, 0x233010DE),
    ]  # fmt: skip
    assert [each.address for each in node.gpu(T4).functions] == [T4]
    assert [each.address for each in node.gpu(A100).functions] == [f"0000:41:04.{n}" for n in range(5)]
    assert [each.has_type_file for each in node.gpu(H200).functions] == [True] * 5


def test_a_gpu_of_another_driver_counts_as_an_index_and_offers_nothing(tmp_path: Path) -> None:
    vgpus = FakeVgpus(FakePciBus(tmp_path))
    vgpus.bus.add("0000:11:00.0", 9, driver="vfio-pci")
    vgpus.bus.add("0000:11:00.1", 9, driver="snd_hda_intel", pci_class=AUDIO_CLASS)
    vgpus.add_gpu(T4, T4_TYPES)
    bare, divided = SysfsVgpuGpus(str(tmp_path)).read({})
    assert (bare.index, bare.address, bare.functions, bare.types) == (0, "0000:11:00.0", (), {})
    assert (divided.index, divided.address) == (1, T4)


def test_mediated_types_count_down_and_those_that_cannot_be_mixed_go_to_none(node: VgpuLayoutNode) -> None:
    assert rooms(node.gpu(T4)) == [{"nvidia-222": 16, "nvidia-231": 8}]
    node.vgpus.create(T4, 231, UUID)
    found = node.gpu(T4)
    assert rooms(found) == [{"nvidia-231": 7}]
    assert [(each.identity, each.type_id) for each in found.vgpus] == [(UUID, "nvidia-231")]
    assert found.types == {"T4-1B": OfferedType("nvidia-222", 16), "T4-2Q": OfferedType("nvidia-231", 8)}
    assert found.knows_all_types


def test_types_are_named_by_the_last_word(node: VgpuLayoutNode) -> None:
    (node.vgpus.bus.device(T4) / "mdev_supported_types/nvidia-231/name").write_text("NVIDIA RTX 6000 Ada-48Q\n")
    assert set(node.gpu(T4).types) == {"T4-1B", "Ada-48Q"}


def test_a_virtual_function_holds_one_mediated_device(node: VgpuLayoutNode) -> None:
    node.vgpus.create(f"{A100[:-4]}04.0", 477, UUID)
    assert rooms(node.gpu(A100))[:2] == [{}, {"nvidia-475": 1, "nvidia-476": 1, "nvidia-477": 1}]


def test_types_of_virtual_functions_are_what_the_driver_tells_else_what_there_is_room_for(node: VgpuLayoutNode) -> None:
    told, names = node.told, {"H200X-1-18C", "H200X-141C"}
    node.told = {}
    assert (set(node.gpu(H200).types), node.gpu(H200).knows_all_types) == (names, True)
    node.vgpus.set_type(f"{H200[:-4]}04.0", 1428)
    assert (set(node.gpu(H200).types), node.gpu(H200).knows_all_types) == (set(), False)
    assert rooms(node.gpu(H200)) == [{}] * 5
    node.told = told
    assert (set(node.gpu(H200).types), node.gpu(H200).knows_all_types) == (names, True)
    assert node.gpu(H200).types["H200X-1-18C"] == OfferedType("1414", 7)


def test_a_vgpu_that_cannot_be_understood_is_on_nobody_knows_which_gpu(node: VgpuLayoutNode) -> None:
    (node.vgpus.bus.device(f"{H200[:-4]}04.1") / "nvidia/current_vgpu_type").write_text("many\n")
    with pytest.raises(
        TemporaryError, match=r"vGPU 0000:81:04.1 cannot be understood: .*says 'many', expected the number"
    ):
        node.gpus()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("mdev_supported_types/nvidia-231/available_instances", b"\xff many\n"),
        ("mdev_supported_types/nvidia-231/available_instances", b"-1\n"),
        ("mdev_supported_types/nvidia-231/available_instances", b"9" * 300),
        ("mdev_supported_types/nvidia-231/name", b"\0\n"),
    ],
)
def test_what_no_kernel_writes_is_no_room_or_no_type(node: VgpuLayoutNode, file: str, content: bytes) -> None:
    (node.vgpus.bus.device(T4) / file).write_bytes(content)
    found = node.gpu(T4)
    assert rooms(found)[0].get("nvidia-231", 0) == 0 or "T4-2Q" not in found.types


def test_a_device_id_that_is_none_matches_no_filter(node: VgpuLayoutNode) -> None:
    (node.vgpus.bus.device(T4) / "device").write_text("a T4\n")
    assert node.gpu(T4).device_id == 0
