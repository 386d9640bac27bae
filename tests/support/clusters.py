"""Random clusters and pods, from a seed: what decides about many nodes is held to slow versions on them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from dracaena.api.device_id import DeviceId
from dracaena.api.machine import Machine
from dracaena.api.objects import Node, Pod, Taint
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.api.topology_levels import TopologyLevels
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

SWITCHED = machine("switched", blocks(8, inside="NV18", outside="NV18"), nvlink_count=18, nvlink_generation=4)
BRIDGED = machine("bridged", blocks(2, 2, 2, inside="NV12", outside="NODE"), nvlink_count=12, nvlink_generation=4)
SOCKETS = machine("sockets", blocks(2, 2, inside="PIX", outside="SYS", numa=True), pcie_generation=4)
SMALL = machine("small", blocks(2, inside="PHB", outside="PHB"), pcie_generation=3)
MACHINES = (SWITCHED, BRIDGED, SOCKETS, SMALL)

SICK = Taint(key="sick", value="yes", effect="NoSchedule")
DEDICATED = Taint(key="team", value="blue", effect="NoSchedule")
ZONES = ("x", "y")
CLASSES = (device_class(),)

REQUIREMENTS = ("BestEffort", "NVLink", "PIX", "PXB", "PHB", "NODE")


@dataclass(slots=True)
class RandomCluster:
    """Objects as the API would tell them, and who holds what."""

    nodes: list[Node] = field(default_factory=list)
    machines: dict[str, Machine] = field(default_factory=dict)
    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    taken: dict[str, set[int]] = field(default_factory=dict)

    @property
    def held(self) -> frozenset[DeviceId]:
        """All devices in use."""
        return frozenset(
            DeviceId(DRIVER, name, device_name(self.machines[name], ordinal))
            for name, ordinals in self.taken.items()
            for ordinal in ordinals
        )


def random_node(rng: random.Random, name: str) -> Node:
    labels = {"kubernetes.io/hostname": name}
    if rng.random() < 0.8:
        labels["zone"] = rng.choice(ZONES)
    if rng.random() < 0.5:
        labels["rank"] = str(rng.randrange(5))
    return node(name, labels=labels, unschedulable=rng.random() < 0.1, taints=[DEDICATED] if rng.random() < 0.3 else [])


def random_slice(rng: random.Random, name: str, made: Machine) -> ResourceSlice:
    if rng.random() < 0.1:
        return pool_slice(name, made, taints=())
    foreign = {ordinal: [SICK] for ordinal in range(len(made.gpus)) if rng.random() < 0.05}
    return pool_slice(name, made, foreign=foreign)


def random_cluster(rng: random.Random, most_nodes: int = 12) -> RandomCluster:
    """Nodes of few kinds, so that some are equal; a few without a pool, opted out, with sick devices."""
    cluster = RandomCluster()
    kinds = rng.sample(MACHINES, rng.randint(1, len(MACHINES)))
    for number in rng.sample(range(most_nodes), rng.randint(0, most_nodes)):
        name = f"node-{number:02}"
        cluster.nodes.append(random_node(rng, name))
        if rng.random() < 0.1:
            continue
        made = cluster.machines[name] = rng.choice(kinds)
        cluster.slices[name] = random_slice(rng, name, made)
        busy = rng.choice([0, 0.3, 0.8])
        cluster.taken[name] = {ordinal for ordinal in range(len(made.gpus)) if rng.random() < busy}
    return cluster


def put_into_cliques(rng: random.Random, cluster: RandomCluster) -> None:
    """Let some nodes be in fabric cliques, most of them with all their GPUs."""
    for name in sorted(cluster.slices):
        clique = rng.choice([None, "c.1", "c.2", "c.3"])
        gpus = cluster.machines[name].gpus
        torn = len(gpus) // 2 if rng.random() < 0.1 else len(gpus)
        made = replace(
            cluster.machines[name],
            gpus=tuple(replace(gpu, fabric_clique=clique if place < torn else None) for place, gpu in enumerate(gpus)),
        )
        cluster.machines[name] = made
        cluster.slices[name] = random_slice(rng, name, made)


LEVELS = TopologyLevels(("example.com/block", "example.com/rack"))


def put_into_racks(rng: random.Random, cluster: RandomCluster) -> None:
    """Label most nodes with a rack, a block or both; blocks use the same names for their racks."""
    for place, item in enumerate(cluster.nodes):
        labels = dict(item.metadata.labels)
        for key in LEVELS.labels:
            if rng.random() < 0.8:
                labels[key] = rng.choice(("1", "2"))
        meta = msgspec.structs.replace(item.metadata, labels=labels)
        cluster.nodes[place] = msgspec.structs.replace(item, metadata=meta)


def random_policy(rng: random.Random) -> dict[str, Any]:
    """A TopologyPolicy with any of its fields."""
    fields: dict[str, Any] = {
        "requirement": rng.choice(REQUIREMENTS),
        "minBandwidth": rng.choice([1, 20, 300]),
        "objective": rng.choice(["Bandwidth", "Pack"]),
        "nodeStrategy": rng.choice(["Pack", "Spread"]),
        "numaAlignment": rng.choice(["Preferred", "Required", "Ignored"]),
        "nicAlignment": rng.choice(["Preferred", "Ignored"]),
        "siblings": rng.choice(["Preferred", "Ignored"]),
        "linkBandwidth": {"PIX": 30, "NVLink": rng.choice([10, 40])},
    }
    said = {name: value for name, value in fields.items() if rng.random() < 0.25}
    return {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", **said}


def random_selector(rng: random.Random) -> dict[str, Any]:
    """A raw NodeSelector."""
    rules: Sequence[dict[str, Any]] = [
        {"key": "zone", "operator": "In", "values": [rng.choice(ZONES), "z"]},
        {"key": "zone", "operator": "NotIn", "values": ["x"]},
        {"key": "rank", "operator": "Gt", "values": ["1"]},
        {"key": "rank", "operator": "Exists"},
        {"key": "zone", "operator": "DoesNotExist"},
    ]
    named = {"key": "metadata.name", "operator": "In", "values": [f"node-{n:02}" for n in rng.sample(range(12), 4)]}
    terms: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 2)):
        term: dict[str, Any] = {}
        if rng.random() < 0.8:
            term["matchExpressions"] = rng.sample(rules, rng.randint(1, 2))
        if rng.random() < 0.3:
            term["matchFields"] = [named]
        terms.append(term)
    return {"nodeSelectorTerms": terms}


def random_pod(rng: random.Random) -> Pod:
    spec: dict[str, Any] = {}
    if rng.random() < 0.3:
        spec["nodeSelector"] = {"zone": rng.choice(ZONES)}
    if rng.random() < 0.3:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": random_selector(rng)}
        spec["affinity"] = {"nodeAffinity": required}
    if rng.random() < 0.5:
        spec["tolerations"] = [{"key": "team", "operator": "Exists"}]
    if rng.random() < 0.05:
        spec["nodeName"] = f"node-{rng.randrange(12):02}"
    return pod("p", **spec)


def random_claims(rng: random.Random, cluster: RandomCluster) -> list[ResourceClaim]:
    """Claims to be allocated, and now and then one that is: on a node, holding devices that count as taken."""
    claims = []
    for number in range(rng.choice([1, 1, 2])):
        requests = [
            request(
                f"r{place}",
                rng.choice([1, 1, 2, 2, 3, 4]),
                tolerations=[{"key": "sick", "operator": "Exists"}] if rng.random() < 0.2 else [],
            )
            for place in range(rng.choice([1, 1, 2]))
        ]
        configs = [own_config(random_policy(rng))] if rng.random() < 0.7 else []
        claims.append(claim(f"c{number}", *requests, configs=configs))
    busy = [name for name, ordinals in sorted(cluster.taken.items()) if ordinals]
    if busy and rng.random() < 0.2:
        name = rng.choice(busy)
        ordinal = rng.choice(sorted(cluster.taken[name]))
        claims.insert(0, holding(claim("held"), name, device_name(cluster.machines[name], ordinal)))
    return claims
