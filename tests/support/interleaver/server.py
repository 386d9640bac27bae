"""kube-apiserver for claims and pods: guarded writes, its validation, finalizers, and the history that watches tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import msgspec

from dracaena.api.objects import KubeObject, Node, Pod
from dracaena.api.resource_objects import (
    ConsumerReference,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dracaena.kube.errors import ConflictError, InvalidError, NotFoundError

Stored = TypeVar("Stored", bound=Pod | ResourceClaim)

Kind = type[KubeObject]


class OtherSlice(ResourceSlice, frozen=True):
    """A slice of another driver, which has a watch of its own."""

    RESOURCE: ClassVar[str] = "other-slices"


AROUND: Final[tuple[type[KubeObject], ...]] = (Node, ResourceSlice, DeviceClass, DeviceTaintRule, OtherSlice)
"""Kinds of what is around pods and claims."""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the history of a kind."""

    at_s: float
    key: str
    item: Any
    """None: it was deleted."""


class Server:
    """Objects by key. Versions are numbers that grow over all objects, as etcd's revision does (KEP-5504)."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.version = 100
        self.claims: dict[str, ResourceClaim] = {}
        self.pods: dict[str, Pod] = {}
        self.around: dict[Kind, dict[str, Any]] = {kind: {} for kind in AROUND}
        kinds: tuple[Kind, ...] = (ResourceClaim, Pod, *AROUND)
        self.history: dict[Kind, list[Change]] = {kind: [] for kind in kinds}
        self.shown: dict[tuple[str, str], Pod | ResourceClaim] = {}
        """(UID, version) → every state that ever was."""

    def objects(self, kind: Kind) -> Mapping[str, Any]:
        if kind in self.around:
            return self.around[kind]
        return self.claims if kind is ResourceClaim else self.pods

    def put_around(self, item: KubeObject) -> None:
        """Create or replace an object that is neither a pod nor a claim."""
        self.version += 1
        metadata = msgspec.structs.replace(item.metadata, resource_version=str(self.version))
        stored = msgspec.structs.replace(item, metadata=metadata)
        self.around[type(item)][item.key] = stored
        self.history[type(item)].append(Change(self.now_s, item.key, stored))

    def remove_around(self, kind: Kind, key: str) -> None:
        """Delete such an object."""
        del self.around[kind][key]
        self.version += 1
        self.history[kind].append(Change(self.now_s, key, None))

    # Writes of anybody

    def create(self, item: Stored) -> Stored:
        assert item.key not in self.objects(type(item))
        return self.put(item)

    def update_claim(self, claim: ResourceClaim) -> ResourceClaim:
        """Replace a claim that was changed from the version that it carries."""
        stored = self._guarded(self.claims, claim)
        _validate(stored, claim)
        return self._settle_finalizers(claim)

    def update_pod(self, pod: Pod) -> Pod:
        """Replace a pod that was changed from the version that it carries."""
        self._guarded(self.pods, pod)
        return self.put(pod)

    def patch(self, kind: Kind, key: str, patch: Mapping[str, Any]) -> Any:
        """A JSON merge patch, guarded when it carries a resourceVersion."""
        stored = self.objects(kind).get(key)
        if stored is None:
            raise NotFoundError(f"PATCH {key}", 404, "NotFound", "not found")
        guard, uid = patch["metadata"].get("resourceVersion"), patch["metadata"].get("uid")
        is_another = uid is not None and uid != stored.metadata.uid
        if is_another or (guard is not None and guard != stored.metadata.resource_version):
            raise ConflictError(f"PATCH {key}", 409, "Conflict", "the object has been modified")
        document = _merged(_document(stored), _document(patch))
        changed: Any = msgspec.json.decode(msgspec.json.encode(document), type=kind)
        if changed == stored:
            return stored  # nothing changes, and so the version does not
        if isinstance(changed, ResourceClaim):
            assert isinstance(stored, ResourceClaim)
            _validate(stored, changed)
            return self._settle_finalizers(changed)
        return self.put(changed)

    def unreserve(self, claim_key: str, claim_uid: str, pod_uid: str) -> None:
        """kube-scheduler's Unreserve: a patch that takes one entry out, guarded by nothing but the UID."""
        stored = self.claims.get(claim_key)
        if stored is None or stored.metadata.uid != claim_uid:
            return
        users = [user for user in stored.status.reserved_for if user.uid != pod_uid]
        if len(users) < len(stored.status.reserved_for):
            self.put(with_status(stored, reserved_for=users))

    def bind(self, key: str, uid: str, node: str) -> bool:
        """POST pods/binding; return whether it was done."""
        pod = self.pods.get(key)
        if pod is None or pod.metadata.uid != uid or pod.spec.node_name or pod.metadata.deletion_timestamp is not None:
            return False
        if pod.spec.scheduling_gates:
            return False
        self.put(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node)))
        return True

    def delete(self, kind: Kind, key: str) -> None:
        """A claim with finalizers, and a pod on a node, only get a deletionTimestamp."""
        item = self.objects(kind)[key]
        waits = bool(item.metadata.finalizers) if isinstance(item, ResourceClaim) else bool(item.spec.node_name)
        if not waits:
            self.remove(kind, key)
        elif item.metadata.deletion_timestamp is None:
            metadata = msgspec.structs.replace(item.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            self.put(msgspec.structs.replace(item, metadata=metadata))

    def remove(self, kind: Kind, key: str) -> None:
        if kind is ResourceClaim:
            del self.claims[key]
        else:
            del self.pods[key]
        self.version += 1
        self.history[kind].append(Change(self.now_s, key, None))

    def _guarded(self, objects: Mapping[str, Stored], item: Stored) -> Stored:
        stored = objects.get(item.key)
        if stored is None:
            raise NotFoundError(f"PUT {item.key}", 404, "NotFound", "not found")
        if (stored.metadata.uid, stored.metadata.resource_version) != (
            item.metadata.uid,
            item.metadata.resource_version,
        ):
            raise ConflictError(f"PUT {item.key}", 409, "Conflict", "the object has been modified")
        return stored

    def _settle_finalizers(self, claim: ResourceClaim) -> ResourceClaim:
        stored = self.put(claim)
        if stored.metadata.deletion_timestamp is not None and not stored.metadata.finalizers:
            self.remove(ResourceClaim, stored.key)
        return stored

    def put(self, item: Stored) -> Stored:
        """Store an object as it is, with the next version."""
        self.version += 1
        metadata = msgspec.structs.replace(item.metadata, resource_version=str(self.version))
        stored = msgspec.structs.replace(item, metadata=metadata)
        if isinstance(stored, Pod):
            self.pods[stored.key] = stored
        else:
            self.claims[stored.key] = stored
        self.history[Pod if isinstance(stored, Pod) else ResourceClaim].append(Change(self.now_s, stored.key, stored))
        self.shown[metadata.uid, metadata.resource_version] = stored
        return stored


def with_status(claim: ResourceClaim, **fields: Any) -> ResourceClaim:
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, **fields))


def reference(pod: Pod) -> ConsumerReference:
    return ConsumerReference("pods", pod.metadata.name, pod.metadata.uid)


def owner_uid(claim: ResourceClaim) -> str | None:
    """Return the UID of the pod that a claim was made for; None: it was made for none."""
    return next((owner.uid for owner in claim.metadata.owner_references if owner.controller), None)


def is_reserved_for(claim: ResourceClaim, pod: Pod) -> bool:
    return any(user.uid == pod.metadata.uid for user in claim.status.reserved_for)


def _validate(old: ResourceClaim, new: ResourceClaim) -> None:
    """What kube-apiserver checks of a claim's status (pkg/apis/resource/validation)."""
    before, after = old.status, new.status
    added = {user.uid for user in after.reserved_for} - {user.uid for user in before.reserved_for}
    is_going = old.metadata.deletion_timestamp is not None
    wrong = ""
    if after.reserved_for and after.allocation is None:
        wrong = "status.reservedFor: may not be specified when allocated is not"
    elif len({user.uid for user in after.reserved_for}) < len(after.reserved_for):
        wrong = "status.reservedFor: Duplicate value"
    elif before.allocation is not None and after.allocation is not None and before.allocation != after.allocation:
        wrong = "status.allocation: field is immutable"
    elif is_going and (added or (after.allocation is not None and before.allocation is None)):
        wrong = "status: new reservations or allocations are forbidden while it is being deleted"
    elif old.spec != new.spec and _document(old.spec) != _document(new.spec):
        wrong = "spec: field is immutable"
    if wrong:
        raise InvalidError(f"PATCH {old.key}", 422, "Invalid", wrong)


def _document(item: Any) -> Any:
    """Return an object as JSON; opaque parameters are text in it."""
    return msgspec.json.decode(msgspec.json.encode(item))


def _merged(target: Any, patch: Mapping[str, Any]) -> Any:
    """RFC 7396."""
    made = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            made.pop(name, None)
        elif isinstance(value, Mapping):
            made[name] = _merged(made.get(name), value)
        else:
            made[name] = value
    return made
