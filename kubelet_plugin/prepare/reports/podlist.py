"""Pods of this node and prepared claims → which container has which GPUs, for podlist.json and for annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.annotations import RequestDevices, encode_devices, encode_uuids
from dracaena.api.device_share import DeviceShare
from dracaena.api.names import ClaimUid, PodUid, devices_annotation, uuids_annotation
from dracaena.api.objects import Container, Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.podlist import PodlistEntry
from dracaena.api.quantity import format_bytes
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat, gpu_name

_FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases in which no container of a pod will ever run again (core/v1 PodPhase)."""

_RUNNING = "Running"
"""Phase of a pod whose init containers have all ended, except sidecars (restartPolicy Always)."""

ClaimPlace = tuple[str, str]
"""Namespace and name of a claim, whichever claim that is."""

ClaimsByName = Mapping[ClaimPlace, Sequence[PreparedClaim]]
"""Prepared claims by place, built once so that each pod finds its own without a scan."""

Users = Mapping[ClaimUid, frozenset[PodUid]]
"""Pods that are known to use a claim, by its UID."""


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """What one claim gave to one container."""

    claim: ClaimUid
    devices: tuple[PreparedDevice, ...]
    claim_name: str


DevicesByContainer = Mapping[str, tuple[ContainerDevices, ...]]
"""What the containers of a pod have, by container name; within a container in the order in which it names claims."""


def may_run(pod: Pod) -> bool:
    """Whether containers of a pod may run: it has not ended."""
    return pod.status.phase not in _FINISHED


def runs_on(pod: Pod) -> bool:
    """Whether a pod will keep using its claims: it has neither ended nor been deleted."""
    return may_run(pod) and pod.metadata.deletion_timestamp is None


def has_claims(pod: Pod) -> bool:
    """Whether a pod uses any claims, named ones or one for its extended resources."""
    return bool(pod.spec.resource_claims) or pod.status.extended_resource_claim_status is not None


def same_use(old: Pod, new: Pod) -> bool:
    """Whether two states of a pod give it the same GPUs. Annotations, labels and its version do not matter."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        and old.spec == new.spec
        and old.status == new.status
    )


def claim_names(pod: Pod) -> tuple[str, ...]:
    """Return the names of all ResourceClaims that a pod uses, each in its own namespace."""
    names = [claim.name for claim in pod_claims(pod) if claim.name is not None]
    extended = pod.status.extended_resource_claim_status
    return tuple(dict.fromkeys([*names, *([extended.resource_claim_name] if extended is not None else [])]))


def by_name(prepared: Iterable[PreparedClaim]) -> ClaimsByName:
    """Return prepared claims by namespace and name; the order within one name stays."""
    found: dict[ClaimPlace, list[PreparedClaim]] = {}
    for p in prepared:
        found.setdefault((p.claim.namespace, p.claim.name), []).append(p)
    return found


def devices_by_container(pod: Pod, prepared: ClaimsByName) -> DevicesByContainer:
    """Return the containers of a pod that have GPUs, including init containers, with what they have; sorted by name.

    Devices for admin access are left out: monitoring would count every GPU of the node as the pod's own. A finished pod
    has none.
    """
    if not may_run(pod):
        return {}
    claims = claims_of_pod(pod, prepared)
    extended = _extended_claim(pod, prepared)
    by_container = {}
    for container in sorted((*pod.spec.init_containers, *pod.spec.containers), key=lambda c: c.name):
        given = _claimed_devices(container, claims) + _extended_resource_devices(pod, container, extended)
        if given:
            by_container[container.name] = given
    return by_container


def used_now(pod: Pod, by_container: DevicesByContainer) -> DevicesByContainer:
    """Return the devices of those containers of a pod that use them now: what monitoring counts for a container.

    Readers attribute a GPU to one container, some to the first that names it and some to the last, so containers that
    have ended must be left out, such as init containers (except sidecars) once their pod runs. While one of the pod's
    containers is known to run, those that wait for it are left out as well; before that all are listed, because a
    container shows as running only a moment after it started.
    """
    states = {
        status.name: status.state for status in (*pod.status.init_container_statuses, *pod.status.container_statuses)
    }
    running = {name for name in by_container if name in states and states[name].running is not None}
    ended = {name for name in by_container if name in states and states[name].terminated is not None}
    if pod.status.phase == _RUNNING:
        ended |= {c.name for c in pod.spec.init_containers if c.restart_policy != "Always"}
    return {name: given for name, given in by_container.items() if (name in running if running else name not in ended)}


def claims_of_pod(pod: Pod, prepared: ClaimsByName) -> Mapping[str, PreparedClaim]:
    """Return the prepared claims of a pod by the names that its containers use (spec.resourceClaims[].name).

    A name alone is no proof: the prepared claim may be an old one, of a pod that was deleted without kubelet, and a new
    claim may have taken its name since. So a pod has the claim that knows it as a consumer; if several do, it has none:
    guessing would be wrong.
    """
    named = {wanted.alias: _claim_named(wanted.name, pod, prepared) for wanted in pod_claims(pod)}
    return {alias: claim for alias, claim in named.items() if claim is not None}


def _claim_named(name: str | None, pod: Pod, prepared: ClaimsByName) -> PreparedClaim | None:
    if name is None:
        return None
    found = [p for p in prepared.get((pod.metadata.namespace, name), ()) if pod.metadata.uid in p.consumers]
    return found[0] if len(found) == 1 else None


def _extended_claim(pod: Pod, prepared: ClaimsByName) -> PreparedClaim | None:
    """Return the prepared claim that kube-scheduler made for the extended resources of a pod."""
    status = pod.status.extended_resource_claim_status
    return None if status is None else _claim_named(status.resource_claim_name, pod, prepared)


def unknown_claims(pod: Pod, prepared: ClaimsByName) -> tuple[ClaimUid, ...]:
    """Return the prepared claims that a pod names without being their consumer, unless it consumes one of that name.

    Either the pod came after the claim was prepared, or it uses another claim that took its name: the claim's current
    UID shows which. A finished pod has none.
    """
    if not may_run(pod):
        return ()
    places = dict.fromkeys((claim.namespace, claim.name) for claim in pod_claims(pod) if claim.name is not None)
    named = [p for place in places for p in prepared.get(place, ())]
    settled = {p.claim.name for p in named if pod.metadata.uid in p.consumers}
    return tuple(p.claim.uid for p in named if p.claim.name not in settled)


def with_users(prepared: PreparedClaim, users: Users) -> PreparedClaim:
    """Return a prepared claim with all pods that are known to use it added to its consumers, sorted."""
    more = users.get(prepared.claim.uid, frozenset()).difference(prepared.consumers)
    if not more:
        return prepared
    return dataclasses.replace(prepared, consumers=tuple(sorted({*prepared.consumers, *more})))


def pod_entries(
    pod: Pod, prepared: ClaimsByName, name_format: GpuNameFormat = GpuNameFormat.UUID
) -> tuple[PodlistEntry, ...]:
    """Return one entry of podlist.json for each container of a pod that uses GPUs now, sorted by container."""
    return tuple(
        PodlistEntry(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            container=container,
            gpu_list=tuple(dict.fromkeys(gpu_name(device, name_format) for device in _devices(given))),
            uid=pod.metadata.uid,
            claims=tuple(sorted({each.claim for each in given})),
            mig=dict(
                sorted((gpu_name(d, name_format), d.parent_uuid) for d in _devices(given) if d.parent_uuid is not None)
            ),
            shares=_shares(_devices(given), name_format),
        )
        for container, given in used_now(pod, devices_by_container(pod, prepared)).items()
    )


def pod_annotations(pod: Pod, prepared: ClaimsByName, driver: str) -> Mapping[str, str | None]:
    """Return both annotations as they should be; None: there should be none."""
    by_container = devices_by_container(pod, prepared)
    if not by_container:
        return {devices_annotation(driver): None, uuids_annotation(driver): None}
    return {
        devices_annotation(driver): encode_devices({name: _by_request(given) for name, given in by_container.items()}),
        uuids_annotation(driver): encode_uuids(uuid for given in by_container.values() for uuid in _uuids(given)),
    }


def annotation_changes(pod: Pod, wanted: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Return the annotations that differ from the wanted ones, with their wanted values."""
    return {key: value for key, value in wanted.items() if pod.metadata.annotations.get(key) != value}


def _claimed_devices(container: Container, claims: Mapping[str, PreparedClaim]) -> tuple[ContainerDevices, ...]:
    """Return what a container has, in the order in which it names its claims."""
    uses = ((claims.get(use.name), use.request) for use in container.resources.claims)
    found = (_devices_of_request(claim, request) for claim, request in uses if claim is not None)
    return tuple(given for given in found if given is not None)


def _extended_resource_devices(
    pod: Pod, container: Container, claim: PreparedClaim | None
) -> tuple[ContainerDevices, ...]:
    """Return what a container has of the claim for extended resources, in the order of its mappings."""
    status = pod.status.extended_resource_claim_status
    if status is None or claim is None:
        return ()
    requests = [m.request_name for m in status.request_mappings if m.container_name == container.name]
    found = (_devices_of_request(claim, request) for request in requests)
    return tuple(given for given in found if given is not None)


def _devices_of_request(claim: PreparedClaim, request: str) -> ContainerDevices | None:
    """Return what one request of a claim gives, or all of them if `request` is empty; None: nothing."""
    known = (d for d in claim.devices if d.uuid)  # a MIG device that was gone before it was seen has no UUID
    devices = tuple(d for d in known if not d.admin_access and request in ("", d.request_name))
    return ContainerDevices(claim.claim.uid, devices, claim.claim.name) if devices else None


def _by_request(given: Iterable[ContainerDevices]) -> tuple[RequestDevices, ...]:
    """Split devices by request, so that readers see what each request of a claim gave."""
    found: dict[tuple[str, str], list[PreparedDevice]] = {}
    for each in given:
        for device in each.devices:
            found.setdefault((each.claim_name, device.request), []).append(device)
    return tuple(
        RequestDevices(claim, request, tuple(dict.fromkeys(d.uuid for d in devices)), _shares(devices))
        for (claim, request), devices in found.items()
    )


def _shares(
    devices: Iterable[PreparedDevice], name_format: GpuNameFormat = GpuNameFormat.UUID
) -> tuple[DeviceShare, ...]:
    """Return the shares among devices, each once: containers may name a claim several times."""
    return tuple(
        dict.fromkeys(
            DeviceShare(
                gpu_name(device, name_format),
                device.share_id,
                "" if device.memory_bytes is None else format_bytes(device.memory_bytes),
                device.cores,
            )
            for device in devices
            if device.share_id is not None
        )
    )


def _uuids(given: Iterable[ContainerDevices]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device.uuid for device in _devices(given)))


def _devices(given: Iterable[ContainerDevices]) -> tuple[PreparedDevice, ...]:
    return tuple(device for each in given for device in each.devices)
