"""Where shares go, decided by the allocator over many nodes, against a slow version that writes every way down."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.machine import Machine
from dracaena.api.quantity import parse_quantity
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.size_demand import SizeDemand
from dracaena.controller.allocation.walk.shares.assignments import ShareAssignments
from dracaena.controller.allocation.walk.shares.places import SharePlaces
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
    pod,
    pool_slice,
    request,
)
from support.seeds import in_tiers
from support.shares import holding_share, in_shares, share, sharing
from support.slow_shares import CORES, GIB, SlowGpu, SlowNode, Wanted, best_place, gets_share, key_on_node, ways_on

CLUSTERS = 150
"""Among which each planted fault is found."""

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

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"shares {seed}")
        self.modes = MODES if self.rng.random() < 0.5 else MODES[:1]
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


def check_results(case: RandomShares, found: Allocation, parts: Sequence[Sequence[int]]) -> None:
    """Every share says all that it takes, under an id of its own; who has a GPU whole takes all of it."""
    gpus = case.node(found.node).gpus
    results = [result for entry in found.claims for result in entry.results]
    ids = [result.share_id for result in results if result.share_id is not None]
    assert len(ids) == len(set(ids))
    by_request: dict[str, list[Any]] = defaultdict(list)
    for result in results:
        by_request[result.request].append(result)
    for place, wanted in enumerate(case.pod):
        in_order = sorted(by_request[f"r{place}"], key=lambda result: result.device)
        for ordinal, result in zip(sorted(parts[place]), in_order, strict=True):
            gpu = gpus[ordinal]
            if not gpu.is_shared:
                assert result.share_id is None
                assert result.consumed_capacity == {}
                continue
            taken = {name: parse_quantity(text).whole() for name, text in result.consumed_capacity.items()}
            assert result.share_id is not None
            assert taken == {"memory": wanted.memory or gpu.memory, "cores": wanted.cores}


def compare(seed: int) -> str:
    """Compare one random case; return what was found."""
    case = RandomShares(seed)
    inventory, allocator = case.inventory(), Allocator()
    inventory.check()
    if seed % 2:
        allocator.reprice(inventory, SizeDemand().shares(inventory.holdings.by_size, now_s=0.0))
    claims = case.waiting_claims()
    user = pod("pod", *(one.metadata.name for one in claims))
    expected = best_place(allocator.engine, case.nodes, case.pod)
    for _ in range(2):  # the second time everything is remembered
        found = allocator.allocate(inventory, user, claims)
        if expected is None:
            assert isinstance(found, NoFit), f"seed {seed}: {found}"
            assert allocator.explain(inventory, user, claims) is not None
        else:
            assert isinstance(found, Allocation), f"seed {seed}: {found}, {expected}, {case.pod}"
            told = case.told(found)
            assert told[0] == expected[0], f"seed {seed}: {case.pod}"
            if case.has_one_division(told[0]):
                assert told == expected, f"seed {seed}: {case.pod}"
            else:
                keys = [key_on_node(allocator.engine, case.node(told[0]), case.pod, way[1]) for way in (told, expected)]
                assert keys[0][:-1] == keys[1][:-1], f"seed {seed}: {case.pod}"
                assert told[1] in ways_on(case.node(told[0]), case.pod)
            check_results(case, found, told[1])
    return "none" if expected is None else "found"


def compare_many(seeds: Iterable[int]) -> list[str]:
    return [compare(seed) for seed in seeds]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", in_tiers(range(40), range(40, 300), range(300, 6_000)))
def test_a_pod_with_shares_gets_what_the_slow_version_finds(seeds: range) -> None:
    found = compare_many(seeds)
    assert min(found.count(one) for one in ("none", "found")) > len(seeds) // 20


def _roomiest_first(ways: ShareAssignments, ordinal: int, taken: Any) -> tuple[int, int]:
    memory, cores = LEFT_OF(ways, ordinal, taken)
    return -memory, -cores


def _any_mode(ways: ShareAssignments, free: int, demand: Any, ordinal: int, now: Any) -> Any:
    before = now.get(ordinal) or ways._in_use.get(ordinal)
    return FILLED(ways, free, demand if before is None else replace(demand, mode=before.mode), ordinal, now)


def _no_room(ways: ShareAssignments, free: int) -> bool:
    return ROOM(ways, free) and len(ways._demands) < 2


def _no_damage(places: SharePlaces, dealt: Any) -> tuple[int, ...]:
    return ()


def _nodes_by_links_alone(places: SharePlaces, nodes: Any, fresh: int = 0, wasted: int = 0, left: Any = (0, 0)) -> int:
    return RANK(places, nodes, 0, 0, left)


def _no_place_without_the_capacity(ways: ShareAssignments, name: str, free: int, ordinal: int) -> Any:
    one = ways._question.kind.devices[ordinal]
    has = one is not None and any(held.name == name for held in one.device.capacities)
    return LEFT(ways, name, free, ordinal) if has else iter(())


LEFT = ShareAssignments._left_nano
LEFT_OF, FILLED, ROOM = ShareAssignments.left_of, ShareAssignments._filled, ShareAssignments._has_room
RANK = SharePlaces.rank


@pytest.mark.search
@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (ShareAssignments, "left_of", _roomiest_first),
        (ShareAssignments, "_has_room", _no_room),
        (ShareAssignments, "_left_nano", _no_place_without_the_capacity),
        (SharePlaces, "_fresh_rank", _no_damage),
        (SharePlaces, "rank", _nodes_by_links_alone),
    ],
)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, planted: Any) -> None:
    monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError):
        compare_many(range(CLUSTERS))


@pytest.mark.search
def test_modes_that_neither_places_nor_rules_keep_apart_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either alone is enough: places come in an order, and the rules refuse what places overlook."""
    monkeypatch.setattr(ShareAssignments, "_filled", _any_mode)
    monkeypatch.setattr(Problem, "mode", lambda *_: None)
    with pytest.raises(AssertionError):
        compare_many(range(CLUSTERS))
