"""What would give a waiting pod its devices, found out by deciding for a pod or claims that ask for a little less.

A remedy is only named if the decision with it succeeds now, so each of them is true when it is worked out. How two of
them together would do is not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, zip_longest
from typing import Any, Final

import msgspec

from dracaena.api.config.v1alpha1 import ConfigError, TopologyPolicy, decode_config
from dracaena.api.objects import Node, Pod, Toleration
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.nodes.matching import CORDONED, TAINTED, UNSCHEDULABLE_TAINT
from dracaena.controller.allocation.nodes.node_filter import tolerations_of
from dracaena.controller.allocation.request import inside, items, request_entries

MOST_REMEDIES: Final = 3
"""Named for one pod: an Event has room for 1,024 characters, and people read no more."""

MOST_BUSY: Final = 12
"""Nodes that are asked about as if all had left them: all that four reasons name, mostly within a millisecond."""

MOST_TAINTS: Final = 3
"""Taints that are tried without, those of most nodes: each takes one decision."""

MOST_STEPS: Final = 4_000
"""Of one question, some milliseconds, in which no other decision is made. What takes more is not named, and the next
time the question goes further, as what it worked out is remembered."""

CORDON: Final = Toleration(key=UNSCHEDULABLE_TAINT.key, operator="Exists", effect=UNSCHEDULABLE_TAINT.effect)
"""With it kube-scheduler binds a pod on cordoned nodes."""

NODE_CONDITIONS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""How keys of taints begin that Kubernetes puts on nodes that are not as they should be. To tolerate them is no
remedy."""

NODE_LIFE: Final = ("karpenter.sh/", "ToBeDeletedByClusterAutoscaler")
"""The same of taints that autoscalers put on nodes that are about to go, or have just come. Nobody should do anything
about them."""

NodeFor = Callable[[Pod, Sequence[ResourceClaim]], Node | None]
"""Returns the node on which a pod with these claims would get its devices now; None: it would not."""


@dataclass(frozen=True, slots=True)
class _Change:
    """A pod and claims that ask for less than the real ones."""

    pod: Pod
    claims: Sequence[ResourceClaim]
    words: Callable[[Node], str]


def remedies(
    pod: Pod,
    claims: Sequence[ResourceClaim],
    why: Unsatisfied,
    node_for: NodeFor,
    serves_if_left: Callable[[str], bool],
) -> Generator[None, None, tuple[str, ...]]:
    """Return what would help, at most MOST_REMEDIES, in words without full stop and semicolon. Yields between
    questions, so that the caller may release its lock; each is answered by one decision.

    `why`: why the pod waits; what has no part in that is not tried. `serves_if_left` returns whether a node would serve
    the pod if all others there released their devices. First what needs only patience, then what the pod's owner can
    do, then what an admin can do.
    """
    found: list[str] = []
    for name in _busy(why):
        serves = serves_if_left(name)
        yield
        if serves:
            found.append(f"wait until pods leave node {name}, which can serve it then")
            break
    for changes in _kinds(pod, claims, why):
        for change in changes:
            node = node_for(change.pod, change.claims)
            yield
            if node is not None:
                found.append(change.words(node))
                break
        if len(found) == MOST_REMEDIES:
            break
    return tuple(found)


def _busy(why: Unsatisfied) -> Iterator[str]:
    """Yield nodes that may lack only what others have now: the first of each reason, then the second of each."""
    nodes = zip_longest(*(reason.nodes for reason in why.reasons if not reason.lasting))
    return islice((name for some in nodes for name in some if name is not None), MOST_BUSY)


def _kinds(pod: Pod, claims: Sequence[ResourceClaim], why: Unsatisfied) -> Iterator[Iterator[_Change]]:
    """Yield kinds of changes. Of each kind, the first that helps is named."""
    texts = [reason.text for reason in why.reasons]
    yield _fewer(pod, claims)
    yield _without_selectors(pod, claims)
    yield _without_policies(pod, claims)
    if CORDONED in texts:
        yield iter((_Change(_tolerating(pod, CORDON), claims, lambda node: f"uncordon node {node.metadata.name}"),))
    of_nodes = [text for text in texts if text.startswith(TAINTED)]
    keys = [text.removeprefix(TAINTED).split()[0] for text in of_nodes]
    for key in [key for key in keys if not key.startswith(NODE_LIFE)][:MOST_TAINTS]:
        yield iter((_without_taint(pod, claims, key),))
    if any("taint" in text for text in texts if text not in of_nodes):
        yield _tolerating_devices(pod, claims)


def _fewer(pod: Pod, claims: Sequence[ResourceClaim]) -> Iterator[_Change]:
    """Yield the smaller powers of two, descending, for the one request that asks for several devices."""
    several = [entry for claim in _open(claims) for entry in _exact(claim) if _count(entry) > 1]
    if len(several) != 1:
        return
    count = _count(several[0])
    for power in reversed(range((count - 1).bit_length())):
        fewer = 1 << power

        def asks_for_fewer(entry: Mapping[str, Any], fewer: int = fewer) -> Mapping[str, Any]:
            return {**entry, "count": fewer} if _count(entry) > 1 else entry

        yield _Change(pod, _changed(claims, asks_for_fewer), partial(_now, f"ask for {fewer} in place of {count}"))


def _without_selectors(pod: Pod, claims: Sequence[ResourceClaim]) -> Iterator[_Change]:
    if any(entry.get("selectors") for claim in _open(claims) for entry in request_entries(claim.spec)):
        changed = _changed(
            claims, lambda entry: {name: entry[name] for name in entry if name != "selectors"}, every=True
        )
        yield _Change(pod, changed, partial(_now, "leave out the selectors of its claims"))


def _without_policies(pod: Pod, claims: Sequence[ResourceClaim]) -> Iterator[_Change]:
    """Yield the claims without the policies that they bring along. Those of their classes stay."""
    if any(_is_policy(config) for claim in _open(claims) for config in items(inside(claim.spec, "devices"), "config")):
        changed = [_without_policy(claim) for claim in claims]
        yield _Change(pod, changed, partial(_now, "leave out the TopologyPolicy of its claims"))


def _tolerating_devices(pod: Pod, claims: Sequence[ResourceClaim]) -> Iterator[_Change]:
    changed = _changed(claims, lambda entry: {**entry, "tolerations": [{"operator": "Exists"}]}, every=True)
    yield _Change(pod, changed, lambda node: f"clear the taints of GPUs of node {node.metadata.name}")


def _tolerating(pod: Pod, toleration: Toleration) -> Pod:
    spec = msgspec.structs.replace(pod.spec, tolerations=[*tolerations_of(pod), toleration])
    return msgspec.structs.replace(pod, spec=spec)


def _without_taint(pod: Pod, claims: Sequence[ResourceClaim], key: str) -> _Change:
    def words(node: Node) -> str:
        if key.startswith(NODE_CONDITIONS):
            return f"repair node {node.metadata.name}, which has taint {key}"
        return f"tolerate taint {key} of node {node.metadata.name}, if its admin agrees"

    return _Change(_tolerating(pod, Toleration(key=key, operator="Exists")), claims, words)


def _now(what: str, node: Node) -> str:
    return f"{what}, which node {node.metadata.name} can give now"


# Claims as documents


def _open(claims: Sequence[ResourceClaim]) -> list[ResourceClaim]:
    return [claim for claim in claims if claim.status.allocation is None]


def _exact(claim: ResourceClaim) -> Iterator[Mapping[str, Any]]:
    """Yield what the requests without alternatives ask for."""
    for request in items(inside(claim.spec, "devices"), "requests"):
        if exactly := inside(request, "exactly"):
            yield exactly


def _count(entry: Mapping[str, Any]) -> int:
    """Return how many devices a request asks for; 0: all, or what it asks for cannot be read."""
    count = entry.get("count", 1)
    return count if entry.get("allocationMode") != "All" and isinstance(count, int) else 0


def _changed(
    claims: Sequence[ResourceClaim], change: Callable[[Mapping[str, Any]], Mapping[str, Any]], *, every: bool = False
) -> list[ResourceClaim]:
    """Return the claims, those without devices with other requests; with `every`, with other alternatives, too."""

    def of(request: Mapping[str, Any]) -> Mapping[str, Any]:
        exactly, alternatives = inside(request, "exactly"), items(request, "firstAvailable") if every else []
        if alternatives:
            return {**request, "firstAvailable": [change(one) for one in alternatives]}
        return {**request, "exactly": change(exactly)} if exactly else request

    return [
        _with_devices(claim, requests=[of(request) for request in items(inside(claim.spec, "devices"), "requests")])
        for claim in claims
    ]


def _without_policy(claim: ResourceClaim) -> ResourceClaim:
    configs = items(inside(claim.spec, "devices"), "config")
    return _with_devices(claim, config=[config for config in configs if not _is_policy(config)])


def _with_devices(claim: ResourceClaim, **members: Sequence[Mapping[str, Any]]) -> ResourceClaim:
    if claim.status.allocation is not None:
        return claim
    devices = {**inside(claim.spec, "devices"), **members}
    return msgspec.structs.replace(claim, spec={**claim.spec, "devices": devices})


def _is_policy(config: Mapping[str, Any]) -> bool:
    parameters = inside(config, "opaque").get("parameters")
    with suppress(ConfigError):
        return isinstance(parameters, msgspec.Raw | Mapping) and isinstance(decode_config(parameters), TopologyPolicy)
    return False
