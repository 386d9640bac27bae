"""Keeps one node at a time free for the first pod that has waited too long (allocation.earmarks)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.earmarks import Earmark
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.pod_demand import Turn

ASK_AGAIN_S: Final = 60.0
"""A pod that no node could serve even when empty is considered again after this time: nodes and slices change."""

STALLED_S: Final = 600.0
"""How long the node of a mark may stay as full as it is before namespaces without a mark come first: twice the time
after which a pod counts as starving."""

QUESTIONS: Final = 2
"""Pods for which one review looks for a node. With thousands of nodes each takes some 10 ms, which delays decisions."""

log = structlog.get_logger()


class StarvationGuard:
    """At most one earmark. Part of its owner, and used under the owner's lock.

    A namespace whose mark led to nothing for STALLED_S gives way: its pods come behind the starving pods of namespaces
    that did not, or did so earlier. If there are none, the mark stays where it is. So nobody can hold the only mark for
    ever, for example with a pod pinned to a node on which another never ends.

    Nothing is stored: creation times show which pods have waited too long, and a new leader finds the earmark again in
    its first decisions, before any later pod gets devices.
    """

    def __init__(
        self,
        inventory: Inventory,
        node_for: Callable[[Pod, Sequence[ResourceClaim], Mapping[str, str], str | None], str | None],
    ) -> None:
        """`node_for` finds the node to keep for a pod that must not use some nodes; given a name, that node or none."""
        self._inventory = inventory
        self._node = node_for
        self._hopeless: dict[bytes, float] = {}
        """Shape → when we found that no node could serve it."""
        self.earmark: Earmark | None = None
        self._gave_way_s: dict[str, float] = {}
        """Namespace → when its mark had led to nothing."""
        self._least_in_use = 0
        self._progress_s = 0.0
        """When so few of our devices were first in use on the earmark's node, or the mark was made."""
        self.created_before = ""
        """Pods created before this time (RFC 3339, UTC) have waited too long. Empty: none has."""

    def is_starving(self, turn: Turn) -> bool:
        """Return whether a pod has waited too long."""
        _, never_created, created, _ = turn
        return not never_created and created < self.created_before

    def consider(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        turn: Turn,
        shape: bytes,
        barred: Mapping[str, str],
        now_s: float,
    ) -> bool | None:
        """Keep a node for a pod that fits nowhere, if it has waited too long and no node is kept for an earlier pod.

        Return whether a node is kept for it now; None when we did not look, because it has not waited that long,
        another pod comes first, or it was hopeless a moment ago. `barred`: nodes that it must not use. The cost is
        charged to the allocator's effort, which the caller begins; its OverdueError leaves everything unchanged.
        """
        mark = self.earmark
        if not self.is_starving(turn) or (mark is not None and self.order(mark.turn) < self.order(turn)):
            return None
        mine = mark is not None and mark.pod_key == pod.key
        if not mine and now_s - self._hopeless.get(shape, -ASK_AGAIN_S) < ASK_AGAIN_S:
            return None
        node = None
        if mine and mark is not None:
            node = self._node(pod, claims, barred, mark.node)
        node = node or self._node(pod, claims, barred, None)
        if node is None:
            self.give_up(shape, now_s)
            if mine:
                self.clear("no node could serve it")
            return False
        if mark is None or (mark.pod_key, mark.node) != (pod.key, node):
            self.clear("another pod comes first" if not mine else "another node is kept")
            self.earmark = Earmark(pod.key, turn, node)
            self._least_in_use, self._progress_s = self._inventory.held_count(node), now_s
            log.info("node is kept for a pod", pod=pod.key, node=node, in_use=self._least_in_use)
        return True

    def order(self, turn: Turn) -> tuple[float, Turn]:
        """Return what sorts starving pods, the one that a node is kept for first."""
        return self._gave_way_s.get(_namespace(turn), float("-inf")), turn

    def look(self, now_s: float) -> None:
        """See whether the earmark's node gets emptier. Call this about once a second."""
        mark = self.earmark
        if mark is None:
            return
        in_use = self._inventory.held_count(mark.node)
        if in_use < self._least_in_use:
            self._least_in_use, self._progress_s = in_use, now_s
        elif now_s - self._progress_s >= STALLED_S:
            self._gave_way_s[_namespace(mark.turn)] = self._progress_s = now_s

    def served(self) -> None:
        """Note that the earmark's pod no longer waits: its namespace may have another node kept like any other."""
        if self.earmark is not None:
            self._gave_way_s.pop(_namespace(self.earmark.turn), None)
        self.clear("the pod no longer waits")

    def give_up(self, shape: bytes, now_s: float) -> None:
        """Treat pods of this shape as hopeless for a while."""
        self._hopeless = {known: at_s for known, at_s in self._hopeless.items() if now_s - at_s < ASK_AGAIN_S}
        self._hopeless[shape] = now_s

    def clear(self, why: str) -> None:
        """Stop keeping the node."""
        if self.earmark is not None:
            log.info("node is no longer kept", pod=self.earmark.pod_key, node=self.earmark.node, why=why)
            self.earmark = None


def _namespace(turn: Turn) -> str:
    """Return the namespace of a pod by its turn, which ends with its key."""
    key: str = turn[-1]
    return key.partition("/")[0]
