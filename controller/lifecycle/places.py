"""Which node unbound pods will go to, according to a claim's record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dracaena.api.objects import ResourceClaim
from dracaena.controller.allocation.nodes.node_selector import NAME_FIELD, read_node_selector
from dracaena.controller.lifecycle.claim_record import ClaimRecord, PodIdentity, users_of
from dracaena.controller.lifecycle.phases import OURS, Phase

NOWHERE: Final[Mapping[PodIdentity, str]] = {}


def expected_places(record: ClaimRecord | None) -> Mapping[PodIdentity, str]:
    """Return the pods that may be bound with a claim's devices, each with the node: the pod of the current decision,
    the one for which the devices are kept, those with a reservation, and those that may still be on their way although
    their reservation is gone."""
    if record is None:
        return NOWHERE
    if record.phase in OURS and record.share is not None:
        return {record.share.pod: record.share.node}
    before = record.rest[0] if record.rest else record.shown
    if record.phase is Phase.KEPT and record.share is not None:
        node = only_node(before)
        return NOWHERE if node is None else {record.share.pod: node}
    places = {doubt.pod: only_node(before) for doubt in record.doubts if doubt.pod is not None}
    places |= dict.fromkeys(users_of(record.shown), only_node(record.shown))
    return {pod: node for pod, node in places.items() if node is not None}


def only_node(claim: ResourceClaim) -> str | None:
    """Return the one node that an allocation is for; None when it names no node or several."""
    if claim.status.allocation is None:
        return None
    for term in read_node_selector(claim.status.allocation.node_selector or {}).terms:
        for rule in term.fields:
            if (rule.key, rule.operator) == (NAME_FIELD, "In"):
                return rule.values[0]
    return None
