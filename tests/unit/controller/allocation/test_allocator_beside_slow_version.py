"""The allocator over many nodes, for claims of every kind, against asking each node by itself."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec
import pytest

from dracaena.api.device_id import DeviceId, PoolId
from dracaena.api.names import taint_key
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import DeviceClass, ResourceClaim, ResourceSlice
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.explanation import Unsatisfied
from dracaena.controller.allocation.legal.books import Books, Holding
from dracaena.controller.allocation.legal.problem import Problem, Snapshot
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import read_slice
from dracaena.controller.allocation.legal.search import Restriction
from dracaena.controller.allocation.request import ClaimDemand, Refused
from dracaena.controller.allocation.result import Allocation, commit
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.node_choice import Chosen, NodeGpus, NodeQuestion, choose
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_class, give_back, requests_of
from support.allocator_cases import posed
from support.clusters import RandomCluster, random_cluster, random_pod
from support.inventories import free_mask
from support.node_fit import unfit_reason
from support.seeds import in_tiers

IS_GPU = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"'


def cel(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}} for expression in expressions]


CLASSES = {
    DRIVER: device_class(),
    "selected": device_class("selected", selectors=cel(IS_GPU)),
    "generation-4": device_class(
        "generation-4", selectors=cel(f'device.attributes["{DRIVER}"].?pcieGeneration.orValue(0) == 4')
    ),
}
EXPRESSIONS = (
    f'device.attributes["{DRIVER}"].ordinal < 4',
    f'device.attributes["{DRIVER}"].ordinal % 2 == 0',
    'device.attributes["resource.kubernetes.io"].?numaNode.orValue(7) == 0',
    f'device.attributes["{DRIVER}"].uuid.endsWith("3") || device.attributes["{DRIVER}"].uuid.endsWith("1")',
)
ATTRIBUTES = (f"{DRIVER}/pcieSwitch", f"{DRIVER}/nvlinkGroup", "resource.kubernetes.io/numaNode", f"{DRIVER}/uuid")


def random_body(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"deviceClassName": rng.choice([*CLASSES, DRIVER])}
    if rng.random() < 0.1:
        body["allocationMode"] = "All"
    else:
        body["count"] = rng.choice([1, 1, 2, 2, 3, 4])
    if rng.random() < 0.4:
        body["selectors"] = cel(rng.choice(EXPRESSIONS))
    if rng.random() < 0.2:
        body["tolerations"] = [{"key": "sick", "operator": "Exists"}]
    return body


def random_request(rng: random.Random, name: str) -> dict[str, Any]:
    if rng.random() < 0.25:
        entries = [{"name": f"s{number}", **random_body(rng)} for number in range(rng.choice([1, 2, 3]))]
        return {"name": name, "firstAvailable": entries}
    body = random_body(rng)
    if rng.random() < 0.1:
        body["adminAccess"] = True
    return {"name": name, "exactly": body}


def random_claim(rng: random.Random, name: str) -> ResourceClaim:
    requests = [random_request(rng, f"r{number}") for number in range(rng.choice([1, 1, 2]))]
    made = claim(name, *requests)
    if rng.random() < 0.4:
        kind = rng.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        constraint: dict[str, Any] = {kind: rng.choice(ATTRIBUTES)}
        if rng.random() < 0.5:
            constraint["requests"] = [rng.choice(requests)["name"]]
        made.spec["devices"]["constraints"] = [constraint]
    return made


class NodeByNode:
    """Asks the rules and the engine about every node by itself, from the objects; no kinds, buckets or bounds."""

    def __init__(self, cluster: RandomCluster, allocator: Allocator) -> None:
        self.cluster, self.allocator = cluster, allocator
        self.books = Books(Holding("x", DeviceId(DRIVER, one.pool, one.device)) for one in cluster.held)

    def best(self, pod: Pod, demands: Sequence[ClaimDemand]) -> tuple[tuple[Any, ...], str] | None:
        """The rank and the name of the best node, for the first way that any node can serve."""
        keys = [(c, i) for c, demand in enumerate(demands) for i in range(len(demand.requests))]
        for places in product(*(range(len(demands[c].requests[i])) for c, i in keys)):
            chosen = dict(zip(keys, places, strict=True))
            found = list(self.answers(pod, demands, chosen))
            if found:
                return min(found)
        return None

    def answers(
        self, pod: Pod, demands: Sequence[ClaimDemand], chosen: Mapping[tuple[int, int], int]
    ) -> Iterator[tuple[tuple[Any, ...], str]]:
        taken = [demands[c].requests[i][place] for (c, i), place in chosen.items()]
        scored = [one for one in taken if not one.request.all_devices and not one.request.admin_access]
        inventory = Inventory(DRIVER)
        for item in self.cluster.slices.values():
            inventory.change_slice(None, item)
        for node in self.cluster.nodes:
            name = node.metadata.name
            pool = inventory.pool(name)
            if unfit_reason(pod, node) is not None or pool is None or not pool.offered:
                continue
            item = self.cluster.slices[name]
            classes = {one.device_class.name: one.device_class for d in demands for e in d.requests for one in e}
            asked = Snapshot(classes, self.books, self.allocator.selectors, Features())
            problem = posed(asked, [read_slice(untainted(item))], node, [demand.spec for demand in demands])
            if not isinstance(problem, Problem):
                continue
            ids = tuple(None if one is None else DeviceId(DRIVER, name, one) for one in pool.devices)
            sick = {ordinal for ordinal, _ in pool.kind.foreign_taints}
            usable = all(not one.tolerations for one in scored)
            gone = sick if scored and usable else set()
            gone = gone | self.cluster.taken.get(name, set())
            free = sum(1 << o for o in range(len(ids)) if pool.offered >> o & 1 and o not in gone)
            offered = Restriction(frozenset({PoolId(DRIVER, name)}), frozenset(one for one in ids if one is not None))
            policies = {key: demands[key[0]].requests[key[1]][place].policy for key, place in chosen.items()}
            gpus = NodeGpus(pool.box, ids, free)
            answer = choose(problem, gpus, self.allocator.engine, NodeQuestion(chosen, policies, (offered,)))
            if isinstance(answer, Chosen):
                yield (
                    (answer.choice is None, *(answer.choice.score.node_rank() if answer.choice is not None else ())),
                    name,
                )


def untainted(item: ResourceSlice) -> ResourceSlice:
    devices = [
        msgspec.structs.replace(one, taints=[taint for taint in one.taints if taint.key != taint_key(DRIVER)])
        for one in item.spec.devices
    ]
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


def check(seed: int) -> str:
    rng = random.Random(seed)
    cluster = random_cluster(rng)
    pod = random_pod(rng)
    claims = [random_claim(rng, f"c{number}") for number in range(rng.choice([1, 1, 2]))]
    classes: list[DeviceClass] = list(CLASSES.values())
    inventory = make_inventory(DRIVER, nodes=cluster.nodes, slices=cluster.slices.values(), classes=classes)
    inventory.hold("x", cluster.held)
    inventory.check()
    allocator = Allocator()
    decision = allocator.allocate(inventory, pod, claims)
    if isinstance(decision, Refused):
        return "refused"
    demands = requests_of(CLASSES.values()).read(claims)
    assert not isinstance(demands, Refused)
    expected = NodeByNode(cluster, allocator).best(pod, demands)
    if isinstance(decision, NoFit):
        assert expected is None, (seed, expected)
        assert isinstance(allocator.explain(inventory, pod, claims), Unsatisfied), seed
        return "none"
    assert isinstance(decision, Allocation)
    assert expected is not None, seed
    rank = (not decision.is_scored, *(decision.choice.score.node_rank() if decision.is_scored else ()))
    assert (rank, decision.node) == expected, seed
    held = [device for entry in decision.claims for device in decision.devices(entry)]
    assert len(held) == len(set(held)), seed
    assert not set(held) & cluster.held, seed
    before = free_mask(inventory, decision.node)
    commit(inventory, decision)
    inventory.check()
    assert free_mask(inventory, decision.node) == before & ~decision.pool.mask(held), seed
    give_back(inventory, decision)
    inventory.check()
    assert free_mask(inventory, decision.node) == before, seed
    return "allocated"


def compare(seeds: range) -> Counter[str]:
    return Counter(check(seed) for seed in seeds)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seeds", in_tiers(range(40), range(40, 240), range(240, 6_000)))
def test_claims_of_every_kind_get_what_asking_each_node_by_itself_gives(seeds: range) -> None:
    became = compare(seeds)
    assert min(became["allocated"], became["none"]) > len(seeds) // 10, became
