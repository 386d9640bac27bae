"""Which PodGroup comes first where several hold some of the devices that they need and wait for the rest.

kube-scheduler binds the pods of a gang together or not at all, and we allocate pod by pod. Two gangs that each have
half of the devices would wait for each other, and lose and regain them in turns (docs/design/0025-pod-groups.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.objects import Pod
from dracaena.api.podclaims import group_of
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.reach import Reach
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.pod_demand import Turn, turn
from dracaena.controller.lifecycle.pod_record import is_unbound
from dracaena.controller.lifecycle.prospects import SETTLE_S
from dracaena.controller.queue.waiting_lines import NOWHERE, Scope
from dracaena.controller.state.records import Records

GIVE_UP_S: Final = 300.0
"""How long a group keeps what it has without getting more, and then how long it gets nothing. Long compared with the
time in which pods end and others take their place; what a group keeps is idle meanwhile."""

KEPT: Final = "kept for a PodGroup that comes before this one's and waits for the rest of its GPUs"
"""Why a node is left out for a pod, in words that follow a count. The other group may be in any namespace."""

GAVE_UP: Final = "left to others, because this pod's PodGroup did not get all of its GPUs"
"""The same."""

YIELDED: Final = "pod-group"
"""Label of the metric for an allocation that is given back for a group that comes first."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group with waiting pods and no bound one: a bound pod shows that its gang was complete once."""

    key: str
    """`namespace/name`."""
    turn: Turn
    """The turn of its first pod."""
    placed: int
    """How many of its pods have their devices."""
    pods: tuple[str, ...]
    """Keys of the pods that wait."""


@dataclass(frozen=True, slots=True)
class First:
    """The group that comes first."""

    group: Waiting
    since_s: float
    """When the group came first, or last got devices since then."""
    nodes: frozenset[str]
    """The nodes that could serve one of its waiting pods if all other pods left them."""


class GroupTurns:
    """Part of its owner, and used under the owner's lock.

    Of the groups that hold something and wait for more, the one with the earliest turn comes first. It keeps what it
    has, and other groups neither get nor keep anything that it may use. When it has come first for GIVE_UP_S without
    getting more, it gives up: it gives back what it has, and gets nothing for as long. Nothing is stored: a new leader
    finds the same order, and counts the time anew.
    """

    def __init__(self, inventory: Inventory, records: Records) -> None:
        self._inventory = inventory
        self._records = records
        self._gave_up_s: dict[str, float] = {}
        """Group → when it gave up."""
        self.first: First | None = None

    def review(self, now_s: float) -> Scope:
        """See which group comes first now; return the nodes that other groups may use again, None for any. Call this
        about once a second. Cost: a step for each pod of the groups that wait, and one for each node while one comes
        first."""
        before, known = self.first, self._gave_up_s
        self._gave_up_s = {key: at_s for key, at_s in known.items() if now_s - at_s < GIVE_UP_S}
        groups = [group for group in self._waiting() if group.placed and group.key not in self._gave_up_s]
        groups.sort(key=lambda group: group.turn)
        if groups and now_s - self._since_s(groups[0], now_s) >= GIVE_UP_S:
            given_up = groups.pop(0)
            self._gave_up_s[given_up.key] = now_s
            log.info("group gives up", group=given_up.key, placed=given_up.placed, waiting=len(given_up.pods))
        self.first = First(groups[0], self._since_s(groups[0], now_s), self._nodes_for(groups[0])) if groups else None
        if groups and not self._is_first(groups[0].key, before):
            log.info("group comes first", group=groups[0].key, placed=groups[0].placed, waiting=len(groups[0].pods))
        if len(known) > len(self._gave_up_s):
            return None
        kept = self.first.nodes if self.first is not None and self._is_first(self.first.group.key, before) else NOWHERE
        return NOWHERE if before is None else before.nodes - kept

    def keeps(self, pod: Pod) -> bool:
        """Whether a pod keeps what it has because its group comes first."""
        return self.first is not None and group_of(pod) == self.first.group.key

    def yields(self, pod: Pod, node: str, now_s: float) -> bool:
        """Whether a pod has to give back what it has on a node: its group gave up, or another comes first.

        The first group gets some seconds before others must yield: its pods may still be on their way through the
        queue. A pod whose group is complete keeps what it has.
        """
        group, first = group_of(pod), self.first
        if group is None or self._read(group) is None:
            return False
        if group in self._gave_up_s:
            return True
        if first is None or now_s - first.since_s < SETTLE_S:
            return False
        return self._comes_after(pod, first) and node in first.nodes

    def kept_from(self, pod: Pod, claims: Iterable[ResourceClaim]) -> Mapping[str, str]:
        """Return the nodes that a pod must not use because of other groups, with the reason. Pods without a group use
        what they find, as everywhere; for a pod that waits too long a node is kept (StarvationGuard)."""
        if pod.spec.node_name or any(claim.status.allocation is not None for claim in claims):
            return {}  # the claim decides the node
        if group_of(pod) in self._gave_up_s:
            return dict.fromkeys(self._inventory.nodes.names, GAVE_UP)
        first = self.first
        if first is None or not self._comes_after(pod, first):
            return {}
        return dict.fromkeys(sorted(first.nodes), KEPT)

    # Inside

    @staticmethod
    def _comes_after(pod: Pod, first: First) -> bool:
        return group_of(pod) not in (None, first.group.key) and first.group.turn < turn(pod)

    def _since_s(self, group: Waiting, now_s: float) -> float:
        known = self.first
        is_no_further = self._is_first(group.key, known) and known is not None and group.placed <= known.group.placed
        return known.since_s if is_no_further and known is not None else now_s

    @staticmethod
    def _is_first(key: str, first: First | None) -> bool:
        return first is not None and first.group.key == key

    def _waiting(self) -> Iterator[Waiting]:
        for key in self._records.waiting_groups():
            group = self._read(key)
            if group is not None:
                yield group

    def _read(self, key: str) -> Waiting | None:
        pods = [pod for name in self._records.in_group(key) if (pod := self._records.pod(name)) is not None]
        pods = [pod for pod in pods if pod.metadata.deletion_timestamp is None and is_unbound(pod)]
        waiting = tuple(pod.key for pod in pods if self._waits(pod))
        return Waiting(key, min(map(turn, pods)), len(pods) - len(waiting), waiting) if waiting else None

    def _waits(self, pod: Pod) -> bool:
        records = [self._records.claim(claim.key or "") for claim in self._records.named_by(pod)]
        return any(record is None or (not record.is_held and record.share is None) for record in records)

    def _nodes_for(self, group: Waiting) -> frozenset[str]:
        known: dict[tuple[bytes, str], bool] = {}
        nodes: set[str] = set()
        seen: set[tuple[object, ...]] = set()
        for key in group.pods:
            pod = self._records.pod(key)
            records = [] if pod is None else [self._records.claim(one.key or "") for one in self._records.named_by(pod)]
            claims = [record.shown for record in records if record is not None]
            if pod is None or len(claims) < len(records):
                continue
            reach = Reach(self._inventory, pod, claims)
            if reach.kind in seen:
                continue
            seen.add(reach.kind)
            nodes.update(node for node in self._inventory.nodes.names if reach.could_serve(node, known))
        return frozenset(nodes)
