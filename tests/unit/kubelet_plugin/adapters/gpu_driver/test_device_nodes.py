"""The device nodes of the driver as they stand below a dev root."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import (
    CAPABILITY_MODE,
    DeviceNodes,
    DeviceNodesMissingError,
    DevRoot,
    MakeNode,
    look_at,
    make_capability_node,
)
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import ClaimNodes, NodeFacts
from dracaena.kubelet_plugin.prepare.cdi.spec import DeviceNode
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from support.gpu_driver_root import PROC_DEVICES, look_at_text, put, put_nodes
from support.plugin import prepared_claim

GPU = replace(prepared_claim("c", (3,)).devices[0], pci_bus_id="0000:3b:00.0")
MIG = replace(prepared_claim("c", (3,), access_minors=(30, 31)).devices[0], device=DeviceName("a"))


def node(root: Path, *devices: PreparedDevice, required: bool = True, make: MakeNode | None = None) -> ClaimNodes:
    put(root, "proc/devices", PROC_DEVICES.encode())
    nodes = DeviceNodes(
        [DevRoot(str(root), "/run/nvidia/driver")],
        required=required,
        proc=str(root / "proc"),
        sys=str(root / "sys"),
        look=look_at_text,
        make=make,
    )
    return nodes.of_claim(devices)


def test_nodes_are_named_as_containers_and_host_see_them(tmp_path: Path) -> None:
    put_nodes(tmp_path, [3])
    found = node(tmp_path, GPU)
    assert found.control[:2] == (
        DeviceNode("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"),
        DeviceNode("/dev/nvidia-uvm", "/run/nvidia/driver/dev/nvidia-uvm"),
    )
    assert found.devices == {GPU.device: (DeviceNode("/dev/nvidia3", "/run/nvidia/driver/dev/nvidia3"),)}


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("nvidiactl", "run nvidia-modprobe"),
        ("nvidia-uvm", "nvidia-modprobe -c0 -u"),
        ("nvidia3", "nvidia-modprobe -c3"),
        ("nvidia-caps/nvidia-cap31", "nvidia-smi -L"),
    ],
)
def test_a_node_that_is_missing_is_named_with_what_makes_it(tmp_path: Path, name: str, remedy: str) -> None:
    put_nodes(tmp_path, [3], **{"nvidia-caps/nvidia-cap30": "234:30", "nvidia-caps/nvidia-cap31": "234:31"})
    assert len(node(tmp_path, MIG).devices[MIG.device]) == 3
    (tmp_path / "dev" / name).unlink()
    with pytest.raises(DeviceNodesMissingError, match=f"^/run/nvidia/driver/dev/{name} is missing.*{remedy}"):
        node(tmp_path, MIG)


def test_the_nodes_of_mig_capabilities_are_made_where_they_are_missing_and_no_other(tmp_path: Path) -> None:
    put_nodes(tmp_path, [], **{"nvidia-caps/nvidia-cap30": "234:30"})
    made = []

    def make(path: str, major: int, minor: int) -> None:
        made.append((path, major, minor))
        put(tmp_path, path.removeprefix(f"{tmp_path}/"), f"{major}:{minor}".encode())

    with pytest.raises(DeviceNodesMissingError, match=r"^/run/nvidia/driver/dev/nvidia3 is missing[^;]*; [^;]*$"):
        node(tmp_path, MIG, make=make)
    assert made == [(f"{tmp_path}/dev/nvidia-caps/nvidia-cap31", 234, 31)]
    put_nodes(tmp_path, [3])
    assert len(node(tmp_path, MIG, make=make).devices[MIG.device]) == 3
    assert len(made) == 1


def test_a_node_that_cannot_be_made_says_why_and_who_makes_it(tmp_path: Path) -> None:
    put_nodes(tmp_path, [3], **{"nvidia-caps/nvidia-cap30": "234:30"})
    with pytest.raises(DeviceNodesMissingError, match=r"`nvidia-smi -L` .*cannot make it: Read-only file system"):
        node(tmp_path, MIG, make=lambda _path, _major, _minor: "Read-only file system")


def test_a_node_of_a_driver_without_capabilities_is_not_made(tmp_path: Path) -> None:
    """Its major is not known."""
    put_nodes(tmp_path, [3])
    put(tmp_path, "none/devices", b"Character devices:\n195 nvidia\n510 nvidia-uvm\n")

    def make(_path: str, _major: int, _minor: int) -> str:
        raise AssertionError

    nodes = DeviceNodes(
        [DevRoot(str(tmp_path), "/")], required=True, proc=str(tmp_path / "none"), look=look_at_text, make=make
    )
    with pytest.raises(DeviceNodesMissingError, match="nvidia-cap30 is missing"):
        nodes.of_claim([MIG])


def test_a_real_node_is_made_with_the_numbers_and_mode_of_the_driver(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-caps" / "nvidia-cap12"
    before = os.umask(0o077)
    try:
        failure = make_capability_node(str(path), 60, 12)
    finally:
        os.umask(before)
    if failure == os.strerror(errno.EPERM):
        pytest.skip("making device nodes takes root")
    assert failure is None
    assert look_at(str(path)) == NodeFacts(True, 60, 12)
    assert stat.S_IMODE(path.stat().st_mode) == CAPABILITY_MODE
    assert make_capability_node(str(path), 60, 13) is None
    assert look_at(str(path)) == NodeFacts(True, 60, 12), "what is there is judged, not replaced"


def test_a_folder_that_cannot_be_made_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "nvidia-caps").write_text("a file")
    assert make_capability_node(str(tmp_path / "nvidia-caps" / "nvidia-cap12"), 60, 12) == os.strerror(errno.EEXIST)


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [("nvidia-uvm", "511:0", "510:0"), ("nvidia3", "195:4", "195:3"), ("nvidiactl", "10:255", "195:255")],
)
def test_a_node_with_the_numbers_of_another_device_is_refused(
    tmp_path: Path, name: str, numbers: str, expected: str
) -> None:
    """The major of nvidia-uvm changes when its module is loaded anew."""
    put_nodes(tmp_path, [3], **{name: numbers})
    with pytest.raises(DeviceNodesMissingError, match=f"dev/{name} is device {numbers}, .* has it at {expected}"):
        node(tmp_path, GPU)


def test_a_file_in_place_of_a_node_is_refused(tmp_path: Path) -> None:
    put_nodes(tmp_path, [3], nvidia3="no numbers")
    with pytest.raises(DeviceNodesMissingError, match="dev/nvidia3 is not a character device"):
        node(tmp_path, GPU)


def test_every_node_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    put_nodes(tmp_path)
    (tmp_path / "dev/nvidia-uvm").unlink()
    with pytest.raises(DeviceNodesMissingError, match=r"nvidia-uvm is missing.*; .*nvidia3 is missing"):
        node(tmp_path, GPU)


def test_optional_nodes_come_when_they_are_there_and_right(tmp_path: Path) -> None:
    put_nodes(tmp_path, [3], **{"nvidia-uvm-tools": "9:9", "nvidia-modeset": "195:254"})
    assert [each.path for each in node(tmp_path, GPU).control] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-modeset",
    ]


def test_an_older_drivers_name_in_proc_devices_counts(tmp_path: Path) -> None:
    put_nodes(tmp_path, [3])
    put(
        tmp_path,
        "old/devices",
        b"Character devices:\n195 nvidia-frontend\n510 nvidia-uvm\n\nBlock devices:\n1 nvidia\n",
    )
    nodes = DeviceNodes([DevRoot(str(tmp_path), "/")], required=True, proc=str(tmp_path / "old"), look=look_at_text)
    assert nodes.of_claim([GPU]).control


def put_drm(root: Path) -> None:
    for name, numbers in (("card1", "226:1"), ("renderD128", "226:128")):
        put(root, f"sys/bus/pci/devices/0000:3b:00.0/drm/{name}/dev", f"{numbers}\n".encode())
        put(root, f"dev/dri/{name}", numbers.encode())
    (root / "dev/dri/by-path").mkdir()
    (root / "dev/dri/by-path/pci-0000:3b:00.0-card").symlink_to("../card1")
    (root / "dev/dri/by-path/pci-0000:3b:00.0-render").symlink_to("../renderD129")


def test_a_whole_gpu_has_the_graphics_nodes_of_its_pci_address(tmp_path: Path) -> None:
    put_nodes(tmp_path, [3])
    put_drm(tmp_path)
    put(tmp_path, "dev/dri/card0", b"226:0")
    assert [(drm.node.path, drm.by_path) for drm in node(tmp_path, GPU).drm[GPU.device]] == [
        ("/dev/dri/card1", "pci-0000:3b:00.0-card"),
        ("/dev/dri/renderD128", None),  # its link leads elsewhere
    ]


def test_a_graphics_node_of_another_device_is_not_given(tmp_path: Path) -> None:
    put_nodes(tmp_path, [3])
    put_drm(tmp_path)
    put(tmp_path, "dev/dri/card1", b"226:0")
    assert [drm.node.path for drm in node(tmp_path, GPU).drm[GPU.device]] == ["/dev/dri/renderD128"]


@pytest.mark.parametrize(("profile", "has"), [("1g-5gb", False), ("1g-24gb-gfx", True)])
def test_a_mig_device_has_graphics_nodes_when_its_profile_has_graphics(
    tmp_path: Path, profile: str, *, has: bool
) -> None:
    put_nodes(tmp_path, [3])
    put_drm(tmp_path)
    part = replace(GPU, device=DeviceName(f"mig-00000000-0000-4000-8000-000000000001-{profile}-0"))
    assert bool(node(tmp_path, part).drm.get(part.device)) is has


def test_a_driver_container_with_nodes_of_its_own_comes_before_the_host(tmp_path: Path) -> None:
    own, host = tmp_path / "own", tmp_path / "host"
    roots = [DevRoot(str(own), "/run/nvidia/driver"), DevRoot(str(host), "/")]
    nodes = DeviceNodes(roots, required=True, proc=str(tmp_path), look=look_at_text)
    put_nodes(host, [3])
    assert nodes.of_claim([GPU]).devices[GPU.device] == (DeviceNode("/dev/nvidia3"),)
    put_nodes(own, [3])
    (path,) = nodes.of_claim([GPU]).devices[GPU.device]
    assert path.host_path == "/run/nvidia/driver/dev/nvidia3"


def test_a_recorded_machine_needs_no_node(tmp_path: Path) -> None:
    found = node(tmp_path, GPU, required=False)
    assert found.control == ()
    assert [each.path for each in found.devices[GPU.device]] == ["/dev/nvidia3"]


def test_what_is_at_a_path_is_read_without_following_links(tmp_path: Path) -> None:
    numbers = os.stat("/dev/null").st_rdev  # noqa: PTH116 - the call that this is compared with
    assert look_at("/dev/null") == NodeFacts(True, os.major(numbers), os.minor(numbers))
    (tmp_path / "link").symlink_to("/dev/null")
    assert look_at(str(tmp_path / "link")) == NodeFacts(is_character_device=False)
    assert look_at(str(tmp_path / "gone")) is None
