"""Brings one GPU into a static MIG layout: its mode, and the instances that the engine makes and destroys for it.

`changing` is noted first: until it is cleared, no claim gets anything of the GPU here, and the next start continues
towards the same layout. It stays until the GPU was read again; otherwise claims would be prepared by an outdated
reading. Instances are things of the engine, with the label as their owner. Those that were not made for it are somebody
else's: they stay, and the GPU stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.mig import mig_device_name
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.kubelet_plugin.changes.change import NODE_LABEL, ForOwner, Parameters, Thing
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.mig_instances import MigInstances
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.discovery.mig.instances import MadeInstance, MigRefusedError
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout, layout_problem, mode_obstacle
from dracaena.kubelet_plugin.discovery.mig.on_demand import changes_mode_at_once
from dracaena.kubelet_plugin.discovery.mig.packing import packed
from dracaena.kubelet_plugin.labels.follower import BlockedError, InUseError
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.ports import NodeLock
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord

log = structlog.get_logger()


class MigLayoutChanges:
    """For one thread. Two instances of the plugin take turns by the lock of the GPU."""

    def __init__(
        self,
        hand: MigHand,
        instances: MigInstances,
        engine: ChangeEngine,
        notes: LayoutNotes[GpuRecord],
        gpu_lock: Callable[[DeviceName], NodeLock],
    ) -> None:
        """`gpu_lock` returns the lock of a GPU, the same one for the same name."""
        self._hand = hand
        self._instances = instances
        self._engine = engine
        self._notes = notes
        self._gpu_lock = gpu_lock

    def change(self, gpu: Gpu, layout: GpuLayout, user: Callable[[], str | None]) -> None:
        """Bring a GPU into a layout, from wherever an earlier try left it.

        `user` returns, with the lock of the calls held, which claim has something of it. Raises InUseError if a
        claim or a process has, BlockedError, and TemporaryError if a step failed: then the GPU stays `changing`,
        and the next try continues. If the driver refused the first step, the GPU is unchanged and no longer `changing`;
        nor is one whose mode was changed by somebody else meanwhile, if only a reset changes it back. On success it
        stays `changing` until LayoutNotes.rest().
        """
        with self._gpu_lock(gpu_device_name(gpu.uuid)).hold(0.0):
            enabled, _pending = self._hand.mode(gpu.uuid)
            as_read = bool(gpu.mig_enabled) == enabled
            gpu, made = replace(gpu, mig_enabled=enabled), self.made(gpu)
            at_rest = self._notes.of(gpu.uuid).changing is None
            obstacle = mode_obstacle(gpu, layout)
            if obstacle is not None:
                # Otherwise no claim would get the GPU before the next boot, even after the node's label is removed.
                if as_read and not at_rest and not (enabled and made):
                    self._settle(made, ForOwner(ends=NODE_LABEL))
                    self._end(gpu)
                raise BlockedError(obstacle)
            self._refuse_in_use(gpu, made)
            self._notes.begin(gpu.uuid, layout, user)
            if layout.enabled:
                self._divide(gpu, layout, made, as_it_was=at_rest or as_read)
            else:
                self._join(gpu, made, as_it_was=at_rest and not made)
        log.info("GPU has its MIG layout", gpu=gpu.uuid, layout=layout.name, profiles=dict(layout.counts))

    def made(self, gpu: Gpu) -> Mapping[Thing, MadeInstance]:
        """Return what was made for the layout of a GPU, or may have been. Raises DracaenaError."""
        return self._instances.of_layout(gpu.uuid)

    def device_id(self, gpu: str) -> int:
        """Return the PCI ID of a GPU. Raises DracaenaError."""
        return self._hand.device_id(gpu)

    def _refuse_in_use(self, gpu: Gpu, made: Mapping[Thing, MadeInstance]) -> None:
        """Refuse what can be known to fail before anything is begun."""
        others = self._instances.besides(gpu.uuid, made.values()) if gpu.mig_enabled else ()
        if others:
            raise BlockedError(others_made(gpu, [(each.profile, each.placement.start) for each in others]))
        pids = self._hand.processes(gpu.uuid)
        if pids:
            shown = ", ".join(map(str, pids[:5]))
            raise InUseError(f"{len(pids)} processes run on GPU {gpu.index}, among them {shown}")

    def _divide(self, gpu: Gpu, layout: GpuLayout, made: Iterable[Thing], *, as_it_was: bool) -> None:
        """Divide a GPU. `as_it_was`: until the first step, it still is as last read."""
        if not gpu.mig_enabled:
            self._set_mode(gpu, enabled=True, as_it_was=as_it_was)
        asks = self._places(replace(gpu, mig_profiles=self._hand.profiles(gpu.uuid)), layout, made)
        self._settle(set(made).difference(asks), ForOwner(ends=NODE_LABEL))
        self._settle(asks, ForOwner(begins=NODE_LABEL, asks=asks))

    def _places(self, gpu: Gpu, layout: GpuLayout, made: Iterable[Thing]) -> Mapping[Thing, Parameters]:
        """Return where to place the instances. Some drivers report places only in MIG mode, so only now it is sure."""
        if layout.counts and not gpu.mig_profiles:
            raise TemporaryError(f"the NVIDIA driver does not tell how GPU {gpu.index} can be divided")
        problem = layout_problem(gpu, layout)
        if problem is not None:
            if not gpu.mig_enabled and not made:
                self._hand.set_mode(gpu.uuid, enabled=False)
            self._end(gpu)
            raise BlockedError(f"layout {layout.name}: {problem}")
        found = packed(layout.counts, gpu.mig_profiles)
        assert found is not None  # otherwise there would be a problem
        return {
            Thing(MIG_INSTANCE, mig_device_name(gpu.uuid, profile.name, at.start)): {
                "gpu": gpu.uuid,
                "profile": profile.name,
                "start": at.start,
                "size": at.size,
            }
            for profile, at in found
        }

    def _join(self, gpu: Gpu, made: Iterable[Thing], *, as_it_was: bool) -> None:
        """Make a GPU whole. `as_it_was`: see _divide()."""
        self._settle(made, ForOwner(ends=NODE_LABEL))
        if gpu.mig_enabled and changes_mode_at_once(gpu):
            self._set_mode(gpu, enabled=False, as_it_was=as_it_was)

    def _set_mode(self, gpu: Gpu, *, enabled: bool, as_it_was: bool) -> None:
        """Change the mode. If this is refused as the first step, end the change: otherwise a GPU that a monitor holds
        open would be out of service for as long, even after its label was removed.
        """
        try:
            self._hand.set_mode(gpu.uuid, enabled=enabled)
        except MigRefusedError as error:
            if as_it_was and error.did_nothing:
                self._end(gpu)
            raise

    def _end(self, gpu: Gpu) -> None:
        """End the change: the GPU is as it was, or cannot become as it is to be."""
        self._notes.note(gpu.uuid, GpuRecord())

    def _settle(self, things: Iterable[Thing], call: ForOwner) -> None:
        self._engine.settle(things, call, lambda: math.inf).check()


def others_made(gpu: Gpu, instances: Sequence[tuple[str, int]]) -> str:
    """Return a text about instances of a GPU that are not ours: (profile, start)."""
    shown = ", ".join(f"{profile} at {start}" for profile, start in instances)
    return (
        f"GPU {gpu.index} has MIG instances that no layout made ({shown}): they stay, and so does the GPU, until you "
        f"destroy them (`nvidia-smi mig -i {gpu.index} -dci`, then `-dgi`)"
    )
