"""A decision as a value, and as the documents that are written to the claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from dracaena.api.decision import Decision, part_in_words
from dracaena.api.decision import RunnerUp as RunnerUpDocument
from dracaena.api.objects import AllocationResult, ResourceClaim, Toleration
from dracaena.controller.allocation.answers import Answer
from dracaena.controller.allocation.box import ordinals_of
from dracaena.controller.allocation.choices import Choice
from dracaena.controller.allocation.demands import ClaimDemand
from dracaena.controller.allocation.explanation import links_in_words
from dracaena.controller.allocation.pool import DeviceId, NodePool

LATER_BY_NAME: Final = "equal, and later by name"


@dataclass(frozen=True, slots=True)
class Placement:
    """The best choices on one node."""

    pool: NodePool
    best: Choice
    second: Choice | None


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best choice that was not taken."""

    pool: NodePool
    choice: Choice
    lost_by: str
    """First part of the order in which it was worse; `node_name` or `ordinals` when all parts are equal."""


@dataclass(frozen=True, slots=True)
class Census:
    """What became of the nodes of a decision, as it was found on the way: nothing is worked out for it."""

    filtered: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that were refused one by one."""
    outside: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that have nothing to give."""
    buckets: tuple[tuple[Answer, int], ...] = ()
    """What each bucket had to give → its nodes that were not filtered out. Of buckets that come after the winner it is
    not known which nodes would have been."""

    def reasons(self, winner: Choice) -> tuple[tuple[str, int], ...]:
        """Return why the nodes other than the winner's were not taken, in words that follow a count; the most first."""
        counts: Counter[str] = Counter({**self.filtered})
        counts.update(self.outside)
        for answer, count in self.buckets:
            if answer.best is None:
                counts[answer.reason] += count
                continue
            part = winner.score.first_difference(answer.best.score)
            counts[f"worse in {part_in_words(part)}" if part is not None else LATER_BY_NAME] += count
        counts[LATER_BY_NAME] -= 1  # the winner itself
        return tuple(sorted((+counts).items(), key=lambda reason: (-reason[1], reason[0])))


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One device for one request."""

    request: str
    device: str
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """What one claim gets."""

    claim: ResourceClaim
    results: tuple[DeviceChoice, ...]
    """In the order of the spec's requests, within one by ordinal."""
    configs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """What all claims of one pod get, on one node."""

    driver: str
    pool: NodePool
    choice: Choice
    claims: tuple[ClaimAllocation, ...]
    runner_up: RunnerUp | None
    census: Census = field(default=Census(), compare=False, repr=False)

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.pool.node

    @property
    def links(self) -> str:
        """How the GPUs of the pod are linked, in words."""
        return links_in_words(self.pool.box, self.choice.together)

    def devices(self, claim: ClaimAllocation) -> frozenset[DeviceId]:
        """Return the devices of one of the claims."""
        return frozenset(DeviceId(self.pool.pool, result.device) for result in claim.results)


def make_allocation(
    driver: str,
    winner: Placement,
    demands: Sequence[ClaimDemand],
    runner_up: RunnerUp | None,
    census: Census,
) -> Allocation:
    """Give each request the devices of its part."""
    parts = iter(winner.best.parts)
    claims = tuple(
        ClaimAllocation(
            claim=demand.claim,
            results=tuple(
                DeviceChoice(request.name, name, request.tolerations)
                for request in demand.requests
                for name in _names(winner.pool, next(parts))
            ),
            configs=demand.configs,
        )
        for demand in demands
    )
    return Allocation(driver, winner.pool, winner.best, claims, runner_up, census)


def allocation_document(allocation: Allocation, claim: ClaimAllocation, timestamp: str) -> dict[str, Any]:
    """Return status.allocation of one claim. `timestamp` is RFC 3339 in UTC, whole seconds.

    The timestamp is no ornament: without it kube-scheduler cannot reserve the claim for a second pod (1.36).
    """
    devices: dict[str, Any] = {"results": [_result(allocation, result) for result in claim.results]}
    if claim.configs:
        devices["config"] = [dict(config) for config in claim.configs]
    rule = {"key": "metadata.name", "operator": "In", "values": [allocation.node]}
    return {
        "devices": devices,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [rule]}]},
        "allocationTimestamp": timestamp,
    }


def decision_of(allocation: Allocation, claim: ClaimAllocation) -> Decision:
    """Return what the claim's annotation says about the decision."""
    second = allocation.runner_up
    return Decision(
        node=allocation.node,
        devices=tuple(result.device for result in claim.results),
        links=allocation.links,
        score=allocation.choice.score.parts(),
        pod_devices=allocation.choice.together.bit_count(),
        runner_up=_runner_up_document(second) if second is not None else None,
        others=allocation.census.reasons(allocation.choice),
    )


def allocated_claim(allocation: Allocation, claim: ClaimAllocation, timestamp: str) -> ResourceClaim:
    """Return the claim as it is once the decision is written."""
    document = allocation_document(allocation, claim, timestamp)
    status = msgspec.structs.replace(claim.claim.status, allocation=msgspec.convert(document, AllocationResult))
    return msgspec.structs.replace(claim.claim, status=status)


def _runner_up_document(second: RunnerUp) -> RunnerUpDocument:
    return RunnerUpDocument(
        node=second.pool.node,
        devices=_names(second.pool, second.choice.mask),
        links=links_in_words(second.pool.box, second.choice.together),
        lost_by=second.lost_by,
        score=second.choice.score.parts(),
    )


def _result(allocation: Allocation, result: DeviceChoice) -> dict[str, Any]:
    document: dict[str, Any] = {
        "request": result.request,
        "driver": allocation.driver,
        "pool": allocation.pool.pool,
        "device": result.device,
    }
    if result.tolerations:
        # device-taint-eviction reads them later.
        document["tolerations"] = msgspec.to_builtins(list(result.tolerations))
    return document


def _names(pool: NodePool, mask: int) -> tuple[str, ...]:
    names = tuple(pool.devices[ordinal] for ordinal in ordinals_of(mask))
    return tuple(name for name in names if name is not None)
