"""Pods of this node and prepared claims → which container has which GPUs, for podlist.json and for annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dracaena.api.annotations import GrantedDevices, encode_devices, encode_uuids
from dracaena.api.names import ClaimUid, PodUid, devices_annotation, uuids_annotation
from dracaena.api.objects import Container, Pod
from dracaena.api.podclaims import pod_claims
from dracaena.api.podlist import PodlistEntry
from dracaena.kubelet_plugin.prepare.plan import PreparedClaim, PreparedDevice

_FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases in which no container of a pod will ever run again (core/v1 PodPhase)."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one claim gave to one container."""

    claim: ClaimUid
    devices: tuple[PreparedDevice, ...]
    claim_name: str


def grants_of_pod(pod: Pod, prepared: Sequence[PreparedClaim]) -> Mapping[str, tuple[Grant, ...]]:
    """Return the containers of a pod that have GPUs, init containers too, with what they have; sorted by container.

    Devices for admin access are left out: monitoring would count every GPU of the node as its own. A finished pod
    has nothing any more.
    """
    if pod.status.phase in _FINISHED:
        return {}
    claims = claims_of_pod(pod, prepared)
    grants = {}
    for container in sorted((*pod.spec.init_containers, *pod.spec.containers), key=lambda c: c.name):
        given = _grants_of_container(container, claims)
        if given:
            grants[container.name] = given
    return grants


def claims_of_pod(pod: Pod, prepared: Iterable[PreparedClaim]) -> Mapping[str, PreparedClaim]:
    """Return the prepared claims of a pod by the names that its containers use (spec.resourceClaims[].name).

    A name alone is no proof: the claim that is prepared under it may be an old one, of a pod that was deleted without
    kubelet, whose name a new claim has taken since. So a pod has the claim that knows it as a consumer; where several
    do, none is guessed.
    """
    found = {}
    for wanted in pod_claims(pod):
        candidates = [
            p
            for p in prepared
            if (p.claim.namespace, p.claim.name) == (wanted.namespace, wanted.name) and pod.metadata.uid in p.consumers
        ]
        if len(candidates) == 1:
            found[wanted.alias] = candidates[0]
    return found


def unknown_users(pods: Iterable[Pod], prepared: Sequence[PreparedClaim]) -> Mapping[ClaimUid, tuple[PodUid, ...]]:
    """Return the pods that name a prepared claim and are consumer of none of that name, by the UID of that claim.

    They came after the claim was prepared, or they use another claim that took its name: its UID as it is now tells.
    Finished pods are left out.
    """
    unknown: dict[ClaimUid, dict[PodUid, None]] = {}
    for pod in pods:
        if pod.status.phase in _FINISHED:
            continue
        names = {(claim.namespace, claim.name) for claim in pod_claims(pod)}
        named = [p for p in prepared if (p.claim.namespace, p.claim.name) in names]
        settled = {p.claim.name for p in named if pod.metadata.uid in p.consumers}
        for p in named:
            if p.claim.name not in settled:
                unknown.setdefault(p.claim.uid, {})[PodUid(pod.metadata.uid)] = None
    return {uid: tuple(users) for uid, users in unknown.items()}


def with_users(prepared: PreparedClaim, users: frozenset[tuple[ClaimUid, PodUid]]) -> PreparedClaim:
    """Return a prepared claim with the pods as further consumers that are known to use it, sorted."""
    more = {pod for claim, pod in users if claim == prepared.claim.uid}
    return dataclasses.replace(prepared, consumers=tuple(sorted({*prepared.consumers, *more})))


def podlist_entries(pods: Iterable[Pod], prepared: Sequence[PreparedClaim]) -> tuple[PodlistEntry, ...]:
    """Return one entry for each container that has GPUs, sorted."""
    entries = [
        PodlistEntry(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            container=container,
            gpu_list=_uuids(grants),
            uid=pod.metadata.uid,
            claims=tuple(sorted({grant.claim for grant in grants})),
        )
        for pod in pods
        for container, grants in grants_of_pod(pod, prepared).items()
    ]
    return tuple(sorted(entries, key=lambda entry: entry.order))


def pod_annotations(pod: Pod, prepared: Sequence[PreparedClaim], driver: str) -> Mapping[str, str | None]:
    """Return both annotations as they should be; None: it should not be there."""
    grants = grants_of_pod(pod, prepared)
    if not grants:
        return {devices_annotation(driver): None, uuids_annotation(driver): None}
    return {
        devices_annotation(driver): encode_devices({name: _by_request(given) for name, given in grants.items()}),
        uuids_annotation(driver): encode_uuids(uuid for given in grants.values() for uuid in _uuids(given)),
    }


def annotation_changes(pod: Pod, wanted: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Return the annotations that differ from the wanted ones, with their wanted values."""
    return {key: value for key, value in wanted.items() if pod.metadata.annotations.get(key) != value}


def _grants_of_container(container: Container, claims: Mapping[str, PreparedClaim]) -> tuple[Grant, ...]:
    """Return what a container has, in the order in which it names its claims."""
    grants = []
    for use in container.resources.claims:
        claim = claims.get(use.name)
        if claim is None:
            continue
        devices = tuple(
            device for device in claim.devices if not device.admin_access and use.request in ("", device.request_name)
        )
        if devices:
            grants.append(Grant(claim.claim.uid, devices, claim.claim.name))
    return tuple(grants)


def _by_request(grants: Iterable[Grant]) -> tuple[GrantedDevices, ...]:
    """Split grants by request, so that a reader can tell what each request of a claim gave."""
    granted: dict[tuple[str, str], dict[str, None]] = {}
    for grant in grants:
        for device in grant.devices:
            granted.setdefault((grant.claim_name, device.request), {})[device.uuid] = None
    return tuple(GrantedDevices(claim, request, tuple(uuids)) for (claim, request), uuids in granted.items())


def _uuids(grants: Iterable[Grant]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(device.uuid for grant in grants for device in grant.devices))
