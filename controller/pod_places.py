"""On which node each pod counts: what it takes there is taken from others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.allocation.node_resources import NodeResources, pod_name
from dracaena.controller.allocation.node_selector import NAME_FIELD, read_node_selector
from dracaena.controller.allocation.pod_resources import ENDED, readable_resources, shared_resources


@dataclass(slots=True)
class _Expected:
    """Where a pod will go that is not bound yet, by the claims that say so."""

    decided: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Claim UID → UID of the pod, and the node of a decision for it that is assumed."""
    reserved: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Claim key → UID of the pod that the claim is allocated and reserved for, and the allocation's node."""

    def node(self, pod: Pod) -> str | None:
        places = (*self.decided.values(), *self.reserved.values())
        return next((node for uid, node in places if uid == pod.metadata.uid), None)


class PodPlaces:
    """Keeps the books of NodeResources in step with pods, claims and decisions.

    A pod counts on its node (spec.nodeName); before it has one, on the node of a decision that is assumed for it, else
    on the node of a claim that is allocated and reserved for it. So what was decided counts from the decision until the
    pod is bound, gone, or has lost its claim, also for a new leader. All calls return the nodes that have more left
    than before. A part of its owner, under the owner's lock.
    """

    def __init__(self, resources: NodeResources) -> None:
        self._resources = resources
        self._waiting: dict[str, Pod] = {}  # pods with claims and without a node, by key
        self._expected: dict[str, _Expected] = {}  # by key of the pod
        self._pod_of: dict[str, str] = {}  # claim UID → key of the pod that was decided for

    def pod_changed(self, old: Pod | None, new: Pod | None) -> frozenset[str]:
        """Take in a pod."""
        gaining: set[str | None] = set()
        if old is not None and (new is None or pod_name(new) != pod_name(old)):
            gaining.add(self._resources.place_pod(pod_name(old), None, _NOTHING))
            self._waiting.pop(old.key, None)
        if new is not None:
            if new.spec.resource_claims and not new.spec.node_name:
                self._waiting[new.key] = new
            else:
                self._waiting.pop(new.key, None)
            gaining.add(self._put(new))
        return _named(gaining)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> frozenset[str]:
        """Take in a claim: the pods that it is reserved for go where it is allocated."""
        before, after = _reserved(old), _reserved(new)
        subject = new or old
        if subject is None or before == after:
            return frozenset()
        for pod in before.keys() - after.keys():
            expected = self._expected[pod]
            expected.reserved.pop(subject.key, None)
            self._tidy(pod)
        for pod, place in after.items():
            self._expected.setdefault(pod, _Expected()).reserved[subject.key] = place
        return self._put_again(before.keys() | after.keys())

    def decided(self, pod: Pod, claim_uids: Iterable[str], node: str) -> None:
        """Take in a decision for a pod that is assumed until settled() is called for each of its claims."""
        expected = self._expected.setdefault(pod.key, _Expected())
        for uid in claim_uids:
            self._pod_of[uid] = pod.key
            expected.decided[uid] = pod.metadata.uid, node
        self._put_again([pod.key])

    def settled(self, claim_uid: str) -> frozenset[str]:
        """A decision for a claim is assumed no longer: the API shows it, or it was not written, or taken back."""
        pod = self._pod_of.pop(claim_uid, None)
        if pod is None:
            return frozenset()
        del self._expected[pod].decided[claim_uid]
        gaining = self._put_again([pod])
        self._tidy(pod)
        return gaining

    def _tidy(self, pod: str) -> None:
        if not (self._expected[pod].decided or self._expected[pod].reserved):
            del self._expected[pod]

    def _put_again(self, pods: Iterable[str]) -> frozenset[str]:
        known = (self._waiting.get(key) for key in sorted(pods))
        return _named({self._put(pod) for pod in known if pod is not None})

    def _put(self, pod: Pod) -> str | None:
        node: str | None = pod.spec.node_name or None
        if node is None and pod.key in self._expected:
            node = self._expected[pod.key].node(pod)
        if pod.status.phase in ENDED:
            node = None
        return self._resources.place_pod(pod_name(pod), node, _NOTHING if node is None else readable_resources(pod))


_NOTHING: Final = shared_resources((), ())


def _reserved(claim: ResourceClaim | None) -> dict[str, tuple[str, str]]:
    """Return the pods (by key) that a claim is allocated and reserved for: their UIDs, and the allocation's node."""
    if claim is None or claim.status.allocation is None or not claim.status.reserved_for:
        return {}
    node = _only_node(claim)
    if node is None:
        return {}
    return {
        f"{claim.metadata.namespace}/{consumer.name}": (consumer.uid, node)
        for consumer in claim.status.reserved_for
        if consumer.resource == "pods" and not consumer.api_group
    }


def _only_node(claim: ResourceClaim) -> str | None:
    """Return the one node that an allocation is for; None when it names none, or more than one."""
    assert claim.status.allocation is not None
    for term in read_node_selector(claim.status.allocation.node_selector or {}).terms:
        for rule in term.fields:
            if (rule.key, rule.operator) == (NAME_FIELD, "In"):
                return rule.values[0]
    return None


def _named(nodes: Iterable[str | None]) -> frozenset[str]:
    return frozenset(node for node in nodes if node is not None)
