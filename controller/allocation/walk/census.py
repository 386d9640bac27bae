"""What became of the nodes of a decision, as it was found on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dracaena.api.decision import part_in_words
from dracaena.controller.allocation.score.choices import Choice
from dracaena.controller.allocation.score.order import first_difference, one_number
from dracaena.controller.allocation.walk.answers import Answer

LATER_BY_NAME: Final = "equal, and later by name"


@dataclass(frozen=True, slots=True)
class Census:
    """What became of the nodes of a decision, as it was found on the way: nothing is worked out for it. Each node but
    the winner's is counted once; Walk.census() states for which reason."""

    filtered: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that offer devices of ours."""
    outside: Mapping[str, int] = field(default_factory=dict)
    """Reason → nodes that offer none."""
    behind: tuple[tuple[Answer, int], ...] = ()
    """What nodes that come after the winner have to give → how many give that."""

    def reasons(self, winner: Choice) -> tuple[tuple[str, int], ...]:
        """Return why the nodes other than the winner's were not taken, in words that follow a count; the most first."""
        counts: Counter[str] = Counter({**self.filtered})
        counts.update(self.outside)
        rank, parts = one_number(winner.score.rank()), winner.score.parts()[::-1]
        worse: Counter[int | None] = Counter()
        for answer, count in self.behind:
            worse[first_difference(rank, answer.rank)] += count
        for place, count in worse.items():
            counts[LATER_BY_NAME if place is None else f"worse in {part_in_words(parts[place][0])}"] += count
        return tuple(sorted((+counts).items(), key=lambda reason: (-reason[1], reason[0])))
