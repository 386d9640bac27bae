from __future__ import annotations

import os
from pathlib import Path

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.kernel.pci_holders import PciHolders
from dracaena.kubelet_plugin.ports import OpeningProcess

GPU, OTHER = "0000:18:00.0", "0000:3b:00.0"
NULL, ZERO, FULL = "/dev/null", "/dev/zero", "/dev/full"
"""Nodes 1:3, 1:5 and 1:7 of the kernel's `mem`, which stand for nodes of drivers."""


def process(root: Path, pid: int, command: str, *opened: str) -> None:
    folder = root / "proc" / str(pid) / "fd"
    folder.mkdir(parents=True)
    (folder.parent / "comm").write_text(f"{command}\n")
    for number, path in enumerate(opened):
        (folder / str(number)).symlink_to(path)


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    put(tmp_path, "proc/devices", "Character devices:\n  1 nvidia\n 10 misc\n\nBlock devices:\n  7 loop\n")
    put(tmp_path, f"proc/driver/nvidia/gpus/{GPU}/information", "Model: \t\t H100\nDevice Minor: \t 3\n")
    put(tmp_path, f"proc/driver/nvidia/gpus/{OTHER}/information", "Device Minor: \t 5\n")
    for address in (GPU, OTHER):
        put(tmp_path, f"sys/bus/pci/devices/{address}/class", "0x030200\n")
    process(tmp_path, 4711, "python", "/nowhere", NULL)
    process(tmp_path, 17, "nvidia-persiste", ZERO, NULL)
    process(tmp_path, 5, "bash", "/etc/hostname")
    process(tmp_path, 6, "other", ZERO)
    return tmp_path


def holders(node: Path, address: str = GPU, group: int | None = None) -> tuple[OpeningProcess, ...]:
    return PciHolders(str(node / "proc"), str(node / "sys")).holders(address, group)


def test_who_has_the_node_of_a_gpu_open_is_named_in_the_order_of_process_ids(node: Path) -> None:
    assert holders(node) == (OpeningProcess(17, "nvidia-persiste"), OpeningProcess(4711, "python"))
    assert str(holders(node)[1]) == "python (PID 4711)"
    assert [holder.pid for holder in holders(node, OTHER)] == [6, 17]


def test_where_the_driver_does_not_say_which_node_it_is_all_gpus_count(node: Path) -> None:
    (node / f"proc/driver/nvidia/gpus/{GPU}/information").unlink()
    assert [holder.pid for holder in holders(node)] == [6, 17, 4711]


def test_the_nodes_of_gpus_say_nothing_of_one_that_vfio_has_nor_of_a_sound_card(node: Path) -> None:
    device = node / "sys/bus/pci/devices" / GPU
    (device / "driver").symlink_to("../drivers/vfio-pci")
    assert holders(node) == ()
    put(node, "sys/bus/pci/devices/0000:18:00.1/class", "0x040300\n")
    assert holders(node, "0000:18:00.1") == ()
    put(node, "sys/bus/pci/devices/0000:18:00.1/sound/card0/controlC0/dev", "1:3\n")
    assert [holder.pid for holder in holders(node, "0000:18:00.1")] == [17, 4711]


@pytest.mark.parametrize("file", [f"bus/pci/devices/{GPU}/drm/card1/dev", "class/vfio/40/dev"])
def test_a_display_node_and_a_group_of_vfio_count_too(node: Path, file: str) -> None:
    process(node, 9, "qemu", FULL)
    put(node, f"sys/{file}", "1:7\n")
    assert OpeningProcess(9, "qemu") in holders(node, group=40)


def test_who_has_the_group_open_counts_though_the_device_has_a_node_of_its_own_too(node: Path) -> None:
    device = node / "sys/bus/pci/devices" / GPU
    (device / "driver").symlink_to("../drivers/vfio-pci")
    put(node, f"sys/bus/pci/devices/{GPU}/vfio-dev/vfio0/dev", "1:9\n")  # as every kernel since 6.6 has both
    put(node, "sys/class/vfio/40/dev", "1:7\n")
    assert holders(node, group=40) == ()
    process(node, 9, "qemu", FULL)
    assert holders(node, group=40) == (OpeningProcess(9, "qemu"),)


@pytest.mark.parametrize("file", ["bus/mdev/devices/some-uuid/vfio-dev/vfio3/dev", "class/vfio/40/dev"])
def test_who_has_a_vgpu_open_is_told_without_who_has_its_gpu(node: Path, file: str) -> None:
    made = PciHolders(str(node / "proc"), str(node / "sys"))
    process(node, 9, "qemu", FULL)
    assert made.vgpu_holders("bus/mdev/devices/some-uuid", 40) == ()
    put(node, f"sys/{file}", "1:7\n")
    assert made.vgpu_holders("bus/mdev/devices/some-uuid", 40) == (OpeningProcess(9, "qemu"),)


def test_this_very_process_is_seen_by_the_real_proc(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/vfio/40/dev", "1:7\n")
    made = PciHolders(root=str(tmp_path / "sys"))
    opened = os.open(FULL, os.O_RDONLY)
    try:
        assert os.getpid() in [holder.pid for holder in made.holders(GPU, 40)]
    finally:
        os.close(opened)
    assert os.getpid() not in [holder.pid for holder in made.holders(GPU, 40)]


def test_where_a_look_at_the_open_files_does_not_end_nobody_is_taken_for_nobody(node: Path) -> None:
    """Here because it gets no time; on a node because a file system does not answer."""
    made = PciHolders(str(node / "proc"), str(node / "sys"), look_s=0)
    with pytest.raises(TemporaryError, match=r"is not known who has a GPU open: .* file system that does not answer"):
        made.holders(GPU, None)


def test_where_the_processes_cannot_be_listed_nobody_is_taken_for_nobody(node: Path, tmp_path: Path) -> None:
    (node / "proc").rename(tmp_path / "gone")
    put(node, "sys/class/vfio/40/dev", "1:7\n")
    with pytest.raises(TemporaryError, match=r"is not known who has a GPU open: the scan of .* failed"):
        holders(node, group=40)
