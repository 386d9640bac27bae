"""Writes one decision: the finalizers that are missing, then all allocations with the decision and their reservation.

The order matters: kube-controller-manager frees only claims that carry the finalizer. Where the chart's admission
policy sets it when claims are created, an allocation is one write a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import Pod
from dracaena.api.packed import unpacked
from dracaena.api.podclaims import group_consumer
from dracaena.api.resource_objects import ConsumerReference, ResourceClaim
from dracaena.controller.allocation.result import Allocation, ClaimAllocation, allocation_document, is_trimmed
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import ClaimApi
from dracaena.kube.errors import ConflictError, InvalidError, NotFoundError
from dracaena.process.clock import Clock, rfc3339

MAX_ATTEMPTS: Final = 5
"""Attempts at one write that meets conflicts. Others write a claim a few times in its life, so five conflicts in a row
are a fight that a later decision should settle."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Marked:
    """All claims carry the finalizer. They are in the order of the decision."""

    claims: tuple[ResourceClaim, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """All claims are allocated as decided."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Some claim cannot get what was decided: it is gone, is being deleted, or was allocated by another client."""

    claim_key: str
    why: str
    refused: bool = False
    """Whether the server's validation refuses the write itself: a person has to change the claim."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """Why one claim cannot be written."""

    why: str
    refused: bool = False


class ClaimWriter:
    """Writes decisions. Holds no state: safe from many threads.

    `shown` is called with each claim as the server returned it; `may_send` with the claim and the decision right before
    an allocation is sent: it returns whether the claim still belongs to the decision, and notes the write as under way.
    """

    def __init__(
        self,
        claims: ClaimApi,
        clock: Clock,
        metrics: ControllerMetrics,
        *,
        shown: Callable[[ResourceClaim], None],
        may_send: Callable[[ResourceClaim, str], bool],
    ) -> None:
        self._shown = shown
        self._may_send = may_send
        self._claims = claims
        self._clock = clock
        self._metrics = metrics

    def mark(self, allocation: Allocation) -> Marked | Lost:
        """Write all finalizers that are missing; this takes no device yet. Cost: nothing for a claim that has its own.

        After a conflict the claim is read again, and the write repeated as long as the claim has the same UID and is
        not allocated. Raises KubeError when the server does not answer.
        """
        marked: list[ResourceClaim] = []
        for entry in allocation.claims:
            claim = self._mark(entry.claim)
            if claim is entry.claim and is_trimmed(entry):
                claim = self._read(claim)
            if isinstance(claim, _Failed):
                return self._lost(entry, claim)
            marked.append(claim)
        return Marked(tuple(marked))

    def allocate(self, allocation: Allocation, marked: Marked, pod: Pod, decision_id: str) -> Written | Lost:
        """Write all allocations with the reservation for the pod.

        After a conflict the claim is read again, and the write repeated for the same node as long as the claim has the
        same UID and is not allocated. Raises KubeError when the server does not answer: we then do not know what was
        written.
        """
        for entry, claim in zip(allocation.claims, marked.claims, strict=True):
            stored = self._allocate(allocation, entry, claim, pod, decision_id)
            if isinstance(stored, _Failed):
                return self._lost(entry, stored)
        return Written()

    def _lost(self, entry: ClaimAllocation, failed: _Failed) -> Lost:
        self._metrics.decisions.lost.inc()
        return Lost(entry.claim.key, failed.why, refused=failed.refused)

    def _mark(self, claim: ResourceClaim) -> ResourceClaim | _Failed:
        """Return the claim with the finalizer, or why it can no longer be allocated."""
        for _ in range(MAX_ATTEMPTS):
            if DELETE_PROTECTION_FINALIZER in unpacked(claim.metadata.finalizers):
                return claim
            try:
                marked = self._claims.mark(claim)
                self._shown(marked)
                return marked
            except (ConflictError, InvalidError, NotFoundError) as error:
                fresh = self._read_after(error, claim)
            if isinstance(fresh, _Failed):
                return fresh
            if fresh.status.allocation is not None:
                return _Failed("is allocated by another program")
            claim = fresh
        return _Failed(f"changed {MAX_ATTEMPTS} times while it was written")

    def _allocate(
        self, allocation: Allocation, entry: ClaimAllocation, claim: ResourceClaim, pod: Pod, decision_id: str
    ) -> ResourceClaim | _Failed:
        """Return the allocated claim, or why it cannot be."""
        user = _user(claim, pod)
        for _ in range(MAX_ATTEMPTS):
            document = allocation_document(allocation, entry, rfc3339(self._clock.now()), claim)
            if self._may_send(claim, decision_id):
                try:
                    stored = self._claims.allocate(claim, document, user)
                    self._shown(stored)
                    return stored
                except (ConflictError, InvalidError, NotFoundError) as error:
                    fresh = self._read_after(error, claim)
            else:
                fresh = self._read_if_changed(claim)
            if isinstance(fresh, _Failed):
                return fresh
            if fresh.status.allocation is not None:
                # A write whose answer was lost may have landed: then it is ours after all.
                return fresh if _carries(fresh, entry) else _Failed("is allocated by another program")
            marked = self._mark(fresh)
            if isinstance(marked, _Failed):
                return marked
            claim = marked
        return _Failed(f"changed {MAX_ATTEMPTS} times while it was written")

    def _read_after(
        self, error: ConflictError | InvalidError | NotFoundError, claim: ResourceClaim
    ) -> ResourceClaim | _Failed:
        """Read a claim whose write was refused; an invalid write of what is still the newest state stays invalid."""
        self._note(error, claim)
        fresh = self._read(claim)
        if isinstance(fresh, _Failed) or not isinstance(error, InvalidError):
            return fresh
        unchanged = fresh.metadata.resource_version == claim.metadata.resource_version
        return _Failed(_refusal(error), refused=True) if unchanged else fresh

    def _read_if_changed(self, claim: ResourceClaim) -> ResourceClaim | _Failed:
        """Read a claim that must not be written as it was known; if it is unchanged, the decision does not stand."""
        fresh = self._read(claim)
        if isinstance(fresh, _Failed) or fresh.metadata.resource_version != claim.metadata.resource_version:
            return fresh
        return _Failed("changed before it was written")

    def _read(self, claim: ResourceClaim) -> ResourceClaim | _Failed:
        fresh = self._claims.read_claim(claim.metadata.namespace, claim.metadata.name)
        if fresh is None:
            return _Failed("is gone")
        if fresh.metadata.uid != claim.metadata.uid:
            return _Failed("was deleted and made again")
        self._shown(fresh)
        return _Failed("is being deleted") if fresh.metadata.deletion_timestamp is not None else fresh

    def _note(self, error: ConflictError | InvalidError | NotFoundError, claim: ResourceClaim) -> None:
        if isinstance(error, ConflictError):
            self._metrics.writes.conflicts.inc()
        log.info("write refused, reading again", claim=claim.key, claim_uid=claim.metadata.uid, error=str(error))


def _refusal(error: InvalidError) -> str:
    """Say what the server refuses. One known cause cannot be seen from its message.

    kube-apiserver compares opaque parameters as bytes. It rewrites them in its own form at each patch, so a claim that
    was created with blanks in them, as some clients send JSON, counts as changed whatever the patch contains.
    """
    hint = ""
    if "spec" in error.message and "immutable" in error.message:
        hint = (
            ". If it has opaque parameters, they were stored with blanks or characters that the server writes in "
            "another form, and then it cannot be patched: create it again with compact JSON, as kubectl apply does"
        )
    return f"is refused by the API server: {error.message}{hint}"


def pod_reference(key: str, uid: str) -> ConsumerReference:
    """Return the entry of status.reservedFor for a pod (`namespace/name`)."""
    return ConsumerReference(resource="pods", name=key.partition("/")[2], uid=uid)


def _user(claim: ResourceClaim, pod: Pod) -> ConsumerReference:
    group = None if pod.spec.scheduling_group is None else group_consumer(claim, pod)
    return pod_reference(pod.key, pod.metadata.uid) if group is None else group


def _carries(claim: ResourceClaim, entry: ClaimAllocation) -> bool:
    assert claim.status.allocation is not None
    found = {(item.request, item.driver, item.pool, item.device) for item in claim.status.allocation.devices.results}
    wanted = {(item.request, item.driver, item.pool, item.device) for item in entry.results}
    return found == wanted
