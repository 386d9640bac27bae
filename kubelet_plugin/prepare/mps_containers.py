"""Finds containers in which a share by MPS cannot work: a container has one pipe folder, so one server, which has one
GPU, and some of its folders are the supervisor's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from posixpath import normpath

from dracaena.api.names import ClaimUid
from dracaena.api.objects import Container, Pod
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PreparedDevice
from dracaena.kubelet_plugin.prepare.reports.podlist import by_name, devices_by_container

_Given = Mapping[tuple[ClaimUid, PreparedDevice], bool]
"""Devices of a container, each once, in its order → whether it is a share by MPS."""


def unfit_container(
    plan: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod], folders: Collection[str]
) -> str | None:
    """Return why a claim cannot be prepared beside those that its pods have already, None if it can."""
    return next((why for _, why in unfit_pods(plan, others, pods, folders)), None)


def unfit_pods(
    plan: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod], folders: Collection[str]
) -> Iterator[tuple[Pod, str]]:
    """Yield the pods of a claim with a container that cannot use what it gets of it and of the others, and why.

    `pods` are its consumers, as far as they are known; `folders` those that a share's containers see as the supervisor
    wants.
    """
    claims = [plan, *(other for other in others if other.claim.uid != plan.claim.uid)]
    for pod, container, given in _with_shares(plan, claims, pods):
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
    return any(effect.kind == MPS_SHARE for effect in claim.effects)


def _with_shares(
    plan: PreparedClaim, claims: list[PreparedClaim], pods: Iterable[Pod]
) -> Iterator[tuple[Pod, Container, _Given]]:
    """Yield the containers that have something of the plan, and a share by MPS of any claim."""
    by_mps = {
        (claim.claim.uid, effect.device, effect.share_id)
        for claim in claims
        for effect in claim.effects
        if effect.kind == MPS_SHARE
    }
    if not by_mps:
        return
    places = by_name(claims)
    for pod in pods:
        containers = {each.name: each for each in (*pod.spec.init_containers, *pod.spec.containers)}
        for name, parts in devices_by_container(pod, places).items():
            given = {
                (each.claim, device): (each.claim, device.device, device.share_id) in by_mps
                for each in parts
                for device in each.devices
            }
            if any(given.values()) and any(uid == plan.claim.uid for uid, _ in given):
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
