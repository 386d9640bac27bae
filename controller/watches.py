"""Everything that the controller watches: which kinds, what is kept of each object, and who takes in its changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import structlog

from dracaena.api.kueue_topology import KueueTopology, KueueTopologyV1Beta1
from dracaena.api.objects import Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from dracaena.api.resource_objects import (
    DeviceClass,
    DeviceTaintRule,
    DeviceTaintRuleV1Beta2,
    ResourceClaim,
    ResourceSlice,
)
from dracaena.api.workload_objects import KINDS, OLDER, WorkloadObject
from dracaena.controller.allocation.state.gangs import family_of
from dracaena.controller.cache.claims import claim_stand_in, class_stand_in, kept_claim
from dracaena.controller.cache.pods import kept_namespace, kept_pod
from dracaena.controller.cache.slices import slice_stand_in, with_shared_values
from dracaena.controller.cache.storage import kept_volume, kept_volume_claim
from dracaena.controller.state.intake import Intake
from dracaena.kube.client import KubeClient
from dracaena.kube.freshness import cache_trouble, unfollowed
from dracaena.kube.reflector import Kept, Reflector
from dracaena.process.clock import Clock
from dracaena.validation.topology_levels import levels_of_topologies

log = structlog.get_logger()

NamespaceChanged = Callable[[Namespace | None, Namespace | None], None]
PodChanged = Callable[[Pod | None, Pod | None], None]
ClaimChanged = Callable[[ResourceClaim | None, ResourceClaim | None], None]
SliceChanged = Callable[[ResourceSlice | None, ResourceSlice | None], None]


class Watches:
    """One reflector for each watched kind; for slices one for each driver that we allocate for, and one for all others.
    start() once, then stop() once."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        intake: Intake,
        drivers: Iterable[str],
        pod_changed: PodChanged,
        namespace_changed: NamespaceChanged,
        claim_changed: ClaimChanged,
        slice_changed: SliceChanged,
    ) -> None:
        """The first of `drivers` is ours. `pod_changed`, `namespace_changed`, `claim_changed` and `slice_changed` take
        in changes of these, `intake` all others."""
        drivers = tuple(drivers)
        self.claims = _claims(client, clock, intake, drivers[0], claim_changed)
        self.pods = Reflector(client, Pod, clock=clock, on_change=pod_changed, kept=Kept(transform=kept_pod))
        self.namespaces = Reflector(
            client, Namespace, clock=clock, on_change=namespace_changed, kept=Kept(transform=kept_namespace(drivers[0]))
        )
        self.nodes = Reflector(client, Node, clock=clock, on_change=intake.node_changed, kept=Kept(unread_is_gone=True))
        self.slices, *others = _slices(client, clock, drivers, slice_changed)
        classes, self.taint_rules = _devices(client, clock, intake)
        self.all: tuple[Reflector[Any], ...] = (
            self.nodes,
            self.namespaces,
            *_storage(client, clock, intake),
            classes,
            self.taint_rules,
            self.slices,
            *others,
            _other_slices(client, clock, drivers, intake),
            self.claims,
            self.pods,
        )
        self.workloads = WorkloadWatches(client, clock, intake)
        self.topologies = TopologyWatch(client, clock, intake)

    def start(self) -> None:
        """Begin to list and to watch. Returns at once."""
        for reflector in self.all:
            reflector.start()
        self.topologies.start()

    def stop(self) -> None:
        """End all watches."""
        for reflector in self.all:
            reflector.stop()
        self.workloads.stop()
        self.topologies.stop()

    def trouble(self) -> str | None:
        """Return which cache is not filled or not fresh; None when all are well."""
        return cache_trouble(self.all)

    def trouble_for_candidate(self) -> str | None:
        """Return why this process should not become the leader: trouble(), or a cache whose watch is not open."""
        return self.trouble() or unfollowed(self.all)

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that are watched, each once, sorted."""
        return tuple(sorted({reflector.resource for reflector in self.all}))

    def longest_silence_s(self, resource: str) -> float:
        """Return the seconds since the server last sent something of a resource."""
        return max(reflector.silence_s for reflector in self.all if reflector.resource == resource)

    def count_troubles(self, resource: str) -> int:
        """Return how many objects of a resource could not be read or taken in."""
        return sum(len(reflector.troubles()) for reflector in self.all if reflector.resource == resource)


class WorkloadWatches:
    """The kinds of objects that say how many pods belong together. Each is watched from the first pod on that may be
    one of theirs, so that a cluster without such pods has no such watch.

    Nothing waits for them, and a server may lack them or keep us from reading them: then the sizes are unknown.
    """

    def __init__(self, client: KubeClient, clock: Clock, intake: Intake) -> None:
        self._client, self._clock, self._intake = client, clock, intake
        self._lock = threading.Lock()
        self._reflectors: dict[str, Reflector[WorkloadObject]] = {}
        self._stopped = False

    def see(self, pod: Pod) -> None:
        """Watch what says the size of a pod's family, from now on. Cost: two look-ups for a pod without a family."""
        family = family_of(pod) if pod.spec.resource_claims else None
        kind = None if family is None else KINDS.get(family.kind)
        if family is None or kind is None or family.kind in self._reflectors:
            return
        kept: Kept[WorkloadObject] = Kept(
            older=OLDER.get(family.kind, ()), unread_is_gone=True, on_listed=partial(self._listed, family.kind)
        )
        changed = self._intake.workload_changed
        reflector = Reflector(self._client, kind, clock=self._clock, on_change=changed, kept=kept)
        with self._lock:
            if self._stopped or family.kind in self._reflectors:
                return
            self._reflectors[family.kind] = reflector
        self._intake.workloads_listed(family.kind, is_read=False)
        reflector.start()

    def stop(self) -> None:
        """End all watches; none begins any more."""
        with self._lock:
            self._stopped = True
        for reflector in self._reflectors.values():
            reflector.stop()

    def _listed(self, kind: str, is_served: bool) -> None:  # noqa: FBT001 - called by a reflector
        self._intake.workloads_listed(kind, is_read=True if is_served else None)

    @property
    def watched(self) -> tuple[str, ...]:
        """The families whose sizes are looked up, sorted."""
        return tuple(sorted(self._reflectors))


class TopologyWatch:
    """Kueue's Topology objects, if levels are read from them. Nothing waits for them, and a server may lack them or
    keep us from reading them: then there are no levels."""

    def __init__(self, client: KubeClient, clock: Clock, intake: Intake) -> None:
        self._intake, self._known = intake, dict[str, KueueTopology]()
        self.levels = intake.levels
        """Those that hold now."""
        kept: Kept[KueueTopology] = Kept(
            older=(KueueTopologyV1Beta1,), unread_is_gone=True, on_listed=lambda _is_read: self._follow()
        )
        self._reflector = Reflector(client, KueueTopology, clock=clock, on_change=self._changed, kept=kept)
        self._said, self._is_listed = "", False

    def start(self) -> None:
        """Begin to watch, if levels are read from there."""
        if self.levels.is_kueues:
            self._reflector.start()

    def stop(self) -> None:
        """End the watch."""
        if self.levels.is_kueues:
            self._reflector.stop()

    def _changed(self, old: KueueTopology | None, new: KueueTopology | None) -> None:
        if old is not None:
            del self._known[old.key]
        if new is not None:
            self._known[new.key] = new
        if self._is_listed:
            self._follow()

    def _follow(self) -> None:
        """Take the levels from what is known, once all of a list is."""
        self._is_listed = True
        levels, said = levels_of_topologies(self._known.values())
        if said != self._said:
            self._said = said
            log.info("levels from Kueue", labels=levels.labels, why=said)
        if levels != self.levels:
            self._intake.levels_changed(levels)
            self.levels = levels


def _claims(
    client: KubeClient, clock: Clock, intake: Intake, driver: str, changed: ClaimChanged
) -> Reflector[ResourceClaim]:
    return Reflector(
        client,
        ResourceClaim,
        clock=clock,
        on_change=changed,
        set_aside=intake.claim_set_aside,
        first=lost_devices,
        kept=Kept(transform=kept_claim(driver), stand_in=claim_stand_in),
    )


def _storage(client: KubeClient, clock: Clock, intake: Intake) -> tuple[Reflector[Any], ...]:
    return (
        Reflector(
            client,
            PersistentVolumeClaim,
            clock=clock,
            on_change=intake.volume_claim_changed,
            kept=Kept(optional=True, transform=kept_volume_claim),
        ),
        Reflector(
            client,
            PersistentVolume,
            clock=clock,
            on_change=intake.volume_changed,
            kept=Kept(optional=True, transform=kept_volume),
        ),
        Reflector(client, StorageClass, clock=clock, on_change=intake.storage_class_changed, kept=Kept(optional=True)),
    )


def _other_slices(client: KubeClient, clock: Clock, drivers: Iterable[str], intake: Intake) -> Reflector[ResourceSlice]:
    """Return the watch for slices of all other drivers. One that cannot be read may be for any node."""
    intake.follow_other_drivers()
    return Reflector(
        client,
        ResourceSlice,
        clock=clock,
        on_change=intake.slice_changed,
        kept=Kept(
            field_selector=",".join(f"spec.driver!={name}" for name in drivers),
            transform=with_shared_values,
            stand_in=slice_stand_in,
        ),
    )


def _slices(
    client: KubeClient, clock: Clock, drivers: Iterable[str], slice_changed: SliceChanged
) -> tuple[Reflector[ResourceSlice], ...]:
    return tuple(
        Reflector(
            client,
            ResourceSlice,
            clock=clock,
            on_change=slice_changed,
            kept=Kept(field_selector=f"spec.driver={name}", transform=with_shared_values, unread_is_gone=True),
        )
        for name in drivers
    )


def _devices(
    client: KubeClient, clock: Clock, intake: Intake
) -> tuple[Reflector[DeviceClass], Reflector[DeviceTaintRule]]:
    return (
        Reflector(client, DeviceClass, clock=clock, on_change=intake.class_changed, kept=Kept(stand_in=class_stand_in)),
        Reflector(
            client,
            DeviceTaintRule,
            clock=clock,
            on_change=intake.taint_rule_changed,
            kept=Kept(older=(DeviceTaintRuleV1Beta2,)),
        ),
    )


def lost_devices(old: ResourceClaim | None, new: ResourceClaim) -> bool:
    """Whether a claim lost some of its devices.

    What was freed while the watch was broken has to be free before another claim is seen with it: otherwise two claims
    seem to have one device, which is reported to users, and the later one is taken back.
    """
    before = None if old is None else old.status.allocation
    return before is not None and before != new.status.allocation
