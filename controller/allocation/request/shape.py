"""What tells two waiting pods apart for the allocator, as a digest of 32 bytes, and which of two pods comes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import msgspec

from dracaena.api.objects import Pod, PodSpec, ResourceClaim
from dracaena.controller.allocation.effort import BYTES_A_STEP, Effort, Work

Turn = tuple[int, bool, str, str]
"""Sorts pods: the smallest is served first. No two pods of a cluster have one."""


def turn(pod: Pod) -> Turn:
    """Return a pod's place among all others. spec.priority first, as kube-scheduler's queue has it, then the time of
    creation (times of the API sort as texts; whole seconds), those that were never created last, then the key.

    None of it ever changes while the pod lives, so all replicas and all leaders order alike.
    """
    created = pod.metadata.creation_timestamp
    return -pod.spec.priority, created is None, created or "", pod.key


DIGEST_BYTES: Final = 32
"""Shapes are keys of what waits and of what is remembered, and a pod may have 1.5 MB. No tenant finds a second spec of
the same 256 bits."""

APART: Final = b"pod "
"""Begins the shape of a pod that is like no other."""

_ENCODER = msgspec.json.Encoder(order="deterministic")


def shape(
    pod: Pod,
    claims: Iterable[ResourceClaim],
    *,
    labels: Mapping[str, str | None] = MappingProxyType({}),
    apart: bool = False,
    shared: bool = False,
    effort: Effort | None = None,
) -> bytes:
    """Return what a decision reads of a pod and its claims: pods of one shape get one answer at any moment.

    Pods of two namespaces never have one shape: a pod stands behind an equal one that is older, and nobody shall stand
    behind a pod of a namespace whose pods are decided for behind all others.

    All of the spec that we decode counts, so a field that is decoded tomorrow counts too; but names of containers and
    claims, priority, gates and the scheduler's name do not, and of each claim that waits only what it asks for does. Of
    the pod's labels only those count that are given: rules about other pods are the only ones that read any. `shared`:
    other pods name one of the claims, too; nobody is evicted for such a pod.
    Where a claim is allocated, or with `apart`, the pod is like no other. Cost: some 10 µs for an ordinary pod, in
    proportion to the size of pod and claims, and charged to `effort`.
    """
    effort = effort or Effort()
    waiting = list(claims)
    if apart or any(claim.status.allocation is not None for claim in waiting):
        return APART + (pod.metadata.uid or pod.key).encode()
    replace = msgspec.structs.replace
    spec = pod.spec
    containers, init_containers = (
        [replace(item, name="", resources=replace(item.resources, claims=[])) for item in items]
        for items in (spec.containers, spec.init_containers)
    )
    asked: PodSpec = replace(
        spec,
        resource_claims=[],
        containers=containers,
        init_containers=init_containers,
        scheduling_gates=[],
        scheduler_name="",
        priority=0,
    )
    parts = [_ENCODER.encode(pod.metadata.namespace)]
    if shared:
        parts.append(b"shared")
    if labels:
        parts.append(_ENCODER.encode(labels))
    for part in (asked, *(claim.spec for claim in waiting)):
        parts.append(_ENCODER.encode(part))
        effort.charge(1 + len(parts[-1]) // BYTES_A_STEP, Work.CLAIMS)
    return blake2b(b",".join(parts), digest_size=DIGEST_BYTES).digest()
