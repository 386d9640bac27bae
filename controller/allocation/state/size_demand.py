"""How many GPUs pods ask for at once, as prices need it (docs/design/choice-of-node.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from dracaena.controller.allocation.score.order import GROUP_SIZES, PRICE_UNITS

HALF_LIFE_S: Final = 3_600.0
"""After this time what pods asked for counts half. Jobs take hours; the use of a cluster changes in days."""

NOBODYS_GPUS: Final = 2
"""Added to what is asked for, as if pods of no size asked for them: in an empty cluster no pod loses anything, and the
first pods do not predict the next ones. Few, so that a cluster that fills up learns within minutes."""


class SizeDemand:
    """A slowly decaying record of how many GPUs pods of each size have and wait for. Part of its owner.

    The first look counts as if it had always been so: after a restart the record begins with the existing pods.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}
        self._demanded = dict.fromkeys((*GROUP_SIZES, 1), 0.0)
        self._seen_s: float | None = None

    def wait(self, key: str, gpus: int) -> None:
        """Note that a pod waits for so many GPUs."""
        self._waiting[key] = gpus

    def leave(self, key: str) -> None:
        """Note that a pod waits no more."""
        self._waiting.pop(key, None)

    def shares(self, held: Mapping[int, int], now_s: float) -> tuple[int, int, int]:
        """Return the shares of GPUs that pods of 8, 4 and 2 GPUs ask for (Prices.shares), after a look at those that
        are held now, by the size of their holder. A pod of another size counts as the next greater one, above 8 as 8.
        Cost: O(pods that wait)."""
        now: Counter[int] = Counter()
        for size, gpus in (*held.items(), *((gpus, gpus) for gpus in self._waiting.values())):
            now[min((group for group in self._demanded if size <= group), default=GROUP_SIZES[0])] += gpus
        kept = 0.0 if self._seen_s is None else 0.5 ** ((now_s - self._seen_s) / HALF_LIFE_S)
        self._seen_s = now_s
        self._demanded = {size: kept * before + (1 - kept) * now[size] for size, before in self._demanded.items()}
        total = sum(self._demanded.values()) + NOBODYS_GPUS
        eights, fours, pairs = (int(PRICE_UNITS * self._demanded[size] / total) for size in GROUP_SIZES)
        return eights, fours, pairs
