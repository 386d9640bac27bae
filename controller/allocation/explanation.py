"""Why a pod fits on no node, in words that GPU users know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from dracaena.controller.allocation.effort import never

T = TypeVar("T")

NAMES_SHOWN: Final = 3
"""Nodes named for each reason; the others are only counted."""


class Pace(Protocol):
    """How long working out reasons may keep others waiting."""

    def begin_turn(self) -> Callable[[int], bool]:
        """Begin a turn; return the function that says whether to stop for good, as in Allocator.allocate()."""
        ...

    def turn_is_up(self) -> bool:
        """Return, between two nodes, whether others should have a turn."""
        ...

    def rest(self) -> None:
        """Let others have their turn. The owner of what they share calls this when it is their turn."""
        ...


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Does everything in one turn."""

    is_over: Callable[[int], bool] = never

    def begin_turn(self) -> Callable[[int], bool]:
        """See Pace."""
        return self.is_over

    def turn_is_up(self) -> bool:
        """See Pace."""
        return False

    def rest(self) -> None:
        """See Pace."""


def ended(turns: Generator[None, None, T]) -> T:
    """Do everything that is done in turns, and return what comes out."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            found: T = end.value
            return found


@dataclass(frozen=True, slots=True)
class Reason:
    """Why some nodes do not fit. `text` follows a count: `2 with fewer than 8 free GPUs`."""

    text: str
    count: int
    """Nodes."""
    lasting: bool = field(default=False, kw_only=True)
    """Whether the reason also applies with all of their devices free and untainted."""
    nodes: tuple[str, ...]
    """The first of the nodes by name, at most NAMES_SHOWN."""

    def __str__(self) -> str:
        names = ", ".join(self.nodes) + (", …" if self.count > len(self.nodes) else "")
        return f"{self.count} {self.text} ({names})"


@dataclass(frozen=True, slots=True)
class Unsatisfied:
    """The pod fits on no node now. It may fit later by itself, unless `never` says otherwise."""

    nodes: int
    """How many nodes there are."""
    reasons: tuple[Reason, ...]
    """Each node counts under its first reason; the most frequent reason first."""
    never: str = ""
    """Why no node could serve the pod even with all of the node's devices free, whatever else keeps the pod off it;
    empty if one could, or if that is unknown."""
    unknown: tuple[str, ...] = ()
    """What its claims read from devices that no device has, in words."""
    notes: tuple[str, ...] = ()
    """What applies to all nodes together."""

    def __str__(self) -> str:
        said = f"0/{self.nodes} nodes fit"
        every = "; ".join((*filter(None, (self.never,)), *map(str, self.reasons), *self.unknown, *self.notes))
        return f"{said}: {every}" if every else said


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a pod waits, for people."""

    why: Unsatisfied | str
    """A text where the reason is not about nodes."""
    remedies: tuple[str, ...] = ()
    """What would help (allocation.remedies)."""

    @property
    def text(self) -> str:
        """All of `why` in one line."""
        return str(self.why)

    def with_note(self, note: str) -> Reasons:
        """Return the same with something more to know; an empty note is none."""
        if not note:
            return self
        why = f"{self.why}; {note}" if isinstance(self.why, str) else replace(self.why, notes=(*self.why.notes, note))
        return replace(self, why=why)

    def with_texts(self, changed: Callable[[str], str]) -> Reasons:
        """Return the same with each text of `why` changed; nothing else is new if none has changed."""
        if changed(self.text) == self.text:
            return self
        if isinstance(self.why, str):
            return replace(self, why=changed(self.why))
        why = replace(
            self.why,
            reasons=tuple(replace(reason, text=changed(reason.text)) for reason in self.why.reasons),
            never=changed(self.why.never),
            unknown=tuple(map(changed, self.why.unknown)),
            notes=tuple(map(changed, self.why.notes)),
        )
        return replace(self, why=why)


class ReasonCounts:
    """Counts nodes, which come in the order of their names, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._first: dict[tuple[str, bool], list[str]] = {}

    def add(self, node: str, reason: str, *, lasting: bool = False) -> None:
        """Count a node."""
        key = reason, lasting
        self._counts[key] += 1
        if self._counts[key] <= NAMES_SHOWN:
            self._first.setdefault(key, []).append(node)

    def unsatisfied(
        self, never: str = "", unknown: Sequence[str] = (), note: str = "", *, may_last: bool = False
    ) -> Unsatisfied:
        """Return what was counted. `never` and `unknown` as in Unsatisfied; `unknown` is left out if no reason is
        lasting. `may_last`: whether some reason may be lasting that is not marked so. Cost: the different reasons."""
        reasons = (
            Reason(text, count, tuple(self._first[text, lasting]), lasting=lasting)
            for (text, lasting), count in self._counts.items()
        )
        ordered = sorted(reasons, key=lambda reason: (-reason.count, reason.text))
        lasts = may_last or any(lasting for _, lasting in self._counts)
        notes = (note,) if note else ()
        return Unsatisfied(self._counts.total(), tuple(ordered), never, tuple(unknown) if lasts else (), notes)
