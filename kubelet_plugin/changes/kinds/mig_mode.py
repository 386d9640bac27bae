"""GPUs that are out of MIG mode while claims have them whole. Nothing is noted, because there is nothing to undo:
whoever divides a GPU next turns its MIG mode on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.changes.change import (
    Act,
    End,
    How,
    Note,
    OwnersAlone,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    one_by_one,
)
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.discovery.mig.instances import MigRefusedError
from dracaena.kubelet_plugin.discovery.vm.passthrough import why_divided_by_mig
from dracaena.kubelet_plugin.prepare.effects import MIG_OFF


class WholeGpus(ThingKind[OwnersAlone, Gpu]):
    """For MIG_OFF; a thing has the device name of its GPU. From any thread; keeps no state."""

    name = MIG_OFF
    rank = 10
    noted = OwnersAlone

    def __init__(self, hand: MigHand, read_gpu: Callable[[str], Gpu]) -> None:
        """`read_gpu` returns a GPU as last read; see MigInstances."""
        self._hand = hand
        self._read_gpu = read_gpu

    def look(self, thing: Thing, _wants: Wants) -> Gpu:
        """Return the GPU as last read."""
        return self._read_gpu(f"GPU-{thing.name.removeprefix('gpu-')}")

    def plan(
        self, wants: Wants, seen: Gpu, _note: Note[OwnersAlone] | Unreadable | None
    ) -> ThingPlan[OwnersAlone, Gpu]:
        """See ThingKind. The driver is asked for the mode of now when it is turned off, in one step."""
        return ThingPlan(act=seen if wants else None)

    def do(self, acts: Sequence[Act[Gpu]], left_s: Callable[[], float]) -> Sequence[End[OwnersAlone]]:
        """See ThingKind."""
        return one_by_one(acts, left_s, lambda act: self._leave(act.step))

    def trouble(self, _thing: Thing, _problem: DracaenaError) -> Trouble | None:
        """See ThingKind: nothing is ever left."""
        return None

    def make_whole(self, gpu: Gpu) -> None:
        """Take a GPU out of MIG mode. Raises TemporaryError while instances are left, or a process has it open."""
        try:
            self._hand.leave_mode(gpu.uuid)
        except MigRefusedError as error:
            raise TemporaryError(
                f"GPU {gpu.uuid} does not leave MIG mode, so it cannot be used whole: {error}"
            ) from error

    def refuse_divided(self, gpu: Gpu) -> None:
        """Refuse a GPU that is in MIG mode now if only an admin can change its mode. Raises DracaenaError, also if the
        driver does not report the mode.
        """
        enabled, _pending = self._hand.mode(gpu.uuid)
        refused = why_divided_by_mig(replace(gpu, mig_enabled=enabled))
        if refused is not None:
            raise TemporaryError(refused)

    def _leave(self, gpu: Gpu) -> End[OwnersAlone]:
        try:
            self.make_whole(gpu)
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        return End()
