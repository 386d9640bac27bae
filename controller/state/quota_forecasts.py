"""Finds out whether pods that fit nowhere would exceed their quota if there were room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.request import Refused
from dracaena.controller.state.quotas import LacksRoomToo, PodsOf, Quotas

ASK_AGAIN_S: Final = 60.0
"""How long a forecast is valid while the namespace's holdings stay the same, because nodes and slices change."""


class QuotaForecasts:
    """Part of its owner, and used under the owner's lock.

    What a pod counts against its quota depends on its devices, and a pod that fits nowhere has none. So we ask what it
    would get on the emptiest node that could serve it. The pod then waits because of its quota while the cluster is
    full, too, and no autoscaler adds a node for it.
    """

    def __init__(self, allocator: Allocator, quotas: Quotas, pods_of: PodsOf) -> None:
        self._allocator, self._quotas, self._pods_of = allocator, quotas, pods_of
        self._known: dict[str, dict[bytes, tuple[float, LacksRoomToo | None]]] = {}
        """Namespace → shape → when it was asked, and the answer."""

    def forget(self, namespace: str) -> None:
        """Note that what a namespace holds, or may hold, has changed."""
        self._known.pop(namespace, None)

    def refusal(
        self,
        pod: Pod,
        claims: Sequence[ResourceClaim],
        shape: bytes,
        barred: Mapping[str, str],
        no_fit: NoFit,
        now_s: float,
    ) -> LacksRoomToo | None:
        """Return why a pod that fits nowhere would exceed its quota, given what its namespace holds now; None: it would
        not, or nothing can serve it. The cost is charged to the allocator's effort, which the caller begins.

        Cost: nothing where the namespace may have that many more devices, or where the answer is recent, else that of
        Quotas.node_to_keep().
        """
        namespace = pod.metadata.namespace
        if no_fit.gpus and self._quotas.has_left(namespace, no_fit.gpus, shares=no_fit.amounts):
            return None
        known = self._known.setdefault(namespace, {})
        asked_s, answer = known.get(shape, (-ASK_AGAIN_S, None))
        if now_s - asked_s < ASK_AGAIN_S:
            return answer
        found = self._quotas.node_to_keep(self._allocator, pod, claims, barred, self._pods_of, own_stay=True)
        answer = LacksRoomToo(found.kind, found.text, concerns_us=True) if isinstance(found, Refused) else None
        self._known[namespace] = {s: one for s, one in known.items() if now_s - one[0] < ASK_AGAIN_S}
        self._known[namespace][shape] = now_s, answer
        return answer
