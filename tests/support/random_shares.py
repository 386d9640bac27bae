"""Random small clusters with shares of GPUs, as objects and as the slow version sees them, and a pod."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from dracaena.api.machine import Machine
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    own_config,
    pool_slice,
    request,
)
from support.shares import holding_share, in_shares, share, sharing
from support.slow_shares import CORES, GIB, SlowGpu, SlowNode, Wanted, gets_share

MACHINES = (
    machine("pairs", blocks(2, 2, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4),
    machine("five", blocks(2, 3, inside="PIX", outside="SYS"), pcie_generation=4),
    machine("three", blocks(3, inside="NV4", outside="NV4"), nvlink_count=8, nvlink_generation=3),
    machine("two", blocks(2, inside="PHB", outside="PHB"), pcie_generation=3),
)
GIBS = (80, 24)
MODES = ("none", "MPS", "TimeSlicing")


class RandomShares:
    """A few small nodes with shares on them, as objects and as the slow version sees them; and a pod."""

    def __init__(self, seed: int, *, modes: Sequence[str] | None = None) -> None:
        """`modes`: of sharing; None: one or several, by the seed."""
        self.rng = random.Random(f"shares {seed}")
        drawn = MODES if self.rng.random() < 0.5 else MODES[:1]
        self.modes = drawn if modes is None else modes
        self.nodes: list[SlowNode] = []
        self.slices: list[ResourceSlice] = []
        self.claims: list[ResourceClaim] = []
        self.machines: dict[str, Machine] = {}
        kinds = self.rng.sample(MACHINES, self.rng.randint(1, 2))
        for number in range(self.rng.randint(1, 4)):
            self._add_node(f"node-{number}", self.rng.choice(kinds))
        self.pod = self._random_pod()

    def _add_node(self, name: str, made: Machine) -> None:
        rng = self.rng
        gib = rng.choice(GIBS)
        count = len(made.gpus)
        only = set(range(count)) if rng.random() < 0.7 else {o for o in range(count) if rng.random() < 0.5}
        if rng.random() < 0.1:
            only = set()
        if not only and not self.nodes:
            # Where no GPU of the cluster is given in shares, amounts only say which GPUs are large enough.
            only = {0}
        has_memory = rng.random() < 0.5
        gpus = [
            SlowGpu(gib * GIB if ordinal in only or has_memory else None, is_shared=ordinal in only)
            for ordinal in range(count)
        ]
        self.machines[name] = made
        self.slices.append(in_shares(pool_slice(name, made), gib, only, others_have_memory=has_memory))
        for ordinal, gpu in enumerate(gpus):
            if rng.random() < 0.15:
                gpu.is_held = True
                held = holding(claim(f"whole-{name}-{ordinal}"), name, device_name(made, ordinal))
                self.claims.append(held)
            elif gpu.is_shared and rng.random() < 0.5:
                self._share_out(name, made, ordinal, gpu)
        self.nodes.append(SlowNode(name, make_box(made.topology, dict(enumerate(made.gpus))), gpus))

    def _share_out(self, name: str, made: Machine, ordinal: int, gpu: SlowGpu) -> None:
        rng, mode = self.rng, self.rng.choice(self.modes)
        assert gpu.memory is not None
        for number in range(rng.randint(1, 3)):
            memory = rng.choice([1, 4, 8, 10, gpu.memory // GIB]) * GIB
            cores = rng.choice([0, 0, 20, 50])
            if memory + sum(one[0] for one in gpu.shares) > gpu.memory:
                continue
            if cores + sum(one[1] for one in gpu.shares) > CORES:
                continue
            gpu.shares.append((memory, cores, mode))
            consumed = {"memory": f"{memory // GIB}Gi", "cores": str(cores)}
            told = None if mode == "none" and rng.random() < 0.5 else mode
            key = f"share-{name}-{ordinal}-{number}"
            held = holding_share(key, name, device_name(made, ordinal), consumed, mode=None if told == "none" else told)
            self.claims.append(held)

    def _random_pod(self) -> list[Wanted]:
        rng = self.rng
        mode = rng.choice(self.modes)
        pod = [
            Wanted(
                rng.choice([1, 1, 1, 2]),
                rng.choice([1, 2, 4, 10, 20, 24]) * GIB,
                rng.choice([0, 0, 30, 60]),
                mode if rng.random() < 0.8 else rng.choice(self.modes),
            )
            for _ in range(rng.choice([0, 1, 1, 1, 2]))
        ]
        if not pod or rng.random() < 0.3:
            pod.append(Wanted(rng.choice([1, 1, 2, 3])))
        rng.shuffle(pod)
        return pod

    def waiting_claims(self) -> list[ResourceClaim]:
        """The pod's requests in one or several claims."""
        together = self.rng.random() < 0.5
        bodies: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        for place, wanted in enumerate(self.pod):
            name = f"r{place}"
            if wanted.memory is None:
                bodies.append((request(name, wanted.count), None))
            else:
                cores = wanted.cores or None
                body = share(name, f"{wanted.memory // GIB}Gi", cores, count=wanted.count)
                bodies.append((body, None if wanted.mode == "none" else own_config(sharing(wanted.mode), name)))
        groups = [bodies] if together else [[one] for one in bodies]
        return [
            claim(f"c{number}", *(body for body, _ in group), configs=[config for _, config in group if config])
            for number, group in enumerate(groups)
        ]

    def inventory(self) -> Inventory:
        return make_inventory(
            DRIVER,
            nodes=[node(one.name) for one in self.nodes],
            slices=self.slices,
            claims=self.claims,
            classes=[device_class()],
        )

    def node(self, name: str) -> SlowNode:
        return next(one for one in self.nodes if one.name == name)

    def has_one_division(self, name: str) -> bool:
        """Whether at most one request gets whole GPUs on a node: of several, the engine divides the set by rules that
        the slow version does not know."""
        return sum(not gets_share(self.node(name), wanted) for wanted in self.pod) < 2

    def told(self, found: Allocation) -> tuple[str, tuple[tuple[int, ...], ...]]:
        """Node and ordinals of each request."""
        made = self.machines[found.node]
        ordinals = {device_name(made, ordinal): ordinal for ordinal in range(len(made.gpus))}
        by_request: dict[str, list[int]] = defaultdict(list)
        for entry in found.claims:
            for result in entry.results:
                by_request[result.request].append(ordinals[result.device])
        return found.node, tuple(tuple(sorted(by_request[f"r{place}"])) for place in range(len(self.pod)))
