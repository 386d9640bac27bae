"""Tries what would help a pod that fits nowhere, by the decisions that the controller would make now."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.effort import OverdueError
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.remedies import remedies
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.state.quotas import PodsOf, Quotas


class RemedyTrials:
    """Part of its owner, and used under the owner's lock. Changes nothing."""

    def __init__(self, allocator: Allocator, inventory: Inventory, quotas: Quotas, pods_of: PodsOf) -> None:
        """`pods_of` returns the pods that leave their node when a holder releases its devices."""
        self._allocator, self._inventory, self._quotas = allocator, inventory, quotas
        self._pods_of = pods_of

    def remedies(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        why: Unsatisfied,
        barred: Mapping[str, str],
        limit: Callable[[], Callable[[int], bool]],
    ) -> Generator[None, None, tuple[str, ...]]:
        """Return what would help the pod, within the quota of its namespace (allocation.remedies). Yields between
        questions, so that the owner may release its lock.

        `barred`: nodes that give it nothing, with the reason. `limit` is called for each question, and returns the
        function that says whether to stop it (effort.Effort.begin).
        """

        def node_for(asking: Pod, changed: Sequence[ResourceClaim]) -> Node | None:
            suppose = partial(self._allocator.suppose, self._inventory, asking, changed, is_over=limit())
            found = self._quotas.ask(pod.metadata.namespace, lambda more: suppose(barred={**more, **barred}))
            return self._inventory.nodes.get(found.node).node if isinstance(found, Allocation) else None

        def serves_if_left(node: str) -> bool:
            self._allocator.effort.begin(limit())
            keep = partial(self._quotas.node_to_keep, self._allocator, pod, claims, barred, self._pods_of)
            with suppress(OverdueError):
                return isinstance(keep(only=node), str)
            return False

        return remedies(pod, claims, why, node_for, serves_if_left)
