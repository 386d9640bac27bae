"""Finds the driver's files below its root."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dracaena.kubelet_plugin.adapters.driver_root import LIBRARY_FOLDERS, DriverRoot
from dracaena.kubelet_plugin.adapters.elf import read_elf
from dracaena.kubelet_plugin.prepare.driver_files import HOOK_NAME, DriverFile, DriverFiles

BINARY_FOLDERS = ("/opt/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin")
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
FIRMWARE_FOLDERS = ("/lib/firmware/updates/nvidia", "/lib/firmware/nvidia", "/usr/lib/firmware/nvidia")
FIRMWARE = "gsp*.bin"
SOCKETS = (
    "/run/nvidia-persistenced/socket",
    "/var/run/nvidia-persistenced/socket",
    "/run/nvidia-fabricmanager/socket",
    "/var/run/nvidia-fabricmanager/socket",
)
CONFIGURATION = (
    ("/usr/share/glvnd/egl_vendor.d", "10_nvidia.json"),
    ("/usr/share/egl/egl_external_platform.d", "*_nvidia_*.json"),
    ("/usr/share/nvidia", "nvoptix.bin"),
    ("/etc/OpenCL/vendors", "nvidia.icd"),
    ("/etc/vulkan/icd.d", "nvidia_icd*.json"),
    ("/usr/share/vulkan/icd.d", "nvidia_icd*.json"),
    ("/etc/vulkan/implicit_layer.d", "nvidia_layers.json"),
    ("/usr/share/vulkan/implicit_layer.d", "nvidia_layers.json"),
)
"""Folder and pattern of what OpenCL, Vulkan, EGL and OptiX read. Display servers are not served."""
HOOK_FOLDERS = ("/usr/bin", "/usr/local/nvidia/toolkit", "/usr/local/bin")

_OTHER_LIBRARIES = (
    "libnvidia-nvvm70.so.*",
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)
"""Libraries of the driver that carry versions of their own."""
_LEADING_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Names under which every driver has its libraries; their files carry the version."""
_PLUGIN_FOLDER = "vdpau"
_VERSIONED = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)?)", re.ASCII)


def find_driver_files(seen_root: str, *, host_root: str = "/") -> DriverFiles | None:
    """Return the files of the driver, None when there is none. Cost: some tens of small reads.

    `seen_root` is where this process sees the driver root, `host_root` where the host has it.
    """
    root = DriverRoot(seen_root)
    version = driver_version(root)
    if version is None:
        return None
    patterns = (f"*.so.{version}", *_OTHER_LIBRARIES)
    folders = _library_folders(root)
    libraries = _found(root, folders, patterns, _soname)
    plugins = _found(root, _plugin_folders(folders), patterns, _soname)
    files = [
        *_found(root, BINARY_FOLDERS, BINARIES),
        *_found(root, _firmware_folders(version), (FIRMWARE,)),
        *(file for folder, pattern in CONFIGURATION for file in _found(root, (folder,), (pattern,))),
    ]
    return DriverFiles(
        version=version,
        machine=_machine(root, libraries),
        libraries=libraries,
        plugins=plugins,
        files=tuple(sorted(files, key=lambda file: file.path)),
        sockets=_sockets(root),
        hook=_hook(root) if not host_root.rstrip("/") else None,
    )


@dataclass(frozen=True, slots=True)
class DriverState:
    """What a root holds as far as it can change under a running plugin. While it is the same, so are the files."""

    version: str | None
    folders_changed_ns: tuple[int | None, ...]
    """When a name last came into each folder that is searched, or left it; None: no such folder. An installation
    brings its files one by one, and packages of one driver version can be added later."""
    sockets: tuple[DriverFile, ...]
    """A socket that is mounted and has gone would fail the container: daemons come and go."""
    hook: bool


def driver_state(seen_root: str) -> DriverState:
    """Return the state of a root. Cost: some hundred look-ups, no file is read."""
    root = DriverRoot(seen_root)
    version = driver_version(root)
    folders = _library_folders(root)
    searched = (
        *folders,
        *_plugin_folders(folders),
        *BINARY_FOLDERS,
        *(_firmware_folders(version) if version is not None else ()),
        *(folder for folder, _ in CONFIGURATION),
    )
    changed_ns = tuple(_changed_ns(root, folder) for folder in searched)
    return DriverState(version, changed_ns, _sockets(root), _hook(root) is not None)


def driver_version(root: DriverRoot) -> str | None:
    """Return the version in the names of the driver's libraries; where the usual links lead decides between several."""
    for library in _LEADING_LIBRARIES:
        found = root.library(library)
        match = _VERSIONED.fullmatch(found.name) if found is not None else None
        if match is not None:
            return match[1]
    names = (name for folder in LIBRARY_FOLDERS for name in root.names(folder))
    matches = (_VERSIONED.fullmatch(name) for name in names)
    return next((match[1] for match in matches if match is not None), None)


def _library_folders(root: DriverRoot) -> tuple[str, ...]:
    """Return the usual folders, then those to which the usual links lead: Debian keeps a driver in one of its own."""
    leading = (root.library(library) for library in _LEADING_LIBRARIES)
    return tuple(dict.fromkeys((*LIBRARY_FOLDERS, *(str(path.parent) for path in leading if path is not None))))


def _plugin_folders(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{folder}/{_PLUGIN_FOLDER}" for folder in folders)


def _firmware_folders(version: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{version}" for folder in FIRMWARE_FOLDERS)


def _changed_ns(root: DriverRoot, folder: str) -> int | None:
    resolved = root.resolve(folder)
    try:
        return root.on_disk(resolved).stat().st_mtime_ns if resolved is not None else None
    except OSError:
        return None


def _found(
    root: DriverRoot,
    folders: Iterable[str],
    patterns: Iterable[str],
    soname: Callable[[Path], str | None] = lambda _: None,
) -> tuple[DriverFile, ...]:
    """Return the files whose names fit, each once: the first folder that leads to it holds. Order: by path."""
    wanted = tuple(patterns)
    by_real_path: dict[str, DriverFile] = {}
    for path in _paths(root, folders, wanted):
        real_path = root.resolve(path)
        if real_path is None or not root.on_disk(real_path).is_file():
            continue
        file = DriverFile(path, str(real_path), soname(root.on_disk(real_path)))
        by_real_path.setdefault(str(real_path), file)
    return tuple(sorted(by_real_path.values(), key=lambda file: file.path))


def _paths(root: DriverRoot, folders: Iterable[str], patterns: tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        for name in root.names(folder):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                yield f"{folder}/{name}"


def _soname(library: Path) -> str | None:
    facts = read_elf(library)
    return facts.soname if facts is not None else None


def _machine(root: DriverRoot, libraries: Iterable[DriverFile]) -> str | None:
    """Return the machine of the first library that tells."""
    facts = (read_elf(root.root / library.real_path.lstrip("/")) for library in libraries)
    return next((found.machine for found in facts if found is not None and found.machine is not None), None)


def _sockets(root: DriverRoot) -> tuple[DriverFile, ...]:
    found: dict[str, DriverFile] = {}
    for path in SOCKETS:
        real_path = root.resolve(path)
        if real_path is not None:
            found.setdefault(str(real_path), DriverFile(path, str(real_path)))
    return tuple(sorted(found.values(), key=lambda file: file.path))


def _hook(root: DriverRoot) -> str | None:
    """Return where the host has the hook tool. The runtime runs it on the host, so only the host's own / counts."""
    found = (root.resolve(f"{folder}/{HOOK_NAME}") for folder in HOOK_FOLDERS)
    return next((str(path) for path in found if path is not None), None)
