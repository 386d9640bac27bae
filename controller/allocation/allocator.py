"""The decision: all claims of a pod at once, on one node, over a snapshot.

Order: what the policies require; the best-linked set; the least damage to what stays free on the node; the fuller node,
so that whole nodes stay free; names and ordinals, so that the same input gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.api.config.v1alpha1 import Requirement
from dracaena.api.objects import Node, Pod, ResourceClaim
from dracaena.controller.allocation.box import Box, mask_of
from dracaena.controller.allocation.candidates import can_enumerate, candidates_best_first
from dracaena.controller.allocation.demands import ClaimDemand, RefusalKind, Refused, concerns_us, read_demands
from dracaena.controller.allocation.explanation import Unsatisfied, unsatisfied
from dracaena.controller.allocation.memo import Memo
from dracaena.controller.allocation.node_fit import first_untolerated, node_selector_matches, unfit_reason
from dracaena.controller.allocation.result import Allocation, Choice, Placement, RunnerUp, make_allocation
from dracaena.controller.allocation.scoring import BoxScores
from dracaena.controller.allocation.snapshot import ClusterSnapshot, DeviceId, NodePool, held_devices
from dracaena.controller.allocation.splitting import Demand, split

MAX_BOXES: Final = 64
"""Node models whose tables are kept: clusters have a handful. A table of 16 unequal GPUs takes about 10 MB."""

MAX_EVALUATIONS: Final = 50_000
"""Remembered answers by (box, free GPUs, held GPUs, demands): 256 free masks times the usual counts of some boxes. That
is about 20 MB."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is left to decide: all claims are allocated, on a node that is there."""


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The best choice among some free GPUs of a box, and the one after it."""

    best: Choice | None
    second: Choice | None
    reason: str = ""
    """Why there is no best."""


class Allocator:
    """Decides. Holds only what it computed before, so that equal nodes cost one look-up. One thread at a time."""

    def __init__(self) -> None:
        self._scores: Memo[Box, BoxScores] = Memo(MAX_BOXES)
        self._evaluations: Memo[tuple[Box, int, int, tuple[Demand, ...]], _Evaluation] = Memo(MAX_EVALUATIONS)

    def allocate(
        self, snapshot: ClusterSnapshot, pod: Pod, claims: Sequence[ResourceClaim]
    ) -> Allocation | Unsatisfied | Refused | Settled:
        """Decide for all `claims` of a pod, in the order in which the pod names them.

        Claims that are allocated already pin the pod to their nodes, and their GPUs count as part of its set. The
        answer depends on nothing but the arguments. Cost: one pass over the nodes; each new (box, free GPUs, held
        GPUs, demands) costs the comparison of its candidates.
        """
        pins = tuple(claim for claim in claims if claim.status.allocation is not None)
        demands = read_demands(
            snapshot.driver, snapshot.classes, (claim for claim in claims if claim.status.allocation is None)
        )
        if isinstance(demands, Refused):
            return demands
        different = _different_tolerations(snapshot, demands)
        if different is not None:
            return different
        reasons: dict[str, str] = {}
        placements: list[Placement] = []
        for node in snapshot.nodes:
            found = self._place(snapshot, pod, pins, demands, node)
            if isinstance(found, str):
                reasons[node.metadata.name] = found
            elif found is None:
                return Settled()
            else:
                placements.append(found)
        if not placements:
            return unsatisfied(len(snapshot.nodes), reasons)
        return _best(snapshot.driver, placements, demands)

    def _place(
        self,
        snapshot: ClusterSnapshot,
        pod: Pod,
        pins: Iterable[ResourceClaim],
        demands: tuple[ClaimDemand, ...],
        node: Node,
    ) -> Placement | str | None:
        """Return the best placement on one node, why there is none, or None when the node needs to give nothing."""
        if not all(_allows(claim, node) for claim in pins):
            return "other than the node of a claim that is already allocated"
        if not demands:
            return None
        pool = snapshot.pools.get(node.metadata.name)
        if pool is None:
            return f"without usable GPUs of {snapshot.driver}"
        if not pool.offered:
            return "whose GPUs kube-scheduler allocates (no taint of ours)"
        unfit = unfit_reason(pod, node)
        if unfit is not None:
            return unfit
        free = _tolerated(pool, snapshot.free(pool), demands)
        evaluation = self._evaluate(pool.box, free, _held_beside(snapshot.driver, pool, pins), _flat(demands))
        if evaluation.best is None:
            return evaluation.reason
        return Placement(pool, free, evaluation.best, evaluation.second)

    def _evaluate(self, box: Box, free: int, beside: int, demands: tuple[Demand, ...]) -> _Evaluation:
        key = (box, free, beside, demands)
        return self._evaluations.get(key, lambda: self._compare(box, free, beside, demands))

    def _compare(self, box: Box, free: int, beside: int, demands: tuple[Demand, ...]) -> _Evaluation:
        count = sum(demand.count for demand in demands)
        if free.bit_count() < count:
            return _Evaluation(None, None, f"with fewer than {count} free GPUs" if count > 1 else "without a free GPU")
        if not can_enumerate(free, count):
            return _Evaluation(None, None, "with more free GPUs than can be compared")
        scores = self._scores.get(box, lambda: BoxScores(box))
        choices = _legal_choices(scores, free, beside, demands)
        best = next(choices, None)
        if best is None:
            required = {demand.requirement for demand in demands} - {Requirement.BEST_EFFORT}  # that can be met always
            names = sorted(requirement.value for requirement in required)
            return _Evaluation(None, None, f"whose free GPUs are not linked as required ({', '.join(names)})")
        return _Evaluation(best, next(choices, None))


def _legal_choices(scores: BoxScores, free: int, beside: int, demands: tuple[Demand, ...]) -> Iterator[Choice]:
    """Yield what may be taken, best first."""
    count = sum(demand.count for demand in demands)
    for candidate in candidates_best_first(scores, free, count, beside):
        # One demand has one part, so this also is the check of its requirement.
        parts = split(scores, candidate.mask, demands)
        if parts is not None:
            yield Choice(candidate.mask, parts, candidate.score, beside)


def _held_beside(driver: str, pool: NodePool, pins: Iterable[ResourceClaim]) -> int:
    """Return the GPUs of a pool that the pod's allocated claims hold."""
    held = {device for claim in pins for device in held_devices(claim, driver)}
    if not held:
        return 0
    return mask_of(ordinal for ordinal, name in enumerate(pool.devices) if name and DeviceId(pool.pool, name) in held)


def _best(driver: str, placements: Sequence[Placement], demands: tuple[ClaimDemand, ...]) -> Allocation:
    ordered = sorted(placements, key=Placement.rank)
    winner = ordered[0]
    others = [RunnerUp(other.pool, other.best, _lost_by(winner, other)) for other in ordered[1:2]]
    if winner.second is not None:
        same_node = winner.best.score.first_difference(winner.second.score) or "ordinals"
        others.append(RunnerUp(winner.pool, winner.second, same_node))
    # max() keeps the first of equals: another node says more than another set of the same node.
    runner_up = max(others, key=lambda other: other.choice.score) if others else None
    return make_allocation(driver, winner, demands, runner_up)


def _lost_by(winner: Placement, other: Placement) -> str:
    part = winner.best.score.first_difference(other.best.score)
    if part is not None:
        return part
    return "free_gpus" if winner.free.bit_count() != other.free.bit_count() else "node_name"


def _flat(demands: tuple[ClaimDemand, ...]) -> tuple[Demand, ...]:
    return tuple(request.demand for claim in demands for request in claim.requests)


def _allows(claim: ResourceClaim, node: Node) -> bool:
    """Whether an allocated claim can be used on a node; no selector means everywhere."""
    assert claim.status.allocation is not None
    selector = claim.status.allocation.node_selector
    return selector is None or node_selector_matches(selector, node)


def _tolerated(pool: NodePool, free: int, demands: tuple[ClaimDemand, ...]) -> int:
    """Leave out devices with a taint, other than ours, that the requests do not tolerate."""
    if not pool.foreign_taints:
        return free
    tolerations = demands[0].requests[0].tolerations
    for ordinal, taints in pool.foreign_taints.items():
        if first_untolerated(taints, tolerations) is not None:
            free &= ~(1 << ordinal)
    return free


def _different_tolerations(snapshot: ClusterSnapshot, demands: tuple[ClaimDemand, ...]) -> Refused | None:
    """Requests of one pod that tolerate different things may use different devices; the union is chosen for all alike.

    So such a pod waits when it could matter: some device carries a taint besides ours.
    """
    kinds = {request.tolerations for claim in demands for request in claim.requests}
    if len(kinds) <= 1 or not any(pool.foreign_taints for pool in snapshot.pools.values()):
        return None
    ours = concerns_us(snapshot.driver, snapshot.classes, [claim.claim for claim in demands])
    text = "requests of one pod with different tolerations, while devices have taints: not supported yet: the pod waits"
    return Refused(RefusalKind.UNSUPPORTED, text, ours)
