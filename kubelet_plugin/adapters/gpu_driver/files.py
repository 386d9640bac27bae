"""Finds the driver's files below its root."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from dracaena.host.adapters.gpu_driver.root import LD_SO_CACHE, LIBRARY_FOLDERS, GpuDriverRoot, is_plain_path
from dracaena.kubelet_plugin.adapters.gpu_driver.elf import read_elf
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverFile, GpuDriverFiles, plain_name

BINARY_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/bin")
"""The first one that has a program counts."""
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-xconfig",
)
FIRMWARE = ("gsp*.bin", "ucodes*.bin")
SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
SOCKET_FOLDERS = ("/run", "/var/run")
MPS_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where NVIDIA's MPS daemon has its pipes unless it is told otherwise

CONFIGURATION_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
CONFIGURATION = (
    ("/usr/share", "glvnd/egl_vendor.d/10_nvidia.json"),
    ("/usr/share", "egl/egl_external_platform.d/15_nvidia_gbm.json"),
    ("/usr/share", "egl/egl_external_platform.d/10_nvidia_wayland.json"),
    ("/usr/share", "egl/egl_external_platform.d/09_nvidia_wayland2.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xcb.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xlib.json"),
    ("/usr/share", "nvidia/nvoptix.bin"),
    ("/usr/share", "X11/xorg.conf.d/10-nvidia.conf"),
    ("/usr/share", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    ("/etc", "OpenCL/vendors/nvidia.icd"),
)
"""The folder of a file in containers, and its path below that. The root may have it in any of CONFIGURATION_FOLDERS."""
VULKAN = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
"""The same for /etc of the container; drivers on GKE have them right in their root."""

_LIBRARIES_WITH_OTHER_VERSIONS = (
    "libnvidia-nvvm70.so.*",
    "libnvidia-egl-gbm.so.*.*",
    "libnvidia-egl-wayland.so.*.*",
    "libnvidia-egl-wayland2.so.*.*",
    "libnvidia-egl-xcb.so.*.*",
    "libnvidia-egl-xlib.so.*.*",
)
"""Libraries of the driver that carry versions of their own."""
_LEADING_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Names of libraries that every driver has; their files carry the version."""
ESSENTIAL_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
"""Libraries without which no CUDA program starts, and no program sees a GPU."""
_DRIVER_LIBRARY = re.compile(r"lib(?:nvidia-|cuda\.|GLX_nvidia|EGL_nvidia|GLES\w+_nvidia|nvcuvid|nvoptix)")
_PLUGIN_FOLDER = "vdpau"
_VERSIONED = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.([0-9]+\.[0-9]+(?:\.[0-9]+)?)", re.ASCII)
_VERSION = re.compile(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?", re.ASCII)

_X_FOLDERS = tuple(
    f"{folder}/{part}"
    for folder in (
        *("/usr/lib/xorg/modules", "/usr/lib/xorg/modules/updates"),
        *("/usr/lib64/xorg/modules", "/usr/lib64/xorg/modules/updates"),
        *("/usr/X11R6/lib/modules", "/usr/X11R6/lib64/modules"),
    )
    for part in ("drivers", "extensions")
)
_X_FOLDERS_OF_LIBRARIES = (
    *("nvidia/xorg", "xorg/modules/drivers", "xorg/modules/extensions"),
    *("xorg/modules/updates/drivers", "xorg/modules/updates/extensions"),
)
"""Below each folder of the driver's libraries; searched first."""


class Kernel:
    """What the kernel says about the loaded driver, below `sys`, normally /sys."""

    def __init__(self, sys: str = "/sys") -> None:
        self._modules = Path(sys) / "module"

    def gpu_driver_version(self) -> str | None:
        """Return the version of the loaded module, None if none is loaded or it has no version."""
        version = _text(self._modules / "nvidia/version")
        return version if _VERSION.fullmatch(version) else None

    def firmware_folders(self) -> tuple[str, ...]:
        """Return where the kernel looks for firmware, in its order."""
        release, custom = os.uname().release, _text(self._modules / "firmware_class/parameters/path")
        usual = (f"/lib/firmware/updates/{release}", "/lib/firmware/updates", f"/lib/firmware/{release}")
        return (*((custom,) if is_plain_path(custom) else ()), *usual, "/lib/firmware", "/usr/lib/firmware")


@dataclass(frozen=True, slots=True)
class GpuDriverState:
    """What can change in a root while the plugin runs. While this stays the same, so do the files."""

    version: str | None
    """Version of the libraries that containers get; None if there are none of the loaded driver."""
    other_version: str | None
    """Version of libraries that exist although another driver is loaded."""
    folders_changed_ns: tuple[int | None, ...]
    """When a name was last added to or removed from each searched folder; None: no such folder. An installation adds
    its files one by one, and packages of one driver version can be added later."""
    sockets: tuple[GpuDriverFile, ...]
    """Sockets of daemons, which come and go: mounting one that is gone would fail the container."""


def gpu_driver_state(root: GpuDriverRoot, kernel: Kernel, loaded: str | None) -> GpuDriverState:
    """Return the state of a root, with a driver of version `loaded` in the kernel (None: not known).

    Cost: some hundred look-ups; reads no file except the loader's cache, and that only if the usual folders have no
    driver.
    """
    version, other = library_versions(root, loaded)
    folders = _library_folders(root)
    searched = (
        *LIBRARY_FOLDERS,
        *folders,
        *_plugin_folders(folders),
        *_x_folders(folders),
        *BINARY_FOLDERS,
        *(_firmware_folders(kernel, version) if version is not None else ()),
        *(f"{folder}/{path}".rpartition("/")[0] for folder in CONFIGURATION_FOLDERS for _, path in CONFIGURATION),
        *(f"{folder}/{path}".rpartition("/")[0] for folder in (*CONFIGURATION_FOLDERS, "") for path in VULKAN),
        LD_SO_CACHE,
    )
    changed_ns = tuple(_changed_ns(root, folder) for folder in dict.fromkeys(searched))
    return GpuDriverState(version, other, changed_ns, _sockets(root))


def find_gpu_driver_files(root: GpuDriverRoot, kernel: Kernel, loaded: str | None) -> GpuDriverFiles | None:
    """Return the driver's files; arguments as for gpu_driver_state. None if there are none. Cost: some hundred small
    reads.
    """
    version, _ = library_versions(root, loaded)
    if version is None:
        return None
    own = f"*.so.{version}"
    folders = _library_folders(root)
    libraries = _found(root, folders, (own, *_LIBRARIES_WITH_OTHER_VERSIONS), _library)
    machine = _machine(root, libraries)
    files = [
        *(file for name in BINARIES for file in _first(root, BINARY_FOLDERS, name)),
        *_found(root, _firmware_folders(kernel, version), FIRMWARE, _plain),
        *_configuration(root),
    ]
    folders_with_gpu_driver = sorted({library.folder for library in libraries})
    modules = (
        file
        for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}")
        for file in _first(root, _x_folders(folders_with_gpu_driver), name)
    )
    return GpuDriverFiles(
        version=version,
        machine=machine,
        libraries=libraries,
        plugins=_found(root, _plugin_folders(folders), (own,), _library),
        modules=_by_path(modules),
        files=_by_path(files),
        sockets=_sockets(root),
    )


def missing_libraries(files: GpuDriverFiles) -> tuple[str, ...]:
    """Return the file names of libraries that every driver has and this root does not."""
    names = {library.name for library in files.libraries}
    wanted = (f"{library}.{files.version}" for library in ESSENTIAL_LIBRARIES)
    return tuple(name for name in wanted if name not in names)


def library_versions(root: GpuDriverRoot, loaded: str | None) -> tuple[str | None, str | None]:
    """Return the version of the libraries to give to containers, or else the one that does not fit the loaded driver.

    Libraries only work with a kernel module of the same version. If no module has a version, the usual links decide
    between several.
    """
    installed = gpu_driver_version(root)
    if loaded is None or installed is None or loaded == installed:
        return installed, None
    of_loaded = tuple(f"{library}.{loaded}" for library in ESSENTIAL_LIBRARIES)
    is_there = any(_found(root, _library_folders(root), (name,), _plain) for name in of_loaded)
    return (loaded, None) if is_there else (None, installed)


def gpu_driver_version(root: GpuDriverRoot) -> str | None:
    """Return the version in the names of the driver's libraries; the usual links decide between several."""
    for library in _LEADING_LIBRARIES:
        found = root.library(library)
        match = _VERSIONED.fullmatch(found.name) if found is not None else None
        if match is not None:
            return match[1]
    names = (name for folder in LIBRARY_FOLDERS for name in root.names(folder))
    matches = (_VERSIONED.fullmatch(name) for name in names)
    return next((match[1] for match in matches if match is not None), None)


def _library_folders(root: GpuDriverRoot) -> tuple[str, ...]:
    """Return the usual folders that exist, each once, then those that the usual links lead to: Debian keeps a driver in
    a folder of its own.

    If the usual folders have no driver, the folders of its libraries in the loader's cache follow.
    """
    resolved = ((root.resolve(path), path) for path in LIBRARY_FOLDERS)
    usual = {str(folder): path for folder, path in reversed([*resolved]) if folder is not None}
    leading = [str(path.parent) for name in _LEADING_LIBRARIES if (path := root.library(name)) is not None]
    cached: list[str] = []
    if usual.keys().isdisjoint(leading):
        libraries = (each.path for each in root.cached_libraries if _DRIVER_LIBRARY.match(each.name))
        cached = [str(path.parent) for library in libraries if (path := root.resolve(library)) is not None]
    others = [folder for folder in (*leading, *cached) if folder not in usual]
    return tuple(dict.fromkeys((*(path for path in LIBRARY_FOLDERS if path in usual.values()), *others)))


def _plugin_folders(folders: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{folder}/{_PLUGIN_FOLDER}" for folder in folders)


def _x_folders(folders: Iterable[str]) -> tuple[str, ...]:
    return (*(f"{folder}/{part}" for folder in folders for part in _X_FOLDERS_OF_LIBRARIES), *_X_FOLDERS)


def _firmware_folders(kernel: Kernel, version: str) -> tuple[str, ...]:
    return tuple(f"{folder}/nvidia/{version}" for folder in kernel.firmware_folders())


def _changed_ns(root: GpuDriverRoot, folder: str) -> int | None:
    resolved = root.resolve(folder)
    try:
        return root.on_disk(resolved).stat().st_mtime_ns if resolved is not None else None
    except OSError:
        return None


Describe = Callable[[GpuDriverRoot, str, PurePosixPath], GpuDriverFile]
"""Makes a file of its path and real path."""


def _plain(root: GpuDriverRoot, path: str, real_path: PurePosixPath) -> GpuDriverFile:
    return GpuDriverFile(path, str(real_path))


def _library(root: GpuDriverRoot, path: str, real_path: PurePosixPath) -> GpuDriverFile:
    facts = read_elf(root.on_disk(real_path))
    soname = facts.soname if facts is not None else None
    link = root.facts(real_path.parent / plain_name(soname or real_path.name))
    is_link = link is not None and stat.S_ISLNK(link.st_mode)
    return GpuDriverFile(path, str(real_path), soname, plain_link=facts is not None and is_link)


def _found(
    root: GpuDriverRoot, folders: Iterable[str], patterns: tuple[str, ...], describe: Describe
) -> tuple[GpuDriverFile, ...]:
    """Return the files whose names match, each once, by the first folder that has it. Order: by path."""
    by_real_path: dict[PurePosixPath, GpuDriverFile] = {}
    for path in _paths(root, folders, patterns):
        real_path = root.resolve(path)
        if real_path is None or real_path in by_real_path or not _is_file(root.facts(real_path)):
            continue
        by_real_path[real_path] = describe(root, path, real_path)
    return _by_path(by_real_path.values())


def _by_path(files: Iterable[GpuDriverFile]) -> tuple[GpuDriverFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


def _paths(root: GpuDriverRoot, folders: Iterable[str], patterns: tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        for name in root.names(folder):
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                yield f"{folder}/{name}"


def _is_file(facts: os.stat_result | None) -> bool:
    return facts is not None and stat.S_ISREG(facts.st_mode)


def _is_socket(facts: os.stat_result | None) -> bool:
    return facts is not None and stat.S_ISSOCK(facts.st_mode)


def _first(
    root: GpuDriverRoot,
    folders: Iterable[str],
    name: str,
    container_folder: str | None = None,
    is_wanted: Callable[[os.stat_result | None], bool] = _is_file,
) -> tuple[GpuDriverFile, ...]:
    """Return the file of this name in the first folder that has it; containers get it there, or in their own folder."""
    for folder in folders:
        real_path = root.resolve(f"{folder}/{name}")
        if real_path is not None and is_wanted(root.facts(real_path)):
            shown_below = folder if container_folder is None else container_folder
            return (GpuDriverFile(f"{shown_below}/{name}", str(real_path)),)
    return ()


def _configuration(root: GpuDriverRoot) -> Iterator[GpuDriverFile]:
    for container_folder, path in CONFIGURATION:
        yield from _first(root, CONFIGURATION_FOLDERS, path, container_folder)
    for path in VULKAN:
        yield from _first(root, (*CONFIGURATION_FOLDERS, ""), path, "/etc")


def _machine(root: GpuDriverRoot, libraries: Iterable[GpuDriverFile]) -> str | None:
    """Return the machine of the first library that has it."""
    facts = (read_elf(root.on_disk(PurePosixPath(library.real_path))) for library in libraries)
    return next((found.machine for found in facts if found is not None and found.machine is not None), None)


def _sockets(root: GpuDriverRoot) -> tuple[GpuDriverFile, ...]:
    """Return the sockets of the driver's daemons, and the folder of MPS if it belongs to root.

    Containers get nothing else that is at such a path: daemons write to these folders, and everybody to /tmp, so a link
    there could lead anywhere.
    """
    found = [file for name in SOCKETS for file in _first(root, SOCKET_FOLDERS, name, is_wanted=_is_socket)]
    pipes = PurePosixPath(MPS_PIPES)
    if root.resolve(MPS_PIPES) == pipes and _is_folder_of_root(root.facts(pipes)):
        found.append(GpuDriverFile(MPS_PIPES, MPS_PIPES))
    return _by_path(found)


def _is_folder_of_root(facts: os.stat_result | None) -> bool:
    return facts is not None and stat.S_ISDIR(facts.st_mode) and facts.st_uid == 0


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
