"""Whether another program of this node may have the GPU driver open: a request to release it applies to all."""

from __future__ import annotations

from dracaena.kubelet_plugin.adapters.gpu_driver.use import GpuDriverUse
from dracaena.kubelet_plugin.discovery.health.troubles import GpuDriverReleasedError


class GpuDriverPermission:
    """Implements Permission of dracaena.kubelet_plugin.adapters.nvml.library by the files of the plugin's folder.

    Labels of the node are not seen here: the chart keeps such programs off nodes that have them.
    """

    def __init__(self, use: GpuDriverUse) -> None:
        self._use = use

    def refusal(self) -> str | None:
        """See Permission."""
        if self._use.is_lent():
            return "the NVIDIA driver is closed for a while, because a GPU is leaving it"
        asked = self._use.asked()
        return None if asked is None else f"the NVIDIA driver is released, as requested on this node: {asked}"

    def enter(self) -> None:
        """See Permission."""
        if not self._use.enter():
            raise GpuDriverReleasedError("another process of this node waits for the NVIDIA driver to be released")
        refusal = self.refusal()  # a request from before we had the lock does not wait for us
        if refusal is not None:
            self._use.leave()
            raise GpuDriverReleasedError(refusal)

    def leave(self) -> None:
        """See Permission."""
        self._use.leave()
