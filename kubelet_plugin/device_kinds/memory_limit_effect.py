"""The effects of a share whose memory the GPU driver limits: one for each pod that has it, on that pod's cgroup.

Driver R615 and later: nvmlDeviceSetMemoryLimits_v1. A limit counts the memory of one GPU that all processes below a
cgroup take.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Final

from dracaena.api.names import PodUid
from dracaena.kubelet_plugin.prepare.effects import MEMORY_LIMIT, Effect, Scalar, gpu_and_part, part_on_gpu
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice

FIRST_DRIVER: Final = 615
"""Major version of the first driver that has the call."""

_PLAIN_UID: Final = re.compile("[A-Za-z0-9-]{1,63}")
"""UIDs of pods that the API server gives. A claim's status may name any others: they have no cgroup."""


def memory_limit_effect(device: PreparedDevice, *, required: bool) -> Effect:
    """Return the effect of a share, without a pod. If it is not `required`, it is skipped where the driver cannot."""
    assert device.memory_bytes is not None
    parameters: dict[str, Scalar] = {"memory_bytes": device.memory_bytes, "required": required}
    return Effect(MEMORY_LIMIT, device.physical_gpu, device.device, device.share_id, parameters)


def for_pods(effects: Iterable[Effect], pods: Sequence[PodUid]) -> tuple[Effect, ...]:
    """Return effects with each memory limit repeated for each pod; the others as they are."""
    found: list[Effect] = []
    for effect in effects:
        found += _of_each(effect, pods) if is_memory_limit(effect) else (effect,)
    return tuple(found)


def _of_each(effect: Effect, pods: Sequence[PodUid]) -> Iterable[Effect]:
    for pod in filter(_PLAIN_UID.fullmatch, dict.fromkeys(pods)):
        yield dataclasses.replace(effect, thing=part_on_gpu(effect.gpu, pod))


def is_memory_limit(effect: Effect) -> bool:
    """Whether an effect is a memory limit."""
    return effect.kind == MEMORY_LIMIT


def pod_of(effect: Effect) -> PodUid:
    """Return the pod whose cgroup a memory limit is on."""
    return PodUid(gpu_and_part(effect.thing)[1])


def wanted_limits(limits: Sequence[Effect], users: Sequence[PodUid], ended: Iterable[PodUid]) -> tuple[Effect, ...]:
    """Return the memory limits that a prepared claim must have: what is journaled, and what its users need.

    Drops those of pods that have ended, except the last one of a share: it says what a later pod gets.
    """
    gone = frozenset(ended) - frozenset(users)
    found: list[Effect] = []
    for share in dict.fromkeys((effect.device, effect.share_id) for effect in limits):
        own = [effect for effect in limits if (effect.device, effect.share_id) == share]
        kept = [effect for effect in own if pod_of(effect) not in gone]
        new = [uid for uid in dict.fromkeys(users) if uid not in {pod_of(effect) for effect in own}]
        found += [*kept, *_of_each(own[0], new)] or own[-1:]
    return tuple(found)


def why_no_memory_limits(driver_version: str | None) -> str | None:
    """Return why a driver has no memory limits, None if it has them or its version is not known."""
    major = re.match(r"\d+", driver_version or "")
    if major is None or int(major[0]) >= FIRST_DRIVER:
        return None
    return f"GPU driver {driver_version} has no memory limits for pods, which came with R615: install a newer one"
