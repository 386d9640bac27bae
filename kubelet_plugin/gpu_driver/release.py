"""Who asks us to release the driver: an admin by a command or a node label, or the GPU operator by its own labels.

While NVML is open, so are device nodes of the driver: the kernel module cannot be unloaded, no GPU can be reset and no
MIG mode changed. The plugin itself stays: pods that end meanwhile must be unprepared, or a drain would never finish.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from dracaena.api.names import release_label
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse
from dracaena.host.facts.troubles import GpuDriverReleasedError, GpuDriverTroubleError
from dracaena.kubelet_plugin.discovery.health.gpu_health import Fault, HealthClass
from dracaena.kubelet_plugin.ports import GpuGoneError

_OPERATOR_LABELS = "nvidia.com/gpu.deploy."
_PAUSED = "paused-for-"
"""k8s-driver-manager and mig-parted give these labels a value with this prefix while they need the GPUs for themselves:
`paused-for-driver-upgrade`, `paused-for-mig-change`. They leave labels alone that an admin has set to `false`, so one
such value is enough."""
_OFF = frozenset({"", "false"})


def asking_labels(driver: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return those of a node's labels that ask us to release the driver."""
    return {
        key: value
        for key, value in labels.items()
        if (key == release_label(driver) and value not in _OFF)
        or (key.startswith(_OPERATOR_LABELS) and value.startswith(_PAUSED))
    }


class GpuDriverRelease:
    """Decides whether the driver may be opened, or who objects. note_labels() and refusal() are for any thread.

    `new_use` makes what one user of the driver announces to other processes: this one by NVML, and each program that it
    runs.
    """

    def __init__(self, driver: str, new_use: Callable[[], GpuDriverUse]) -> None:
        self._driver = driver
        self._new_use = new_use
        self._use = new_use()
        self._labels: Mapping[str, str] = {}  # replaced whole

    def note_labels(self, labels: Mapping[str, str]) -> None:
        """Record the labels that this node has now."""
        self._labels = dict(labels)

    def refusal(self) -> str | None:
        """Return who asks us to release the driver, None if nobody does. Costs one look for a file."""
        found = self._by_label()
        if found is None:
            asked = self._use.asked()
            found = f"`dracaena driver release` on this node: {asked}" if asked is not None else None
        return None if found is None else f"the NVIDIA driver is released, as requested by {found}"

    def fault(self) -> Fault | None:
        """Return the taint that all devices of the node have while the driver is released."""
        refusal = self.refusal()
        return None if refusal is None else Fault(HealthClass.UNREADY, "driver-released", message=refusal)

    def enter(self) -> None:
        """Announce that the driver is about to be opened. Raises GpuDriverReleasedError if it must not be, and
        GpuDriverTroubleError while it is lent, when the driver stays loaded.
        """
        self._enter(self._use)

    @contextlib.contextmanager
    def in_program(self) -> Iterator[None]:
        """Announce for a block that a program of ours has the driver open. Raises GpuGoneError if it must not, and
        GpuDriverTroubleError while it is lent. From any thread.
        """
        use = self._new_use()
        try:
            self._enter(use)
        except GpuDriverReleasedError as error:
            raise GpuGoneError(str(error)) from error
        try:
            yield
        finally:
            use.leave()

    def _enter(self, use: GpuDriverUse) -> None:
        is_open = use.enter()
        refusal = self.refusal()  # a request from before we had the lock does not wait for us
        if refusal is not None:
            use.leave()
            raise GpuDriverReleasedError(refusal)
        if not is_open:  # whoever asks for a release writes the request first: so the driver is lent, or was just now
            raise GpuDriverTroubleError("the NVIDIA driver is closed for a while, because a GPU is leaving it")

    def leave(self) -> None:
        """Announce that the driver is closed."""
        self._use.leave()

    def _by_label(self) -> str | None:
        asking, own = asking_labels(self._driver, self._labels), release_label(self._driver)
        if own in asking:
            return f"label {own} of this node"
        return next((f"the GPU operator's label {key}={asking[key]} of this node" for key in sorted(asking)), None)
