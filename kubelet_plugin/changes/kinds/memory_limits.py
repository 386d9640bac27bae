"""How much memory of one GPU a pod may take: a limit of the GPU driver on the pod's cgroup (driver R615 and later).

A cgroup has one limit per GPU: the sum of what the pod has of it through all claims.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.names import DeviceName, PodUid
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
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
from dracaena.kubelet_plugin.ports import GpuGoneError, LimitMemory, NotOfferedError, PodCgroups
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, gpu_and_part

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Limit:
    """What a pod may take."""

    cgroup: str | None
    """None: kubelet has not started on the pod, so nothing can be limited yet."""
    limit_bytes: int
    """0: whatever it likes."""


class MemoryLimits(ThingKind[OwnersAlone, Limit]):
    """For MEMORY_LIMIT; a thing is a pod on a GPU. From any thread; keeps no state."""

    name = MEMORY_LIMIT
    rank = 30
    noted = OwnersAlone

    def __init__(self, limit: LimitMemory, cgroups: PodCgroups) -> None:
        self._limit_memory = limit
        self._cgroups = cgroups

    def gpu(self, thing: Thing) -> DeviceName:
        """See ThingKind."""
        return gpu_and_part(thing.name)[0]

    def asked(self, wants: Wants) -> int:
        """Return the bytes that all shares of the pod have."""
        return sum(int(each["memory_bytes"]) for asked in wants.values() for each in asked)

    def supposed(self, _wants: Wants) -> OwnersAlone:
        """See ThingKind: no pod had a limit before."""
        return OwnersAlone()

    def look(self, thing: Thing, _wants: Wants) -> str | None:
        """Return the pod's cgroup, None while there is none. Which limit that has is not asked: setting it is no
        slower.
        """
        return self._cgroups.of_pod(_pod(thing))

    def plan(
        self, wants: Wants, seen: str | None, note: Note[OwnersAlone] | Unreadable | None
    ) -> ThingPlan[OwnersAlone, Limit]:
        """See ThingKind. A cgroup that is gone has taken its limit along."""
        if wants:
            return ThingPlan(OwnersAlone(), Limit(seen, self.asked(wants)))
        if isinstance(note, Unreadable) and seen is not None:
            return ThingPlan(
                stays=f"{note.problem}, so it is not known which claims it has a share of: the limit goes with the pod"
            )
        return ThingPlan(act=None if seen is None else Limit(seen, 0))

    def do(self, acts: Sequence[Act[Limit]], left_s: Callable[[], float]) -> Sequence[End[OwnersAlone]]:
        """See ThingKind. A pod that kubelet has not started on is skipped for now; a claim whose limits are required
        has at least one pod that is not.
        """
        if all(act.step.cgroup is None for act in acts) and any(_is_required(act) for act in acts):
            return [End(How.REFUSED, _no_cgroup(act)) for act in acts]
        return one_by_one(acts, left_s, self._limit)

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        """See ThingKind."""
        pod, gpu = _pod(thing), self.gpu(thing)
        text = f"pod UID {pod} may be limited in the memory of {gpu} for no claim until it ends: {problem}"
        return trouble(TroubleKind.NOT_RESTORED, text, thing.name)

    def _limit(self, act: Act[Limit]) -> End[OwnersAlone]:
        """Set a limit, or remove it together with what is reserved for the pod: the driver counts that in the parent
        cgroups, and would keep doing so after this cgroup is removed.
        """
        step = act.step
        if step.cgroup is None:
            return End()
        try:
            gpu = f"GPU-{self.gpu(act.thing).removeprefix('gpu-')}"
            self._limit_memory(gpu, step.cgroup, step.limit_bytes or None)
        except NotOfferedError as error:
            return _refused(act, error)
        except GpuGoneError as error:
            # Whatever the GPU was told is lost with it.
            return End(How.UNANSWERED, error) if step.limit_bytes else End()
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        return End()


def _refused(act: Act[Limit], error: NotOfferedError) -> End[OwnersAlone]:
    gpu, _ = gpu_and_part(act.thing.name)
    if _is_required(act):
        problem = PermanentError(
            f"nothing on this node enforces the memory of {gpu}: {error}; with GpuConfig "
            "`sharing.enforcement: BestEffort` it is prepared without"
        )
        return End(How.REFUSED, problem)
    log.warning("the memory of a share is not limited by the driver", device=gpu, reason=str(error))
    return End(How.REFUSED)


def _no_cgroup(act: Act[Limit]) -> TemporaryError:
    gpu, pod = gpu_and_part(act.thing.name)
    return TemporaryError(f"the memory of {gpu} cannot be limited: kubelet has no cgroup for pod UID {pod} yet")


def _is_required(act: Act[Limit]) -> bool:
    return any(each["required"] for each in act.own)


def _pod(thing: Thing) -> PodUid:
    return PodUid(gpu_and_part(thing.name)[1])
