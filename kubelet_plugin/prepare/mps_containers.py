"""Finds containers in which a share by MPS cannot work: a container has one pipe folder, so one server, which has one
GPU, and some of its folders are the supervisor's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from posixpath import normpath

from dracaena.api.names import ClaimUid, DeviceName
from dracaena.api.objects import Container, Pod
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice
from dracaena.kubelet_plugin.prepare.reports.podlist import ClaimsByName, by_name, devices_by_container


@dataclass(frozen=True, slots=True)
class MpsClaims:
    """Prepared claims, indexed once for any number of questions (mps_claims)."""

    shares: frozenset[tuple[ClaimUid, DeviceName, str | None]]
    """Claim, device and shareID of each share by MPS."""
    places: ClaimsByName
    """All claims, also those without such a share."""


_Given = Mapping[tuple[ClaimUid, PreparedDevice], bool]
"""Devices of a container, each once, in its order → whether it is a share by MPS."""


def mps_claims(claims: Sequence[PreparedClaim]) -> MpsClaims:
    """Return the index of claims, each of which is there once."""
    shares = frozenset(
        (claim.claim.uid, effect.device, effect.share_id)
        for claim in claims
        for effect in claim.wants
        if effect.kind == MPS_SHARE
    )
    return MpsClaims(shares, by_name(claims))


def unfit_container(
    plan: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod], folders: Collection[str]
) -> str | None:
    """Return why a claim cannot be prepared beside those that its pods have already, None if it can."""
    uid = plan.claim.uid
    claims = mps_claims([plan, *(other for other in others if other.claim.uid != uid)])
    return next((why for _, why in unfit_pods(uid, claims, pods, folders)), None)


def unfit_pods(
    uid: ClaimUid, claims: MpsClaims, pods: Iterable[Pod], folders: Collection[str]
) -> Iterator[tuple[Pod, str]]:
    """Yield the pods of a claim with a container that cannot use what it gets of it and of the others, and why.

    `claims` includes the claim; `pods` are its consumers, as far as they are known; `folders` those that a share's
    containers see as the supervisor wants. Costs a look at each of these pods, whatever the number of claims.
    """
    for pod, container, given in _with_shares(uid, claims, pods):
        where = f"container {container.name} of pod {pod.metadata.namespace}/{pod.metadata.name}"
        own = next((m.mount_path for m in container.volume_mounts if normpath(m.mount_path) in folders), None)
        if len(given) > 1:
            yield pod, f"{where} {_crowded(given)}"
        elif own is not None:
            why = (
                f"{where} mounts a volume of its own at {own}, where a share by MPS on this node needs the folder of "
                "its GPU's server: leave out that volume mount"
            )
            yield pod, why


def has_share_by_mps(claim: PreparedClaim) -> bool:
    """Whether a claim has a share by MPS."""
    return any(effect.kind == MPS_SHARE for effect in claim.wants)


def _with_shares(uid: ClaimUid, claims: MpsClaims, pods: Iterable[Pod]) -> Iterator[tuple[Pod, Container, _Given]]:
    """Yield the containers that have something of a claim, and a share by MPS of any claim."""
    if not claims.shares:
        return
    for pod in pods:
        containers = {each.name: each for each in (*pod.spec.init_containers, *pod.spec.containers)}
        for name, parts in devices_by_container(pod, claims.places).items():
            given = {
                (each.claim, device): (each.claim, device.device, device.share_id) in claims.shares
                for each in parts
                for device in each.devices
            }
            if any(given.values()) and any(of == uid for of, _ in given):
                yield pod, containers[name], given


def _crowded(given: _Given) -> str:
    """Return what is wrong with several devices beside a share by MPS, as the rest of a sentence."""
    shares = [device.device for (_, device), is_share in given.items() if is_share]
    if len(shares) > 1:
        return (
            f"would have {len(shares)} shares by MPS ({', '.join(shares)}), and MPS serves a container through one "
            "only: give each share to a container of its own (resources.claims[].request)"
        )
    others = ", ".join(device.device for (_, device), is_share in given.items() if not is_share)
    return (
        f"would have a share by MPS ({shares[0]}) and {others}, and as a client of MPS it sees only the GPU of its "
        "server: give the share to a container of its own (resources.claims[].request)"
    )
