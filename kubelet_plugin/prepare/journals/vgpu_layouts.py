"""What is known of a GPU in a vGPU layout: whether it is being changed, and which vGPUs of it are ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import OurVgpu, VgpuLayout, VgpuOnGpu


@dataclass(frozen=True, slots=True)
class VgpuRecord:
    """What is known of one GPU."""

    changing: VgpuLayout | None = None
    """The layout that it is being changed to, until that is done and was read back. None: no change is under way."""
    made: tuple[OurVgpu, ...] = ()
    """Each is noted before it is made, so some may not exist yet, or no longer exist."""
    before: tuple[OurVgpu, ...] | None = None
    """What was `made` when the change began. None: no change is under way, or that is not known."""

    def changed_to(self, layout: VgpuLayout | None) -> VgpuRecord:
        """Return this with a change under way, or with none."""
        if layout is None:
            return replace(self, changing=None, before=None)
        return replace(self, changing=layout, before=self.made if self.changing is None else self.before)

    def is_untouched(self, there: Sequence[VgpuOnGpu]) -> bool:
        """Whether what is on the GPU proves that nothing was written to it for the change that is under way: nothing
        that was made before is gone, and nothing was made since. The caller knows that no write is hanging.
        """
        if self.before is None:
            return False
        new = set(self.made) - set(self.before)
        exist = {mine for mine in {*self.made, *self.before} if any(map(mine.may_be, there))}
        return exist.issuperset(self.before) and exist.isdisjoint(new)

    def making(self, vgpu: OurVgpu) -> VgpuRecord:
        """Return this with a vGPU that is about to be made."""
        return replace(self, made=(*self.without(vgpu).made, vgpu))

    def without(self, gone: OurVgpu) -> VgpuRecord:
        """Return this without a vGPU."""
        return replace(self, made=tuple(each for each in self.made if each.identity != gone.identity))


NOTHING_KNOWN: Final = VgpuRecord()
