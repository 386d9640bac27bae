"""What is known of a GPU in a MIG layout: whether it is being changed, and which instances of it are ours."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance, MadeInstance
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What is known of one GPU."""

    changing: GpuLayout | None = None
    """The layout that it is being changed to, until that is done and was read back. None: no change is under way."""
    made: tuple[MadeInstance, ...] = ()

    def changed_to(self, layout: GpuLayout | None) -> GpuRecord:
        """Return this with a change under way, or with none."""
        return replace(self, changing=layout)

    def candidate(self, found: GpuInstance) -> MadeInstance | None:
        """Return the entry that an instance may belong to, None for one that we did not make."""
        return next((each for each in self.made if each.may_be(found)), None)

    def having(self, made: MadeInstance) -> GpuRecord:
        """Return this with what is known of an instance now; without it if nothing of it exists."""
        found = [each for each in self.made if each.placement != made.placement]
        return replace(self, made=(*found, made) if made.is_asked_for else tuple(found))

    def without(self, gone: MadeInstance) -> GpuRecord:
        """Return this without an instance."""
        return self.having(gone.as_nothing())
