"""Who wants us to let go of the driver: an admin by a command or a label on the node, or the GPU operator by its own.

An open NVML keeps device nodes of the driver open. Then the kernel module cannot be unloaded, no GPU be reset and no
MIG mode be changed. The plugin itself stays: pods that end meanwhile must be unprepared, or a drain would never end.
"""

from __future__ import annotations

from collections.abc import Mapping

from dracaena.api.names import release_label
from dracaena.kubelet_plugin.adapters.gpu_driver_use import GpuDriverUse
from dracaena.kubelet_plugin.discovery.gpu_health import Fault, HealthClass
from dracaena.kubelet_plugin.discovery.troubles import GpuDriverReleasedError

_OPERATOR_LABELS = "nvidia.com/gpu.deploy."
_PAUSED = "paused-for-"
"""k8s-driver-manager and mig-parted give these labels a value that begins so while they need the GPUs for themselves:
`paused-for-driver-upgrade`, `paused-for-mig-change`. Labels that an admin set to `false` they leave alone, so any will
do."""
_OFF = frozenset({"", "false"})


def asking_labels(driver: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return those of a node's labels that ask for the driver to be let go of."""
    return {
        key: value
        for key, value in labels.items()
        if (key == release_label(driver) and value not in _OFF)
        or (key.startswith(_OPERATOR_LABELS) and value.startswith(_PAUSED))
    }


class GpuDriverRelease:
    """Allows the driver to be opened, or says who does not want that. note_labels() and refusal() are for any thread.

    `use` is None where there are no other processes to be told: then labels alone count.
    """

    def __init__(self, driver: str, use: GpuDriverUse | None = None) -> None:
        self._label = release_label(driver)
        self._use = use
        self._labels: Mapping[str, str] = {}  # replaced whole

    def note_labels(self, labels: Mapping[str, str]) -> None:
        """Take note of the labels that this node has now."""
        self._labels = dict(labels)

    def refusal(self) -> str | None:
        """Return who wants the driver to be let go of, None when nobody does. Costs one look for a file."""
        found = self._by_label()
        if found is None and self._use is not None:
            asked = self._use.asked()
            found = f"`dracaena driver release` on this node: {asked}" if asked is not None else None
        return None if found is None else f"the NVIDIA driver is let go of, as asked for by {found}"

    def fault(self) -> Fault | None:
        """Return what all devices of the node are tainted with meanwhile."""
        refusal = self.refusal()
        return None if refusal is None else Fault(HealthClass.UNREADY, "driver-released", message=refusal)

    def enter(self) -> None:
        """Say that the driver is about to be opened. Raises GpuDriverReleasedError when it must not be."""
        if self._use is None:
            return
        if not self._use.enter():
            raise GpuDriverReleasedError("another process of this node waits for the NVIDIA driver to be let go of")
        refusal = self.refusal()  # a request that came before the lock was ours waits for nobody
        if refusal is not None:
            self._use.leave()
            raise GpuDriverReleasedError(refusal)

    def leave(self) -> None:
        """Say that the driver is closed."""
        if self._use is not None:
            self._use.leave()

    def _by_label(self) -> str | None:
        labels = self._labels
        if labels.get(self._label, "") not in _OFF:
            return f"label {self._label} of this node"
        paused = sorted(
            key for key, value in labels.items() if key.startswith(_OPERATOR_LABELS) and value.startswith(_PAUSED)
        )
        return f"the GPU operator's label {paused[0]}={labels[paused[0]]} of this node" if paused else None
