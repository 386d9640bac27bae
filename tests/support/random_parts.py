"""Random small clusters whose GPUs are cut on demand, as objects and as the slow version sees them, and a pod."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

from dracaena.api.machine import Machine
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, claim, device_class, device_name, holding, machine, node, request
from support.mig_nodes import mig_classes, mig_slices, part, part_name
from support.mig_tables import A30, A100, A100_WITH_MEDIA, MigPart, is_legal
from support.slow_partitions import EITHER, Asked, CutGpuThere, CutNode

MACHINES = (
    machine("pairs", blocks(2, 2, inside="NV12", outside="SYS"), nvlink_count=12, nvlink_generation=4),
    machine("three", blocks(1, 2, inside="PIX", outside="SYS"), pcie_generation=4),
    machine("two", blocks(2, inside="PHB", outside="PHB"), pcie_generation=3),
)
SIXTEEN = machine("sixteen", blocks(8, 8, inside="NV12", outside="PIX"), nvlink_count=12, nvlink_generation=4)
PRODUCTS = (A100, A100, A100_WITH_MEDIA, A30)


class RandomParts:
    """A few small nodes with parts on them, as objects and as the slow version sees them; and a pod."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"parts {seed}")
        self.nodes: list[CutNode] = []
        self.slices: list[ResourceSlice] = []
        self.claims: list[ResourceClaim] = []
        self.machines: dict[str, Machine] = {}
        self.product = self.rng.choice(PRODUCTS)
        for number in range(self.rng.randint(1, 3)):
            self._add_node(f"node-{number}", self.rng.choice(MACHINES))
        self.agree = self.differ = self.agree_each = False
        self.pod = self._random_pod()

    def _add_node(self, name: str, made: Machine) -> None:
        rng = self.rng
        gpus = [CutGpuThere(None if rng.random() < 0.1 else self.product) for _ in made.gpus]
        foreign: dict[int, set[MigPart]] = {}
        for ordinal, gpu in enumerate(gpus):
            if gpu.cut is None or rng.random() < 0.3:
                if rng.random() < 0.3:
                    gpu.is_held = True
                    self.claims.append(holding(claim(f"w-{name}-{ordinal}"), name, device_name(made, ordinal)))
                continue
            for _ in range(rng.choice([0, 1, 2, 4])):
                one = rng.choice(gpu.cut.parts())
                if one in gpu.parts or not is_legal(gpu.cut, [*gpu.parts, one]):
                    continue
                gpu.parts.add(one)
                if rng.random() < 0.15:
                    foreign.setdefault(ordinal, set()).add(one)
                    continue
                key = f"p-{name}-{ordinal}-{len(self.claims)}"
                self.claims.append(holding(claim(key), name, part_name(made, ordinal, one)))
        without = {ordinal for ordinal, gpu in enumerate(gpus) if gpu.cut and not gpu.is_held and rng.random() < 0.1}
        for ordinal in without:
            gpus[ordinal].can_be_whole = False
        self.machines[name] = made
        self.slices += mig_slices(name, made, [gpu.cut for gpu in gpus], foreign=foreign, without_whole=without)
        self.nodes.append(CutNode(name, make_box(made.topology, dict(enumerate(made.gpus))), gpus))

    def _random_pod(self) -> list[Asked]:
        rng = self.rng
        names = [profile for profile, *_ in self.product.profiles]
        asked = [Asked(rng.choice([1, 1, 1, 2]), rng.choice(names)) for _ in range(rng.choice([1, 1, 1, 2]))]
        if rng.random() < 0.25:
            asked.append(Asked(rng.choice([1, 1, 2])))
        elif sum(one.count for one in asked) > 1:
            self.agree = rng.random() < 0.3
            self.differ = not self.agree and rng.random() < 0.3
        if sum(one.count for one in asked) > 3:
            del asked[1:]
        return asked

    @classmethod
    def several_equal(cls, seed: int) -> RandomParts:
        """The same nodes and a pod of several requests, most of them for the same profile, in any order."""
        case = cls(seed)
        names = [profile for profile, *_ in case.product.profiles]
        one, other = case.rng.choice(names), case.rng.choice(names)
        pods = ([one, one], [one, one, one], [one, other, one], [other, one, one])
        asked = case.rng.choice(pods)
        case.pod = [Asked(case.rng.choice([1, 2]) if len(asked) == 2 else 1, name) for name in asked]
        if len(asked) == 2 and case.rng.random() < 0.2:
            case.pod.append(Asked(case.rng.choice([1, 2])))
        case.agree = case.differ = case.agree_each = False
        if all(asked.profile for asked in case.pod):
            says = case.rng.choice(["agree", "differ", "agree_each", "", ""])
            case.agree, case.differ, case.agree_each = (says == one for one in ("agree", "differ", "agree_each"))
        return case

    @classmethod
    def either(cls, seed: int) -> RandomParts:
        """The same nodes, with a pod of which some request means whole GPUs and parts."""
        case = cls(seed)
        case.agree = case.differ = case.agree_each = False
        case.pod.insert(case.rng.randint(0, len(case.pod)), Asked(case.rng.choice([1, 1, 2]), EITHER))
        return case

    @classmethod
    def many_gpus(cls, seed: int) -> RandomParts:
        """One node of 16 GPUs, and a pod that breaks several."""
        case = cls(seed)
        case.nodes, case.slices, case.claims, case.machines = [], [], [], {}
        case.agree = case.differ = case.agree_each = False
        if any(case.product is one for one in (A100_WITH_MEDIA, A30)):
            case.product = A100
        case._add_node("node-0", SIXTEEN)
        case.pod = case.rng.choice(
            ([Asked(2, "7g.80gb")], [Asked(1, "7g.80gb")] * 2, [Asked(1, "4g.40gb"), Asked(1, "7g.80gb")])
        )
        return case

    def waiting_claims(self) -> list[ResourceClaim]:
        """The pod's requests in one claim."""
        bodies = [_request(f"r{place}", one) for place, one in enumerate(self.pod)]
        made = claim("c", *bodies)
        attribute = f"{DRIVER}/parentUUID"
        if self.agree:
            made.spec["devices"]["constraints"] = [{"matchAttribute": attribute}]
        if self.differ:
            made.spec["devices"]["constraints"] = [{"distinctAttribute": attribute}]
        if self.agree_each:
            names = [body["name"] for body in bodies]
            made.spec["devices"]["constraints"] = [{"requests": [one], "matchAttribute": attribute} for one in names]
        return [made]

    def inventory(self) -> Inventory:
        nodes = [node(one.name) for one in self.nodes]
        classes = [*mig_classes(), device_class(EITHER)]
        return make_inventory(DRIVER, nodes=nodes, slices=self.slices, claims=self.claims, classes=classes)

    def told(self, found: Allocation) -> tuple[str, list[list[tuple[int, MigPart | None]]]]:
        """Node and what each request got."""
        made = self.machines[found.node]
        known: dict[str, tuple[int, MigPart | None]] = {
            device_name(made, at): (at, None) for at in range(len(made.gpus))
        }
        for at in range(len(made.gpus)):
            known |= {part_name(made, at, one): (at, one) for one in self.product.parts()}
        by_request: dict[str, list[Any]] = defaultdict(list)
        for result in found.claims[0].results:
            by_request[result.request].append(known[result.device])
        return found.node, [sort(by_request[f"r{place}"]) for place in range(len(self.pod))]


def _request(name: str, asked: Asked) -> dict[str, Any]:
    if asked.profile in (None, EITHER):
        return request(name, asked.count, *([] if asked.profile is None else [EITHER]))
    return part(name, asked.profile, asked.count)


def sort(given: Any) -> list[tuple[int, MigPart | None]]:
    return sorted(given, key=lambda one: (one[0], one[1] is not None and (one[1].profile, one[1].start)))
