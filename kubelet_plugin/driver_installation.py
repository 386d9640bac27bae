"""What containers get of the driver that is installed on this node: found once, and again when it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.driver_files import (
    DriverState,
    Kernel,
    driver_state,
    find_driver_files,
    missing_libraries,
)
from dracaena.kubelet_plugin.adapters.driver_root import LD_SO_CACHE, DriverRoot
from dracaena.kubelet_plugin.adapters.hook_tool import HOOK_FOLDERS, FoundTool, find_hook_tool, read_hook_tool
from dracaena.kubelet_plugin.discovery.troubles import DriverReleasedError
from dracaena.kubelet_plugin.prepare.driver_files import DriverEdits, driver_edits
from dracaena.kubelet_plugin.prepare.hooks import COMMANDS, HOOK_NAMES, WITHOUT_HOOKS, HookTool

NO_HOOKS = "none"
"""In place of the path of the hook tool: it is not used."""

log = structlog.get_logger()


class DriverFilesMissingError(TemporaryError):
    """The driver root holds no driver, or not all of it: a container would get a GPU that it cannot use."""


@dataclass(frozen=True, slots=True)
class DriverPlaces:
    """Where a driver and NVIDIA's hook tool are."""

    seen_root: str
    """Where this process sees the driver root."""
    host_root: str = "/"
    """Where the host has it."""
    seen_host: str = "/"
    """Where this process sees the host's /."""
    hook_tool: str = ""
    """Path of the tool on the host; empty: it is looked for; NO_HOOKS."""


class DriverInstallation:
    """The driver below one root. Safe from many threads; a call costs some hundred look-ups, a new driver also reads.

    Without `required` a root that holds no driver gives no edits, and the kernel is not asked which driver is loaded:
    the GPUs of a recorded machine need none. `on_trouble` is told in a sentence what is lost to containers, each time
    that it is found.
    """

    def __init__(
        self,
        places: DriverPlaces,
        *,
        required: bool,
        kernel: Kernel | None = None,
        on_trouble: Callable[[str], None] = lambda _: None,
        refusal: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`refusal` says why nobody should be given the driver right now, None when nothing speaks against it."""
        self._places = places
        self._required = required
        self._kernel = kernel or Kernel()
        self._on_trouble = on_trouble
        self._refusal = refusal
        self._lock = threading.Lock()
        self._found: tuple[tuple[DriverState, FoundTool | None], DriverEdits] | None = None

    def edits(self) -> DriverEdits:
        """Return the mounts and hooks of the driver as it is now.

        Raises DriverFilesMissingError, or DriverTroubleError when no container should get the driver now.
        """
        refusal = self._refusal()
        if refusal is not None:
            raise DriverReleasedError(f"{refusal}; the claim is prepared when it is given back")
        root = DriverRoot(self._places.seen_root)
        loaded = self._kernel.driver_version() if self._required else None
        state = (driver_state(root, self._kernel, loaded), self._find_tool())
        with self._lock:
            if self._found is None or self._found[0] != state:
                self._found = (state, self._find(root, loaded, *state))
            return self._found[1]

    def _find_tool(self) -> FoundTool | None:
        if self._places.hook_tool == NO_HOOKS:
            return None
        return find_hook_tool(DriverRoot(self._places.seen_host), self._places.hook_tool)

    def _find(self, root: DriverRoot, loaded: str | None, state: DriverState, found: FoundTool | None) -> DriverEdits:
        files = find_driver_files(root, self._kernel, loaded)
        if files is None:
            if self._required:
                raise DriverFilesMissingError(self._why_no_driver(loaded, state))
            return DriverEdits()
        missing = missing_libraries(files)
        if missing and self._required:
            raise DriverFilesMissingError(
                f"no {' and no '.join(missing)} below {self._places.host_root} (searched the usual folders and "
                f"{LD_SO_CACHE}): containers would get GPUs without it. Install the driver's compute libraries"
            )
        tool = read_hook_tool(found) if found is not None else None
        edits = driver_edits(files, self._places.host_root, tool)
        log.info("driver files found", driver=files.version, mounts=len(edits.mounts), hooks=len(edits.hooks))
        self._tell_of_hooks(tool)
        return edits

    def _why_no_driver(self, loaded: str | None, state: DriverState) -> str:
        if state.other_version is not None:
            return (
                f"no libcuda.so.{loaded} below {self._places.host_root}: the loaded kernel module is of version "
                f"{loaded}, the libraries are of {state.other_version}, and they do not work together. Finish the "
                "update of the driver: load the new module, or restart the node"
            )
        return (
            f"no NVIDIA driver below {self._places.host_root} (looked for libcuda.so and libnvidia-ml.so in the usual "
            f"folders and in {LD_SO_CACHE}): containers would get GPUs without libraries. Wait for the driver, or set "
            "--driver-root to its folder"
        )

    def _tell_of_hooks(self, tool: HookTool | None) -> None:
        """Say what containers lose by the tool that is not there or is old."""
        if self._places.hook_tool == NO_HOOKS or not self._required:
            return
        if tool is None:
            where = self._places.hook_tool or f"{' or '.join(HOOK_NAMES)} in {', '.join(HOOK_FOLDERS)}"
            self._on_trouble(
                f"no {where} on the host: {WITHOUT_HOOKS}. Install the NVIDIA container toolkit, or set --hook-tool"
            )
        elif tool.commands != COMMANDS:
            lacking = ", ".join(sorted(COMMANDS - tool.commands))
            log.warning("the hook tool is old: containers go without some hooks", path=tool.path, lacking=lacking)
