"""On which node each pod counts: what it takes there is taken from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dracaena.api.objects import Pod
from dracaena.controller.allocation.nodes.node_resources import NodeResources, pod_name
from dracaena.controller.allocation.nodes.placement.placed_pods import PlacedPods, pod_facts
from dracaena.controller.allocation.nodes.pod_resources import ENDED, readable_resources, shared_resources
from dracaena.controller.lifecycle.claim_record import PodIdentity

Places = Mapping[PodIdentity, str]
"""The nodes that unbound pods will go to, according to one claim."""

_NOTHING: Final = shared_resources((), ())


class PodAccounting:
    """Keeps the books of NodeResources and PlacedPods in step with pods and the records of claims.

    A pod counts on its node (spec.nodeName) or, before it has one, on the node that one of its claims implies
    (expected_places). So a decision counts from the start until the pod is bound, gone, or has lost its claim, and for
    a new leader too. All calls return the nodes that have more left than before. Part of its owner, and used under the
    owner's lock.
    """

    def __init__(self, resources: NodeResources, placed: PlacedPods) -> None:
        self._resources = resources
        self._placed = placed
        self._waiting: dict[str, Pod] = {}  # pods with claims and without a node, by key
        self._expected: dict[str, dict[tuple[str, str], str]] = {}  # pod → its UID, claim → node

    def pod_changed(self, old: Pod | None, new: Pod | None) -> frozenset[str]:
        """Take in a change of a pod."""
        gaining: set[str | None] = set()
        if old is not None and (new is None or pod_name(new) != pod_name(old)):
            gaining.add(self._resources.place_pod(pod_name(old), None, _NOTHING))
            self._placed.place(pod_name(old), old.metadata.namespace, None, None)
            self._waiting.pop(old.key, None)
        if new is not None:
            if new.spec.resource_claims and not new.spec.node_name:
                self._waiting[new.key] = new
            else:
                self._waiting.pop(new.key, None)
            gaining.add(self._put(new))
        return _named(gaining)

    def claim_changed(self, claim_key: str, before: Places, after: Places) -> frozenset[str]:
        """Take in a change of the nodes that a claim's pods will go to."""
        if before == after:
            return frozenset()
        for pod in before:
            claims = self._expected.get(pod.key, {})
            claims.pop((pod.uid, claim_key), None)
            if not claims:
                self._expected.pop(pod.key, None)
        for pod, node in after.items():
            self._expected.setdefault(pod.key, {})[pod.uid, claim_key] = node
        return self._put_again(pod.key for pod in (*before, *after))

    def _put_again(self, pods: Iterable[str]) -> frozenset[str]:
        known = (self._waiting.get(key) for key in sorted(set(pods)))
        return _named({self._put(pod) for pod in known if pod is not None})

    def _put(self, pod: Pod) -> str | None:
        node: str | None = pod.spec.node_name or None
        if node is None:
            places = self._expected.get(pod.key, {}).items()
            node = next((node for (uid, _), node in places if uid == pod.metadata.uid), None)
        if pod.status.phase in ENDED:
            node = None
        facts = None if node is None else pod_facts(pod)
        self._placed.place(pod_name(pod), pod.metadata.namespace, node, facts)
        return self._resources.place_pod(pod_name(pod), node, _NOTHING if node is None else readable_resources(pod))


def _named(nodes: Iterable[str | None]) -> frozenset[str]:
    return frozenset(node for node in nodes if node is not None)
