"""Limits how much memory of shared GPUs pods may take, by the GPU driver (device_kinds.memory_limit_effect)."""

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
"""Longest wait for the driver: it answers within microseconds, but may be busy with a reading of the node."""


class MemoryLimitSource(Protocol):
    """Limits memory in the driver's thread (adapters.nvml.machine)."""

    def limit_memory(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        """Limit how much of a GPU's memory a cgroup may take; see ports.MemoryLimiter."""
        ...


class GpuDriverMemoryLimiter:
    """Implements MemoryLimiter through the driver's thread."""

    def __init__(self, source: MemoryLimitSource, ask: Ask) -> None:
        self._source = source
        self._ask = ask

    def limit(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        """See MemoryLimiter. Also raises what GpuDriverThread.call does."""
        work = partial(self._source.limit_memory, gpu, cgroup, limit_bytes)
        self._ask(f"a memory limit of {gpu}", work, LIMIT_DEADLINE_S)


class MemoryLimits:
    """Implements EffectMeans for MEMORY_LIMIT. From any thread; keeps no state.

    A cgroup has one limit per GPU: the sum of what the pod has of it through all claims.
    """

    def __init__(self, limiter: MemoryLimiter, cgroups: PodCgroups) -> None:
        self._limiter = limiter
        self._cgroups = cgroups

    def apply(self, effect: Effect, others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. A pod that kubelet has not started on has no cgroup yet and is skipped for now; at least one
        pod with the share must have one. Raises PermanentError if a limit is required and not possible.
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
        """See EffectMeans. Both limits are removed, including the one that reserves memory for the pod: the driver
        counts it in the parent cgroups, and would keep doing so after this cgroup is removed. If the cgroup or the GPU
        is gone, so is the limit.
        """
        cgroup = self._cgroups.of_pod(pod_of(effect))
        if cgroup is None:
            return
        left_bytes = sum(map(_bytes, _of_pod(effect, others)))
        try:
            self._limiter.limit(_gpu(effect), cgroup, left_bytes or None)
        except (GpuGoneError, NotOfferedError) as error:
            log.info("a memory limit cannot be removed, and need not be", cgroup=cgroup, reason=str(error))


def _of_pod(effect: Effect, others: Sequence[Effect]) -> list[Effect]:
    return [other for other in others if pod_of(other) == pod_of(effect)]


def _bytes(effect: Effect) -> int:
    return int(effect.parameters["memory_bytes"])


def _gpu(effect: Effect) -> str:
    return str(effect.parameters["gpu"])
