"""The driver's files on the host → what a container gets of them: mounts, and hooks where the host has the tool.

A container has its own libraries and gets the driver's beside them, because those must match the kernel module. The
dynamic loader finds a library by its SONAME (libcuda.so.1), the file carries the driver's version
(libcuda.so.580.65.06). With NVIDIA's nvidia-cdi-hook on the host, hooks make the links and the loader's cache. Without
it the file is mounted a second time at each name, in both folders that loaders search without a cache: /usr/lib64
(Red Hat, SUSE) and /usr/lib/<machine>-linux-gnu (Debian, Ubuntu), since host and image may be of either kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = (*FILE_OPTIONS[1:], "noexec")
"""A socket is written to; nothing in its folder is run."""

HOOK_NAME = "nvidia-cdi-hook"
HOOK_STAGE = "createContainer"

EXTRA_LINKS: Mapping[str, str] = MappingProxyType(
    {
        "libcuda.so.1": "libcuda.so",
        "libnvidia-opticalflow.so.1": "libnvidia-opticalflow.so",
        "libGLX_nvidia.so.0": "libGLX_indirect.so.0",
    }
)
"""SONAME → a further name by which programs open the library."""


@dataclass(frozen=True, slots=True)
class DriverFile:
    """One file of the driver. Both paths are without the driver root in front."""

    path: str
    """Where a program with this root finds it, and where the container gets it."""
    real_path: str
    """The same with all links followed: what is mounted."""
    soname: str | None = None
    """Of a library."""

    @property
    def folder(self) -> str:
        """The folder of `path`."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The last part of `path`."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class DriverFiles:
    """What a driver root holds. Files are sorted by path."""

    version: str
    """The driver's, as its files are named."""
    machine: str | None
    """`x86_64` or `aarch64`."""
    libraries: tuple[DriverFile, ...]
    plugins: tuple[DriverFile, ...] = ()
    """Libraries that others open from a folder of their own (vdpau)."""
    files: tuple[DriverFile, ...] = ()
    """Programs, firmware, configuration."""
    sockets: tuple[DriverFile, ...] = ()
    hook: str | None = None
    """Path of nvidia-cdi-hook on the host."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One CDI mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = FILE_OPTIONS


@dataclass(frozen=True, slots=True)
class Hook:
    """One CDI hook, run by the container runtime on the host."""

    path: str
    arguments: tuple[str, ...]
    """The first is the program's own name."""


@dataclass(frozen=True, slots=True)
class DriverEdits:
    """What every container with a GPU gets."""

    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the keys that go into a CDI containerEdits object; none that would be empty."""
        mounts = [
            {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": list(mount.options)}
            for mount in self.mounts
        ]
        hooks = [{"hookName": HOOK_STAGE, "path": hook.path, "args": list(hook.arguments)} for hook in self.hooks]
        return {**({"mounts": mounts} if mounts else {}), **({"hooks": hooks} if hooks else {})}


def driver_edits(files: DriverFiles, driver_root: str) -> DriverEdits:
    """Return the edits for a driver whose root the host has at driver_root. Order: by container path.

    No container path is mounted twice: the first in the order libraries, files, sockets holds.
    """
    mounts = {file.path: _mount(file, file.path, driver_root) for file in (*files.libraries, *files.plugins)}
    if files.hook is None:
        for library in files.libraries:
            for folder in (library.folder, *loader_folders(files.machine)):
                _add_names(mounts, library, folder, driver_root)
        for plugin in files.plugins:
            _add_names(mounts, plugin, plugin.folder, driver_root)
    for file in files.files:
        mounts.setdefault(file.path, _mount(file, file.path, driver_root))
    for socket in files.sockets:
        mounts.setdefault(socket.path, _mount(socket, socket.path, driver_root, SOCKET_OPTIONS))
    return DriverEdits(tuple(mounts[path] for path in sorted(mounts)), _hooks(files))


def loader_folders(machine: str | None) -> tuple[str, ...]:
    """Return the folders that dynamic loaders search without a cache, of both families of distributions."""
    return ("/usr/lib64", *((f"/usr/lib/{machine}-linux-gnu",) if machine is not None else ()))


def _mount(file: DriverFile, path: str, driver_root: str, options: tuple[str, ...] = FILE_OPTIONS) -> Mount:
    return Mount(driver_root.rstrip("/") + file.real_path, path, options)


def _add_names(mounts: dict[str, Mount], library: DriverFile, folder: str, driver_root: str) -> None:
    """Mount a library at each name by which programs open it."""
    for name in _opened_names(library):
        path = f"{folder}/{name}"
        mounts.setdefault(path, _mount(library, path, driver_root))


def _opened_names(library: DriverFile) -> tuple[str, ...]:
    soname = library.soname or library.name
    return (soname, EXTRA_LINKS[soname]) if soname in EXTRA_LINKS else (soname,)


def _hooks(files: DriverFiles) -> tuple[Hook, ...]:
    """Return the hooks that every version of the tool has; an unknown one would fail the container."""
    if files.hook is None:
        return ()
    libraries = (*files.libraries, *files.plugins)
    links = [
        argument
        for library in libraries
        for name in _opened_names(library)
        if name != library.name
        for argument in ("--link", f"{library.name}::{library.folder}/{name}")
    ]
    folders = sorted({library.folder for library in files.libraries})
    cache = [argument for folder in folders for argument in ("--folder", folder)]
    commands = [("create-symlinks", links), ("update-ldcache", cache)]
    return tuple(Hook(files.hook, (HOOK_NAME, command, *arguments)) for command, arguments in commands if arguments)
