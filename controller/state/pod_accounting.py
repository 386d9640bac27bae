"""What the records of claims and pods imply for nodes: where each pod counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dracaena.api.objects import ENDED, Pod
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.lifecycle.claim_record import PodIdentity

Places = Mapping[PodIdentity, str]
"""The nodes that unbound pods will go to, according to one claim."""


class PodAccounting:
    """Keeps the node on which each pod counts (Inventory.place) in step with pods and with the records of claims.

    A pod counts on its node (spec.nodeName) or, before it has one, on the node that one of its claims implies
    (expected_places). So a decision counts from the start until the pod is bound, gone, or has lost its claim, for a
    new leader too. All calls return the nodes that have more left than before. Part of its owner, and used under the
    owner's lock.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._waiting: dict[str, Pod] = {}  # pods with claims and without a node, by key
        self._expected: dict[str, dict[tuple[str, str], str]] = {}  # pod → its UID, claim → node

    def pod_changed(self, old: Pod | None, new: Pod | None) -> frozenset[str]:
        """Take in a change of a pod."""
        gaining: set[str | None] = set()
        if old is not None and (new is None or pod_name(new) != pod_name(old)):
            gaining.add(self._inventory.place(old, None))
            self._waiting.pop(old.key, None)
            self._inventory.resources.forget(pod_name(old))
        if new is not None:
            if new.spec.resource_claims and not new.spec.node_name:
                self._waiting[new.key] = new
                self._inventory.resources.expect(new)
            else:
                self._waiting.pop(new.key, None)
                self._inventory.resources.forget(pod_name(new))
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
        return self._inventory.place(pod, None if pod.status.phase in ENDED else node)


def _named(nodes: Iterable[str | None]) -> frozenset[str]:
    return frozenset(node for node in nodes if node is not None)
