"""What containers get of the driver that is installed on this node: found once, and again when it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.adapters.driver_files import DriverState, driver_state, find_driver_files
from dracaena.kubelet_plugin.discovery.troubles import DriverReleasedError
from dracaena.kubelet_plugin.prepare.driver_files import DriverEdits, driver_edits

log = structlog.get_logger()


class DriverFilesMissingError(TemporaryError):
    """The driver root holds no driver: a container would get a GPU that it cannot use."""


class DriverInstallation:
    """The driver below one root. Safe from many threads; a call costs some hundred look-ups, a new driver also reads.

    `seen_root` is where this process sees the root, `host_root` where the host has it. Without `required` a root that
    holds no driver gives no edits: the GPUs of a recorded machine need none.
    """

    def __init__(
        self, seen_root: str, host_root: str, *, required: bool, refusal: Callable[[], str | None] = lambda: None
    ) -> None:
        """`refusal` says why nobody should be given the driver right now, None when nothing speaks against it."""
        self._seen_root = seen_root
        self._host_root = host_root
        self._required = required
        self._refusal = refusal
        self._lock = threading.Lock()
        self._found: tuple[DriverState, DriverEdits] | None = None

    def edits(self) -> DriverEdits:
        """Return the mounts and hooks of the driver as it is now.

        Raises DriverFilesMissingError, or DriverTroubleError when no container should get the driver now.
        """
        refusal = self._refusal()
        if refusal is not None:
            raise DriverReleasedError(f"{refusal}; the claim is prepared when it is given back")
        state = driver_state(self._seen_root)
        with self._lock:
            if self._found is None or self._found[0] != state:
                self._found = (state, self._find())
            return self._found[1]

    def _find(self) -> DriverEdits:
        files = find_driver_files(self._seen_root, host_root=self._host_root)
        if files is None:
            if self._required:
                raise DriverFilesMissingError(
                    f"no NVIDIA driver below {self._seen_root} (looked for libcuda.so and libnvidia-ml.so): containers "
                    "would get GPUs without libraries. Wait for the driver, or set --driver-root to its folder"
                )
            return DriverEdits()
        edits = driver_edits(files, self._host_root)
        log.info("driver files found", driver=files.version, mounts=len(edits.mounts), hooks=len(edits.hooks))
        return edits
