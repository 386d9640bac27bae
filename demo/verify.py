"""Checks that what the demo shows is true: the API, the nodes' disks and the pods agree.

Each check returns the problems that it found, in words; it holds if there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from dracaena.api.annotations import decode_devices, decode_uuids
from dracaena.api.attributes import ALL_CORES, CORES_CAPACITY, MEMORY_CAPACITY
from dracaena.api.errors import BadInputError
from dracaena.api.holders import Holder, holders_of
from dracaena.api.names import (
    DEFAULT_DRIVER_NAME,
    ClaimUid,
    DeviceName,
    cdi_device_name,
    cdi_kind,
    devices_annotation,
    uuids_annotation,
)
from dracaena.api.podlist import PodlistEntry, decode_podlist
from dracaena.api.quantity import parse_quantity
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo.cluster import DemoCluster
from dracaena.demo.container_runtime import UnresolvableDevicesError, resolve
from dracaena.demo.kubelet import NodeFolders
from dracaena.demo.observation import Observation, ObservedNode, ObservedPod

Problems = tuple[str, ...]


def running(observation: Observation, waiting: Collection[str]) -> Problems:
    """Every pod but the waiting ones runs on one node with as many different GPUs as it asks for."""
    problems: list[str] = []
    for pod in observation.pods:
        if pod.name in waiting:
            continue
        if pod.state != "Running" or not pod.pod.spec.node_name:
            problems.append(f"pod {pod.name} is {pod.state}: {pod.waits or 'no reason given'}")
        elif pod.wanted is None or len(set(pod.ordinals)) != pod.wanted:
            problems.append(f"pod {pod.name} asks for {pod.wanted} GPUs and has {len(set(pod.ordinals))}")
    return tuple(problems)


def held_once(observation: Observation) -> Problems:
    """No GPU is held by two claims, unless each has a share of it and they add up to no more than it has, or each has
    slices of it that the others do not have.
    """
    held = holders_of(DEFAULT_DRIVER_NAME, observation.claims)
    problems: list[str] = []
    for (pool, device), holders in sorted(held.items(), key=lambda item: item[0]):
        if len(holders) > 1 and any(holder.consumed is None for holder in holders):
            problems.append(f"{pool}/{device} is held {len(holders)} times")
        problems += _overdrawn(observation.node(pool), device, holders)
    for node in observation.nodes:
        problems += _overlapping(node, [device for pool, device in sorted(held) if pool == node.name])
    return tuple(problems)


def _overlapping(node: ObservedNode, devices: Sequence[str]) -> Problems:
    """Return which held devices overlap on a GPU: a whole GPU and a part of it, or two parts."""
    parts = {part.device: (part.ordinal, part.start, part.start + part.size) for part in node.parts}
    places = [
        (device, *parts.get(device, (ordinal, 0, node.slices.get(ordinal, 1))))
        for device in devices
        if (ordinal := node.ordinals.get(device)) is not None
    ]
    return tuple(
        f"{node.name}/{one} and {other} are held, and have a part of one GPU in common"
        for (one, gpu, start, end), (other, its_gpu, its_start, its_end) in combinations(places, 2)
        if gpu == its_gpu and start < its_end and its_start < end
    )


def _overdrawn(node: ObservedNode | None, device: str, holders: Sequence[Holder]) -> Problems:
    shares = [holder.consumed for holder in holders if holder.consumed is not None]
    if node is None or not shares:
        return ()
    there = {MEMORY_CAPACITY: node.machine.gpus[node.ordinals[device]].memory_bytes or 0, CORES_CAPACITY: ALL_CORES}
    taken = {name: sum(parse_quantity(one.get(name, "0")).whole() for one in shares) for name in there}
    return tuple(
        f"{node.name}/{device}: its shares take {taken[name]} of {name}, and it has {there[name]}"
        for name in sorted(there)
        if taken[name] > there[name]
    )


def shares(observation: Observation, folders: Mapping[str, NodeFolders]) -> Problems:
    """podlist.json of its node says which shares each running pod has, with the amounts of its claims."""
    problems: list[str] = []
    for pod in observation.pods:
        node = observation.node(pod.node)
        if pod.state != "Running" or node is None:
            continue
        expected = sorted(
            (node.machine.gpus[node.ordinals[result.device]].uuid, result.share_id, *_amounts(result.consumed_capacity))
            for claim in pod.claims
            for result in (claim.status.allocation.devices.results if claim.status.allocation else ())
            if result.share_id is not None
        )
        entries, unread = _entries(node.name, folders[node.name])
        problems += unread
        seen = sorted(
            (one.gpu, one.share_id, parse_quantity(one.memory).whole(), one.cores)
            for entry in entries
            if (entry.namespace, entry.name) == (pod.pod.metadata.namespace, pod.name)
            for one in entry.shares
        )
        if seen != expected and not unread:
            problems.append(f"{node.name}: podlist.json says {seen} of pod {pod.name}, its claims say {expected}")
    return tuple(problems)


def _entries(node: str, places: NodeFolders) -> tuple[Sequence[PodlistEntry], Problems]:
    """Read podlist.json of a node, or say why it cannot be read."""
    try:
        return decode_podlist(places.podlist.read_bytes()), ()
    except (FileNotFoundError, BadInputError) as error:
        return (), (f"{node}: {error}",)


def _amounts(consumed: Mapping[str, str]) -> tuple[int, int]:
    memory, cores = (parse_quantity(consumed.get(name, "0")).whole() for name in (MEMORY_CAPACITY, CORES_CAPACITY))
    return memory, cores


def waiting(observation: Observation, names: Collection[str]) -> Problems:
    """These pods are pending without a node, hold no GPU, and say why."""
    problems: list[str] = []
    for name in sorted(names):
        pod = observation.pod(name)
        if pod is None:
            problems.append(f"pod {name} does not exist")
        elif pod.state != "Pending" or pod.pod.spec.node_name:
            problems.append(f"pod {name} is {pod.state}, expected Pending")
        elif any(claim.status.allocation is not None for claim in pod.claims):
            problems.append(f"pod {name} waits but its claim is allocated")
        elif not pod.waits:
            problems.append(f"pod {name} waits and nothing says why")
    return tuple(problems)


def cdi_specs(observation: Observation, folders: Mapping[str, NodeFolders]) -> Problems:
    """Each claim of a running pod has a CDI spec with exactly its devices, and there is no other spec."""
    problems: list[str] = []
    claims_by_node: dict[str, dict[str, ResourceClaim]] = {name: {} for name in folders}
    for pod in observation.pods:
        if pod.state == "Running":
            claims_by_node[pod.pod.spec.node_name].update({claim.metadata.uid: claim for claim in pod.claims})
    for node, claims in sorted(claims_by_node.items()):
        for claim in claims.values():
            try:
                resolve(folders[node].cdi_root, _cdi_ids(claim))
            except UnresolvableDevicesError as error:
                problems.append(f"{node}: {error}")
        specs = sorted(path.name for path in folders[node].cdi_root.iterdir())
        if len(specs) != len(claims):
            problems.append(
                f"{node}: {len(claims)} claims are in use, the CDI folder holds {', '.join(specs) or 'nothing'}"
            )
    return tuple(problems)


def _cdi_ids(claim: ResourceClaim) -> list[str]:
    results = claim.status.allocation.devices.results if claim.status.allocation else ()
    kind = cdi_kind(DEFAULT_DRIVER_NAME)
    uid = ClaimUid(claim.metadata.uid)
    return [f"{kind}={cdi_device_name(uid, DeviceName(result.device), result.share_id)}" for result in results]


def podlists(observation: Observation, folders: Mapping[str, NodeFolders]) -> Problems:
    """podlist.json of every node names the running pods of the node, each with its GPUs, and nobody else."""
    problems: list[str] = []
    for node, places in sorted(folders.items()):
        expected = {
            (pod.pod.metadata.namespace, pod.name): sorted(pod.uuids)
            for pod in observation.pods
            if pod.state == "Running" and pod.pod.spec.node_name == node and pod.uuids
        }
        entries, unread = _entries(node, places)
        problems += unread
        seen = {(entry.namespace, entry.name): sorted(entry.gpu_list) for entry in entries}
        if seen != expected and not unread:
            problems.append(f"{node}: podlist.json says {seen}, the claims say {expected}")
    return tuple(problems)


def mig_devices(observation: Observation, folders: Mapping[str, NodeFolders]) -> Problems:
    """The GPUs that are divided on demand have the claims' MIG devices at their places, and nothing else."""
    problems: list[str] = []
    for node in observation.nodes:
        expected = sorted(
            (node.machine.gpus[part.ordinal].uuid, part.profile, part.start, part.size) for part in node.parts
        )
        files = sorted(folders[node.name].mig_instances.glob("*.json"))
        seen = sorted(
            (path.stem, each["profile"], each["start"], each["size"])
            for path in files
            for each in msgspec.json.decode(path.read_bytes())["instances"]
        )
        if seen != expected:
            problems.append(f"{node.name}: MIG devices {seen}, the claims say {expected}")
    return tuple(problems)


def pod_annotations(observation: Observation) -> Problems:
    """The annotations of every running pod name its GPUs."""
    return tuple(problem for pod in observation.pods if pod.state == "Running" for problem in _annotations_of(pod))


def _annotations_of(pod: ObservedPod) -> Problems:
    values = pod.pod.metadata.annotations
    uuids = sorted(decode_uuids(values.get(uuids_annotation(DEFAULT_DRIVER_NAME), "")))
    if uuids != sorted(pod.uuids):
        return (f"pod {pod.name} is annotated with {uuids}, its claims hold {sorted(pod.uuids)}",)
    try:
        containers = decode_devices(values.get(devices_annotation(DEFAULT_DRIVER_NAME), "{}"))
    except BadInputError as error:
        return (f"pod {pod.name}: {error}",)
    listed = {uuid for grants in containers.values() for grant in grants for uuid in grant.uuids}
    return () if listed == set(uuids) else (f"pod {pod.name}: its two annotations differ",)


def all_free(observation: Observation, folders: Mapping[str, NodeFolders]) -> Problems:
    """No pod and no generated claim is left, no GPU is held, and no node keeps a spec or an entry."""
    problems = [f"pod {pod.name} is still there" for pod in observation.pods]
    problems += [f"claim {claim.key} is still there" for claim in observation.claims if claim.metadata.owner_references]
    problems += [f"{node.name} has {len(node.holders)} GPUs in use" for node in observation.nodes if node.holders]
    problems += cdi_specs(observation, folders)
    problems += podlists(observation, folders)
    problems += mig_devices(observation, folders)
    problems += [f"{path} is left" for node in sorted(folders) for path in _checkpoints(folders[node])]
    return tuple(problems)


def _checkpoints(places: NodeFolders) -> list[Path]:
    folder = places.plugin_data / "claims"
    return sorted(folder.glob("*.json")) if folder.is_dir() else []


def promises(
    observation: Observation, folders: Mapping[str, NodeFolders], names_waiting: Collection[str]
) -> list[tuple[str, Problems]]:
    """Return what must hold while all pods are there, each with what contradicts it in the API and on disk."""
    return [
        ("every pod that fits got as many GPUs as it asked for, on one node", running(observation, names_waiting)),
        ("the pods that cannot run held nothing, and were told why", waiting(observation, names_waiting)),
        ("no GPU was held by two claims, but by two shares or slices that it has room for", held_once(observation)),
        ("each claim in use had its CDI spec, and there was no other", cdi_specs(observation, folders)),
        ("podlist.json of every node named these GPUs", podlists(observation, folders)),
        ("podlist.json named each share with its memory and cores", shares(observation, folders)),
        ("a MIG device was there for each slice, and no other", mig_devices(observation, folders)),
        ("the annotations of every pod named these GPUs", pod_annotations(observation)),
    ]


def settled(cluster: DemoCluster, names_waiting: Collection[str]) -> Callable[[Observation], str | None]:
    """Return a check of the whole load for DemoCluster.wait: None if everything holds, else the first problem."""

    def first_problem(observation: Observation) -> str | None:
        rows = promises(observation, cluster.folders, names_waiting)
        return next((problem for _, problems in rows for problem in problems), None)

    return first_problem
