"""What one decision costs, counted in steps, and its end when that is too much.

Claims, classes and pods are written by users, and some are expensive: a selector that is evaluated for every device, an
affinity of thousands of terms, constraints that no set of devices meets. Whatever loops over such things charges its
steps here first; who asked for the decision says from time to time whether it may go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Final

LOOK_EVERY_STEPS: Final = 500
"""Between two questions whether to go on. A step is about a microsecond on one core of today; see the costs below."""

NODE_STEPS: Final = 2
"""A node whose kind was looked at before."""

TERM_STEPS: Final = 2
"""A term, a requirement or a toleration of a pod, compared with one node."""

TERM_READING_STEPS: Final = 12
"""A term of a pod that is read, or looked up among the labels of all nodes."""

CLAIM_STEPS: Final = 200
"""A claim of ordinary size that is read."""

KNOWN_CLAIM_STEPS: Final = 20
"""A claim whose spec was read before: a digest of its text, and a place in the question."""

DEVICE_STEPS: Final = 40
"""A device of a node that is read for the rules: attributes, capacities, counters and taints."""

SEARCH_STEPS: Final = 10
"""One look of the search at a device, with its constraints."""

SET_STEPS: Final = 10
"""A set of GPUs that is scored, or a way to deal one out."""

CHARACTER_STEPS: Final = 10
"""A character of a selector that is compiled."""

UNITS_A_STEP: Final = 4
"""Units of Kubernetes' cost model for CEL that are worked off in one step."""

BYTES_A_STEP: Final = 100
"""Bytes of a claim or pod that are written out in one step, to compare it with others."""


class Work(Enum):
    """What steps are spent on; values say it to people."""

    CLAIMS = "reading the claims"
    SELECTOR = "selector"
    NODES = "comparing node selector, affinity and tolerations of the pod with the nodes"
    DEVICES = "looking one by one at nodes that offer more than whole GPUs"
    SEARCH = "the search for devices that hold to all requests, alternatives and constraints"
    SETS = "comparing the sets of GPUs that the requests accept"

    # Members are singletons; Enum's own hash runs Python code, and charges come by the thousand.
    __hash__ = object.__hash__


class OverdueError(Exception):
    """The decision has used up what it may. Caught where it began; what was remembered until then stays."""


def never(_steps: int) -> bool:
    """Whether to stop: never."""
    return False


class Effort:
    """Counts the steps of one decision after the other. One thread at a time."""

    __slots__ = ("_is_over", "_left", "spent")

    def __init__(self) -> None:
        self._is_over: Callable[[int], bool] = never
        self._left = LOOK_EVERY_STEPS
        self.spent: Counter[tuple[Work, str]] = Counter()
        """Steps of this decision by work and, for a selector, its expression."""

    def begin(self, is_over: Callable[[int], bool] = never) -> None:
        """Begin a decision. `is_over` is called with the steps since it was last called, and says whether to stop."""
        self._is_over, self._left = is_over, LOOK_EVERY_STEPS
        self.spent.clear()

    def charge(self, steps: int, work: Work, name: str = "") -> None:
        """Charge steps: before they are done, or once their result is remembered. Raises OverdueError when the decision
        has to stop.
        """
        self.spent[work, name] += steps
        self._left -= steps
        if self._left <= 0:
            since, self._left = LOOK_EVERY_STEPS - self._left, LOOK_EVERY_STEPS
            if self._is_over(since):
                self._left = 0  # whatever goes on regardless is stopped at its next charge
                raise OverdueError

    def heaviest(self) -> tuple[Work, str]:
        """Return what most steps were spent on; of equals the first by name."""
        work, name = min(self.spent, key=lambda key: (-self.spent[key], key[0].name, key[1]))
        return work, name
