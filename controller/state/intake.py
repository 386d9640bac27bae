"""Takes in what the watches report, and wakes the pods that a change may help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

from dracaena.api.names import quota_annotation
from dracaena.api.objects import ENDED, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass
from dracaena.api.resource_objects import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dracaena.api.topology_levels import TopologyLevels
from dracaena.api.workload_objects import WorkloadObject
from dracaena.controller.allocation.nodes.placement.placed_pods import Change, ClaimUse, OfClass
from dracaena.controller.allocation.nodes.placement.volumes import class_of
from dracaena.controller.allocation.state.gangs import Family, family_about, group_of
from dracaena.controller.allocation.state.node_state import claim_holder, held_devices, other_holdings
from dracaena.controller.state.cluster import ClusterState, Collided, locked
from dracaena.process.clock import Clock

log = structlog.get_logger()

ProblemsChanged = Callable[[int, int], None]

T = TypeVar("T")


class Intake:
    """Called from the reflectors' threads, each call under the state's lock. Has no state of its own.

    A freed device, or a change of a node or slice, wakes the first pod of each waiting line that it may help. A change
    of a class wakes all waiting pods, because its author wants to see the effect.
    """

    def __init__(
        self,
        state: ClusterState,
        clock: Clock,
        *,
        problems_changed: ProblemsChanged = lambda unusable, updating: None,
        collided: Collided = lambda claim, collisions: None,
    ) -> None:
        """Both are called without the lock: `problems_changed` with the number of lasting problems and of pools that
        are just being written, `collided` with a claim that was shown to hold what other claims hold too."""
        self._state = state
        self._lock = state.lock
        self._clock = clock
        self._problems_changed = problems_changed
        self._collided = collided

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a change of a pod: it counts on its node. Pods without claims are not kept."""
        subject = _either(old, new)
        key, now_s = subject.key, self._clock.monotonic()
        with self._lock:
            self._state.decisions.resources_freed(self._state.accounting.pod_changed(old, new))
            self._state.decisions.placement_changed(self._state.inventory.placed.changes())
            before = self._state.records.unbound(key)
            known = self._state.records.pod(key)
            with self._completing(group_of(pod) for pod in (old, new) if pod is not None):
                self._state.records.see(old, new, now_s)
            self._state.progress.see(before, new, self._state.records.unbound(key), now_s)
            if known is None and not subject.spec.resource_claims:
                return
            is_another = known is not None and new is not None and known.metadata.uid != new.metadata.uid
            if new is None or not new.spec.resource_claims or is_another:
                # A pod of the same name that was created meanwhile must not wait behind itself.
                self._state.decisions.leave(key)
            if before is not None and new is not None and new.spec.node_name:
                self._state.wake_rivals_of(new)
            if known is not None and _is_on_a_node(known) and (new is None or is_another or not _is_on_a_node(new)):
                self._state.wake_sharers_of(known)
            self._state.tend_claims_of((known, new))
        self._state.wake_all((key,))

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take in a change of a claim: it wakes the claim's pods and, when it releases devices, the pods that they may
        help."""
        if new is None:
            subject = _either(old, new)
            with self._lock:
                self._state.records.gone(subject.key, self._clock.monotonic(), subject.metadata.uid)
            return
        with self._lock:
            collisions = self._state.show(new, self._clock.monotonic(), self._clock.now())
        if collisions:
            self._collided(new, collisions)

    @locked
    def claim_set_aside(self, claim: ResourceClaim) -> None:
        """Reserve what a claim holds now, because its change could not be taken in and will come again.

        The claim also keeps what it held before.
        """
        held, others = held_devices(claim, self._state.driver), other_holdings(claim, self._state.driver)
        before = self._state.inventory.holdings.held_by(claim_holder(claim))
        self._state.inventory.hold(claim_holder(claim), held | before[0], others | before[1])

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take in a change of a slice of any driver; only its pool is read again."""
        with self._lock:
            change = self._state.inventory.change_slice(old, new)
            for namespace in sorted(self._state.quotas.pools_changed(change.nodes)):
                self._state.decisions.quota_changed(namespace)
            lasting, passing = self._state.inventory.problem_counts()
            if change.offer_changed:
                self._state.decisions.may_help(change.nodes, devices_differ=True)
            self._state.decisions.other_devices_changed()
        for problem in change.new_problems:
            say = log.info if problem.passing else log.warning
            say("left out of the choice", pool=problem.pool, device=problem.device, problem=problem.text)
        self._problems_changed(lasting, passing)

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Take in a change of a node. Kubelets write its status all the time; only what is allocatable and the features
        that the kubelet declares count.
        """
        subject = _either(old, new)
        is_heartbeat = old is not None and new is not None and _without_heartbeat(old) == _without_heartbeat(new)
        if is_heartbeat and old is not None and new is not None and old.status == new.status:
            return
        with self._lock:
            if new is None:
                self._state.inventory.remove_node(subject.key)
            elif self._state.inventory.set_node(new):
                self._state.decisions.resources_freed([subject.key])
            if not is_heartbeat:
                self._state.decisions.may_help(frozenset((subject.key,)), devices_differ=old is None or new is None)

    @locked
    def class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """Take in a change of a device class."""
        subject = _either(old, new)
        if new is None:
            self._state.inventory.remove_class(subject.key)
        else:
            self._state.inventory.set_class(new)
        # Also pods that wait in no line: what is left for kube-scheduler to allocate depends on classes, too.
        unbound = (pod.key for pod in self._state.records.pods() if not pod.spec.node_name)
        self._state.wake_all(dict.fromkeys((*self._state.decisions.may_help_all(), *unbound)))

    @locked
    def workload_changed(self, old: WorkloadObject | None, new: WorkloadObject | None) -> None:
        """Take in a change of an object that says how many pods belong together: it wakes the pods of a gang that may
        be complete now."""
        sizes = self._state.inventory.families.sizes
        with self._completing(family_about(item) for item in (old, new) if item is not None):
            if old is not None:
                sizes.take_out(old)
            if new is not None:
                sizes.put(new)

    @locked
    def workloads_listed(self, kind: str, *, is_read: bool | None) -> None:
        """Note that objects of a kind (Family.kind) begin to be read, that all have been, or (None) that the server
        does not show them."""
        sizes, groups = self._state.inventory.families.sizes, self._state.records.groups
        with self._completing(group for group in groups.unbound() if group.kind == kind):
            if is_read is None:
                sizes.unfollow(kind)
            else:
                sizes.follow(kind, is_read=is_read)

    @property
    @locked
    def levels(self) -> TopologyLevels:
        """What nodes are in."""
        return self._state.inventory.levels

    @locked
    def levels_changed(self, levels: TopologyLevels) -> None:
        """Take in other levels. They change what is preferred, so nobody who waits is asked again. Cost: all nodes at
        once, 0.1 s at 5,000: a cluster gets its levels once."""
        self._state.inventory.set_levels(levels)

    @locked
    def taint_rule_changed(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        """Take in a change of a DeviceTaintRule; only pools with a device that it taints or tainted are read again."""
        subject = _either(old, new)
        inventory = self._state.inventory
        change = inventory.remove_taint_rule(subject.key) if new is None else inventory.set_taint_rule(new)
        if change.offer_changed:
            self._state.decisions.may_help(change.nodes, devices_differ=True)
        self._state.decisions.other_devices_changed()

    @locked
    def follow_other_drivers(self) -> None:
        """Note that the slices of all other drivers will be taken in, too: what they lack counts from now on."""
        self._state.inventory.others.are_followed = True

    @locked
    def namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        """Take in a change of a namespace: affinity terms may select it by its labels, and it may have a quota."""
        subject = _either(old, new)
        self._state.inventory.placed.set_namespace(subject.key, None if new is None else new.metadata.labels)
        self._state.decisions.placement_changed(self._state.inventory.placed.changes())
        text = None if new is None else new.metadata.annotations.get(quota_annotation(self._state.driver))
        if self._state.quotas.change(subject.key, text):
            self._state.decisions.quota_changed(subject.key)

    @locked
    def volume_claim_changed(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        """Take in a change of a PersistentVolumeClaim."""
        subject = _either(old, new)
        use = ClaimUse(subject.metadata.namespace, subject.metadata.name)
        self._state.inventory.storage.set_claim(subject.key, new)
        self._state.decisions.placement_changed([Change(use, is_more=False)])

    @locked
    def volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Take in a change of a PersistentVolume."""
        changes = [change for item in (old, new) if item is not None for change in _changes_with(item)]
        for item in (old, new):
            if item is not None:
                self._state.inventory.storage.set_volume(item.key, new)
        self._state.decisions.placement_changed(changes)

    @locked
    def storage_class_changed(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """Take in a change of a StorageClass."""
        subject = _either(old, new)
        self._state.inventory.storage.set_class(subject.key, new)
        self._state.decisions.placement_changed([Change(OfClass(subject.key), is_more=False)])

    @contextmanager
    def _completing(self, groups: Iterable[Family | None]) -> Iterator[None]:
        """Wake the waiting pods of those of these gangs that cannot start before a change and can after it."""
        stuck = [group for group in {*groups} if group is not None and self._state.groups.obstacle(group)]
        yield
        for group in stuck:
            if self._state.groups.obstacle(group) is None:
                self._state.wake_all(self._state.records.groups.waiting(group))


def _either(old: T | None, new: T | None) -> T:
    subject = new or old
    assert subject is not None, "a change has an old or a new state"
    return subject


def _changes_with(volume: PersistentVolume) -> Iterator[Change]:
    """Yield what pods wait for that a change of a volume may help."""
    yield Change(OfClass(class_of(volume)), is_more=False)
    claim = volume.spec.claim_ref
    if claim is not None:
        yield Change(ClaimUse(claim.namespace, claim.name), is_more=False)


def _is_on_a_node(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.status.phase not in ENDED


def _without_heartbeat(node: Node) -> tuple[object, ...]:
    return node.spec, node.metadata.labels, node.declared_features
