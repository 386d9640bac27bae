"""Which of two claims that hold the same device gives way.

Nothing in the API prevents such pairs: kube-scheduler may allocate a claim that tolerates our taint, or that also asks
for another driver's devices, at the same moment as we do.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Party:
    """One of two claims that have the same device."""

    uid: str
    allocated_at: str
    """allocationTimestamp, or nothing."""
    is_ours: bool
    """Whether the allocation is a decision of ours."""
    is_used: bool
    """Whether a bound pod has it reserved, or several pods do."""


def gives_way(party: Party, rival: Party) -> bool:
    """Return whether a claim gives way to its rival. Exactly one of the two does, unless neither can.

    Only an allocation of ours that no bound pod uses can give way: the containers of a bound pod may be using the
    device. If both can, the later one does.
    """
    if not _can(party):
        return False
    return not _can(rival) or _age(party) > _age(rival)


def _can(party: Party) -> bool:
    return party.is_ours and not party.is_used


def _age(party: Party) -> tuple[str, str]:
    return party.allocated_at, party.uid
