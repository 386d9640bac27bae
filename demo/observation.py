"""What the API server says at one moment about the demo's pods, claims and GPUs. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import msgspec

from dracaena.api.attributes import MEMORY_CAPACITY
from dracaena.api.availability import current_pages
from dracaena.api.devicepool import DecodedMig, DecodedPool, decode_pool
from dracaena.api.holders import Held, Holder, holders_of, shares_of
from dracaena.api.links import Link
from dracaena.api.machine import Gpu, Machine
from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.objects import Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.resource_objects import DeviceResult, ResourceClaim, ResourceSlice
from dracaena.api.sharing import amounts_in_words, taken_in_words
from dracaena.api.topology import Topology
from dracaena.demo.pod_claims import is_reserved_for
from dracaena.kube.client import KubeClient
from dracaena.kube.events import Event

STAND_INS = frozenset({"default-scheduler", "kubelet", "resource_claim"})
"""Components whose Events occur in any cluster; all others are Dracaena's."""


@dataclass(frozen=True, slots=True)
class ObservedPart:
    """A MIG device that a claim has on a GPU that is divided on demand."""

    device: str
    ordinal: int
    profile: str
    start: int
    """First of the GPU's memory slices that it has."""
    size: int
    holders: tuple[str, ...]
    """As in ObservedNode."""


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node's GPUs as decoded from its ResourceSlices, and who holds them according to all claims' allocations."""

    name: str
    machine: Machine
    ordinals: Mapping[str, int]
    """Device name → ordinal; for a part, that of its GPU."""
    holders: Mapping[int, tuple[str, ...]]
    """Ordinal → the pods that hold the GPU, or `claim NAME` for a claim that no pod has yet; free GPUs are left out."""
    shares: Mapping[int, str]
    """Ordinal → how much of a shared GPU is taken: `2 shares: 30 of 80 GiB, 40 % of the cores`."""
    parts: tuple[ObservedPart, ...] = ()
    """By GPU and start."""
    slices: Mapping[int, int] = field(default_factory=dict)
    """Ordinal of each GPU that is divided on demand → its memory slices."""

    @property
    def free(self) -> int:
        """How many GPUs no claim holds."""
        return len(self.machine.gpus) - len(self.holders)

    def label(self, ordinal: int) -> str:
        """Return who has a GPU, preceded by how much of it if that is a part; `free` for nobody."""
        count = sum(part.ordinal == ordinal for part in self.parts)
        cut = f"cut into {count} part{'s' if count > 1 else ''}" if count else ""
        told = (cut, self.shares.get(ordinal, ""), ", ".join(self.holders.get(ordinal, ())))
        return "; ".join(filter(None, told)) or "free"


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod with its claims, and what it got."""

    pod: Pod
    claims: tuple[ResourceClaim, ...]
    node: str
    """Its node, or the node of its allocation before it is bound; empty if it has neither."""
    ordinals: tuple[int, ...]
    """The pod's GPUs on its node, ascending."""
    indexes: tuple[int, ...]
    """The same GPUs by their NVML index, ascending: the numbers that tools on the node show."""
    uuids: tuple[str, ...]
    """UUIDs of the same GPUs, in the order of the claims' results; of a part its own, once it is reported."""
    links: str
    """How they are linked, in words; empty without a GPU."""
    amounts: str
    """What it has of shared or divided GPUs: `20 GiB of memory and 30 % of the cores`; empty for whole ones."""
    waits: str
    """Why it does not run, in the words of the newest Event or condition; empty if it runs."""

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.pod.metadata.name

    @property
    def wanted(self) -> int | None:
        """GPUs that its claims ask for; None while a claim is missing, and for mode All and lists of alternatives."""
        if len(self.claims) < len(self.pod.spec.resource_claims):
            return None
        counts = [_count(request) for claim in self.claims for request in _requests(claim)]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def state(self) -> str:
        """Phase, or what is happening to the pod."""
        if self.pod.metadata.deletion_timestamp is not None:
            return "Terminating"
        if self.pod.status.phase == "Pending" and self.node:
            return "Preparing" if self.pod.spec.node_name else "Allocated"
        return self.pod.status.phase or "Pending"


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot of the cluster. The lists were read one after the other, so they may be a moment apart."""

    nodes: tuple[ObservedNode, ...]
    pods: tuple[ObservedPod, ...]
    claims: tuple[ResourceClaim, ...]
    events: tuple[Event, ...]

    def node(self, name: str) -> ObservedNode | None:
        """Return a node by name."""
        return next((node for node in self.nodes if node.name == name), None)

    def pod(self, name: str) -> ObservedPod | None:
        """Return a pod by name."""
        return next((pod for pod in self.pods if pod.name == name), None)

    def unanswered(self) -> str | None:
        """Say which pods have neither devices nor an Event about why they wait; None if there are none."""
        names = [pod.name for pod in self.pods if not pod.ordinals and not self._told(pod)]
        return f"no decision on {', '.join(names)}" if names else None

    def _told(self, pod: ObservedPod) -> bool:
        return any(event.type == "Warning" and event.source.component not in STAND_INS for event in self.events_of(pod))

    def events_of(self, pod: ObservedPod) -> tuple[Event, ...]:
        """Return the Events about a pod and its claims, oldest first."""
        uids = {pod.pod.metadata.uid, *(claim.metadata.uid for claim in pod.claims)}
        return tuple(event for event in self.events if event.involved_object.uid in uids)


def observe(client: KubeClient) -> Observation:
    """Read everything once. Raises KubeError."""
    slices = client.list(ResourceSlice).items
    pods = client.list(Pod).items  # before claims, so that a running pod is never seen without its allocation
    claims = client.list(ResourceClaim).items
    events = client.list(Event).items
    return read_observation(slices, claims, pods, events)


def read_observation(
    slices: Iterable[ResourceSlice],
    claims: Sequence[ResourceClaim],
    pods: Iterable[Pod],
    events: Iterable[Event],
) -> Observation:
    """Combine lists of objects. Pure; everything is sorted by name, Events by time."""
    ordered_events = tuple(sorted(events, key=lambda event: (event.last_timestamp or "", event.metadata.name)))
    ordered_claims = tuple(sorted(claims, key=lambda claim: claim.key))
    nodes = _nodes(slices, ordered_claims)
    by_name = {node.name: node for node in nodes}
    by_key = {claim.key: claim for claim in ordered_claims}
    observed = [_pod(pod, by_key, by_name, ordered_events) for pod in sorted(pods, key=lambda pod: pod.key)]
    return Observation(nodes, tuple(observed), ordered_claims, ordered_events)


def links_in_words(topology: Topology, ordinals: Iterable[int]) -> str:
    """Return how a set of GPUs is linked, best first: `6 × NV12`, `1 × PIX, 2 × PHB`, empty below two GPUs."""
    links = sorted((topology.link(a, b) for a, b in combinations(sorted(ordinals), 2)), key=_best_first)
    return ", ".join(f"{count} × {token}" for token, count in Counter(link.token for link in links).items())


def _requests(claim: ResourceClaim) -> Sequence[Mapping[str, Any]]:
    requests: Sequence[Mapping[str, Any]] = (claim.spec.get("devices") or {}).get("requests") or ()
    return requests


def _count(request: Mapping[str, Any]) -> int | None:
    """Return how many devices a request asks for, as the API server stored it; None if it names no number."""
    count: int | None = (request.get("exactly") or {}).get("count")
    return count


def _best_first(link: Link) -> tuple[int, int]:
    unknown = 1_000  # after every level
    return (-(link.nvlinks or 0), unknown if link.level is None else int(link.level))


def _nodes(slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim]) -> tuple[ObservedNode, ...]:
    pools: dict[str, list[ResourceSlice]] = {}
    for item in slices:
        if item.spec.driver == DEFAULT_DRIVER_NAME and item.spec.node_name:
            pools.setdefault(item.spec.node_name, []).append(item)
    held = holders_of(DEFAULT_DRIVER_NAME, claims)
    return tuple(_node(name, pools[name], held) for name in sorted(pools))


def _users(holders: Iterable[Holder]) -> tuple[str, ...]:
    """Return the pods of claims, or the name of a claim that has none."""
    names = ((holder.pods or (f"claim {holder.claim.partition('/')[2]}",)) for holder in holders)
    return tuple(sorted(name for several in names for name in several))


def _node(name: str, pages: Sequence[ResourceSlice], held: Held) -> ObservedNode:
    current = current_pages(pages)
    pool = decode_pool(device for page in current for device in page.spec.devices)
    published = {item.ordinal: item.gpu for item in pool.gpus}
    missing = Gpu(uuid="", index=0)
    gpus = tuple(published.get(each, replace(missing, index=each)) for each in range(pool.topology.gpu_count))
    ordinals = {str(item.name): item.ordinal for item in pool.gpus}
    here = {device: holders for (where, device), holders in held.items() if where == current[0].spec.pool.name}
    parts = _parts(pool, here)
    holders = {ordinal: _users(here[device]) for device, ordinal in ordinals.items() if device in here}
    shares = {
        ordinal: told
        for device, ordinal in ordinals.items()
        if (told := _shares_in_words(gpus[ordinal].memory_bytes, here.get(device, ())))
    }
    for ordinal in {part.ordinal for part in parts}:
        of_parts = (user for part in parts if part.ordinal == ordinal for user in part.holders)
        holders[ordinal] = (*holders.get(ordinal, ()), *of_parts)
    cut = [(mig, place) for mig in pool.mig_devices if (place := _place(pool, mig)) is not None]
    slices = {ordinal: max(start + size for _, (at, start, size) in cut if at == ordinal) for _, (ordinal, *_) in cut}
    ordinals |= {str(mig.name): ordinal for mig, (ordinal, *_) in cut}
    machine = Machine(name=name, gpus=gpus, topology=pool.topology)
    return ObservedNode(name, machine, ordinals, holders, shares, parts, slices)


def _place(pool: DecodedPool, mig: DecodedMig) -> tuple[int, int, int] | None:
    """Return ordinal, start and size of a part that is created on demand."""
    ordinal = next((item.ordinal for item in pool.gpus if item.gpu.uuid == mig.parent_uuid), None)
    return None if ordinal is None or mig.start is None else (ordinal, mig.start, mig.size or 0)


def _parts(pool: DecodedPool, held: Mapping[str, Sequence[Holder]]) -> tuple[ObservedPart, ...]:
    """Return the parts that claims have."""
    found = (
        ObservedPart(str(mig.name), ordinal, mig.profile, start, size, _users(held[mig.name]))
        for mig in pool.mig_devices
        if mig.name in held and (place := _place(pool, mig)) is not None
        for ordinal, start, size in (place,)
    )
    return tuple(sorted(found, key=lambda part: (part.ordinal, part.start)))


def _shares_in_words(memory_bytes: int | None, holders: Sequence[Holder]) -> str:
    """Return what shares take of a GPU together; "" if one claim takes all of it, as for a whole GPU."""
    capacity = {MEMORY_CAPACITY: str(memory_bytes or 0)}
    shares = [holder.consumed or {} for holder in shares_of(holders, capacity)]
    return f"{len(shares)} share{'s' if len(shares) > 1 else ''}: {taken_in_words(shares, capacity)}" if shares else ""


def _pod(
    pod: Pod,
    claims: Mapping[str, ResourceClaim],
    nodes: Mapping[str, ObservedNode],
    events: Iterable[Event],
) -> ObservedPod:
    own = tuple(claims[one.key] for one in pod_claims(pod) if one.key is not None and one.key in claims)
    given = [
        (claim, result)
        for claim in own
        if claim.status.allocation is not None and is_reserved_for(claim, pod)
        for result in claim.status.allocation.devices.results
    ]
    results = [result for _, result in given]
    # A pool has its node's name: it is shown as soon as the claim is allocated, before the pod is bound.
    node_name = pod.spec.node_name or (results[0].pool if results else "")
    node = nodes.get(node_name)
    ordinals = [node.ordinals[result.device] for result in results if result.device in node.ordinals] if node else []
    uuids = [_uuid(claim, result, node) for claim, result in given if result.device in node.ordinals] if node else []
    return ObservedPod(
        pod=pod,
        claims=own,
        node=node_name,
        ordinals=tuple(sorted(ordinals)),
        indexes=tuple(sorted(node.machine.gpus[ordinal].index for ordinal in ordinals)) if node else (),
        uuids=tuple(filter(None, uuids)),
        links=links_in_words(node.machine.topology, ordinals) if node else "",
        amounts=_amounts_of(node, results) if node else "",
        waits=""
        if pod.status.phase == "Running" or (results and not pod.spec.node_name)
        else _why_waiting(pod, own, events),
    )


def _uuid(claim: ResourceClaim, result: DeviceResult, node: ObservedNode) -> str:
    """Return the UUID of a device; of a part the one in status.devices, "" as long as there is none."""
    if all(part.device != result.device for part in node.parts):
        return node.machine.gpus[node.ordinals[result.device]].uuid
    entries = [msgspec.json.decode(bytes(entry)) for entry in claim.status.devices]
    told = (entry["data"] for entry in entries if (entry["pool"], entry["device"]) == (result.pool, result.device))
    return next((str(data.get("uuid", "")) for data in told), "")


def _amounts_of(node: ObservedNode, results: Sequence[DeviceResult]) -> str:
    shares = [one for one in results if one.share_id is not None and node.ordinals.get(one.device) in node.shares]
    names = {one.device for one in results}
    parts = [f"{part.profile} at memory slice {part.start}" for part in node.parts if part.device in names]
    return ", ".join((*parts, *(amounts_in_words(one.consumed_capacity) for one in shares)))


def _why_waiting(pod: Pod, claims: Iterable[ResourceClaim], events: Iterable[Event]) -> str:
    """Return the newest warning from whoever has to act next, else the scheduler's condition.

    That is kubelet for a pod with a node, and without one Dracaena before the scheduler.
    """
    uids = {pod.metadata.uid, *(claim.metadata.uid for claim in claims)}
    warnings = [event for event in events if event.involved_object.uid in uids and event.type == "Warning"]
    if pod.spec.node_name:
        speakers = [event for event in warnings if event.source.component == "kubelet"]
        return speakers[-1].message if speakers else ""
    ours = [event for event in warnings if event.source.component not in STAND_INS]
    for event in (*reversed(ours), *reversed(warnings)):
        return event.message
    return next((one.message for one in pod.status.conditions if one.type == "PodScheduled" and one.message), "")
