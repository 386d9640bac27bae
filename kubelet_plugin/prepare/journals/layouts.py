"""What is known of a GPU in a MIG layout: whether it is being changed. What was made for it is noted by the engine."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What is known of one GPU."""

    changing: GpuLayout | None = None
    """The layout that it is being changed to, until that is done and was read back. None: no change is under way."""

    def changed_to(self, layout: GpuLayout | None) -> GpuRecord:
        """Return this with a change under way, or with none."""
        return GpuRecord(layout)
