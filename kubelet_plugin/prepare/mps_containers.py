"""Finds containers that would have two shares by MPS: a container has one pipe folder, so one server."""

from __future__ import annotations

from collections.abc import Iterable

from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.podlist import by_name, devices_by_container


def crowded_container(plan: PreparedClaim, others: Iterable[PreparedClaim], pods: Iterable[Pod]) -> str | None:
    """Return why a claim cannot be prepared beside those that its pods have already, None if it can.

    `pods` are its consumers, as far as they are known.
    """
    claims = [plan, *(other for other in others if other.claim.uid != plan.claim.uid)]
    by_mps = {
        (claim.claim.uid, effect.device, effect.share_id)
        for claim in claims
        for effect in claim.effects
        if effect.kind == MPS_SHARE
    }
    if not any(uid == plan.claim.uid for uid, _, _ in by_mps):
        return None
    places = by_name(claims)
    for pod in pods:
        for container, given in devices_by_container(pod, places).items():
            shares = dict.fromkeys(
                (each.claim, device.device, device.share_id)
                for each in given
                for device in each.devices
                if (each.claim, device.device, device.share_id) in by_mps
            )
            if len(shares) > 1:
                return (
                    f"container {container} of pod {pod.metadata.namespace}/{pod.metadata.name} would have "
                    f"{len(shares)} shares by MPS ({', '.join(device for _, device, _ in shares)}), and MPS serves "
                    "a container through one only: give each share to a container of its own "
                    "(resources.claims[].request)"
                )
    return None
