"""A plan as the API's documents: status.allocation of each claim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from dracaena.api.resource_objects import (
    AllocatedDevices,
    AllocationConfig,
    AllocationResult,
    DeviceResult,
    OpaqueConfig,
)
from dracaena.controller.allocation.legal.outcome import ClaimPlan, NeedsPerson, Pick, Plan, bad_slice
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.claims import Config, Request
from dracaena.controller.allocation.nodes.node_filter import this_node


def allocation_results(
    problem: Problem, plan: Plan, share_ids: Iterator[str]
) -> tuple[AllocationResult, ...] | NeedsPerson:
    """Return the allocation of each claim, in the order of the claims, without a timestamp.

    `share_ids` yields a new UUID each time; one is taken for each share, in the order of claims and results. A config
    of the claim appears once, however many requests it names, whereas Kubernetes repeats it for each: 32 configs for 32
    requests would exceed the 64 entries that the API allows.
    """
    allocations = []
    for claim in plan.claims:
        node_selector = _node_selector(claim.picks, plan.node)
        if isinstance(node_selector, NeedsPerson):
            return node_selector
        devices = AllocatedDevices(
            results=[_result(pick, share_ids, conditions=problem.features.binding_conditions) for pick in claim.picks],
            config=[
                _unnamed(config, claim) if problem.features.unnamed_means_all else config
                for config in (*_class_configs(problem, claim), *_claim_configs(claim))
            ],
        )
        allocations.append(AllocationResult(devices=devices, node_selector=node_selector))
    return tuple(allocations)


def _result(pick: Pick, share_ids: Iterator[str], *, conditions: bool) -> DeviceResult:
    device = pick.device
    return DeviceResult(
        request=pick.request.name,
        driver=device.id.driver,
        pool=device.id.pool,
        device=device.id.device,
        admin_access=True if pick.request.admin_access else None,
        share_id=next(share_ids) if pick.shared else None,
        # The eviction controller reads them when a taint is added later.
        tolerations=list(pick.request.tolerations),
        consumed_capacity={name: str(amount) for name, amount in (pick.consumed or {}).items()},
        binding_conditions=list(device.binding_conditions) if conditions else [],
        binding_failure_conditions=list(device.binding_failure_conditions) if conditions else [],
        # Kubelet reads them there: without them it would wait for a plugin that the driver does not have.
        skip_node_operations=list(pick.slice.skip_node_operations),
    )


def _node_selector(picks: Iterable[Pick], node: str) -> dict[str, Any] | NeedsPerson | None:
    selectors = []
    for pick in picks:
        nodes = pick.device.nodes if pick.slice.per_device else pick.slice.nodes
        if nodes.node_name or pick.device.binds_to_node:
            return this_node(node)
        if nodes.selector is not None and not nodes.all_nodes:
            if len(nodes.selector.get("nodeSelectorTerms") or ()) > 1:
                return bad_slice(pick.slice.name, "several terms, expected one")
            selectors.append(nodes.selector)
    return _joined(selectors)


def _joined(selectors: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return one selector that demands what all of them demand, each requirement once; None: any node will do.

    Each has at most one term: several are alternatives, which cannot be joined.
    """
    combined: dict[str, list[Mapping[str, Any]]] = {"matchExpressions": [], "matchFields": []}
    for selector in selectors:
        for term in selector.get("nodeSelectorTerms") or ():
            for part, known in combined.items():
                for rule in term.get(part) or ():
                    if all(_identity(rule) != _identity(other) for other in known):
                        known.append(rule)
    term = {part: [dict(rule) for rule in rules] for part, rules in combined.items() if rules}
    return {"nodeSelectorTerms": [term]} if term else None


def _identity(rule: Mapping[str, Any]) -> tuple[Any, Any, frozenset[str]]:
    return rule.get("key"), rule.get("operator"), frozenset(rule.get("values") or ())


def _class_configs(problem: Problem, claim: ClaimPlan) -> Iterator[AllocationConfig]:
    """Return the configs of each class once, for all its requests, classes in the order of their first request."""
    users: dict[str, list[Request]] = {}
    for request in claim.chosen:
        users.setdefault(request.class_name, []).append(request)
    for name, requests in users.items():
        for config in problem.configs_of_class(name):
            yield _config("FromClass", config, [request.name for request in requests])


def _claim_configs(claim: ClaimPlan) -> Iterator[AllocationConfig]:
    for config in claim.claim.configs:
        named = set(config.requests)
        if not named or any({request.main, request.name} & named for request in claim.chosen):
            yield _config("FromClaim", config, list(config.requests))


def _unnamed(config: AllocationConfig, claim: ClaimPlan) -> AllocationConfig:
    """Return a config that covers each request without their names."""
    named = set(config.requests)
    covers_all = all({request.main, request.name} & named for request in claim.chosen)
    return replace(config, requests=[]) if covers_all else config


def _config(source: str, config: Config, requests: list[str]) -> AllocationConfig:
    return AllocationConfig(source, requests, OpaqueConfig(config.driver, config.parameters))
