"""The phases of one claim's allocation, and the one table of the events that each phase allows. What an event does to a
claim's record is in claim_record.py."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, unique
from types import MappingProxyType
from typing import Final


@unique
class Phase(Enum):
    """Where the allocation of a claim stands."""

    FREE = "free"
    """The server shows no allocation, and nothing of ours is under way."""
    DECIDED = "decided"
    """Devices are chosen and no other claim gets them; no allocation has been sent yet."""
    WRITING = "writing"
    """A write of the allocation is under way."""
    IN_DOUBT = "in doubt"
    """That write got no answer: it may still land."""
    ALLOCATED = "allocated"
    """The server shows an allocation that is reserved, by any writer."""
    DROPPING = "dropping"
    """The allocation is being taken back: a write that drops the reservation is under way."""
    UNRESERVED = "unreserved"
    """The server shows an allocation without a reservation. A pod may be on its way to a node with it."""
    RESERVING = "reserving"
    """A write is under way that gives a bound pod its reservation back."""
    CLEARING = "clearing"
    """A write that clears the allocation is under way: no pod can be bound with it any more."""
    RESTING = "resting"
    """The allocation was cleared by another client while a pod may be on its way with it: no claim gets the devices
    until that is settled."""
    KEPT = "kept"
    """kube-scheduler cleared the allocation in an attempt that, as far as we can tell, also evicts pods from that node
    for the claim's pod: no other pod gets the devices meanwhile."""
    GONE = "gone"
    """The claim was deleted. The record ends."""


@unique
class RecordEvent(Enum):
    """What happens to the allocation of a claim."""

    # What we do
    DECIDE = "decide"
    ABANDON = "abandon"
    """The decision is dropped before any allocation of it was sent."""
    SEND_ALLOCATION = "send allocation"
    SEND_DROP = "send drop"
    SEND_RESERVATION = "send reservation"
    SEND_CLEARING = "send clearing"

    # What the server answers. The claim in an answer counts as shown, see below
    REFUSED = "refused"
    """The server refused the last write."""
    ANSWERED = "answered"
    """The write succeeded, and a newer state has been shown since."""
    NO_ANSWER = "no answer"

    # What the server shows in a watch, a list, a read, or the answer to a write. Older states are not events.
    SHOWN_FREE = "shown free"
    SHOWN_ALLOCATED = "shown allocated"
    SHOWN_UNRESERVED = "shown unreserved"
    SHOWN_FREED_EARLY = "shown freed early"
    """The allocation is gone while a pod may still be on its way with it."""
    SHOWN_FREED_PREEMPTING = "shown freed preempting"
    """The allocation of a pod that had to wait for pods of lower priority to be evicted is gone."""
    SHOWN_GONE = "shown gone"

    # What follows from the passage of time and from what is known about pods
    EXPIRED = "expired"
    """A write without an answer can no longer land."""
    PROVEN = "proven"
    """No pod can be bound any more with what was freed early."""
    RELEASE = "release"
    """The devices are no longer kept for the claim's pod: nothing is evicted for it, or not in time."""


class NotAllowedError(Exception):
    """An event that the current phase does not allow: a bug in the controller."""

    def __init__(self, phase: Phase, event: RecordEvent) -> None:
        super().__init__(f"event {event.value!r} is not allowed while the claim is {phase.value!r}")
        self.phase = phase
        self.event = event


_P, _E = Phase, RecordEvent
_SHOWN_HOLDING: Final = {_E.SHOWN_ALLOCATED: _P.ALLOCATED, _E.SHOWN_UNRESERVED: _P.UNRESERVED, _E.SHOWN_GONE: _P.GONE}
_SHOWN_FREED: Final = {_E.SHOWN_FREE: _P.FREE, _E.SHOWN_FREED_EARLY: _P.RESTING}

TRANSITIONS: Final[Mapping[Phase, Mapping[RecordEvent, Phase]]] = MappingProxyType(
    {
        _P.FREE: {**_SHOWN_HOLDING, **_SHOWN_FREED, _E.DECIDE: _P.DECIDED},
        _P.DECIDED: {
            **_SHOWN_HOLDING,
            _E.SHOWN_FREE: _P.DECIDED,
            _E.ABANDON: _P.FREE,
            _E.SEND_ALLOCATION: _P.WRITING,
        },
        _P.WRITING: {
            **_SHOWN_HOLDING,
            _E.SHOWN_FREE: _P.WRITING,
            _E.SEND_ALLOCATION: _P.WRITING,
            _E.REFUSED: _P.FREE,
            _E.ANSWERED: _P.FREE,
            _E.NO_ANSWER: _P.IN_DOUBT,
        },
        _P.IN_DOUBT: {**_SHOWN_HOLDING, _E.SHOWN_FREE: _P.FREE, _E.EXPIRED: _P.FREE},
        _P.ALLOCATED: {
            **_SHOWN_HOLDING,
            **_SHOWN_FREED,
            _E.SHOWN_FREED_PREEMPTING: _P.KEPT,
            _E.SEND_DROP: _P.DROPPING,
            _E.SEND_CLEARING: _P.CLEARING,
        },
        _P.DROPPING: {
            **_SHOWN_HOLDING,
            **_SHOWN_FREED,
            _E.REFUSED: _P.ALLOCATED,
            _E.NO_ANSWER: _P.ALLOCATED,
        },
        _P.UNRESERVED: {
            **_SHOWN_HOLDING,
            **_SHOWN_FREED,
            _E.SEND_RESERVATION: _P.RESERVING,
            _E.SEND_CLEARING: _P.CLEARING,
        },
        _P.RESERVING: {
            **_SHOWN_HOLDING,
            **_SHOWN_FREED,
            _E.REFUSED: _P.UNRESERVED,
            _E.NO_ANSWER: _P.UNRESERVED,
        },
        _P.CLEARING: {
            **_SHOWN_HOLDING,
            _E.SHOWN_FREE: _P.FREE,
            _E.REFUSED: _P.UNRESERVED,
            _E.NO_ANSWER: _P.UNRESERVED,
        },
        _P.RESTING: {
            **_SHOWN_HOLDING,
            _E.SHOWN_FREE: _P.FREE,
            _E.SHOWN_FREED_EARLY: _P.RESTING,
            _E.PROVEN: _P.FREE,
        },
        _P.KEPT: {
            **_SHOWN_HOLDING,
            _E.SHOWN_FREE: _P.KEPT,
            _E.DECIDE: _P.DECIDED,
            _E.RELEASE: _P.FREE,
        },
        _P.GONE: {},
    }
)
"""Phase → event → next phase. Any other event is a bug."""

OURS: Final = frozenset({Phase.DECIDED, Phase.WRITING, Phase.IN_DOUBT})
"""Phases in which we hold the devices of a decision that the server does not show yet."""

SHOWN: Final = frozenset({Phase.ALLOCATED, Phase.UNRESERVED})
"""Phases that follow from the server's state alone."""

TENDED: Final = frozenset({Phase.IN_DOUBT, Phase.UNRESERVED, Phase.RESTING})
"""Phases in which a claim needs tending, now or later."""

TENDING: Final = frozenset({Phase.DROPPING, Phase.RESERVING, Phase.CLEARING})
"""Phases in which a write is under way that takes an allocation back or gives a reservation back."""

UNDER_WAY: Final = OURS | {Phase.DROPPING, Phase.CLEARING, Phase.RESTING}
"""Phases in which no decision may use the claim: its next event could invalidate that decision."""
