"""Whether another program of this node may have the GPU driver open: a request to release it applies to all."""

from __future__ import annotations

from pathlib import Path

import structlog

from dracaena.host.adapters.gpu_driver.use import GpuDriverUse
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.host.paths import plugin_paths

log = structlog.get_logger()


class GpuDriverPermission:
    """Implements Permission of dracaena.host.adapters.nvml.library by the files of the plugin's folder.

    Labels of the node are seen only through `labels`, the file in which the plugin remembers those that ask for the
    driver. Programs without it are kept off nodes that have such labels by the chart.
    """

    def __init__(self, use: GpuDriverUse, labels: Path | None = None) -> None:
        self._use = use
        self._labels = labels

    def refusal(self) -> str | None:
        """See Permission."""
        if self._use.is_lent():
            return "the NVIDIA driver is closed for a while, because a GPU is leaving it"
        if self._labels is not None and self._labels.exists():
            return f"the NVIDIA driver is released, as requested by labels of this node ({self._labels} has them)"
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


def permission_on_this_node(
    kubelet_root: str, driver: str, *, obeys_labels: bool = False
) -> GpuDriverPermission | None:
    """Return what keeps the driver closed while somebody else needs it; None if no plugin has ever run here."""
    paths = plugin_paths(kubelet_root, driver, "")
    if not paths.release_request.parent.is_dir():
        log.info("no plugin has run here: nobody can ask for the driver", folder=str(paths.release_request.parent))
        return None
    use = GpuDriverUse(paths.gpu_driver_lock, paths.release_request)
    return GpuDriverPermission(use, paths.release_labels if obeys_labels else None)
