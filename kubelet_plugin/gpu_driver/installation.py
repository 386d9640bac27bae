"""What containers get of the installed driver: found once, and again when it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.host.adapters.gpu_driver.root import LD_SO_CACHE, GpuDriverRoot
from dracaena.host.facts.troubles import (
    GpuDriverReleasedError,
    GpuDriverTroubleError,
    Trouble,
    TroubleKind,
    trouble,
)
from dracaena.host.gpu_driver.thread import GpuDriverThread, WedgedError
from dracaena.kubelet_plugin.adapters.files.container_runtime_files import runtime_documents, toolkit_config
from dracaena.kubelet_plugin.adapters.gpu_driver.files import (
    GpuDriverState,
    Kernel,
    find_gpu_driver_files,
    gpu_driver_state,
    library_versions,
    missing_libraries,
)
from dracaena.kubelet_plugin.adapters.programs.hook_tool import HOOK_FOLDERS, FoundTool, find_hook_tool, read_hook_tool
from dracaena.kubelet_plugin.discovery.health.gpu_health import Fault, HealthClass
from dracaena.kubelet_plugin.discovery.health.toolkit_access import nvidia_runtimes, why_open
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits, gpu_driver_edits
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS, HOOK_NAMES, WITHOUT_HOOKS, HookTool
from dracaena.process.clock import Clock, SystemClock

T = TypeVar("T")

NO_HOOKS = "none"
"""Used instead of the hook tool's path: no hook tool is used."""

LOOK_S = 10.0
"""Longest look at the files: some hundred look-ups that take milliseconds in all. Kubelet allows a call 45 s, and a
call that waits for the node's lock gives up after 20 s."""

log = structlog.get_logger()


class GpuDriverFilesMissingError(TemporaryError):
    """The driver root holds no driver, or not all of it: a container would get a GPU that it cannot use."""


@dataclass(frozen=True, slots=True)
class GpuDriverPlaces:
    """Where a driver and NVIDIA's hook tool are."""

    seen_root: str
    """Where this process sees the driver root."""
    host_root: str = "/"
    """Where the host has it."""
    seen_host: str = "/"
    """Where this process sees the host's /."""
    hook_tool: str = ""
    """Path of the tool on the host; empty: search for it; NO_HOOKS: use none."""


class GpuDriverInstallation:
    """The driver below one root. Safe from many threads. A call costs some hundred look-ups; a new driver is also read.

    All files are looked at in a separate thread, so a root that hangs (a driver container's file system, a network
    share) delays no caller for longer than LOOK_S.

    Without `required` a root that holds no driver gives no edits, and the kernel is not asked which driver is loaded:
    the GPUs of a recorded machine need none. `refusal` returns why no container should get the driver right now, None
    if they may. After each look `on_troubles` gets everything that is wrong with the installation. `clock` measures how
    long the look takes.
    """

    def __init__(
        self,
        places: GpuDriverPlaces,
        *,
        required: bool,
        kernel: Kernel | None = None,
        refusal: Callable[[], str | None] = lambda: None,
        on_troubles: Callable[[tuple[Trouble, ...]], None] = lambda _found: None,
        clock: Clock | None = None,
    ) -> None:
        self._places = places
        self._required = required
        self._kernel = kernel or Kernel()
        self._refusal = refusal
        self._on_troubles = on_troubles
        # For the thread alone:
        self._found: tuple[tuple[GpuDriverState, FoundTool | None], GpuDriverEdits] | None = None
        self._without_hooks: tuple[Trouble, ...] = ()
        self._thread = GpuDriverThread(clock or SystemClock(), lambda: "", lambda: None, name="driver-files")
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A look that hangs is left behind."""
        self._thread.stop()

    def edits(self) -> GpuDriverEdits:
        """Return the mounts and hooks of the driver as it is now.

        Raises GpuDriverFilesMissingError, or GpuDriverTroubleError if no container should get the driver now or its
        files cannot be read in time.
        """
        refusal = self._refusal()
        if refusal is not None:
            raise GpuDriverReleasedError(f"{refusal}; the claim is prepared when it is given back")
        return self._look(self._edits)

    def fault(self) -> Fault | None:
        """Return the taint that all devices of the node get because of how the driver is installed, if any."""
        try:
            mismatch = self._look(self._mismatch) if self._required else None
        except WedgedError as error:
            return Fault(HealthClass.SILENT, "silent", message=str(error))
        return None if mismatch is None else Fault(HealthClass.UNREADY, "driver-mismatch", message=mismatch)

    def _look(self, work: Callable[[], T]) -> T:
        try:
            return self._thread.call(f"a look at the driver's files below {self._places.seen_root}", work, LOOK_S)
        except WedgedError as error:
            self._on_troubles((trouble(error.reason, str(error)),))
            raise

    def _edits(self) -> GpuDriverEdits:
        mismatch = self._mismatch()
        if mismatch is not None:
            raise GpuDriverTroubleError(mismatch, TroubleKind.VERSION_MISMATCH)
        root = GpuDriverRoot(self._places.seen_root)
        loaded = self._loaded()
        found = (gpu_driver_state(root, self._kernel, loaded), self._find_tool())
        if self._found is None or self._found[0] != found:
            self._found = (found, self._find(root, loaded, found[1]))
            self._on_troubles((*self._without_hooks, *self._open_toolkit()))
        return self._found[1]

    def _loaded(self) -> str | None:
        return self._kernel.gpu_driver_version() if self._required else None

    def _mismatch(self) -> str | None:
        """Return a text if no libraries fit the loaded kernel module; None if some do, or either version is unknown."""
        loaded = self._loaded()
        _, other = library_versions(GpuDriverRoot(self._places.seen_root), loaded)
        text = None
        if other is not None:
            text = (
                f"the NVIDIA driver's libraries below {self._places.host_root} are of version {other}, the kernel "
                f"module that is loaded is {loaded}: programs in containers would fail"
            )
        if any(one.reason == TroubleKind.HOOK_TOOL_MISSING.value for one in self._without_hooks) and self._find_tool():
            self._without_hooks, self._found = (), None  # so the next prepare looks at everything
        mismatch = () if text is None else (trouble(TroubleKind.VERSION_MISMATCH, text),)
        self._on_troubles((*mismatch, *self._without_hooks, *self._open_toolkit()))
        return text

    def _open_toolkit(self) -> Iterator[Trouble]:
        """Yield how NVIDIA's container runtime gives GPUs to containers without a claim."""
        if self._required:
            host = GpuDriverRoot(self._places.seen_host)
            text = why_open(nvidia_runtimes(runtime_documents(host)), partial(toolkit_config, host))
            if text:
                yield trouble(TroubleKind.GPUS_WITHOUT_CLAIM, text)

    def _find_tool(self) -> FoundTool | None:
        if self._places.hook_tool == NO_HOOKS:
            return None
        return find_hook_tool(GpuDriverRoot(self._places.seen_host), self._places.hook_tool)

    def _find(self, root: GpuDriverRoot, loaded: str | None, found: FoundTool | None) -> GpuDriverEdits:
        files = find_gpu_driver_files(root, self._kernel, loaded)
        if files is None:
            if self._required:
                raise GpuDriverFilesMissingError(
                    f"no NVIDIA driver below {self._places.host_root} (looked for libcuda.so and libnvidia-ml.so in "
                    f"the usual folders and in {LD_SO_CACHE}): containers would get GPUs without libraries. Wait for "
                    "the driver, or set --driver-root to its folder"
                )
            return GpuDriverEdits()
        missing = missing_libraries(files)
        if missing and self._required:
            raise GpuDriverFilesMissingError(
                f"no {' and no '.join(missing)} below {self._places.host_root} (searched the usual folders and "
                f"{LD_SO_CACHE}): containers would get GPUs without it. Install the driver's compute libraries"
            )
        tool = read_hook_tool(found) if found is not None else None
        edits = gpu_driver_edits(files, self._places.host_root, tool)
        log.info("driver files found", driver=files.version, mounts=len(edits.mounts), hooks=len(edits.hooks))
        self._note_hooks(tool)
        return edits

    def _note_hooks(self, tool: HookTool | None) -> None:
        """Record what containers lose because the tool is missing or old."""
        self._without_hooks = ()
        if self._places.hook_tool == NO_HOOKS or not self._required:
            return
        if tool is None:
            where = self._places.hook_tool or f"{' or '.join(HOOK_NAMES)} in {', '.join(HOOK_FOLDERS)}"
            self._without_hooks = (trouble(TroubleKind.HOOK_TOOL_MISSING, f"no {where} on the host: {WITHOUT_HOOKS}"),)
        elif tool.commands != COMMANDS:
            lacking = ", ".join(sorted(COMMANDS - tool.commands))
            log.warning("the hook tool is old: containers do not get some hooks", path=tool.path, lacking=lacking)
