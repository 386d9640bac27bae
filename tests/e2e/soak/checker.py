"""The independent checker: takes every state of pods, claims, slices and nodes in order, and says what must not be.

Plain JSON and no code of the product. It is told what the server stored, so it sees what was, not what somebody meant.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from e2e.soak.events import Event, What
from e2e.soak.rules import (
    DRIVER,
    FRIEND,
    LONELY,
    NEEDY,
    Device,
    choose,
    shares_left,
    taken_amounts,
    wrong_results,
)

HISTORY: Final = 40
"""States of each object that a violation is told with."""

STALE_S: Final = 60.0
"""For how long a device that is not published any more may still be given: the controller's watch can be broken while
its writes pass, and it waits up to 45 s before it watches again."""

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
DeviceId = tuple[str, str]
"""Pool and device name, of our driver."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never be, or must not last."""

    text: str
    history: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"VIOLATION: {self.text}", *(f"    {line}" for line in self.history)))


@dataclass(slots=True)
class Counts:
    """What was looked at."""

    events: int = 0
    allocations: int = 0
    binds: int = 0
    stale: int = 0
    """Allocations of devices that had just gone from their slice."""


class Checker:
    """Holds the last state of everything. Feed it with take(); not for several threads at once."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.counts = Counts()
        self._now_s = 0.0
        self._objects: dict[str, dict[str, Event]] = defaultdict(dict)
        self._histories: dict[tuple[str, str], deque[str]] = defaultdict(lambda: deque(maxlen=HISTORY))
        self._holders: dict[DeviceId, dict[str, tuple[str, Mapping[str, Any]]]] = defaultdict(dict)
        self._published: dict[str, dict[str, Device]] = {}
        self._last_seen: dict[DeviceId, tuple[Device, float]] = {}
        self._told: set[str] = set()

    def take(self, event: Event) -> None:
        """Take in the next state, in the order of versions."""
        self.counts.events += 1
        self._now_s = event.seen_s
        objects = self._objects[event.kind]
        old = objects.get(event.key)
        if event.what is What.GONE:
            objects.pop(event.key, None)
        else:
            objects[event.key] = event
        line = f"{event.seen_s:8.2f} s, version {event.version}: {event.kind} {event.key} {_described(event)}"
        self._histories[event.kind, event.key].append(line)
        if event.kind == "resourceclaims":
            self._claim(event, old)
        elif event.kind == "pods":
            self._pod(event, old)
        elif event.kind == "resourceslices":
            self._slice(event, old)

    def pods(self) -> tuple[int, int]:
        """Return how many pods there are, and how many of them are bound."""
        pods = self._known("pods")
        return len(pods), sum(bool(pod["spec"].get("nodeName")) for pod in pods.values())

    def free_devices(self, but: Collection[str] = ()) -> dict[str, dict[str, Device]]:
        """Return by node what nobody holds of the nodes that take pods; `but`: UIDs of claims that do not count."""
        return {
            name: {
                device: published
                for device, published in self._published.get(name, {}).items()
                if not self._holders.get((name, device), {}).keys() - but
            }
            for name in self._open_nodes()
        }

    def shares_left(self) -> dict[str, int]:
        """Return by node how many shares of SHARE fit into its shared devices beside those that are taken."""
        return {
            name: sum(
                shares_left((result for _, result in self._holders.get((name, device), {}).values()), published)
                for device, published in self._published.get(name, {}).items()
                if published.get("allowMultipleAllocations")
            )
            for name in self._open_nodes()
        }

    def _open_nodes(self) -> list[str]:
        return [name for name, node in self._known("nodes").items() if not node["spec"].get("unschedulable")]

    def unsettled(self) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
        """Return what must be over when nobody disturbs: each with the objects that it is about."""
        found: list[tuple[str, tuple[tuple[str, str], ...]]] = []
        pods = self._known("pods")
        uids = {pod["metadata"]["uid"] for pod in pods.values() if not _is_over(pod)}
        for key, claim in self._known("resourceclaims").items():
            status = claim.get("status", {})
            about = (("resourceclaims", key),)
            gone = [user["name"] for user in status.get("reservedFor", ()) if user["uid"] not in uids]
            if gone:
                found.append((f"claim {key} is reserved for {', '.join(gone)}, which is no more", about))
            if "allocation" in status and not any(pod["metadata"]["uid"] in uids for pod in self._users(key)):
                found.append((f"claim {key} keeps an allocation and no pod uses it", about))
        for key, pod in pods.items():
            if _is_over(pod):
                continue
            if pod["spec"].get("nodeName"):
                for name, its_claim in self._claims_of(pod):
                    if its_claim is None or not _reserved_for(its_claim, pod):
                        found.append(
                            (f"pod {key} is bound and claim {name} is not reserved for it", self._about(key, pod))
                        )
            elif missing := self._not_made(pod):
                found.append((f"pod {key} has no claim yet for {', '.join(missing)}", self._about(key, pod)))
            elif self._has_no_friend(pod):
                continue  # it may keep what it has, as long as nobody else asks for it
            elif node := self._where_it_fits(pod):
                found.append((f"pod {key} waits although it fits on {node}", self._about(key, pod)))
        return found

    def report(self, text: str, *about: tuple[str, str]) -> None:
        """Note a violation with what happened to these objects (kind, key); the same one only once."""
        if text in self._told:
            return
        self._told.add(text)
        lines = [line for subject in about for line in self._histories.get(subject, ())]
        self.violations.append(Violation(text, tuple(lines)))

    # Claims

    def _claim(self, event: Event, old: Event | None) -> None:
        before = old.object if old is not None and old.what is What.IS else None
        if old is not None:
            self._release(old.object)
        if event.what is not What.IS:
            if event.what is What.GONE:
                self._check_users(event.key, None)
            return
        claim = event.object
        self._hold(event.key, claim)
        allocation = claim.get("status", {}).get("allocation")
        if allocation is not None and (before is None or not _same_allocation(before, claim)):
            self.counts.allocations += 1
            self._check_legal(event.key, claim, allocation)
        self._check_users(event.key, claim)

    def _release(self, claim: Mapping[str, Any]) -> None:
        for device, _ in _results(claim):
            self._holders[device].pop(claim["metadata"]["uid"], None)

    def _hold(self, key: str, claim: Mapping[str, Any]) -> None:
        for device, result in _results(claim):
            others = self._holders[device]
            uid = claim["metadata"]["uid"]
            name = f"{device[0]}/{device[1]}"
            subjects = (("resourceclaims", key), *(("resourceclaims", other) for other, _ in others.values()))
            shared = result.get("shareID") is not None
            if others and not (shared and all(other.get("shareID") for _, other in others.values())):
                names = ", ".join(other for other, _ in others.values())
                self.report(f"device {name} is given to claim {key} and to {names}", *subjects)
            others[uid] = (key, result)
            if shared:
                self._check_shares(device, subjects)

    def _check_shares(self, device: DeviceId, subjects: tuple[tuple[str, str], ...]) -> None:
        published = self._device(device)
        if published is None:
            return
        taken: dict[str, int] = defaultdict(int)
        for _, result in self._holders[device].values():
            for name, value in taken_amounts(result, published).items():
                taken[name] += value
        room = taken_amounts({}, published)
        for name, value in taken.items():
            if value > room[name]:
                self.report(f"shares of {device[0]}/{device[1]} take {value} of {room[name]} {name}", *subjects)

    def _check_legal(self, key: str, claim: Mapping[str, Any], allocation: Mapping[str, Any]) -> None:
        about = ("resourceclaims", key)
        if FINALIZER not in claim["metadata"].get("finalizers", ()):
            self.report(f"claim {key} is allocated without a finalizer", about)
        if not allocation.get("allocationTimestamp"):
            self.report(f"claim {key} is allocated without a timestamp", about)
        found = _results(claim)
        devices = [self._device(device) for device, _ in found]
        for (device, _), published in zip(found, devices, strict=True):
            if published is None:
                self.report(f"claim {key} got {device[0]}/{device[1]}, which is not published", about)
        pools = {device[0] for device, _ in found}
        if len(pools) > 1 or (pools and _node_of(allocation) not in pools):
            self.report(f"claim {key} got devices of {sorted(pools)} for node {_node_of(allocation)}", about)
        if None not in devices:
            results = [result for _, result in found]
            for problem in wrong_results(claim, results, [device for device in devices if device is not None]):
                self.report(f"claim {key}: {problem}", about)

    def _device(self, device: DeviceId) -> Device | None:
        """Return what is published of a device, or was until a moment ago."""
        published = self._published.get(device[0], {}).get(device[1])
        if published is not None:
            return published
        last, seen_s = self._last_seen.get(device, (None, 0.0))
        if last is not None and self._now_s - seen_s <= STALE_S:
            self.counts.stale += 1
            return last
        return None

    # Pods

    def _pod(self, event: Event, old: Event | None) -> None:
        if event.what is not What.IS or _is_over(event.object) or not event.object["spec"].get("nodeName"):
            return
        was_bound = old is not None and old.what is What.IS and bool(old.object["spec"].get("nodeName"))
        if not was_bound:
            self.counts.binds += 1
        for name, claim in self._claims_of(event.object):
            self._check_bound(event.key, event.object, name, claim)

    def _check_users(self, claim_key: str, claim: Mapping[str, Any] | None) -> None:
        for pod in self._users(claim_key):
            if pod["spec"].get("nodeName") and not _is_over(pod):
                self._check_bound(_key(pod), pod, claim_key, claim)

    def _check_bound(self, key: str, pod: Mapping[str, Any], name: str, claim: Mapping[str, Any] | None) -> None:
        about = self._about(key, pod)
        node = pod["spec"]["nodeName"]
        known = self._objects["resourceclaims"].get(name)
        if known is not None and known.what is What.UNKNOWN:
            return
        if claim is None:
            self.report(f"pod {key} is bound to {node} and claim {name} is not there", *about)
            return
        allocation = claim.get("status", {}).get("allocation")
        if allocation is None:
            self.report(f"pod {key} is bound to {node} and claim {name} has no devices", *about)
        elif _node_of(allocation) != node:
            self.report(f"pod {key} is bound to {node} and claim {name} is on {_node_of(allocation)}", *about)

    def _claims_of(self, pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
        """Yield the claims of a pod by key; None for one that is not there or not known."""
        generated = {
            entry["name"]: entry.get("resourceClaimName") for entry in pod["status"].get("resourceClaimStatuses", ())
        }
        for entry in pod["spec"].get("resourceClaims", ()):
            name = entry.get("resourceClaimName") or generated.get(entry["name"])
            key = f"{pod['metadata']['namespace']}/{name}"
            event = self._objects["resourceclaims"].get(key)
            yield key, event.object if event is not None and event.what is What.IS else None

    def _not_made(self, pod: Mapping[str, Any]) -> list[str]:
        """Return the entries of a pod whose claim is still to be made from its template."""
        made = {entry["name"] for entry in pod["status"].get("resourceClaimStatuses", ())}
        entries = pod["spec"].get("resourceClaims", ())
        return [e["name"] for e in entries if "resourceClaimTemplateName" in e and e["name"] not in made]

    def _users(self, claim_key: str) -> list[Mapping[str, Any]]:
        pods = self._known("pods").values()
        return [pod for pod in pods if any(key == claim_key for key, _ in self._claims_of(pod))]

    def _where_it_fits(self, pod: Mapping[str, Any]) -> str | None:
        """Return a node that could take a pod with all its claims now; a simple search, which may miss one.

        What is allocated for this pod alone can be taken back: an allocation where the pod is never bound is no excuse.
        """
        named = list(self._claims_of(pod))
        if pod["spec"].get("schedulingGates") or any(claim is None or _is_going(claim) for _, claim in named):
            return None  # nobody may begin to use a claim that is being deleted
        its_own = {claim["metadata"]["uid"] for key, claim in named if claim and self._is_only_for(pod, key, claim)}
        selector = pod["spec"].get("nodeSelector", {})
        for name, free in sorted(self.free_devices(but=its_own).items()):
            labels = self._objects["nodes"][name].object["metadata"].get("labels", {})
            suits = all(labels.get(key) == value for key, value in selector.items())
            if suits and not self._bears_not(pod, name) and _fits([claim for _, claim in named], name, free, its_own):
                return name
        return None

    def _is_only_for(self, pod: Mapping[str, Any], key: str, claim: Mapping[str, Any]) -> bool:
        uid = pod["metadata"]["uid"]
        users = {user["metadata"]["uid"] for user in self._users(key)}
        return users == {uid} and {user["uid"] for user in claim.get("status", {}).get("reservedFor", ())} <= {uid}

    def _has_no_friend(self, pod: Mapping[str, Any]) -> bool:
        """Whether no node takes a pod, because nobody is there whom it needs."""
        pods = self._known("pods").values()
        return _is_labelled(pod, NEEDY) and not any(
            _is_labelled(other, FRIEND) and other["spec"].get("nodeName") and not _is_over(other) for other in pods
        )

    def _bears_not(self, pod: Mapping[str, Any], node: str) -> bool:
        """Whether a pod that wants to be the only one of its kind would meet another one."""
        others = (other for other in self._known("pods").values() if other["spec"].get("nodeName") == node)
        return _is_labelled(pod, LONELY) and any(
            _is_labelled(other, LONELY) and other["status"].get("phase") not in ("Succeeded", "Failed")
            for other in others
        )

    def _about(self, key: str, pod: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        return (("pods", key), *(("resourceclaims", name) for name, _ in self._claims_of(pod)))

    # Slices

    def _slice(self, event: Event, old: Event | None) -> None:
        for one in (old, event):
            if one is not None and one.object["spec"]["driver"] == DRIVER:
                self._read_pool(one.object["spec"]["pool"]["name"])

    def _read_pool(self, pool: str) -> None:
        """Read a pool anew; while a generation is not complete what was published before still counts."""
        slices = [
            one["spec"]
            for one in self._known("resourceslices").values()
            if one["spec"]["driver"] == DRIVER and one["spec"]["pool"]["name"] == pool
        ]
        newest = max((spec["pool"]["generation"] for spec in slices), default=0)
        current = [spec for spec in slices if spec["pool"]["generation"] == newest]
        if current and len(current) < current[0]["pool"]["resourceSliceCount"]:
            return
        devices = {device["name"]: device for spec in current for device in spec.get("devices") or ()}
        for name, device in self._published.get(pool, {}).items():
            if name not in devices:
                self._last_seen[pool, name] = device, self._now_s
        self._published[pool] = devices

    def _known(self, kind: str) -> dict[str, Mapping[str, Any]]:
        return {key: event.object for key, event in self._objects[kind].items() if event.what is What.IS}


def _same_allocation(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    return bool(
        before["metadata"]["uid"] == now["metadata"]["uid"]
        and before.get("status", {}).get("allocation") == now["status"]["allocation"]
    )


def _results(claim: Mapping[str, Any]) -> list[tuple[DeviceId, Mapping[str, Any]]]:
    """Return the devices of our driver that a claim keeps others from."""
    allocation = claim.get("status", {}).get("allocation") or {}
    results = allocation.get("devices", {}).get("results", ())
    return [
        ((result["pool"], result["device"]), result)
        for result in results
        if result["driver"] == DRIVER and not result.get("adminAccess")
    ]


def _node_of(allocation: Mapping[str, Any]) -> str | None:
    """Return the one node that an allocation can be used on."""
    for term in allocation.get("nodeSelector", {}).get("nodeSelectorTerms", ()):
        for field in term.get("matchFields", ()):
            if field["key"] == "metadata.name" and field["operator"] == "In":
                return str(field["values"][0])
    return None


def _fits(
    claims: list[Mapping[str, Any] | None], node: str, free: Mapping[str, Device], movable: Collection[str]
) -> bool:
    """Whether claims find their devices on a node; allocations count, except for the claims with these UIDs."""
    left = dict(free)
    for claim in claims:
        assert claim is not None
        allocation = claim.get("status", {}).get("allocation")
        if allocation is not None and claim["metadata"]["uid"] not in movable:
            if _node_of(allocation) != node:
                return False
            continue
        chosen = choose(claim, left)
        if chosen is None:
            return False
        for name in chosen:
            del left[name]
    return True


def _is_labelled(pod: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return bool(labels.items() <= pod["metadata"].get("labels", {}).items())


def _is_going(item: Mapping[str, Any]) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _reserved_for(claim: Mapping[str, Any], pod: Mapping[str, Any]) -> bool:
    return any(user["uid"] == pod["metadata"]["uid"] for user in claim.get("status", {}).get("reservedFor", ()))


def _is_over(pod: Mapping[str, Any]) -> bool:
    """Whether a pod needs its devices no more."""
    return pod["status"].get("phase") in ("Succeeded", "Failed") or _is_going(pod)


def _key(item: Mapping[str, Any]) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _described(event: Event) -> str:
    if event.what is not What.IS:
        return str(event.what.value)
    item = event.object
    if event.kind == "resourceclaims":
        status = item.get("status", {})
        users = [user["name"] for user in status.get("reservedFor", ())]
        taken = [f"{pool}/{device}" for (pool, device), _ in _results(item)]
        stamp = (status.get("allocation") or {}).get("allocationTimestamp")
        going = ", being deleted" if _is_going(item) else ""
        return f"devices {taken} since {stamp} reserved for {users}{going}"
    if event.kind == "pods":
        reasons = [
            f"{condition.get('reason')}: {condition.get('message')}"
            for condition in item["status"].get("conditions", ())
            if condition["type"] == "PodScheduled" and condition["status"] == "False"
        ]
        nominated = item["status"].get("nominatedNodeName")
        return (
            f"on {item['spec'].get('nodeName')}, {item['status'].get('phase')}, nominated {nominated}, "
            f"waits for {reasons}"
        )
    if event.kind == "resourceslices":
        pool = item["spec"]["pool"]
        return f"generation {pool['generation']} of {pool['name']}, {len(item['spec'].get('devices') or ())} devices"
    return f"unschedulable {bool(item['spec'].get('unschedulable'))}"
