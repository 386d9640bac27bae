"""Whole hosts as driver packages lay them out: libraries, links, firmware, configuration, device nodes, sockets."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dracaena.api.names import DeviceName, GpuUuid, PoolName, gpu_device_name
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import DeviceNodes, DevRoot
from dracaena.kubelet_plugin.adapters.gpu_driver.files import Kernel
from dracaena.kubelet_plugin.gpu_driver.installation import GpuDriverInstallation, GpuDriverPlaces
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice
from support.elf import library
from support.gpu_driver_root import PROC_DEVICES, look_at_text, put
from support.ld_so_cache import ld_so_cache

UBUNTU, RED_HAT, AARCH64 = "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/aarch64-linux-gnu"
OPERATOR = "/run/nvidia/driver"
HOOK = "/usr/bin/nvidia-cdi-hook"
POOL = PoolName("node-1")
VIDEO_GROUP = 44
"""Debian's group of who may use graphics."""

_SONAMES: Mapping[str, str] = {
    "libcuda": ".1",
    "libcudadebugger": ".1",
    "libnvidia-ml": ".1",
    "libnvidia-ptxjitcompiler": ".1",
    "libnvidia-nvvm": ".4",
    "libnvidia-opencl": ".1",
    "libnvidia-cfg": ".1",
    "libnvidia-allocator": ".1",
    "libnvidia-encode": ".1",
    "libnvcuvid": ".1",
    "libnvidia-opticalflow": ".1",
    "libnvidia-fbc": ".1",
    "libnvidia-ngx": ".1",
    "libnvoptix": ".1",
    "libGLX_nvidia": ".0",
    "libEGL_nvidia": ".0",
    "libGLESv1_CM_nvidia": ".1",
    "libGLESv2_nvidia": ".2",
    "libnvidia-glcore": "",
    "libnvidia-eglcore": "",
    "libnvidia-glsi": "",
    "libnvidia-glvkspirv": "",
    "libnvidia-tls": "",
    "libnvidia-rtcore": "",
}
"""Libraries of every driver since 535 → what follows `.so` in their SONAME; empty: the driver's version."""
_SINCE: Mapping[int, Mapping[str, str]] = {
    535: {"libnvidia-gpucomp": "", "libnvidia-pkcs11-openssl3": "", "libnvidia-vksc-core": ".1"},
    570: {"libnvidia-sandboxutils": ".1"},
    590: {"libnvidia-tileiras": ""},
}
_UNTIL_550: Mapping[str, str] = {"libnvidia-vulkan-producer": "plain", "libnvidia-pkcs11": ""}
_PLAIN_LINKS = ("libcuda", "libnvidia-ml", "libnvcuvid", "libnvidia-encode", "libnvidia-allocator", "libnvidia-fbc")
"""Of which packages bring a link without any version."""
_PLATFORMS = {"libnvidia-egl-gbm": "1.1.2", "libnvidia-egl-wayland": "1.1.19"}
_PLATFORMS_SINCE_570 = {"libnvidia-egl-xcb": "1.0.1", "libnvidia-egl-xlib": "1.0.1", "libnvidia-egl-wayland2": "1.0.0"}

_PROGRAMS = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
    *("nvidia-xconfig", "nvidia-modprobe", "nvidia-bug-report.sh"),
)
_SHARED = (
    *("glvnd/egl_vendor.d/10_nvidia.json", "nvidia/nvoptix.bin", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    *("egl/egl_external_platform.d/15_nvidia_gbm.json", "egl/egl_external_platform.d/10_nvidia_wayland.json"),
    *("nvidia/nvidia-application-profiles-rc", "vulkan/implicit_layer.d/nvidia_layers.json"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """A MIG device."""

    uuid: str
    gpu_instance: int
    access_minors: tuple[int, int]
    graphics: bool = False


@dataclass(frozen=True, slots=True)
class TreeGpu:
    """A GPU, or several MIG devices in place of it."""

    uuid: str
    minor: int
    address: str
    drm: tuple[tuple[str, int], ...]
    """Nodes below /dev/dri with their minors."""
    parts: tuple[Part, ...] = ()

    def devices(self) -> Iterator[PreparedDevice]:
        """Yield what a claim of all of it holds."""
        whole = PreparedDevice(
            request="gpus",
            pool=POOL,
            device=gpu_device_name(self.uuid),
            uuid=GpuUuid(self.uuid),
            minor=self.minor,
            pci_bus_id=self.address,
        )
        if not self.parts:
            yield whole
        for part in self.parts:
            profile = "1g-24gb-gfx" if part.graphics else "1g-5gb"
            yield replace(
                whole,
                device=DeviceName(f"mig-{self.uuid.removeprefix('GPU-')}-{profile}-{part.gpu_instance}"),
                uuid=GpuUuid(part.uuid),
                parent_uuid=GpuUuid(self.uuid),
                gpu_instance_id=part.gpu_instance,
                access_minors=part.access_minors,
            )


def gpu_uuid(number: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{number:012d}"


GPUS = (
    TreeGpu(gpu_uuid(1), 0, "0000:3b:00.0", (("card1", 1), ("renderD128", 128))),
    TreeGpu(gpu_uuid(2), 3, "0001:af:00.0", (("card2", 2), ("renderD129", 129))),
)
DIVIDED = (
    TreeGpu(
        gpu_uuid(1),
        0,
        "0000:3b:00.0",
        (("card1", 1), ("renderD128", 128)),
        (
            Part("MIG-00000000-0000-4000-8000-00000000000a", 7, (66, 67)),
            Part("MIG-00000000-0000-4000-8000-00000000000b", 9, (84, 85), graphics=True),
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a host has its driver."""

    version: str = "580.65.06"
    folder: str = UBUNTU
    driver_root: str = "/"
    merged_usr: bool = True
    """/lib, /lib64 and /bin are links into /usr."""
    own_nodes: bool = False
    """The device nodes are in the driver root's /dev."""
    alternatives: bool = False
    """Debian: the driver has a folder of its own, and absolute links through /etc/alternatives lead there."""
    cached: bool = False
    """The loader's cache names the libraries."""
    vulkan: str = "/usr/share/vulkan/icd.d/nvidia_icd.json"
    programs: str = "/usr/bin"
    machine: int = 62
    gpus: tuple[TreeGpu, ...] = GPUS
    others: tuple[str, ...] = ()
    """Versions of which libraries are left over from an earlier driver."""
    daemons: bool = True
    extra: tuple[str, ...] = ()
    """Further empty files of the driver root."""

    @property
    def dev_root(self) -> str:
        """Where the host has the /dev with the nodes."""
        return self.driver_root if self.own_nodes else "/"


LAYOUTS: Mapping[str, Layout] = {
    "ubuntu-550": Layout("550.163.01"),
    "ubuntu-580": Layout(extra=("/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json",)),
    "ubuntu-580-without-merged-usr": Layout(merged_usr=False),
    "red-hat-570": Layout("570.172.08", RED_HAT, vulkan="/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json"),
    "red-hat-590": Layout("590.44.01", RED_HAT, vulkan="/etc/vulkan/icd.d/nvidia_icd.json"),
    "flat-580": Layout(folder="/usr/lib", cached=True),
    "debian-535": Layout("535.261.03", alternatives=True),
    "operator-580": Layout(driver_root=OPERATOR, own_nodes=True),
    "operator-570-nodes-on-host": Layout("570.172.08", driver_root=OPERATOR),
    "operator-535-red-hat": Layout("535.261.03", RED_HAT, driver_root=OPERATOR, own_nodes=True),
    "operator-535-alternatives": Layout("535.261.03", driver_root=OPERATOR, own_nodes=True, alternatives=True),
    "gke-535": Layout(
        "535.261.03",
        "/lib64",
        driver_root="/home/kubernetes/bin/nvidia",
        merged_usr=False,
        vulkan="/vulkan/icd.d/nvidia_icd.json",
        programs="/bin",
        daemons=False,
    ),
    "arm-580": Layout(folder=AARCH64, machine=183),
    "left-overs-550": Layout("550.163.01", others=("535.261.03", "570.172.08")),
    "divided-580": Layout(gpus=DIVIDED),
    "divided-operator-580": Layout(driver_root=OPERATOR, own_nodes=True, gpus=DIVIDED),
}

MakeNode = Callable[[Path, int, int], None]
"""Makes a character device of a major and a minor."""


def text_node(path: Path, major: int, minor: int) -> None:
    """Write what look_at_text() reads as a device node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{major}:{minor}")


def real_node(path: Path, major: int, minor: int) -> None:
    """Make a device node, below dri/ as udev does. Only root may."""
    path.parent.mkdir(parents=True, exist_ok=True)
    of_drm = path.parent.name == "dri"
    os.mknod(path, stat.S_IFCHR, os.makedev(major, minor))
    os.chown(path, 0, VIDEO_GROUP if of_drm else 0)
    path.chmod(0o660 if of_drm else 0o666)


def make_host(host: Path, layout: Layout, make_node: MakeNode = text_node) -> None:
    """Write a host with this layout into an empty folder."""
    root = host / layout.driver_root.lstrip("/")
    root.mkdir(parents=True, exist_ok=True)
    if layout.merged_usr:
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / "usr" / name).mkdir(parents=True)
            (root / name).symlink_to(f"usr/{name}")
    _put_gpu_driver(root, layout, layout.version)
    for version in layout.others:
        _put_libraries(root, layout, version, layout.folder)
    _put_daemons(root, layout)
    for path in layout.extra:
        put(root, path)
    _put_nodes(host, layout, make_node)
    put(host, HOOK, " ".join(sorted(COMMANDS)).encode()).chmod(0o755)
    put(host, "/sys/module/nvidia/version", f"{layout.version}\n".encode())


def places_of(host: Path, layout: Layout) -> GpuDriverPlaces:
    """Return where a plugin finds the driver of a host that it sees in this folder."""
    seen = str(host / layout.driver_root.lstrip("/"))
    return GpuDriverPlaces(seen, layout.driver_root, str(host))


def installation_of(host: Path, layout: Layout) -> GpuDriverInstallation:
    return GpuDriverInstallation(places_of(host, layout), required=True, kernel=Kernel(str(host / "sys")))


def nodes_of(host: Path, layout: Layout) -> DeviceNodes:
    """Return what finds the host's device nodes, written as text."""
    folders = dict.fromkeys((layout.driver_root, "/"))
    roots = [DevRoot(str(host / folder.lstrip("/")), folder) for folder in folders]
    return DeviceNodes(roots, required=True, proc=str(host / "proc"), sys=str(host / "sys"), look=look_at_text)


def _put_gpu_driver(root: Path, layout: Layout, version: str) -> None:
    folder = f"{layout.folder}/nvidia/current" if layout.alternatives else layout.folder
    names = _put_libraries(root, layout, version, folder)
    if layout.alternatives:
        for name in names:
            link(root, f"/etc/alternatives/nvidia--{name}", f"{folder}/{name}")
            link(root, f"{layout.folder}/{name}", f"/etc/alternatives/nvidia--{name}")
    if layout.cached:
        put(root, "/etc/ld.so.cache", ld_so_cache({name: f"{folder}/{name}" for name in sorted(names)}))
    modules = f"{layout.folder if layout.folder == RED_HAT else '/usr/lib'}/xorg/modules"
    put(root, f"{modules}/drivers/nvidia_drv.so", library(None, layout.machine))
    put(
        root,
        f"{modules}/extensions/libglxserver_nvidia.so.{version}",
        library("libglxserver_nvidia.so", layout.machine),
    )
    link(root, f"{modules}/extensions/libglxserver_nvidia.so", f"libglxserver_nvidia.so.{version}")
    put(root, f"{folder}/vdpau/libvdpau_nvidia.so.{version}", library("libvdpau_nvidia.so.1", layout.machine))
    link(root, f"{folder}/vdpau/libvdpau_nvidia.so.1", f"libvdpau_nvidia.so.{version}")
    link(root, f"{folder}/gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1")
    for program in _PROGRAMS:
        put(root, f"{layout.programs}/{program}").chmod(0o755)
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        put(root, f"/lib/firmware/nvidia/{version}/{name}")
    for path in _SHARED:
        put(root, f"/usr/share/{path}")
    put(root, layout.vulkan)
    put(root, "/etc/OpenCL/vendors/nvidia.icd")


def _put_libraries(root: Path, layout: Layout, version: str, folder: str) -> dict[str, None]:
    """Add a driver's libraries; return the names of the links to them. Links of another version stay as they are."""
    release = int(version.partition(".")[0])
    libraries = {**_SONAMES, **(_UNTIL_550 if release <= 550 else {})}
    for since, more in _SINCE.items():
        libraries |= more if release >= since else {}
    links: dict[str, None] = {}
    for name, suffix in libraries.items():
        file = f"{name}.so.{version}"
        soname = f"{name}.so" if suffix == "plain" else f"{name}.so{suffix or f'.{version}'}"
        put(root, f"{folder}/{file}", library(soname, layout.machine))
        links |= dict.fromkeys(_library_links(root, folder, name, file, soname))
    others = {**_PLATFORMS, **(_PLATFORMS_SINCE_570 if release >= 570 else {})}
    for name, own in others.items():
        put(root, f"{folder}/{name}.so.{own}", library(f"{name}.so.1", layout.machine))
        links |= dict.fromkeys(_library_links(root, folder, name, f"{name}.so.{own}", f"{name}.so.1"))
    if release >= 580:
        put(root, f"{folder}/libnvidia-nvvm70.so.4", library("libnvidia-nvvm70.so.4", layout.machine))
    return links


def _library_links(root: Path, folder: str, name: str, file: str, soname: str) -> Iterator[str]:
    if soname != file:
        link(root, f"{folder}/{soname}", file)
        yield soname
    if name in _PLAIN_LINKS:
        link(root, f"{folder}/{name}.so", soname)
        yield f"{name}.so"


def _put_daemons(root: Path, layout: Layout) -> None:
    if not layout.daemons:
        return
    for name in ("nvidia-persistenced", "nvidia-fabricmanager"):
        folder = root / "run" / name
        folder.mkdir(parents=True)
        os.mknod(folder / "socket", stat.S_IFSOCK | 0o666)
    (root / "var").mkdir(exist_ok=True)
    (root / "var/run").symlink_to("/run")


def _put_nodes(host: Path, layout: Layout, make_node: MakeNode) -> None:
    folder = host / layout.dev_root.lstrip("/") / "dev"
    numbers = {
        "nvidiactl": (195, 255),
        "nvidia-uvm": (510, 0),
        "nvidia-uvm-tools": (510, 1),
        "nvidia-modeset": (195, 254),
    }
    for name, (major, minor) in numbers.items():
        make_node(folder / name, major, minor)
    put(host, "/proc/devices", PROC_DEVICES.encode())
    minors = []
    for gpu in layout.gpus:
        make_node(folder / f"nvidia{gpu.minor}", 195, gpu.minor)
        for name, minor in gpu.drm:
            make_node(folder / "dri" / name, 226, minor)
            put(host, f"/sys/bus/pci/devices/{gpu.address}/drm/{name}/dev", f"226:{minor}\n".encode())
            word = "card" if name.startswith("card") else "render"
            link(folder.parent, f"/dev/dri/by-path/pci-{gpu.address}-{word}", f"../{name}")
        for part in gpu.parts:
            instance = f"gpu{gpu.minor}/gi{part.gpu_instance}"
            minors += [f"{instance}/access {part.access_minors[0]}", f"{instance}/ci0/access {part.access_minors[1]}"]
            for minor in part.access_minors:
                make_node(folder / f"nvidia-caps/nvidia-cap{minor}", 234, minor)
    put(host, "/proc/driver/nvidia-caps/mig-minors", "".join(f"{line}\n" for line in minors).encode())


def link(root: Path, path: str, target: str) -> None:
    """Add a symbolic link, unless something is there."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink() and not place.exists():
        place.symlink_to(target)
