"""The cluster as the watches show it, indexed for decisions, and which change wakes which pods."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import structlog

from dracaena.api.objects import DeviceClass, Node, Pod, ResourceClaim, ResourceSlice
from dracaena.api.podclaims import pod_claims
from dracaena.controller.allocation.snapshot import (
    ClusterSnapshot,
    DeviceId,
    PoolReading,
    Problem,
    held_devices,
    one_pool_a_node,
    read_pool,
    several_pools,
    used_by_pool,
)
from dracaena.controller.assumed import AssumedAllocations

log = structlog.get_logger()


_NO_POOL: Final = PoolReading(None)


@dataclass(frozen=True, slots=True)
class _PoolChange:
    offer_changed: bool
    new_problems: tuple[Problem, ...]


class Cluster:
    """Takes in changes from the reflectors' threads and hands out snapshots. One lock of its own.

    `wake` is called with the key of each pod that a change may help; `waiting` names the pods that fitted nowhere,
    which every freed device and every change of nodes, slices and classes may help. `problems_changed` is called with
    the number of problems that last, and of pools that are just being written.
    """

    def __init__(
        self,
        driver: str,
        *,
        assumed: AssumedAllocations,
        wake: Callable[[str], None],
        waiting: Callable[[], Iterable[str]],
        problems_changed: Callable[[int, int], None] = lambda unusable, updating: None,
    ) -> None:
        self._driver = driver
        self._assumed = assumed
        self._wake = wake
        self._waiting = waiting
        self._problems_changed = problems_changed
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._pods_of_claim: dict[str, set[str]] = {}
        self._claims: dict[str, ResourceClaim] = {}
        self._held: dict[str, frozenset[DeviceId]] = {}
        self._nodes: dict[str, Node] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._slices: dict[str, dict[str, ResourceSlice]] = {}
        self._readings: dict[str, PoolReading] = {}
        self._pools_of_node: dict[str, set[str]] = {}
        self._problems: Counter[bool] = Counter()  # by Problem.passing
        self._changes = 0

    # What decisions read

    def pod(self, key: str) -> Pod | None:
        """Return a pod that has claims."""
        with self._lock:
            return self._pods.get(key)

    def claim(self, key: str) -> ResourceClaim | None:
        """Return a claim."""
        with self._lock:
            return self._claims.get(key)

    @property
    def changes(self) -> int:
        """A number that grows with each change that may help a waiting pod.

        Read before a snapshot and again after the pod was put down as waiting: when it grew, the pod may have missed
        the change.
        """
        with self._lock:
            return self._changes

    def snapshot(self) -> ClusterSnapshot:
        """Return this moment. Cost: one pass over nodes, pools and allocated claims."""
        # Assumed first: whatever the watch shows in between is then counted twice, never not at all.
        assumed = self._assumed.devices()
        with self._lock:
            pools, problems = one_pool_a_node(self._readings[name] for name in sorted(self._readings))
            held = [device for devices in self._held.values() for device in devices]
            nodes = tuple(self._nodes[name] for name in sorted(self._nodes))
            classes = MappingProxyType(dict(self._classes))
        return ClusterSnapshot(
            driver=self._driver,
            nodes=nodes,
            pools=pools,
            used=used_by_pool([*held, *assumed]),
            classes=classes,
            problems=problems,
        )

    # What the watches tell

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Take in a pod. Pods without claims are not kept."""
        subject = new or old
        if subject is None or not subject.spec.resource_claims:
            return
        key = subject.key
        with self._lock:
            known = self._pods.pop(key, None)
            self._unlink(known)
            if new is not None:
                self._pods[key] = new
                for claim in pod_claims(new):
                    if claim.key is not None:
                        self._pods_of_claim.setdefault(claim.key, set()).add(key)
        self._wake(key)

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Take in a claim: its pods are woken, and all waiting pods when it let go of devices."""
        subject = new or old
        if subject is None:
            return
        key = subject.key
        held = held_devices(new, self._driver) if new is not None else frozenset()
        with self._lock:
            if new is None:
                self._claims.pop(key, None)
            else:
                self._claims[key] = new
            freed = self._held.pop(key, frozenset()) - held
            if held:
                self._held[key] = held
            pods = sorted(self._pods_of_claim.get(key, ()))
        self._assumed.observe(old, new)  # after the cache has it: see snapshot()
        for pod in pods:
            self._wake(pod)
        if freed:
            self.wake_waiting()

    def slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        """Take in a slice of our driver; only its pool is read again."""
        with self._lock:
            if old is not None and old.spec.driver == self._driver:
                self._slices.get(old.spec.pool.name, {}).pop(old.key, None)
            if new is not None and new.spec.driver == self._driver:
                self._slices.setdefault(new.spec.pool.name, {})[new.key] = new
            pools = {item.spec.pool.name for item in (old, new) if item and item.spec.driver == self._driver}
            changes = [self._read_again(name) for name in sorted(pools)]
            lasting, passing = self._problems[False], self._problems[True]
        for change in changes:
            for problem in change.new_problems:
                say = log.info if problem.passing else log.warning
                say("left out of the choice", pool=problem.pool, device=problem.device, problem=problem.text)
        self._problems_changed(lasting, passing)
        if any(change.offer_changed for change in changes):
            self.wake_waiting()

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Take in a node. Status alone helps nobody, and kubelets write it all the time."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            if new is None:
                self._nodes.pop(subject.key, None)
            else:
                self._nodes[subject.key] = new
        if old is None or new is None or (old.spec, old.metadata.labels) != (new.spec, new.metadata.labels):
            self.wake_waiting()

    def class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> None:
        """Take in a device class."""
        subject = new or old
        if subject is None:
            return
        with self._lock:
            if new is None:
                self._classes.pop(subject.key, None)
            else:
                self._classes[subject.key] = new
        self.wake_waiting()

    def wake_waiting(self) -> None:
        """Wake all pods that fitted nowhere."""
        with self._lock:
            self._changes += 1
        for key in sorted(self._waiting()):
            self._wake(key)

    def wake_pods_of(self, claim_key: str, *, but: str) -> None:
        """Wake the pods that name a claim, all but the one that the caller is at work on."""
        with self._lock:
            pods = sorted(self._pods_of_claim.get(claim_key, set()) - {but})
        for pod in pods:
            self._wake(pod)

    def _read_again(self, name: str) -> _PoolChange:
        """Read one pool afresh. The lock is held."""
        before = self._readings.pop(name, _NO_POOL)
        after = _NO_POOL
        if self._slices.get(name):
            after = self._readings[name] = read_pool(self._driver, self._slices[name].values())
        else:
            self._slices.pop(name, None)
        self._problems.subtract(problem.passing for problem in before.problems)
        self._problems.update(problem.passing for problem in after.problems)
        new_problems = tuple(problem for problem in after.problems if problem not in before.problems)
        if before.pool is not None:
            self._pools_of_node[before.pool.node].discard(name)
        if after.pool is not None:
            siblings = self._pools_of_node.setdefault(after.pool.node, set())
            siblings.add(name)
            if len(siblings) > 1:
                new_problems += (several_pools(after.pool.node, name, len(siblings)),)
        return _PoolChange(before.pool != after.pool, new_problems)

    def _unlink(self, pod: Pod | None) -> None:
        for claim in pod_claims(pod) if pod is not None else ():
            pods = self._pods_of_claim.get(claim.key or "", set())
            pods.discard(pod.key if pod is not None else "")
            if not pods:
                self._pods_of_claim.pop(claim.key or "", None)
