"""The device nodes of the NVIDIA driver and of the kernel's graphics (DRM) on this host."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dracaena.api.errors import TemporaryError
from dracaena.api.vgpu import is_mdev_uuid
from dracaena.kubelet_plugin.adapters.sysfs.files import text
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import (
    CONTROL_NODES,
    ClaimNodes,
    DrmNode,
    NodeFacts,
    WantedNode,
    device_node,
    has_graphics,
    needs_gpu_driver,
    plain_nodes,
    problem,
    vfio_problem,
    vgpu_problem,
    wanted_nodes,
)
from dracaena.kubelet_plugin.prepare.cdi.spec import DeviceNode
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice

_DRM_NAME = re.compile(r"(card|renderD|controlD)[0-9]{1,10}", re.ASCII)
_VFIO_NAME = re.compile(r"vfio[0-9]{1,10}", re.ASCII)
_NUMBERS = re.compile(r"([0-9]{1,10}):([0-9]{1,10})", re.ASCII)
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_MAJOR = re.compile(r"\s*([0-9]{1,10}) (\S+)", re.ASCII)
"""A line of /proc/devices."""
_LINK_WORDS = {"card": "card", "renderD": "render"}
"""Prefix of a node's name → suffix of the link that udev makes."""


class DeviceNodesMissingError(TemporaryError):
    """A node is missing or is not the driver's: a container would get a GPU that it cannot use."""


@dataclass(frozen=True, slots=True)
class DevRoot:
    """A folder that holds a /dev."""

    seen: str
    """Where this process sees it."""
    host: str
    """Where the host has it."""


HOST = DevRoot("/", "/")
"""The host's own /dev."""

CAPABILITY_MODE = 0o444
"""Mode that the driver expects of a capability's node (DeviceFileMode in /proc/driver/nvidia/capabilities): opening it
for reading gives the capability, and nobody writes to it."""

MakeNode = Callable[[str, int, int], str | None]
"""Path, major, minor → why the node could not be made, None if it exists."""


def make_capability_node(path: str, major: int, minor: int) -> str | None:
    """Make a node as nvidia-modprobe does, and its folder; return why that failed. An existing node stays as it is."""
    node = Path(path)
    try:
        node.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not os.path.lexists(node):
            os.mknod(node, stat.S_IFCHR | CAPABILITY_MODE, os.makedev(major, minor))
            node.chmod(CAPABILITY_MODE)  # whatever our umask is
    except OSError as error:
        return error.strerror or str(error)
    return None


def look_at(path: str) -> NodeFacts | None:
    """Return what is at a path without following links, as container runtimes do; None if nothing is there."""
    try:
        facts = os.lstat(path)
    except OSError:
        return None
    return NodeFacts(stat.S_ISCHR(facts.st_mode), os.major(facts.st_rdev), os.minor(facts.st_rdev))


class DeviceNodes:
    """Finds the nodes of claims. Keeps no state: nodes may come and go at any time. Cost: some twenty small look-ups.

    Missing nodes of MIG capabilities are made with `make` (None: they are not). The driver has numbers for all possible
    instances, and no NVIDIA program makes the nodes when an instance is created.

    A GPU for virtual machines must still have a VFIO driver, a vGPU its type, and both the group that they were read
    with. The kernel makes their nodes, which no driver container has: they are searched only below `host`.

    Of several `roots` the first that has /dev/nvidiactl counts, otherwise the last. `required`: every needed node must
    exist and be the driver's own; otherwise, for recorded machines, only the presence of the control nodes is checked.
    """

    def __init__(
        self,
        roots: Sequence[DevRoot],
        *,
        required: bool,
        host: DevRoot = HOST,
        proc: str = "/proc",
        sys: str = "/sys",
        look: Callable[[str], NodeFacts | None] = look_at,
        make: MakeNode | None = None,
    ) -> None:
        self._roots = tuple(_plain(root) for root in roots)
        self._host = _plain(host)
        self._required = required
        self._proc = Path(proc)
        self._pci = Path(sys) / "bus/pci/devices"
        self._mdevs = Path(sys) / "bus/mdev/devices"
        self._look = look
        self._make = make

    def of_claim(self, devices: Sequence[PreparedDevice]) -> ClaimNodes:
        """Return the nodes of a claim's devices. Raises DeviceNodesMissingError naming every node that is wrong."""
        root = self._root()
        controls = CONTROL_NODES if needs_gpu_driver(devices) else ()
        if not self._required:
            control = tuple(wanted for wanted in controls if self._look(root.seen + wanted.path) is not None)
            return ClaimNodes(_named(control, root), plain_nodes(devices, root.host))
        majors = self._majors()
        by_device = {device.device: wanted_nodes(device, self._vfio_device(device)) for device in devices}
        control = tuple(wanted for wanted in controls if wanted.required or self._problem(wanted, root, majors) is None)
        every = dict.fromkeys((*control, *(wanted for nodes in by_device.values() for wanted in nodes)))
        roots = {wanted.path: self._root_of(device, root) for device in devices for wanted in by_device[device.device]}
        problems = [
            found
            for wanted in every
            if (found := self._problem(wanted, roots.get(wanted.path, root), majors)) is not None
        ]
        problems += [found for device in devices if (found := self._vfio_problem(device)) is not None]
        if problems:
            raise DeviceNodesMissingError("; ".join(problems))
        return ClaimNodes(
            control=_named(control, root),
            devices={
                device.device: _named(by_device[device.device], self._root_of(device, root)) for device in devices
            },
            drm={device.device: tuple(self._drm(device, root)) for device in devices if has_graphics(device)},
        )

    def _root(self) -> DevRoot:
        """Return the root that has the driver's nodes: a driver container may have made them in a /dev of its own."""
        with_gpu_driver = (root for root in self._roots if self._look(root.seen + CONTROL_NODES[0].path) is not None)
        return next(with_gpu_driver, self._roots[-1])

    def _root_of(self, device: PreparedDevice, of_gpu_driver: DevRoot) -> DevRoot:
        """Return the root that has the nodes of a device."""
        return self._host if device.is_passthrough else of_gpu_driver

    def _problem(self, wanted: WantedNode, root: DevRoot, majors: Mapping[str, int]) -> str | None:
        path = root.seen + wanted.path
        seen, failure = self._look(path), None
        major = next((majors[name] for name in wanted.drivers if name in majors), None)
        is_made = wanted.is_made and wanted.minor is not None
        if seen is None and is_made and self._make is not None and major is not None:
            assert wanted.minor is not None
            failure = self._make(path, major, wanted.minor)
            seen = self._look(path)
        found = problem(wanted, seen, majors, root.host + wanted.path)
        return f"{found} (the plugin cannot make it: {failure})" if found is not None and failure is not None else found

    def _vfio_problem(self, device: PreparedDevice) -> str | None:
        """Compare a GPU for virtual machines with what the kernel says of it now: the last reading may be a minute old,
        and a group's node, unlike the NVIDIA driver's, does not show which GPU it belongs to.
        """
        if not device.is_passthrough:
            return None
        folder = self._folder(device)
        group = _link(folder / "iommu_group")
        if device.is_vgpu:
            found = vgpu_problem(device, _vgpu_type(folder), group)
        else:
            found = vfio_problem(device, _link(folder / "driver"), group)
        if found is None and device.iommufd and self._vfio_device(device) is None:
            return (
                f"the kernel shows no VFIO device of GPU {device.device} in {folder}/vfio-dev, by which iommufd opens "
                "it: it needs Linux 6.6 with CONFIG_VFIO_DEVICE_CDEV; or leave `iommu: IOMMUFD` out of the VfioConfig"
            )
        return found

    def _folder(self, device: PreparedDevice) -> Path:
        """Return the sysfs folder of a GPU for virtual machines, or of a vGPU itself, not of its GPU."""
        if device.is_vgpu:
            return (self._mdevs if is_mdev_uuid(device.uuid) else self._pci) / device.uuid
        return self._pci / (device.pci_bus_id or "")

    def _vfio_device(self, device: PreparedDevice) -> str | None:
        """Return the name of a GPU's own node below /dev/vfio/devices, None while there is none."""
        if not device.iommufd:
            return None
        names = _names(self._folder(device) / "vfio-dev")
        return next((name for name in names if _VFIO_NAME.fullmatch(name)), None)

    def _majors(self) -> Mapping[str, int]:
        """Return the majors of character devices by driver (/proc/devices); none if it cannot be read."""
        try:
            text = (self._proc / "devices").read_text(encoding="ascii", errors="replace")
        except OSError:
            return {}
        lines = map(_MAJOR.fullmatch, text.partition("Block devices:")[0].splitlines())
        return {match[2]: int(match[1]) for match in lines if match is not None}

    def _drm(self, device: PreparedDevice, root: DevRoot) -> Iterator[DrmNode]:
        """Yield a GPU's DRM nodes, found by PCI address, in order of name: those that the kernel lists and /dev has."""
        address = (device.pci_bus_id or "").lower()
        if not _PCI_ADDRESS.fullmatch(address):
            return
        for name in _names(self._pci / address / "drm"):
            path = f"/dev/dri/{name}"
            numbers = _numbers(self._pci / address / "drm" / name / "dev")
            seen = self._look(root.seen + path)
            if not _DRM_NAME.fullmatch(name) or seen is None or not seen.is_character_device:
                continue
            if numbers is not None and numbers != (seen.major, seen.minor):
                continue
            yield DrmNode(device_node(path, root.host), _by_path(root, address, name))


def _plain(root: DevRoot) -> DevRoot:
    return DevRoot(root.seen.rstrip("/"), root.host.rstrip("/"))


def _named(wanted: Sequence[WantedNode], root: DevRoot) -> tuple[DeviceNode, ...]:
    return tuple(device_node(each.path, root.host) for each in wanted)


def _by_path(root: DevRoot, address: str, name: str) -> str | None:
    """Return the name of udev's link to a node, None if none leads to it."""
    word = _LINK_WORDS.get(name.rstrip("0123456789"))
    if word is None:
        return None
    link = f"pci-{address}-{word}"
    try:
        target = str(Path(f"{root.seen}/dev/dri/by-path/{link}").readlink())
    except OSError:
        return None
    return link if target in (f"../{name}", f"/dev/dri/{name}") else None


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in folder.iterdir()))
    except OSError:
        return ()


def _link(path: Path) -> str | None:
    """Return the last part of where a link leads; None: there is none."""
    try:
        return path.readlink().name
    except OSError:
        return None


def _vgpu_type(folder: Path) -> str | None:
    """Return the type of a vGPU as the kernel has it; None if it is not a vGPU."""
    if is_mdev_uuid(folder.name):
        return _link(folder / "mdev_type")
    found = text(folder / "nvidia/current_vgpu_type")
    return None if found in (None, "", "0") else found[:80]


def _numbers(file: Path) -> tuple[int, int] | None:
    """Return a node's numbers according to the kernel."""
    try:
        match = _NUMBERS.fullmatch(file.read_text(encoding="ascii", errors="replace").strip())
    except OSError:
        return None
    return (int(match[1]), int(match[2])) if match is not None else None
