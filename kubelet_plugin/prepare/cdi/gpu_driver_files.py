"""The driver's files on the host → what a container gets of them: mounts, and hooks if the host has the tool.

A container has its own libraries and also gets the driver's, because those must match the kernel module. The
dynamic loader finds a library by its SONAME (libcuda.so.1), the file carries the driver's version
(libcuda.so.580.65.06). With NVIDIA's nvidia-cdi-hook on the host, hooks make the links and the loader's cache. Without
it the file is mounted a second time at each name, in both folders that loaders search without a cache: /usr/lib64
(Red Hat, SUSE) and /usr/lib/<machine>-linux-gnu (Debian, Ubuntu), since host and image may be of either kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dracaena.kubelet_plugin.prepare.cdi.hooks import HookTool, SymbolicLink, gpu_driver_hooks
from dracaena.kubelet_plugin.prepare.cdi.spec import Hook, Mount

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = (*FILE_OPTIONS[1:], "noexec")
"""A socket is written to; nothing in its folder is run."""

LIBRARY_FOLDERS_VARIABLE = "NVIDIA_CTK_LIBCUDA_DIR"
"""Tells programs in the container which folders hold the driver's libraries, separated by colons."""

_SONAME_LINKS: Mapping[str, str] = MappingProxyType(
    {
        "libcuda.so": "libcuda.so",
        "libnvidia-opticalflow.so": "libnvidia-opticalflow.so",
        "libnvidia-allocator.so": "gbm/nvidia-drm_gbm.so",
    }
)
"""Library without its version → a further name, below its folder, by which programs open its SONAME: for many open
libcuda.so instead of libcuda.so.1, and GBM opens a backend by the name of the kernel's driver."""

_FILE_LINKS: Mapping[str, str] = MappingProxyType(
    {
        "libGLX_nvidia.so": "libGLX_indirect.so.0",
        "libnvidia-vulkan-producer.so": "libnvidia-vulkan-producer.so",
        "libglxserver_nvidia.so": "libglxserver_nvidia.so",
    }
)
"""The same for names that lead to the file with the version."""


@dataclass(frozen=True, slots=True)
class GpuDriverFile:
    """One file of the driver. Both paths are relative to the driver root, but start with `/`."""

    path: str
    """Where the container gets it."""
    real_path: str
    """Where the root has it, all links followed: what is mounted."""
    soname: str | None = None
    """Of a library."""
    plain_link: bool = False
    """Whether the root has a link to this library without any version (libnvidia-ml.so): development tools open it, so
    containers get it too."""

    @property
    def folder(self) -> str:
        """The folder of `path`."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The last part of `path`."""
        return self.path.rpartition("/")[2]

    @property
    def plain_name(self) -> str:
        """The name up to `.so`."""
        return plain_name(self.name)


@dataclass(frozen=True, slots=True)
class GpuDriverFiles:
    """What a driver root holds. Files are sorted by path."""

    version: str
    """The driver's, as its files are named."""
    machine: str | None
    """`x86_64` or `aarch64`."""
    libraries: tuple[GpuDriverFile, ...]
    plugins: tuple[GpuDriverFile, ...] = ()
    """Libraries that other libraries open from a separate folder (vdpau)."""
    modules: tuple[GpuDriverFile, ...] = ()
    """Modules of the X server, in folders of their own."""
    files: tuple[GpuDriverFile, ...] = ()
    """Programs, firmware, configuration."""
    sockets: tuple[GpuDriverFile, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuDriverEdits:
    """What every container with a GPU gets."""

    environment: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    tool: HookTool | None = None
    """What runs the hooks, including those of single devices."""
    gpu_driver_root: str = "/"
    """Where the host has the driver."""


def gpu_driver_edits(files: GpuDriverFiles, gpu_driver_root: str, tool: HookTool | None = None) -> GpuDriverEdits:
    """Return the edits for a driver whose root the host has at gpu_driver_root. Order: by container path.

    No container path is mounted twice: the first in the order libraries, files, sockets wins.
    """
    linked = (*files.libraries, *files.plugins, *files.modules)
    mounts = {file.path: _mount(file, file.path, gpu_driver_root) for file in linked}
    if tool is None:
        for path, file in _names_without_links(files):
            mounts.setdefault(path, _mount(file, path, gpu_driver_root))
    for file in files.files:
        mounts.setdefault(file.path, _mount(file, file.path, gpu_driver_root))
    for socket in files.sockets:
        mounts.setdefault(socket.path, _mount(socket, socket.path, gpu_driver_root, SOCKET_OPTIONS))
    folders = sorted({library.folder for library in files.libraries})
    searched = sorted({library.folder for library in (*files.libraries, *files.plugins)})
    links = [link for file in linked for link in _links(file) if link.path not in mounts]
    return GpuDriverEdits(
        environment=(f"{LIBRARY_FOLDERS_VARIABLE}={':'.join(folders)}",) if folders else (),
        mounts=tuple(mounts[path] for path in sorted(mounts)),
        hooks=() if tool is None else gpu_driver_hooks(tool, files.version, links, searched),
        tool=tool,
        gpu_driver_root=gpu_driver_root,
    )


def plain_name(library: str) -> str:
    """Return a library's name up to `.so`."""
    head, dot_so, _ = library.partition(".so")
    return head + dot_so


def loader_folders(machine: str | None) -> tuple[str, ...]:
    """Return the folders that dynamic loaders search without a cache, of both families of distributions."""
    return ("/usr/lib64", *((f"/usr/lib/{machine}-linux-gnu",) if machine is not None else ()))


def _mount(file: GpuDriverFile, path: str, gpu_driver_root: str, options: tuple[str, ...] = FILE_OPTIONS) -> Mount:
    return Mount(gpu_driver_root.rstrip("/") + file.real_path, path, options)


def _names_without_links(files: GpuDriverFiles) -> Iterator[tuple[str, GpuDriverFile]]:
    """Yield each further path at which a library is mounted if no hook makes links."""
    for library in files.libraries:
        for folder in (library.folder, *loader_folders(files.machine)):
            yield from ((f"{folder}/{name}", library) for name in _opened_names(library))
    for plugin in (*files.plugins, *files.modules):
        yield from ((link.path, plugin) for link in _links(plugin))


def _opened_names(library: GpuDriverFile) -> tuple[str, ...]:
    """Return the names, below its folder, by which programs open a library."""
    links = tuple(link.path.removeprefix(f"{library.folder}/") for link in _links(library))
    return links if library.soname not in (None, library.name) else (library.name, *links)


def _links(file: GpuDriverFile) -> tuple[SymbolicLink, ...]:
    """Return the links that lead to a library in its own folder, one per path."""
    soname = file.soname or file.name
    further = _SONAME_LINKS.get(file.plain_name)
    targets = {soname: file.name} if soname != file.name else {}
    if file.plain_link and plain_name(soname) != soname:
        targets[plain_name(soname)] = soname
    if file.plain_name in _FILE_LINKS:
        targets[_FILE_LINKS[file.plain_name]] = file.name
    if further is not None:
        targets[further] = f"../{soname}" if "/" in further else soname
    return tuple(SymbolicLink(f"{file.folder}/{name}", target) for name, target in targets.items() if name != file.name)
