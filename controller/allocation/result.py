"""A decision as a value, and as the documents that are written to the claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any, Final

import msgspec

from dracaena.api.config.v1alpha1 import Requirement
from dracaena.api.decision import Decision, RunnerUp, decision_config
from dracaena.api.device_id import DeviceId
from dracaena.api.go_json import as_go_writes
from dracaena.api.links import UNKNOWN_LINK, Link, LinkLevel
from dracaena.api.opaque import index_left_out
from dracaena.api.quantity import Quantity
from dracaena.api.resource_objects import AllocationConfig, AllocationResult, DeviceResult, ResourceClaim
from dracaena.api.sharing import amounts_in_words
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.legal.capacity import amounts
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.nodes.node_filter import this_node
from dracaena.controller.allocation.request import ClaimDemand, RequestDemand
from dracaena.controller.allocation.score.box import Box, ordinals_of
from dracaena.controller.allocation.score.choices import Choice
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodePool, claim_holder, holdings_besides_gpus
from dracaena.controller.allocation.walk.answers import Census
from dracaena.controller.allocation.walk.judgements import NodeChoice
from dracaena.controller.allocation.walk.pod_demand import Combination

MAX_BOXES: Final = 1_024
"""Boxes whose links are kept in words: those of a handful of node models, 16 for each with partitions."""


@dataclass(frozen=True, slots=True)
class RunnerUpChoice:
    """The best choice that was not taken."""

    pool: NodePool
    choice: Choice
    lost_by: str
    """First part of the order in which it was worse; `node_name` or `ordinals` when all parts are equal."""


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """What one claim gets."""

    claim: ResourceClaim
    results: tuple[DeviceResult, ...]
    """In the order of the spec's requests; within a request by ordinal or in the order in which devices are tried."""
    configs: tuple[Mapping[str, Any], ...]
    node_selector: Mapping[str, Any] | None
    """Where the devices can be used; None: everywhere."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What all claims of one pod get, on one node."""

    driver: str
    pool: NodePool
    choice: Choice
    claims: tuple[ClaimAllocation, ...]
    runner_up: RunnerUpChoice | None = None
    census: Census = field(default=Census(), compare=False, repr=False)
    cut_off: bool = False
    """Whether the search ended at its limit: a better set may exist."""
    requirement: Requirement = Requirement.BEST_EFFORT
    """The strictest of the policies of the requests that were chosen by links."""
    shared: frozenset[tuple[int, str]] = frozenset()
    """Requests that asked for amounts where GPUs are given in shares: place of the claim, name."""
    has_joined: bool = False
    """Whether some share is of a GPU that already had shares."""
    preempting: bool = False
    """Whether the pod fits on the node only once kube-scheduler has evicted pods of lower priority there."""

    @property
    def node(self) -> str:
        """Name of the node."""
        return self.pool.node

    @property
    def links(self) -> str:
        """How the GPUs of the pod are linked, in words."""
        words = links_in_words(self.pool.box, self.choice.together, self.choice.claims) if self.is_scored else ""
        shares = self._shares_in_words()
        words = "; ".join(filter(None, (words, shares))) or "not chosen by links"
        return f"{words}, the search was cut off" if self.cut_off else words

    def _shares_in_words(self) -> str:
        """Say which shares it has; "" if no amounts were asked for."""
        counts = Counter(
            amounts_in_words(result.consumed_capacity)
            for place, entry in enumerate(self.claims)
            for result in entry.results
            if result.share_id is not None and (place, result.request) in self.shared
        )
        shares = ", ".join(f"{count} × {words}" if count > 1 else words for words, count in counts.items())
        if not shares:
            return ""
        what = "a share of" if counts.total() == 1 else "shares of"
        return f"{what} {shares}" + (", next to others" if self.has_joined else "")

    @property
    def worst_link(self) -> str:
        """What joins the worst pair of the pod's GPUs, in one word (box.worst_link)."""
        return worst_link(self.pool.box, self.choice.together, self.choice.claims)

    @property
    def is_scored(self) -> bool:
        """Whether devices were chosen by their links; false if only MIG devices or shares were asked for."""
        return self.choice.together != 0

    def devices(self, claim: ClaimAllocation) -> frozenset[DeviceId]:
        """Return the devices of one of the claims."""
        return frozenset(
            DeviceId(self.driver, result.pool, result.device)
            for result in claim.results
            if result.driver == self.driver and not result.admin_access
        )

    def others(self, claim: ClaimAllocation) -> frozenset[Holding]:
        """Return what else one of the claims holds: devices of other drivers, and shares."""
        configs = (
            (config.get("requests", ()), config["opaque"]["parameters"])
            for config in claim.configs
            if config.get("opaque", {}).get("driver") == self.driver
        )
        return holdings_besides_gpus(claim.claim.metadata.uid, claim.results, self.driver, configs)


def make_allocation(
    driver: str, winner: NodeChoice, combination: Combination, features: Features, share_ids: Iterator[str]
) -> Allocation:
    """Give each request the whole devices of its part. `share_ids` yields a new UUID for each device that can also be
    given in shares: having it whole means having a share that takes all of it."""
    assert winner.best is not None
    pool = winner.pool
    parts = dict(zip(combination.requests, winner.best.parts, strict=True))
    claims = tuple(
        ClaimAllocation(
            claim=demand.claim,
            results=tuple(
                _whole_gpu(driver, pool, ordinal, chosen.demand, features, share_ids)
                for chosen in combination.of_claim(index)
                for ordinal in ordinals_of(parts[chosen])
            ),
            configs=demand.configs((chosen.demand for chosen in combination.of_claim(index)), features),
            node_selector=this_node(winner.pool.node),
        )
        for index, demand in enumerate(combination.claims)
    )
    return Allocation(driver, winner.pool, winner.best, claims)


def make_part_allocation(
    driver: str,
    winner: NodeChoice,
    combination: Combination,
    nothing: Choice,
    features: Features,
    share_ids: Iterator[str],
) -> Allocation:
    """Give each request the parts of GPUs that a place names, or whole GPUs of the choice. `nothing`: the choice of no
    GPU, for a pod that gets only parts."""
    assert winner.fractions is not None
    assert winner.fractions.devices is not None
    pool, choice = winner.pool, winner.best or nothing
    parts, whole = dict(zip(combination.requests, winner.fractions.devices, strict=True)), iter(choice.parts)
    masks = {chosen: 0 if names else next(whole) for chosen, names in parts.items()}
    claims = tuple(
        ClaimAllocation(
            claim=demand.claim,
            results=tuple(
                result
                for chosen in combination.of_claim(index)
                for result in (
                    *(
                        DeviceResult(
                            request=chosen.demand.name,
                            driver=driver,
                            pool=pool.pool,
                            device=name,
                            tolerations=list(chosen.demand.tolerations),
                        )
                        for name in parts[chosen]
                    ),
                    *(
                        _whole_gpu(driver, pool, ordinal, chosen.demand, features, share_ids)
                        for ordinal in ordinals_of(masks[chosen])
                    ),
                )
            ),
            configs=demand.configs((chosen.demand for chosen in combination.of_claim(index)), features),
            node_selector=this_node(pool.node),
        )
        for index, demand in enumerate(combination.claims)
    )
    return Allocation(driver, pool, choice, claims)


def _whole_gpu(
    driver: str, pool: NodePool, ordinal: int, demand: RequestDemand, features: Features, share_ids: Iterator[str]
) -> DeviceResult:
    name, kind = pool.devices[ordinal], pool.kind.devices[ordinal]
    assert name is not None
    assert kind is not None
    taken: Mapping[str, Quantity] | None = None
    if pool.kind.shareable >> ordinal & 1 and features.consumable_capacity:
        taken = amounts(kind.device, None, fractional=features.fractional_capacity_range)
    return DeviceResult(
        request=demand.name,
        driver=driver,
        pool=pool.pool,
        device=name,
        share_id=None if taken is None else next(share_ids),
        # device-taint-eviction reads them later.
        tolerations=list(demand.tolerations),
        consumed_capacity={} if taken is None else {name: str(amount) for name, amount in taken.items()},
    )


def commit(inventory: Inventory, allocation: Allocation) -> None:
    """Let the claims of a decision hold their devices."""
    for entry in allocation.claims:
        inventory.hold(claim_holder(entry.claim), allocation.devices(entry), allocation.others(entry))


def planned_allocation(
    driver: str, pool: NodePool, choice: Choice, claims: Sequence[ClaimDemand], allocations: Sequence[AllocationResult]
) -> Allocation:
    """Return the decision for what the rules allocated."""
    return Allocation(
        driver,
        pool,
        choice,
        tuple(
            ClaimAllocation(
                demand.claim,
                tuple(allocated.devices.results),
                tuple(map(_config_document, allocated.devices.config)),
                allocated.node_selector,
            )
            for demand, allocated in zip(claims, allocations, strict=True)
        ),
    )


def _config_document(config: AllocationConfig) -> Mapping[str, Any]:
    opaque = config.opaque
    return {
        "source": config.source,
        **({"requests": config.requests} if config.requests else {}),
        **({} if opaque is None else {"opaque": {"driver": opaque.driver, "parameters": opaque.parameters}}),
    }


def allocation_document(
    allocation: Allocation, claim: ClaimAllocation, timestamp: str, whole: ResourceClaim
) -> dict[str, Any]:
    """Return status.allocation of one claim, with the decision as its last config. `timestamp` is RFC 3339 in UTC,
    whole seconds. `whole` is the claim as the server returned it: it has the parameters that were not kept, and its
    spec never changes.

    The timestamp is needed: without it kube-scheduler cannot reserve the claim for a second pod (1.36).
    """
    devices: dict[str, Any] = {
        "results": [msgspec.to_builtins(result) for result in claim.results],
        "config": [
            *(_whole_config(config, whole) for config in claim.configs),
            decision_config(decision_of(allocation, claim), allocation.driver),
        ],
    }
    document: dict[str, Any] = {"devices": devices, "allocationTimestamp": timestamp}
    if claim.node_selector is not None:
        document["nodeSelector"] = dict(claim.node_selector)
    return document


def is_trimmed(claim: ClaimAllocation) -> bool:
    """Whether parameters have to be taken from the claim as the server returns it (allocation_document)."""
    return any("opaque" in one and index_left_out(one["opaque"]["parameters"]) is not None for one in claim.configs)


def _whole_config(config: Mapping[str, Any], claim: ResourceClaim) -> dict[str, Any]:
    """Return a config with the parameters that it stands for."""
    if "opaque" not in config:
        return dict(config)
    parameters = config["opaque"]["parameters"]
    if config["source"] == "FromClass":
        parameters = as_go_writes(parameters)  # those of a claim are in this form, or it cannot be patched
    elif (index := index_left_out(parameters)) is not None:
        parameters = claim.spec["devices"]["config"][index]["opaque"]["parameters"]
    return {**config, "opaque": {**config["opaque"], "parameters": parameters}}


def decision_of(allocation: Allocation, claim: ClaimAllocation) -> Decision:
    """Return what the claim's allocation says about the decision."""
    second = allocation.runner_up
    return Decision(
        node=allocation.node,
        links=allocation.links,
        score=allocation.choice.score.parts() if allocation.is_scored else (),
        pod_devices=allocation.choice.together.bit_count()
        if allocation.is_scored
        else sum(len(entry.results) for entry in allocation.claims),
        runner_up=_runner_up_document(second) if second is not None else None,
        others=allocation.census.reasons(allocation.choice),
    )


def allocated_claim(allocation: Allocation, claim: ClaimAllocation, timestamp: str) -> ResourceClaim:
    """Return the claim as it is once the decision is written."""
    document = msgspec.json.encode(allocation_document(allocation, claim, timestamp, claim.claim))
    status = msgspec.structs.replace(
        claim.claim.status, allocation=msgspec.json.decode(document, type=AllocationResult)
    )
    return msgspec.structs.replace(claim.claim, status=status)


def _runner_up_document(second: RunnerUpChoice) -> RunnerUp:
    return RunnerUp(
        node=second.pool.node,
        devices=_names(second.pool, second.choice.mask),
        links=links_in_words(second.pool.box, second.choice.together, second.choice.claims),
        lost_by=second.lost_by,
        score=second.choice.score.parts(),
    )


def _names(pool: NodePool, mask: int) -> tuple[str, ...]:
    names = tuple(pool.devices[ordinal] for ordinal in ordinals_of(mask))
    return tuple(name for name in names if name is not None)


def links_in_words(box: Box, mask: int, claims: Sequence[int] = ()) -> str:
    """Return how a set is linked, best links first: `6 pairs NV12`, `1 pair PIX, 2 pairs PHB`, `one GPU`.

    On a box with partitions it also says whether the set is one. `claims`: the GPUs that each claim has there, unless
    one has them all. Cost: one step for each pair of the box; the first time for a box, reading them.
    """
    counted = Counter(_tokens_of(box, mask, claims))
    if not counted:
        return "one GPU" if mask else "no GPU"
    words = ", ".join(f"{count} pair{'s' if count > 1 else ''} {token}" for token, count in counted.items())
    return f"{words}, {_partitions_in_words(box, claims or (mask,))}" if box.partitions else words


def _partitions_in_words(box: Box, claims: Sequence[int]) -> str:
    several = [gpus for gpus in claims if gpus & (gpus - 1)]
    whole = sum(gpus in box.partitions for gpus in several)
    if not whole:
        return "no whole partition"
    if len(several) == 1:
        return "a whole partition"
    return f"{whole} whole partitions" if whole == len(several) else f"{whole} of {len(several)} whole partitions"


def worst_link(box: Box, mask: int, claims: Sequence[int] = ()) -> str:
    """Return what joins the worst pair of a set: `NVLink` for any number, a PCIe level, `unknown`, or `none` for fewer
    than two GPUs. `claims` as in links_in_words(). Cost: one step for each pair of the box."""
    last = next(reversed(_tokens_of(box, mask, claims)), None)
    if last is None:
        return "none"
    if last == UNKNOWN_LINK.token:
        return "unknown"
    return last if last in LinkLevel.__members__ else "NVLink"


def _tokens_of(box: Box, mask: int, claims: Sequence[int]) -> Sequence[str]:
    """Return the token of the link of each pair of a set, the best links first."""
    if not box.partitions:
        return [token for pair, token in _tokens(box) if pair & mask == pair]
    linked = [gpus & mask for gpus in claims or (mask,) if gpus in box.partitions]
    inside = [token for gpus in linked for pair, token in _tokens(box.linked(gpus)) if pair & gpus == pair]
    others = [token for pair, token in _tokens(box.linked(0)) if pair & mask == pair and not _is_inside(pair, linked)]
    return [*sorted(inside, key=lambda token: -int(token[2:])), *others]


def _is_inside(pair: int, sets: Iterable[int]) -> bool:
    return any(pair & gpus == pair for gpus in sets)


@lru_cache(MAX_BOXES)
def _tokens(box: Box) -> tuple[tuple[int, str], ...]:
    """Return each pair of a box as a mask, with the token of its link; the best links first."""
    pairs = combinations(range(box.gpu_count), 2)
    links = sorted(((box.topology.link(a, b), 1 << a | 1 << b) for a, b in pairs), key=_best_first)
    return tuple((pair, link.token) for link, pair in links)


def _best_first(pair: tuple[Link, int]) -> tuple[int, int]:
    link, unknown = pair[0], 1_000  # after every level
    return (-(link.nvlinks or 0), unknown if link.level is None else link.level)
