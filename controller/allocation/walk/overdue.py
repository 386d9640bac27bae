"""The answer when a decision took too long: what cost most, and who can make it cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.effort import Work
from dracaena.controller.allocation.request import RefusalKind, Refused, names_selector
from dracaena.controller.allocation.state.inventory import Inventory

MAX_SHOWN: Final = 100
"""Characters of a selector that are shown: a reason has to fit into an Event of 1 KiB."""


def too_long(
    inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim], work: Work, name: str, *, goes_on: bool
) -> Refused:
    """Return the answer to a pod whose decision was stopped, most of whose steps went into this work."""
    waiting = [claim for claim in claims if claim.status.allocation is None]
    what = _what(inventory, pod, waiting, work, name)
    text = (
        f"no decision within the time allowed for one pod; it is tried again after others. Most of it went into {what}"
    )
    return Refused(RefusalKind.TOO_LONG, text, inventory.requests.concerns_us(waiting), goes_on)


def _what(inventory: Inventory, pod: Pod, claims: Sequence[ResourceClaim], work: Work, name: str) -> str:
    keys = ", ".join(claim.key for claim in claims[:3]) + (", …" if len(claims) > 3 else "")
    if work is Work.SELECTOR:
        shown = repr(name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}…")
        return f"selector {shown} of {_owner(inventory, claims, name)}: its author can make it cheaper"
    if work is Work.NODES:
        return f"{work.value}: use fewer terms in pod {pod.key}"
    if work is Work.DEVICES:
        return f"{work.value}, which continues where it stopped; no action is needed"
    return f"{work.value}: simplify claim {keys}"


def _owner(inventory: Inventory, claims: Sequence[ResourceClaim], expression: str) -> str:
    """Return the name of the object that contains a selector."""
    for claim in claims:
        if names_selector(claim.spec, expression):
            return f"claim {claim.key}"
    for name in sorted(inventory.classes):
        if names_selector(inventory.classes[name].spec, expression):
            return f"DeviceClass {name}"
    return "a claim"
