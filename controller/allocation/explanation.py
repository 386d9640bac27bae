"""Why a pod fits on no node, in words that GPU users know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
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
    note: str = ""
    """What applies to all nodes together."""

    def __str__(self) -> str:
        said = f"0/{self.nodes} nodes fit"
        every = "; ".join(
            (*filter(None, (self.never,)), *map(str, self.reasons), *self.unknown, *filter(None, (self.note,)))
        )
        return f"{said}: {every}" if every else said


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why a pod fits nowhere, for people."""

    text: str
    remedies: tuple[str, ...] = ()
    """What would help (allocation.remedies)."""


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
        return Unsatisfied(self._counts.total(), tuple(ordered), never, tuple(unknown) if lasts else (), note)
