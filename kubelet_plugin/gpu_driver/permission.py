"""Whether another program of this node may have the GPU driver open: who asks the plugin to let go of it asks all."""

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
            return "the NVIDIA driver is lent for a while: a GPU leaves it"
        asked = self._use.asked()
        return None if asked is None else f"the NVIDIA driver is let go of, as asked for on this node: {asked}"

    def enter(self) -> None:
        """See Permission."""
        if not self._use.enter():
            raise GpuDriverReleasedError("another process of this node waits for the NVIDIA driver to be let go of")
        refusal = self.refusal()  # whoever asked before we had the lock does not wait for us
        if refusal is not None:
            self._use.leave()
            raise GpuDriverReleasedError(refusal)

    def leave(self) -> None:
        """See Permission."""
        self._use.leave()
