"""What is read of /sys, on a tree of files."""

from __future__ import annotations

from pathlib import Path

from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.sysfs.devices import Sysfs
from support.fake_sysfs import add_card, add_device, make_gpu

GPU = PciAddress(0, 0x18, 0, 0)
SWITCH = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")


def test_a_device_tells_root_path_and_numa_node(tmp_path: Path) -> None:
    add_device(tmp_path, (*SWITCH, "0000:17:00.0"), str(GPU), numa=1)
    facts = Sysfs(str(tmp_path)).pci_device(GPU)
    assert facts is not None
    assert (facts.root, facts.numa_node) == ("pci0000:15", 1)
    assert facts.path == (*SWITCH, "0000:17:00.0", "0000:18:00.0")


def test_minus_one_is_no_numa_node(tmp_path: Path) -> None:
    add_device(tmp_path, SWITCH, str(GPU), numa=None)
    facts = Sysfs(str(tmp_path)).pci_device(GPU)
    assert facts is not None
    assert facts.numa_node is None


def test_a_numa_node_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    folder = add_device(tmp_path, SWITCH, str(GPU))
    (folder / "numa_node").write_text("none\n", encoding="ascii")
    facts = Sysfs(str(tmp_path)).pci_device(GPU)
    assert facts is not None
    assert facts.numa_node is None


def test_an_unknown_device_is_none(tmp_path: Path) -> None:
    assert Sysfs(str(tmp_path)).pci_device(GPU) is None


def test_the_root_may_itself_be_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real"
    add_device(real, SWITCH, str(GPU))
    (tmp_path / "sys").symlink_to(real)
    facts = Sysfs(str(tmp_path / "sys")).pci_device(GPU)
    assert facts is not None
    assert facts.root == "pci0000:15"


def test_cards_are_rdma_devices_and_ports_of_mellanox(tmp_path: Path) -> None:
    rdma = add_device(tmp_path, SWITCH, "0000:1a:00.0", vendor="0x15b3")
    plain = add_device(tmp_path, SWITCH, "0000:1b:00.0", vendor="0x15b3")
    office = add_device(tmp_path, SWITCH, "0000:1c:00.0", vendor="0x8086")
    efa = add_device(tmp_path, SWITCH, "0000:19:00.0", vendor="0x1d0f")
    add_card(tmp_path, "infiniband", "mlx5_0", rdma)
    add_card(tmp_path, "infiniband", "rdmap25s0", efa)
    add_card(tmp_path, "net", "ens1np0", rdma)
    add_card(tmp_path, "net", "ens2np0", plain)
    add_card(tmp_path, "net", "eno1", office)
    assert [nic.name for nic in Sysfs(str(tmp_path)).nics()] == ["rdmap25s0", "mlx5_0", "ens2np0"]


def test_virtual_functions_are_the_card_again(tmp_path: Path) -> None:
    card = add_device(tmp_path, SWITCH, "0000:1a:00.0", vendor="0x15b3")
    function = add_device(tmp_path, SWITCH, "0000:1a:00.2", vendor="0x15b3")
    (function / "physfn").symlink_to(card)
    add_card(tmp_path, "infiniband", "mlx5_0", card)
    add_card(tmp_path, "infiniband", "mlx5_2", function)
    assert [nic.name for nic in Sysfs(str(tmp_path)).nics()] == ["mlx5_0"]


def test_devices_that_are_not_on_pci_are_no_cards(tmp_path: Path) -> None:
    (tmp_path / "class/net/lo").mkdir(parents=True)
    (tmp_path / "class/infiniband/rxe0").mkdir(parents=True)
    assert Sysfs(str(tmp_path)).nics() == ()


def test_the_devices_of_the_driver_are_those_that_the_kernel_bound_to_it(tmp_path: Path) -> None:
    assert Sysfs(str(tmp_path)).bound_to_gpu_driver() == frozenset()
    folder = tmp_path / "bus/pci/drivers/nvidia"
    folder.mkdir(parents=True)
    for name in (str(GPU), "bind", "module", "new_id"):
        (folder / name).touch()
    assert Sysfs(str(tmp_path)).bound_to_gpu_driver() == {"0000:18:00.0"}


def test_gpus_of_nvidia_are_found_whether_the_driver_lists_them_or_not(tmp_path: Path) -> None:
    made = {bus: add_device(tmp_path, SWITCH, f"0000:{bus}:00.0") for bus in ("18", "19", "1a", "1b", "1c", "1d")}
    make_gpu(tmp_path, made["19"])
    make_gpu(tmp_path, made["18"], driver=None)
    make_gpu(tmp_path, made["1a"], driver="vfio-pci")
    make_gpu(tmp_path, made["1b"])
    (made["1b"] / "class").write_text("0x068000\n", encoding="ascii")  # an NVSwitch
    make_gpu(tmp_path, made["1c"])
    (made["1c"] / "physfn").symlink_to("../0000:19:00.0")
    assert Sysfs(str(tmp_path)).nvidia_gpus() == (GPU, PciAddress(0, 0x19, 0, 0))


def test_without_a_bus_there_are_no_gpus(tmp_path: Path) -> None:
    assert Sysfs(str(tmp_path)).nvidia_gpus() == ()
