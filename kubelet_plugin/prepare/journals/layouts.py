"""What is known of a GPU in a MIG layout: whether it is being changed, and which instances of it are ours."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout


@dataclass(frozen=True, slots=True)
class MadeInstance:
    """A GPU instance that we made, or are about to make."""

    profile: str
    start: int
    size: int
    number: int | None = None
    """The driver's number. None: it was requested, and may have been made."""
    uuid: str | None = None
    """UUID of its MIG device. None: not known yet."""

    @property
    def placement(self) -> MigPlacement:
        """Where it lies."""
        return MigPlacement(self.start, self.size)

    def may_be(self, found: GpuInstance) -> bool:
        """Whether an instance may be this one, as far as that shows without its UUID. A number alone proves nothing:
        the driver reuses it for the next instance.
        """
        same_place = (found.profile, found.placement) == (self.profile, self.placement)
        return same_place and self.number in (None, found.number)


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

    def making(self, profile: MigProfile, placement: MigPlacement) -> GpuRecord:
        """Return this with an instance that is about to be made."""
        return replace(self, made=(*self.made, MadeInstance(profile.name, placement.start, placement.size)))

    def identified(self, number: int, uuid: str | None = None) -> GpuRecord:
        """Return this with the number and the UUID of the last entry filled in."""
        return replace(self, made=(*self.made[:-1], replace(self.made[-1], number=number, uuid=uuid)))

    def without(self, gone: MadeInstance) -> GpuRecord:
        """Return this without an instance."""
        return replace(self, made=tuple(each for each in self.made if each != gone))
