"""Brings one GPU into a static MIG layout, noting each step before the driver is asked for it.

`changing` is noted first: until it is cleared, no claim gets anything of the GPU here, and the next start continues
towards the same layout. It stays until the GPU was read again; otherwise claims would be prepared by an outdated
reading. An instance is noted before it is made and forgotten after it is gone, so the ledger always covers at least
what is ours. Instances that it does not have are somebody else's: they stay, and the GPU stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance, MadeInstance, MigRefusedError
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout, layout_problem, mode_obstacle
from dracaena.kubelet_plugin.discovery.mig.on_demand import changes_mode_at_once
from dracaena.kubelet_plugin.discovery.mig.packing import Placed, packed
from dracaena.kubelet_plugin.labels.follower import BlockedError, InUseError
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.ports import NodeLock
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord

_FoundInstance = tuple[GpuInstance, MadeInstance | None]
"""An instance and what is noted of it; None: somebody else made it."""

log = structlog.get_logger()


class MigLayoutChanges:
    """For one thread. Two instances of the plugin take turns by the lock of the GPU."""

    def __init__(
        self,
        hand: MigHand,
        notes: LayoutNotes[GpuRecord],
        gpu_lock: Callable[[DeviceName], NodeLock],
    ) -> None:
        """`gpu_lock` returns the lock of a GPU, the same one for the same name."""
        self._hand = hand
        self._notes = notes
        self._gpu_lock = gpu_lock

    def change(self, gpu: Gpu, layout: GpuLayout, user: Callable[[], str | None]) -> None:
        """Bring a GPU into a layout, from wherever an earlier try left it.

        `user` returns, with the lock of the calls held, which claim has something of it. Raises InUseError if a
        claim or a process has, BlockedError, and TemporaryError if a step failed: then the GPU stays `changing`,
        and the next try continues. If the driver refused the first step, the GPU is unchanged and no longer `changing`;
        nor is one whose mode was changed by somebody else meanwhile, if only a reset changes it back. On success it
        stays `changing` until rest().
        """
        with self._gpu_lock(gpu_device_name(gpu.uuid)).hold(0.0):
            enabled, _pending = self._hand.mode(gpu.uuid)
            as_read = bool(gpu.mig_enabled) == enabled
            gpu = replace(gpu, mig_enabled=enabled)
            obstacle = mode_obstacle(gpu, layout)
            if obstacle is not None:
                if as_read:
                    self._give_up(gpu)
                raise BlockedError(obstacle)
            self._refuse_in_use(gpu)
            at_rest = self._notes.of(gpu.uuid).changing is None
            record = self._notes.begin(gpu.uuid, layout, user)
            if layout.enabled:
                record = self._divide(gpu, layout, record, as_it_was=at_rest or as_read)
            else:
                record = self._join(gpu, record, as_it_was=at_rest)
            self._notes.note(gpu.uuid, record)
        log.info("GPU has its MIG layout", gpu=gpu.uuid, layout=layout.name, profiles=dict(layout.counts))

    def rest(self, gpu: str, layout: GpuLayout) -> None:
        """Release a GPU, by UUID, that was brought into a layout and read since."""
        self._notes.rest(gpu, layout)

    def device_id(self, gpu: str) -> int:
        """Return the PCI ID of a GPU. Raises DracaenaError."""
        return self._hand.device_id(gpu)

    def _give_up(self, gpu: Gpu) -> None:
        """Stop a change of a GPU whose mode somebody else changed, unless instances of ours are in it. Otherwise no
        claim would get the GPU before the next boot, even after the node's label is removed.
        """
        record = self._notes.of(gpu.uuid)
        if record.changing is not None and not (gpu.mig_enabled and record.made):
            self._noted(gpu, replace(record, changing=None, made=()))

    def _refuse_in_use(self, gpu: Gpu) -> None:
        """Refuse what can be known to fail before anything is begun."""
        self._refuse_beside_others(gpu)
        pids = self._hand.processes(gpu.uuid)
        if pids:
            shown = ", ".join(map(str, pids[:5]))
            raise InUseError(f"{len(pids)} processes run on GPU {gpu.index}, among them {shown}")

    def _refuse_beside_others(self, gpu: Gpu) -> None:
        enabled, _pending = self._hand.mode(gpu.uuid)
        if not enabled:
            return
        record = self._notes.of(gpu.uuid)
        others = [each for each, owner in self._found(gpu, record) if owner is None]
        if others:
            raise BlockedError(others_made(gpu, [(each.profile, each.placement.start) for each in others]))

    def _divide(self, gpu: Gpu, layout: GpuLayout, record: GpuRecord, *, as_it_was: bool) -> GpuRecord:
        """Divide a GPU. `as_it_was`: until the first step, it still is as last read."""
        if not gpu.mig_enabled:
            self._set_mode(gpu, record, enabled=True, as_it_was=as_it_was)
        profiles = self._hand.profiles(gpu.uuid)
        gpu = replace(gpu, mig_profiles=profiles)
        places = self._places(gpu, layout, record)
        found = self._found(gpu, record)
        kept: set[Placed] = set()
        for entry in record.made:
            instance = _of(entry, found)
            place = next((each for each in places if _names(entry, each)), None)
            if instance is not None and instance.has_compute and place is not None and place not in kept:
                kept.add(place)
                uuid = entry.uuid or self._uuid(gpu, instance.number)
                record = self._noted(gpu, record.having(replace(entry, number=instance.number, uuid=uuid)))
            else:
                record = self._destroy(gpu, record, entry, instance)
        for place in places:
            if place not in kept:
                record = self._make(gpu, record, place)
        return record

    def _places(self, gpu: Gpu, layout: GpuLayout, record: GpuRecord) -> tuple[Placed, ...]:
        """Return where to place the instances. Some drivers report places only in MIG mode, so only now it is sure."""
        if layout.counts and not gpu.mig_profiles:
            raise TemporaryError(f"the NVIDIA driver does not tell how GPU {gpu.index} can be divided")
        problem = layout_problem(gpu, layout)
        if problem is None:
            found = packed(layout.counts, gpu.mig_profiles)
            assert found is not None  # otherwise there would be a problem
            return found
        if not gpu.mig_enabled and not record.made:
            self._hand.set_mode(gpu.uuid, enabled=False)
        self._noted(gpu, replace(record, changing=None))
        raise BlockedError(f"layout {layout.name}: {problem}")

    def _join(self, gpu: Gpu, record: GpuRecord, *, as_it_was: bool) -> GpuRecord:
        """Make a GPU whole. `as_it_was`: see _divide()."""
        if not gpu.mig_enabled:
            return replace(record, made=())
        found = self._found(gpu, record)
        as_it_was = as_it_was and not record.made
        for entry in record.made:
            record = self._destroy(gpu, record, entry, _of(entry, found))
        if changes_mode_at_once(gpu):
            self._set_mode(gpu, record, enabled=False, as_it_was=as_it_was)
        return record

    def _set_mode(self, gpu: Gpu, record: GpuRecord, *, enabled: bool, as_it_was: bool) -> None:
        """Change the mode. If this is refused as the first step, end the change: otherwise a GPU that a monitor holds
        open would be out of service for as long, even after its label was removed.
        """
        try:
            self._hand.set_mode(gpu.uuid, enabled=enabled)
        except MigRefusedError as error:
            if as_it_was and error.did_nothing:
                self._noted(gpu, replace(record, changing=None))
            raise

    def _make(self, gpu: Gpu, record: GpuRecord, place: Placed) -> GpuRecord:
        profile, placement = place
        made = MadeInstance(profile.name, placement.start, placement.size)

        def note(now: MadeInstance) -> None:
            nonlocal record
            record = self._noted(gpu, record.having(now))

        note(made)
        self._hand.make(gpu.uuid, profile, made, note)
        return record

    def _destroy(self, gpu: Gpu, record: GpuRecord, entry: MadeInstance, found: GpuInstance | None) -> GpuRecord:
        if found is not None:
            self._hand.destroy(gpu.uuid, found.number)
        return self._noted(gpu, record.without(entry))

    def _found(self, gpu: Gpu, record: GpuRecord) -> Sequence[_FoundInstance]:
        """Return the instances of a GPU in MIG mode, each with its entry. Raises TemporaryError if some of ours would
        be overlooked.
        """
        profiles = self._hand.profiles(gpu.uuid)
        untold = sorted({each.profile for each in record.made} - {each.name for each in profiles})
        if untold:
            raise TemporaryError(
                f"the NVIDIA driver does not tell MIG profile {untold[0]} of GPU {gpu.index} now, so it is not known "
                "whether its instances are there"
            )
        found = self._hand.instances(gpu.uuid, profiles)
        return [(each, self._owner(gpu, record, each)) for each in found]

    def _owner(self, gpu: Gpu, record: GpuRecord, found: GpuInstance) -> MadeInstance | None:
        """Return the entry of an instance. If the UUID of its MIG device was noted, an instance with another UUID is
        not ours: the driver reuses number and place for the next one.
        """
        entry = record.candidate(found)
        if entry is None or entry.uuid is None:
            return entry
        uuid = self._uuid(gpu, found.number)
        return entry if uuid in (None, entry.uuid) else None

    def _uuid(self, gpu: Gpu, number: int) -> str | None:
        """Return the UUID of the MIG device of a GPU instance, None if it has none."""
        device = self._hand.device(gpu.uuid, number)
        return None if device is None else device[1]

    def _noted(self, gpu: Gpu, record: GpuRecord) -> GpuRecord:
        return self._notes.note(gpu.uuid, record)


def others_made(gpu: Gpu, instances: Sequence[tuple[str, int]]) -> str:
    """Return a text about instances of a GPU that are not ours: (profile, start)."""
    shown = ", ".join(f"{profile} at {start}" for profile, start in instances)
    return (
        f"GPU {gpu.index} has MIG instances that no layout made ({shown}): they stay, and so does the GPU, until you "
        f"destroy them (`nvidia-smi mig -i {gpu.index} -dci`, then `-dgi`)"
    )


def _of(entry: MadeInstance, found: Sequence[_FoundInstance]) -> GpuInstance | None:
    return next((instance for instance, owner in found if owner == entry), None)


def _names(entry: MadeInstance, place: Placed) -> bool:
    return (entry.profile, entry.placement) == (place[0].name, place[1])
