"""Limits the memory that pods take of shared GPUs, by the GPU driver (device_kinds.memory_limit_effect)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

import structlog

from dracaena.api.errors import PermanentError, TemporaryError
from dracaena.kubelet_plugin.device_kinds.memory_limit_effect import WAITS, pod_of
from dracaena.kubelet_plugin.node.health_monitor import Ask
from dracaena.kubelet_plugin.ports import GpuGoneError, MemoryLimiter, NotOfferedError, PodCgroups
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar

log = structlog.get_logger()


LIMIT_DEADLINE_S = 10.0
"""Longest wait for the driver, which takes some microseconds, and for what it is busy with: a reading of the node."""


class MemoryLimitSource(Protocol):
    """Limits memory in the driver's thread (adapters.nvml_machine)."""

    def limit_memory(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        """Limit what a cgroup takes of a GPU, as ports.MemoryLimiter does."""
        ...


class AskedMemoryLimiter:
    """Implements MemoryLimiter through the driver's thread."""

    def __init__(self, source: MemoryLimitSource, ask: Ask) -> None:
        self._source = source
        self._ask = ask

    def limit(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        """See MemoryLimiter. Raises as GpuDriverThread.call too."""
        work = partial(self._source.limit_memory, gpu, cgroup, limit_bytes)
        self._ask(f"a memory limit of {gpu}", work, LIMIT_DEADLINE_S)


class MemoryLimits:
    """Implements EffectMeans for MEMORY_LIMIT. From any thread; holds nothing.

    A cgroup has one limit for a GPU: the sum of what the pod has of it, by all claims.
    """

    def __init__(self, limiter: MemoryLimiter, cgroups: PodCgroups) -> None:
        self._limiter = limiter
        self._cgroups = cgroups

    def apply(self, effect: Effect, others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. A pod that kubelet has not begun with has no cgroup and waits; one of the pods that have the
        share must have one. Raises PermanentError where nothing can be limited, and that is required.
        """
        cgroup = self._cgroups.of_pod(pod_of(effect))
        if cgroup is None:
            mates = [each for each in others if (each.device, each.share_id) == (effect.device, effect.share_id)]
            if effect.parameters["required"] and all(self._cgroups.of_pod(pod_of(mate)) is None for mate in mates):
                raise TemporaryError(
                    f"the memory of {effect.device} cannot be limited: kubelet has no cgroup for pod UID "
                    f"{pod_of(effect)} yet"
                )
            return {WAITS: True}
        try:
            self._limiter.limit(_gpu(effect), cgroup, sum(map(_bytes, [effect, *_of_pod(effect, others)])))
        except NotOfferedError as error:
            if effect.parameters["required"]:
                raise PermanentError(
                    f"nothing on this node enforces the memory of {effect.device}: {error}; with GpuConfig "
                    "`sharing.enforcement: BestEffort` it is prepared without"
                ) from error
            log.warning("the memory of a share is not limited by the driver", device=effect.device, reason=str(error))
            return {"without": str(error)}
        return {"cgroup": cgroup}

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        """See EffectMeans. Both limits go, the one that keeps memory for the pod too: the driver counts it in the
        cgroups above, and would go on doing so once this one is removed. With the cgroup, or the GPU, a limit is gone.
        """
        cgroup = self._cgroups.of_pod(pod_of(effect))
        if cgroup is None:
            return
        left_bytes = sum(map(_bytes, _of_pod(effect, others)))
        try:
            self._limiter.limit(_gpu(effect), cgroup, left_bytes or None)
        except (GpuGoneError, NotOfferedError) as error:
            log.info("a memory limit cannot be taken back, and need not", cgroup=cgroup, reason=str(error))


def _of_pod(effect: Effect, others: Sequence[Effect]) -> list[Effect]:
    return [other for other in others if pod_of(other) == pod_of(effect)]


def _bytes(effect: Effect) -> int:
    return int(effect.parameters["memory_bytes"])


def _gpu(effect: Effect) -> str:
    return str(effect.parameters["gpu"])
