"""What each node of a random cluster gives to a pod, asked node by node."""

from __future__ import annotations

from collections.abc import Sequence

from dracaena.api.config.v1alpha1 import decode_config, merged
from dracaena.api.objects import Node, Pod, ResourceClaim
from dracaena.controller.allocation.legal.read.claims import Claim, read_claim
from dracaena.controller.allocation.nodes.matching import first_untolerated
from dracaena.controller.allocation.nodes.node_filter import PINNED_ELSEWHERE
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.state.inventory import make_inventory
from dracaena.controller.allocation.state.pool import NodePool, held_devices
from support.allocation import DRIVER
from support.clusters import RandomCluster
from support.node_fit import node_selector_matches, unfit_reason


class SlowVersion:
    """Reads the same objects again for each node, in plain steps; only the choice inside a node is the engine's."""

    def __init__(self, cluster: RandomCluster, engine: Engine) -> None:
        self.cluster = cluster
        self.engine = engine

    def by_node(self, pod: Pod, claims: Sequence[ResourceClaim]) -> dict[str, Choice | str]:
        """The best choice of each node, or why there is none."""
        return {item.metadata.name: self.of(item, pod, claims) for item in self.cluster.nodes}

    def of(self, item: Node, pod: Pod, claims: Sequence[ResourceClaim]) -> Choice | str:
        """The best choice of a node, or the first of the pins, the place and the node's own words that is against it,
        or what its devices lack."""
        if self.is_pinned_elsewhere(item, claims):
            return PINNED_ELSEWHERE
        return self.outside(item) or unfit_reason(pod, item) or self.devices(item, claims)

    def is_pinned_elsewhere(self, item: Node, claims: Sequence[ResourceClaim]) -> bool:
        """Whether a claim that is allocated already cannot be used there."""
        allocations = [asked.status.allocation for asked in claims if asked.status.allocation is not None]
        return not all(node_selector_matches(allocation.node_selector or {}, item) for allocation in allocations)

    def pool(self, item: Node) -> NodePool | None:
        """The pool of a node."""
        name = item.metadata.name
        slices = [self.cluster.slices[name]] if name in self.cluster.slices else []
        return make_inventory(DRIVER, nodes=[item], slices=slices).pool(name)

    def outside(self, item: Node) -> str | None:
        """Why a node gives no GPUs to anybody."""
        pool = self.pool(item)
        if pool is None:
            return f"without usable GPUs of {DRIVER}"
        return None if pool.offered else "whose GPUs kube-scheduler allocates (no taint of ours)"

    def devices(self, item: Node, claims: Sequence[ResourceClaim]) -> Choice | str:
        """The best choice of a node that has GPUs to give, or what they lack."""
        pool = self.pool(item)
        assert pool is not None
        requests = []
        for asked in claims:
            if asked.status.allocation is not None:
                continue
            spec = read_claim(asked)
            assert isinstance(spec, Claim)
            policy = merged([], [decode_config(entry.parameters) for entry in spec.configs])  # type: ignore[misc]
            exact = [entry.alternatives[0] for entry in spec.requests]
            requests += [(entry.count, policy, entry.tolerations) for entry in exact]
        taints = dict(pool.kind.foreign_taints)
        usable = [
            {o for o in range(len(pool.devices)) if first_untolerated(taints.get(o, ()), tolerations) is None}
            for _, _, tolerations in requests
        ]
        present = set().union(*usable)
        taken = self.cluster.taken[pool.node]
        free = [o for o in range(len(pool.devices)) if pool.offered >> o & 1 and o not in taken and o in present]
        beside = {
            pool.devices.index(device.device)
            for asked in claims
            for device in held_devices(asked, DRIVER)
            if device.pool == pool.pool
        }
        demands = tuple(
            Demand(count, policy, None if mine == present else sum(1 << o for o in mine))
            for (count, policy, _), mine in zip(requests, usable, strict=True)
        )
        found = self.engine.best_two(pool.box, sum(1 << o for o in free), demands, sum(1 << o for o in beside))
        if found.best is None:
            assert found.shortfall
            return found.shortfall
        return found.best
