"""What each node of a random cluster gives to a pod, asked node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from dracaena.api.config.v1alpha1 import NodeStrategy, Objective, Siblings, TopologyPolicy, decode_config, merged
from dracaena.api.names import taint_key
from dracaena.api.objects import Node, Pod, Toleration
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.api.topology_levels import NO_LEVELS, TopologyLevels
from dracaena.controller.allocation.legal.read.claims import Claim, read_claim
from dracaena.controller.allocation.nodes.matching import first_untolerated
from dracaena.controller.allocation.nodes.node_filter import PINNED_ELSEWHERE
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.score.order import Score
from dracaena.controller.allocation.state.node_state import NodePool, held_devices
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER
from support.clusters import RandomCluster
from support.node_fit import node_selector_matches, unfit_reason

TAINT_KEY = taint_key(DRIVER)

Asked = tuple[int, TopologyPolicy, Sequence[Toleration]]
"""GPUs, policy and tolerations of a request."""


class SlowVersion:
    """Reads the same objects for each node by itself, in plain steps; only the choice inside a node is the engine's."""

    def __init__(self, cluster: RandomCluster, engine: Engine) -> None:
        self.cluster = cluster
        self.engine = engine
        self._pools: dict[str, tuple[Node, ResourceSlice | None, NodePool | None]] = {}

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
        """The pool of a node. For each pod it is asked for some four times: read again once its objects are others."""
        name = item.metadata.name
        published = self.cluster.slices.get(name)
        known = self._pools.get(name)
        if known is None or known[0] is not item or known[1] is not published:
            inventory = make_inventory(DRIVER, nodes=[item], slices=[] if published is None else [published])
            known = self._pools[name] = item, published, inventory.pool(name)
        return known[2]

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
        requests = self.requests(claims)
        usable = self.usable(pool, requests)
        present = set().union(*usable)
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
        free = self.free(item, claims)
        found = self.engine.best_two(pool.box, sum(1 << o for o in free), demands, sum(1 << o for o in beside))
        if found.best is None:
            assert found.shortfall
            unheld = set(self.unheld(item))
            hides = bool(unheld - present)
            return found.shortfall.replace(" free ", " free, untainted ") if hides else found.shortfall
        return found.best

    def lack(self, item: Node, claims: Sequence[ResourceClaim]) -> Choice | str:
        """The best choice of a node that has GPUs to give, or what it lacks: of all its GPUs if it could never do, else
        of those that are free now."""
        now = self.devices(item, claims)
        if not isinstance(now, str):
            return now
        name, count = item.metadata.name, sum(count for count, _, _ in self.requests(claims))
        mine = {device.device for asked in claims for device in held_devices(asked, DRIVER) if device.pool == name}
        pool = self.pool(item)
        assert pool is not None
        held = {pool.devices.index(device) for device in mine}
        healthy = msgspec.structs.replace(
            self.cluster.slices[name].spec,
            devices=[
                msgspec.structs.replace(device, taints=[taint for taint in device.taints if taint.key == TAINT_KEY])
                for device in self.cluster.slices[name].spec.devices
            ],
        )
        emptied = replace(
            self.cluster,
            taken={name: held},
            slices={name: msgspec.structs.replace(self.cluster.slices[name], spec=healthy)},
        )
        ever = SlowVersion(emptied, self.engine).devices(item, claims)
        if isinstance(ever, str):
            few = ever.replace(" free ", " ")
            return f"{few} besides those that the pod has" if held and few.startswith("with") else few
        if held or len(self.free(item, claims)) >= count:
            return now
        present = set().union(*self.usable(pool, self.requests(claims)))
        few_untainted = sum(1 for o in present if pool.offered >> o & 1) < count
        enough_unheld = len(self.unheld(item)) >= count
        if count == 1:
            which = "" if few_untainted else "free "
            tainted = f"whose {which}GPUs all have taints that the claim does not tolerate"
            return tainted if few_untainted or enough_unheld else now
        has = f"with {count} or more GPUs, fewer than {count} of them"
        if few_untainted:
            return f"{has} without taints that the claim does not tolerate"
        return f"{has} free and untainted" if enough_unheld else f"{has} free"

    def free(self, item: Node, claims: Sequence[ResourceClaim]) -> list[int]:
        """The free GPUs of a node that count for these claims."""
        pool = self.pool(item)
        if pool is None:
            return []
        present = set().union(*self.usable(pool, self.requests(claims)))
        taken = self.cluster.taken[pool.node]
        return [o for o in range(len(pool.devices)) if pool.offered >> o & 1 and o not in taken and o in present]

    def unheld(self, item: Node) -> list[int]:
        """The GPUs of a node that nobody has, whatever their taints."""
        pool = self.pool(item)
        assert pool is not None
        taken = self.cluster.taken[pool.node]
        return [o for o in range(len(pool.devices)) if pool.offered >> o & 1 and o not in taken]

    @staticmethod
    def requests(claims: Sequence[ResourceClaim]) -> list[Asked]:
        """What the claims that wait ask for."""
        requests: list[Asked] = []
        for asked in claims:
            if asked.status.allocation is not None:
                continue
            spec = read_claim(asked)
            assert isinstance(spec, Claim)
            policy = merged([], [decode_config(entry.parameters) for entry in spec.configs])  # type: ignore[misc]
            exact = [entry.alternatives[0] for entry in spec.requests]
            requests += [(entry.count, policy, entry.tolerations) for entry in exact]
        return requests

    @staticmethod
    def usable(pool: NodePool, requests: Sequence[Asked]) -> list[set[int]]:
        """The GPUs of a node that each request may use, free or not."""
        taints = dict(pool.kind.foreign_taints)
        return [
            {o for o in range(len(pool.devices)) if first_untolerated(taints.get(o, ()), tolerations) is None}
            for _, _, tolerations in requests
        ]


@dataclass(frozen=True)
class SlowFamily:
    """Where the other pods of a family are, and what that means for each node, in plain steps."""

    version: SlowVersion
    siblings: Mapping[str, int]
    """By node."""
    size: int | None
    levels: TopologyLevels = NO_LEVELS

    def key(self, name: str, claims: Sequence[ResourceClaim], score: Score) -> tuple[int, ...]:
        """What sorts nodes, best first: the rank of their devices with the family's wish in its place."""
        rank, names = list(score.node_rank()), score.order.node_names
        policies = [policy for _, policy, _ in self.version.requests(claims)]
        if next((policy.siblings for policy in policies if policy.siblings), None) is Siblings.IGNORED:
            return tuple(rank)
        is_spread = score.order.node_strategy is NodeStrategy.SPREAD
        last = "bandwidth_percent_of_ideal"
        if score.order.objective is not Objective.PACK and (is_spread or score.order.prices is None):
            last = "free_gpus" if is_spread else "ring_gb_s"
        place = names.index(last) + 1
        return (*rank[:place], *self.wish(name, claims), *rank[place:])

    def wish(self, name: str, claims: Sequence[ResourceClaim]) -> tuple[int, ...]:
        """The nearest level at which there are siblings, and most of them; then the nearest with room for all that are
        left, and the tightest there; then the most room around. Where nobody says how many there are, a node that is
        alone has none."""
        domains = self.domains(name)
        counted = [(level, *self.counts(domain, claims)) for level, domain in enumerate(domains) if domain is not None]
        cluster = (len(domains), 0, 0)
        is_alone = domains[0] == ("node", name)
        if self.size is None and is_alone:
            counted[0] = 0, counted[0][1], 0
        nearest = next((found for found in counted if found[1]), cluster)
        left = None if self.size is None else max(1, self.size - sum(self.siblings.values()))
        roomy = next((found for found in counted if left is not None and found[2] >= left), cluster)
        near = counted[1] if is_alone and len(counted) > 1 else counted[0]
        return nearest[0], -nearest[1], roomy[0], roomy[2], -near[2] if roomy[0] else 0

    def counts(self, domain: tuple[str, ...], claims: Sequence[ResourceClaim]) -> tuple[int, int]:
        """Siblings in a domain, and how many pods it has room for."""
        count = sum(count for count, _, _ in self.version.requests(claims))
        there, room = 0, 0
        for item in self.version.cluster.nodes:
            if domain in self.domains(item.metadata.name) and self.version.outside(item) is None:
                there += self.siblings.get(item.metadata.name, 0)
                room += len(self.version.free(item, claims)) // count
        return there, room

    def domains(self, name: str) -> list[tuple[str, ...] | None]:
        """The domains of a node, smallest first: its fabric clique, or the node; then one for each level."""
        cliques = {gpu.fabric_clique for gpu in self.version.cluster.machines[name].gpus} if self.has(name) else {None}
        clique = cliques.pop() if len(cliques) == 1 else None
        labels = next(item.metadata.labels for item in self.version.cluster.nodes if item.metadata.name == name)
        above = [labels.get(key, "") for key in self.levels.labels]
        racks = [(key, *above[: place + 1]) if above[place] else None for place, key in enumerate(self.levels.labels)]
        return [("node", name) if clique is None else ("clique", clique), *reversed(racks)]

    def has(self, name: str) -> bool:
        """Whether the node has GPUs at all."""
        return name in self.version.cluster.slices
