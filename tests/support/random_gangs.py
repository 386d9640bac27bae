"""Small clusters of different machines with racks and blocks, and gangs that may or may not fit there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bench.machines import recorded
from dracaena.api.device_id import DeviceId
from dracaena.api.objects import NodeStatus, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.gang.domains import Domains
from dracaena.controller.allocation.gang.gang_allocator import GangRules
from dracaena.controller.allocation.gang.question import Rails
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind
from support.allocation import DRIVER, claim, device_class, node, own_config, pod, pool_slice, request
from support.clusters import random_policy

MACHINES = ("a100-sxm4-x4", "gb200-tray", "l40s-x4", "a30-x2", "dgx-1v", "a5000-pix-pxb")
MOST_FREE = 4
"""Free GPUs of a node: so few that all ways to give them can be tried."""


@dataclass(frozen=True)
class GangCase:
    inventory: Inventory
    domains: Domains
    members: Sequence[tuple[Pod, Sequence[ResourceClaim]]]
    class_of: Sequence[int]
    """The class of each member."""
    rules: GangRules
    fixed: tuple[str, ...]
    may_take: Callable[[str, tuple[int, ...]], bool]


def rails_by_ordinal(kind: NodeKind) -> Sequence[int | None]:
    return range(kind.box.gpu_count)


def random_gang(seed: int, *, machines: Sequence[str] = MACHINES) -> GangCase:
    rng = random.Random(seed)
    inventory = Inventory(DRIVER)
    inventory.set_class(device_class())
    kinds = rng.sample(machines, rng.randint(1, len(machines)))
    locations: dict[str, tuple[str | None, ...]] = {}
    cpu: dict[str, int] = {}
    with_cliques = rng.random() < 0.5
    for place in range(rng.choice([1, 3, 4, 5, 6])):
        name = f"n{place}"
        rack = rng.randrange(3)
        clique = f"c.{rack}" if with_cliques and rng.random() < 0.8 else None
        made = recorded(rng.choice(kinds)).machine
        gpus = tuple(
            replace(gpu, uuid=f"GPU-{place:08x}-0000-4000-8000-{gpu.index:012x}", fabric_clique=clique)
            for gpu in made.gpus
        )
        cpu[name] = rng.choice([2, 4, 100, 100])
        status = NodeStatus(allocatable={"cpu": str(cpu[name]), "memory": "1Ti", "pods": "110"})
        made_node = node(name, labels={"kubernetes.io/hostname": name, "zone": rng.choice("xy")})
        inventory.set_node(msgspec.structs.replace(made_node, status=status))
        inventory.change_slice(None, pool_slice(name, replace(made, gpus=gpus)))
        free = [ordinal for ordinal in range(len(gpus)) if rng.random() < 0.8]
        free = rng.sample(free, min(len(free), MOST_FREE))
        _hold_others(inventory, name, free)
        path = (f"b{rack // 2}", f"b{rack // 2}/r{rack}")
        locations[name] = (*(domain if rng.random() < 0.95 else None for domain in path), clique)
    domains = Domains(("block", "rack"), locations)
    members: list[tuple[Pod, Sequence[ResourceClaim]]] = []
    class_of: list[int] = []
    sizes: list[_Class] = []
    for number in range(rng.choice([1, 1, 1, 2, 2, 3])):
        count = rng.randint(1, 4 if number == 0 else 2)
        made_class = _random_class(rng, number)
        sizes.append(made_class)
        for _ in range(count):
            name = f"p{len(members)}"
            members.append((replace_name(made_class.pod, name), [replace_claim(made_class.claim, name)]))
            class_of.append(number)
    rails = Rails.IGNORED if rng.random() < 0.6 else rng.choice([Rails.PREFERRED, Rails.REQUIRED])
    rules = GangRules(
        required=rng.choice([None, None, None, None, 1, 2]),
        preferred=rng.choice([None, None, None, 1, 2]),
        rails=rails,
        rails_of=None if rails is Rails.IGNORED else rails_by_ordinal,
    )
    fixed = tuple(sorted(rng.sample(sorted(locations), 1))) if rng.random() < 0.15 else ()

    def may_take(name: str, pattern: tuple[int, ...]) -> bool:
        used = sum(count * one.cpu for count, one in zip(pattern, sizes, strict=True))
        zone = inventory.nodes.get(name).labels["zone"]
        return used <= cpu[name] and all(
            not count or ((count == 1 or not one.is_alone) and one.zone in (None, zone))
            for count, one in zip(pattern, sizes, strict=True)
        )

    return GangCase(inventory, domains, members, class_of, rules, fixed, may_take)


@dataclass(frozen=True)
class _Class:
    pod: Pod
    claim: ResourceClaim
    cpu: int
    is_alone: bool
    zone: str | None


def _random_class(rng: random.Random, number: int) -> _Class:
    spec: dict[str, Any] = {}
    zone = rng.choice("xy") if rng.random() < 0.15 else None
    if zone is not None:
        spec["nodeSelector"] = {"zone": zone}
    cpu = rng.choice([1, 1, 2])
    spec["containers"] = [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}]
    labels = {"class": str(number)}
    is_alone = rng.random() < 0.2
    if is_alone:
        term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
        spec["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    made = pod("p", **spec)
    made = msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=labels))
    count = rng.choice([1, 1, 1, 2, 2, 2, 3, 4])
    fields: dict[str, Any] = {}
    if rng.random() < 0.3:
        wanted = rng.choice(["'A100'", "'V100'", "'GB200'", "'A30'"])
        name = f"device.attributes['{DRIVER}'].productName"
        fields["selectors"] = [{"cel": {"expression": f"!{name}.contains({wanted})"}}]
    requests = [request("a", count, **fields)]
    if rng.random() < 0.15:
        requests.append(request("b", 1))
    configs = [own_config(random_policy(rng))] if rng.random() < 0.35 else []
    return _Class(made, claim("c", *requests, configs=configs), cpu, is_alone, zone)


def _hold_others(inventory: Inventory, name: str, free: Sequence[int]) -> None:
    pool = inventory.pool(name)
    assert pool is not None
    held = (device for ordinal, device in enumerate(pool.devices) if ordinal not in free and device is not None)
    inventory.hold(f"x/{name}", frozenset(DeviceId(DRIVER, pool.pool, device) for device in held))


def replace_name(made: Pod, name: str) -> Pod:
    meta = msgspec.structs.replace(made.metadata, name=name, uid=f"uid-{name}")
    return msgspec.structs.replace(made, metadata=meta)


def replace_claim(made: ResourceClaim, name: str) -> ResourceClaim:
    meta = msgspec.structs.replace(made.metadata, name=name, uid=f"uid-{name}")
    return msgspec.structs.replace(made, metadata=meta)
