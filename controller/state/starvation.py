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

QUESTIONS: Final = 2
"""Pods for which one review looks for a node. With thousands of nodes each takes some 10 ms, which delays decisions."""

log = structlog.get_logger()


class StarvationGuard:
    """At most one earmark. Part of its owner, and used under the owner's lock.

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
        if not self.is_starving(turn) or (mark is not None and mark.turn < turn):
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
            log.info("node is kept for a pod", pod=pod.key, node=node, in_use=self._inventory.held_count(node))
        return True

    def give_up(self, shape: bytes, now_s: float) -> None:
        """Treat pods of this shape as hopeless for a while."""
        self._hopeless = {known: at_s for known, at_s in self._hopeless.items() if now_s - at_s < ASK_AGAIN_S}
        self._hopeless[shape] = now_s

    def clear(self, why: str) -> None:
        """Stop keeping the node."""
        if self.earmark is not None:
            log.info("node is no longer kept", pod=self.earmark.pod_key, node=self.earmark.node, why=why)
            self.earmark = None
