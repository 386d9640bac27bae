"""What a schedule begins with: a small cluster, and the pods and claims that users may make in it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Final

import msgspec

from dracaena.api.names import allocation_gate
from dracaena.api.objects import Namespace, Node, NodeStatus, ObjectMeta, OwnerReference, Pod
from dracaena.api.resource_objects import DeviceClass, ResourceClaim, ResourceSlice
from dracaena.api.workload_objects import PodGroup
from dracaena.controller.settings import ControllerSettings
from support.allocation import (
    DRIVER,
    OUR_TAINT,
    claim,
    device_class,
    pod,
    request,
)
from support.interleaver.hardware import FOR_GOOD, ON_DEMAND, PRODUCT, UNDIVIDED, NodeHardware, node_hardware
from support.interleaver.process import SETTINGS
from support.interleaver.server import OtherSlice
from support.mig_nodes import mig_classes, part
from support.other_drivers import nic, nic_class, nic_request, nic_slice
from support.quota_world import moved, namespace
from support.shares import in_shares, share

TEACHING: Final = "teaching"

DEVICE_CLASS: Final = device_class()
MIG_CLASSES: Final = tuple(mig_classes())
NIC_CLASS: Final = nic_class()

SHARED_GIB: Final = 80
"""Memory of each GPU that is given in shares."""


@dataclass(frozen=True)
class Scenario:
    """`sizes`: GPUs of each node. `claims`: GPUs that each asks for. `pods`: the claims that each names."""

    sizes: tuple[int, ...]
    claims: Mapping[str, int]
    pods: Mapping[str, tuple[str, ...]]
    priorities: Mapping[str, int]
    unfit: frozenset[tuple[str, str]]
    """(pod, node) that kube-scheduler refuses for reasons of its own."""
    tolerating: frozenset[str] = frozenset()
    """Claims that tolerate our taint: kube-scheduler may allocate them too."""
    gated: frozenset[str] = frozenset()
    """Pods that are made with a scheduling gate, which users take off."""
    processes: int = 1
    nominate: bool = False
    cores: int = 0
    """Cores of each node; 0: nodes do not say."""
    cpu: Mapping[str, int] = field(default_factory=dict)
    """Cores that each pod asks for."""
    on: Mapping[str, str] = field(default_factory=dict)
    """Pods that are made on a node."""
    writing: bool = False
    """Whether users write the metadata of claims: annotations of ours, and replacements without any."""
    halves: frozenset[str] = frozenset()
    """Claims that ask for one GPU each and want half of it. Where there are some, all GPUs are given in shares."""
    teaching: frozenset[str] = frozenset()
    """Pods and claims that are in the namespace `teaching`; all others are in `default`."""
    quotas: Mapping[str, int] = field(default_factory=dict)
    """GPUs that a namespace may have; one that is not here has no quota."""
    changes: bool = False
    """Whether nodes, slices, the class and a taint rule come, change and go."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Pod → its PodGroup, whose pods are bound together or not at all."""
    at_our_gate: frozenset[str] = frozenset()
    """Pods that are made with our gate, which the controller takes off."""
    generated: frozenset[str] = frozenset()
    """Claims that kube-controller-manager makes from a template, each for the one pod that names it."""
    divisions: tuple[str, ...] = ()
    """How the GPUs of each node are divided (support.interleaver.hardware); empty: those of none are."""
    profiles: Mapping[str, str] = field(default_factory=dict)
    """Claims for parts of GPUs → the profile of each of them. All others ask for whole ones."""
    cards: tuple[int, ...] = ()
    """Network cards of each node: devices of another driver, which kube-scheduler allocates."""
    nics: frozenset[str] = frozenset()
    """Claims that ask for network cards in place of GPUs."""

    @property
    def settings(self) -> ControllerSettings:
        return _settings(self.nominate)

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{index}" for index in range(len(self.sizes)))

    @cached_property
    def hardware(self) -> Mapping[str, NodeHardware]:
        """What each node has."""
        divisions = self.divisions or (UNDIVIDED,) * len(self.sizes)
        rows = zip(self.node_names, self.sizes, divisions, strict=True)
        return {name: node_hardware(name, size, division) for name, size, division in rows}

    @cached_property
    def nodes(self) -> tuple[tuple[Node, tuple[ResourceSlice, ...]], ...]:
        """Each node with the slices of its pool."""
        return tuple(
            (
                self._with_cores(has.node),
                tuple(in_shares(page, SHARED_GIB) if self.halves else page for page in has.slices),
            )
            for has in self.hardware.values()
        )

    def _with_cores(self, item: Node) -> Node:
        if not self.cores:
            return item
        status = NodeStatus(allocatable={"cpu": str(self.cores), "pods": "110"})
        return msgspec.structs.replace(item, status=status)

    @cached_property
    def devices(self) -> Mapping[str, tuple[str, ...]]:
        return {name: tuple(has.devices) for name, has in self.hardware.items()}

    @cached_property
    def card_pools(self) -> Mapping[str, tuple[OtherSlice, ...]]:
        """Node → the slices of its network cards, in the order in which they are written: one card each."""
        return {
            name: tuple(_card_slice(name, number, count) for number in range(count))
            for name, count in zip(self.node_names, self.cards, strict=False)
            if count
        }

    @property
    def tolerant(self) -> Mapping[str, int]:
        return {name: self.claims[name] for name in self.tolerating}

    @property
    def device_class(self) -> DeviceClass:
        return MIG_CLASSES[0] if self.profiles else DEVICE_CLASS

    @property
    def other_classes(self) -> tuple[DeviceClass, ...]:
        """Classes that stay."""
        return (*(MIG_CLASSES[1:] if self.profiles else ()), *((NIC_CLASS,) if self.nics else ()))

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """Those with a quota."""
        return tuple(namespace(name, json.dumps({"gpus": most})) for name, most in self.quotas.items())

    @property
    def pod_groups(self) -> tuple[PodGroup, ...]:
        """One for each group, of as many pods as there are of it."""
        sizes = Counter(group for name, group in self.groups.items() if name in self.pods)
        return tuple(PodGroup(ObjectMeta(group, "default"), size) for group, size in sorted(sizes.items()))

    def key(self, name: str) -> str:
        """Return the key of a pod or claim."""
        return self._keys.get(name) or self._keys.setdefault(name, f"{self._namespace(name)}/{name}")

    @cached_property
    def _keys(self) -> dict[str, str]:
        return {}

    def _namespace(self, name: str) -> str:
        return TEACHING if name in self.teaching else "default"

    def count(self, claim_name: str) -> int:
        """Return how many devices a claim asks for."""
        return self.claims[entry_of(claim_name)]

    def profiles_of(self, claim_names: Iterable[str]) -> list[str]:
        """Return, for each GPU that claims ask for, the profile of a part, or "" for all of it."""
        return [self.profiles.get(entry_of(name), "") for name in claim_names for _ in range(self.count(name))]

    def generate(self, name: str, number: int, made: int, owner: Pod) -> ResourceClaim:
        """Make a claim for a pod from its template, the `number`th of all objects and the `made`th from there."""
        drawn = self.claim(name, number)
        controller = OwnerReference(owner.metadata.uid, "Pod", owner.metadata.name, "v1", controller=True)
        metadata = msgspec.structs.replace(drawn.metadata, name=f"{name}-{made}", owner_references=[controller])
        return msgspec.structs.replace(drawn, metadata=metadata)

    def claim(self, name: str, number: int) -> ResourceClaim:
        """Make a claim, the `number`th of all objects."""
        fields: dict[str, Any] = {}
        if name in self.nics:
            return claim(name, nic_request(count=self.claims[name]), uid=f"{name}-{number}")
        if name in self.profiles:
            return claim(name, part("gpus", self.profiles[name], self.claims[name]), uid=f"{name}-{number}")
        if name in self.tolerating:
            fields["tolerations"] = [{"key": OUR_TAINT.key, "operator": "Exists"}]
        if name in self.halves:
            return claim(name, share("gpus", f"{SHARED_GIB // 2}Gi", **fields), uid=f"{name}-{number}")
        made = claim(name, request(count=self.claims[name], **fields), uid=f"{name}-{number}")
        return made if name not in self.teaching else moved(made, TEACHING)

    def parts(self, claim_name: str) -> int:
        """Return how many halves a claim takes of each of its GPUs."""
        return 1 if entry_of(claim_name) in self.halves else 2

    def pod(self, name: str, number: int) -> Pod:
        gates = [{"name": "wait"}] if name in self.gated else []
        gates = [{"name": allocation_gate(DRIVER)}] if name in self.at_our_gate else gates
        cpu = {"cpu": str(self.cpu[name])} if name in self.cpu else {}
        containers = [{"name": "main", "resources": {"requests": cpu}}] if cpu else []
        priority = self.priorities.get(name, 0)
        spec: dict[str, Any] = {"priority": priority, "schedulingGates": gates, "containers": containers}
        if name in self.groups:
            spec["schedulingGroup"] = {"podGroupName": self.groups[name]}
        named = [one for one in self.pods[name] if one not in self.generated]
        templates = [one for one in self.pods[name] if one in self.generated]
        made = pod(name, *named, templates=templates, **spec, nodeName=self.on.get(name, ""))
        created = f"2026-01-01T00:00:{min(number, 59):02}Z"
        metadata = msgspec.structs.replace(made.metadata, uid=f"{name}-{number}", creation_timestamp=created)
        made = msgspec.structs.replace(made, metadata=metadata)
        return made if name not in self.teaching else moved(made, TEACHING)

    def without_pod(self, name: str) -> Scenario:
        pods = {key: claims for key, claims in self.pods.items() if key != name}
        named = {claim for claims in pods.values() for claim in claims}
        claims = {key: count for key, count in self.claims.items() if key in named}
        kept = claims.keys()
        return replace(
            self,
            pods=pods,
            claims=claims,
            tolerating=self.tolerating & kept,
            halves=self.halves & kept,
            generated=self.generated & kept,
            nics=self.nics & kept,
        )

    def _quotas(self) -> str:
        words = ", ".join(f"{name} may have {most}" for name, most in self.quotas.items())
        return f"; in {TEACHING}: {', '.join(sorted(self.teaching & self.pods.keys()))}; {words}" if words else ""

    def _where(self, name: str) -> str:
        return f" on {self.on[name]}" if name in self.on else ""

    def _node_in_words(self, place: int) -> str:
        divided = f" divided {self.divisions[place]}" if self.divisions[place:] else ""
        cards = f" and {self.cards[place]} network cards" if self.cards[place:] else ""
        return f"{self.node_names[place]} with {self.sizes[place]}{divided}{cards}"

    def _claim_in_words(self, name: str) -> str:
        made = " from a template" if name in self.generated else ""
        what = "network cards" if name in self.nics else self.profiles.get(name, "")
        return f"{name}{made} asks for {self.claims[name]} {what}".rstrip()

    def __str__(self) -> str:
        nodes = ", ".join(self._node_in_words(place) for place in range(len(self.sizes)))
        claims = ", ".join(self._claim_in_words(name) for name in self.claims)
        pods = ", ".join(f"{name} names {' and '.join(claims)}" for name, claims in self.pods.items())
        refused = ", ".join(f"{name} on {at}" for name, at in sorted(self.unfit)) or "nobody"
        tolerating = f"; tolerating the taint: {', '.join(sorted(self.tolerating))}" if self.tolerating else ""
        gated = f"; gated at first: {', '.join(sorted(self.gated & self.pods.keys()))}" if self.gated else ""
        halves = f"; half a GPU: {', '.join(sorted(self.halves))}" if self.halves else ""
        cores = ", ".join(
            f"{name} asks for {count} with priority {self.priorities.get(name, 0)}{self._where(name)}"
            for name, count in self.cpu.items()
            if name in self.pods
        )
        cpu = f" Cores of each node: {self.cores}; {cores}." if self.cores else ""
        on = ", ".join(f"{name} on {node}" for name, node in self.on.items() if name in self.pods and not self.cpu)
        made = f"; made on a node: {on}" if on else ""
        writing = " Users write metadata of claims." if self.writing else ""
        groups = ", ".join(f"{name} of {group}" for name, group in self.groups.items() if name in self.pods)
        cpu += f" Groups: {groups}." if groups else ""
        cpu += f" At our gate: {', '.join(sorted(self.at_our_gate & self.pods.keys()))}." if self.at_our_gate else ""
        begin = (
            f"GPUs: {nodes}. Claims: {claims}{halves}{tolerating}. Pods: {pods}{gated}{made}{self._quotas()}.{writing}"
        )
        return f"{begin} kube-scheduler refuses {refused}.{cpu}"


def crowded_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster in which pods of low priority have most of the cpu, and others want it, most with GPUs."""
    sizes = tuple(rng.choice((1, 2)) for _ in range(rng.choice((1, 2, 2))))
    claims, pods, cpu, priorities, on = dict[str, int](), dict[str, tuple[str, ...]](), {}, {}, {}
    for index, name in enumerate("abcd"[: rng.choice((1, 2, 2, 3))]):
        kind = rng.random()
        if kind < 0.85 or not claims:
            claims[f"c{index}"] = rng.choice((1, 1, 2))
            pods[name] = (f"c{index}",)
        else:
            pods[name] = (rng.choice(sorted(claims)),) if kind < 0.92 else ()
        cpu[name], priorities[name] = rng.choice((2, 3)), rng.choice((0, 10, 10, 20))
    for index in range(len(sizes)):
        if rng.random() < 0.85:
            name = f"low{index}"
            pods[name], cpu[name], priorities[name] = (), rng.choice((2, 3, 4)), rng.choice((0, 0, 10))
            on[name] = f"n{index}"
    processes, nominate = rng.choice((1, 1, 1, 2)), rng.random() < 0.5
    return Scenario(
        sizes, claims, pods, priorities, frozenset(), processes=processes, nominate=nominate, cores=4, cpu=cpu, on=on
    )


def any_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster in which devices are short, claims are shared, and some pods are refused."""
    if rng.random() < 0.15:  # two pods for one GPU, which kube-scheduler may give to one of them by itself
        tolerating = frozenset(rng.sample(("c0", "c1"), rng.choice((0, 1))))
        return Scenario((1,), {"c0": 1, "c1": 1}, {"a": ("c0",), "b": ("c1",)}, {}, frozenset(), tolerating)
    sizes = tuple(rng.choice((1, 2, 2)) for _ in range(rng.choice((1, 2, 2))))
    nodes = tuple(f"n{index}" for index in range(len(sizes)))
    names = tuple(f"c{index}" for index in range(rng.choice((1, 2, 2, 3))))
    claims = {name: rng.choice((1, 1, max(sizes))) for name in names}
    pods = dict[str, tuple[str, ...]]()
    for name in "abcd"[: rng.choice((2, 2, 3, 3, 4))]:
        pods[name] = tuple(rng.sample(names, min(len(names), rng.choice((1, 1, 1, 2)))))
    used = {claim for named in pods.values() for claim in named}
    tolerates = rng.random() < 0.2
    unfit = frozenset((name, at) for name in pods for at in nodes if rng.random() < (0.1 if tolerates else 0.3))
    return Scenario(
        sizes,
        {name: count for name, count in claims.items() if name in used},
        pods,
        {name: rng.choice((0, 0, 10)) for name in pods},
        unfit,
        frozenset(name for name in sorted(used) if tolerates and rng.random() < 0.5),
        frozenset(name for name in sorted(pods) if rng.random() < 0.15),
        processes=rng.choice((1, 1, 2)),
        nominate=rng.random() < 0.3,
    )


def sharing_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster whose GPUs are given in shares, and claims for halves beside claims for whole ones."""
    drawn = any_scenario(rng)
    halves = frozenset(name for name in sorted(drawn.claims) if rng.random() < 0.7)
    claims = {name: 1 if name in halves else count for name, count in drawn.claims.items()}
    return replace(drawn, claims=claims, halves=halves, tolerating=frozenset())


def written_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster whose users write the metadata of claims, and make some pods on a node."""
    drawn = any_scenario(rng) if rng.random() < 0.7 else sharing_scenario(rng)
    on = {name: rng.choice(drawn.node_names) for name in drawn.pods if rng.random() < 0.2}
    return replace(drawn, on=on, tolerating=frozenset(), gated=drawn.gated - on.keys(), writing=True)


def quota_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster for which two namespaces race under two controllers, with fewer GPUs than they want and
    quotas that may hold before the GPUs are used up."""
    drawn = any_scenario(rng)
    while len(drawn.pods) < 2:
        drawn = any_scenario(rng)
    pods = {name: (f"c{place}",) for place, name in enumerate(drawn.pods)}
    claims = {f"c{place}": rng.choice((1, 1, 2)) for place in range(len(pods))}
    teaching = {name for name in pods if rng.random() < 0.4}
    teaching |= {one for name in teaching for one in pods[name]}
    gpus = sum(drawn.sizes)
    quotas = {name: rng.randint(1, gpus) for name in ("default", TEACHING) if rng.random() < 0.85}
    return replace(
        drawn,
        claims=claims,
        pods=pods,
        tolerating=frozenset(),
        processes=2,
        teaching=frozenset(teaching),
        quotas=quotas,
    )


def changing_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster whose nodes, slices, class and taint rule change, with some pods at our gate."""
    drawn = replace(any_scenario(rng), tolerating=frozenset(), changes=True)
    at_our_gate = frozenset(name for name in sorted(drawn.pods) if rng.random() < 0.4)
    return replace(drawn, at_our_gate=at_our_gate, gated=drawn.gated - at_our_gate)


def generated_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster in which most claims are made from templates, for pods that come again under their names."""
    drawn = any_scenario(rng)
    claims, pods = dict[str, int](), dict[str, tuple[str, ...]]()
    for name in drawn.pods:
        own = tuple(f"{name}{place}" for place in range(rng.choice((0, 1, 1, 1, 2))))
        claims |= {one: rng.choice((1, 1, 2)) for one in own}
        pods[name] = own if own and rng.random() < 0.7 else (*own, "c")
    if any("c" in named for named in pods.values()):
        claims["c"] = 1
    on = {name: rng.choice(drawn.node_names) for name in pods if rng.random() < 0.1}
    return replace(
        drawn,
        claims=claims,
        pods=pods,
        on=on,
        gated=drawn.gated - on.keys(),
        tolerating=frozenset(),
        generated=frozenset(claims) - {"c"},
    )


def divided_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster whose GPUs are divided on demand or for good, with claims for parts and for whole GPUs, some
    of them from templates."""
    drawn = (generated_scenario if rng.random() < 0.3 else any_scenario)(rng)
    divisions = tuple(rng.choice((ON_DEMAND, ON_DEMAND, FOR_GOOD)) for _ in drawn.sizes)
    names = [profile for profile, *_ in PRODUCT.profiles]
    profiles = {name: rng.choice(names) for name in drawn.claims if rng.random() < 0.75}
    claims = {name: rng.choice((1, 1, 2)) if name in profiles else 1 for name in drawn.claims}
    return replace(
        drawn,
        divisions=divisions,
        profiles=profiles,
        claims=claims,
        tolerating=frozenset(),
        changes=rng.random() < 0.5,
    )


def carded_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster in which some pods want network cards beside GPUs; the slices of both come and go one by
    one."""
    drawn = any_scenario(rng)
    cards = tuple(rng.choice((0, 1, 1, 2)) for _ in drawn.sizes)
    claims, pods = dict(drawn.claims), dict(drawn.pods)
    for name in drawn.pods:
        if rng.random() < 0.6:
            claims[f"x{name}"] = 1
            pods[name] = (*drawn.pods[name], f"x{name}")
    nics = frozenset(claims.keys() - drawn.claims.keys())
    return replace(
        drawn, claims=claims, pods=pods, cards=cards, nics=nics, tolerating=frozenset(), changes=True, nominate=False
    )


def group_scenario(rng: random.Random) -> Scenario:
    """Draw a small cluster in which gangs of two pods, and pods without one, want more GPUs than there are; some are at
    our gate."""
    sizes = tuple(rng.choice((1, 2, 2)) for _ in range(rng.choice((1, 2))))
    names = "abcdef"[: rng.choice((2, 4, 4, 5))]
    pods = {name: (f"c{place}",) for place, name in enumerate(names)}
    claims = {f"c{place}": rng.choice((1, 1, max(sizes))) for place in range(len(names))}
    groups = {name: f"g{place // 2}" for place, name in enumerate(names) if place < 4}
    return Scenario(
        sizes,
        claims,
        pods,
        {name: rng.choice((0, 0, 10)) for name in pods},
        frozenset(),
        processes=rng.choice((1, 1, 2)),
        nominate=rng.random() < 0.3,
        groups=groups,
        at_our_gate=frozenset(name for name in names if rng.random() < 0.3),
    )


def entry_of(claim_name: str) -> str:
    """Return what a claim is called in the scenario: one from a template has a number of its own at the end."""
    return claim_name.partition("-")[0]


@cache
def _card_slice(name: str, number: int, count: int) -> OtherSlice:
    made = nic_slice(name, [nic(f"card-{number}")], count=count)
    metadata = msgspec.structs.replace(made.metadata, name=f"{made.metadata.name}-{number}")
    return OtherSlice(metadata=metadata, spec=made.spec)


@cache
def _settings(nominate: bool) -> ControllerSettings:
    return replace(SETTINGS, nominate_above_nodes=0 if nominate else -1)
