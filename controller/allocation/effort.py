"""What bounds a decision: the steps that it may take, where the next attempt goes on, and how many results are kept.

Claims, classes and pods are written by users, and some are expensive: a selector that is evaluated for every device, an
affinity of thousands of terms, constraints that no set of devices meets. Code that loops over such things charges its
steps here first (Effort), and asks its caller from time to time whether the decision may go on. If it may not, the next
attempt begins with the nodes that have not been tried yet (Rounds), and finds what earlier attempts worked out (Memo).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Final, Generic, TypeVar

LOOK_EVERY_STEPS: Final = 500
"""Steps between two questions whether to go on. A step is about a microsecond on today's cores; see the costs below."""

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
"""A set of GPUs that is scored, or a way to divide one."""

CHARACTER_STEPS: Final = 10
"""A character of a selector that is compiled."""

UNITS_A_STEP: Final = 4
"""Units of Kubernetes' cost model for CEL that are evaluated in one step."""

BYTES_A_STEP: Final = 100
"""Bytes of a claim or pod that are serialised in one step, to compare it with others."""


class Work(Enum):
    """What steps are spent on; the values are words for people."""

    CLAIMS = "reading the claims"
    SELECTOR = "selector"
    NODES = "comparing node selector, affinity and tolerations of the pod with the nodes"
    DEVICES = "examining nodes that offer more than whole GPUs one by one"
    SEARCH = "the search for devices that satisfy all requests, alternatives and constraints"
    SETS = "comparing the sets of GPUs that the requests accept"

    # Members are singletons; Enum's own hash runs Python code, and charges come by the thousand.
    __hash__ = object.__hash__


class OverdueError(Exception):
    """The decision has used up its effort. Caught where the decision began; what was remembered until then stays."""


def never(_steps: int) -> bool:
    """Whether to stop: never."""
    return False


def at_most(steps: int, is_over: Callable[[int], bool]) -> Callable[[int], bool]:
    """Return a function like `is_over` that also stops after so many steps."""
    left = steps

    def is_over_or_done(since: int) -> bool:
        nonlocal left
        left -= since
        return left < 0 or is_over(since)

    return is_over_or_done


class Effort:
    """Counts the steps of one decision after another. One thread at a time."""

    __slots__ = ("_left", "is_over", "spent")

    def __init__(self) -> None:
        self.is_over: Callable[[int], bool] = never
        """What begin() was given."""
        self._left = LOOK_EVERY_STEPS
        self.spent: Counter[tuple[Work, str]] = Counter()
        """Steps of this decision by work and, for a selector, its expression."""

    def begin(self, is_over: Callable[[int], bool] = never) -> None:
        """Begin a decision. `is_over` is called with the steps since it was last called, and says whether to stop."""
        self.is_over, self._left = is_over, LOOK_EVERY_STEPS
        self.spent.clear()

    def charge(self, steps: int, work: Work, name: str = "") -> None:
        """Charge steps, before they are done or once their result is remembered. Raises OverdueError when the decision
        has to stop.
        """
        self.spent[work, name] += steps
        self._left -= steps
        if self._left <= 0:
            since, self._left = LOOK_EVERY_STEPS - self._left, LOOK_EVERY_STEPS
            if self.is_over(since):
                self._left = 0  # code that goes on regardless is stopped at its next charge
                raise OverdueError

    def heaviest(self) -> tuple[Work, str]:
        """Return what most steps were spent on; of equal ones, the first by name."""
        work, name = min(self.spent, key=lambda key: (-self.spent[key], key[0].name, key[1]))
        return work, name


MAX_NAMES: Final = 200_000
"""Remembered names of nodes, combinations and pods together: about 15 MB if they are names, 60 MB if each pod has one
combination; beyond that, everything is forgotten. Pods and combinations count because those of a pod that was deleted
after it was overdue stay until then."""


COUNT_EVERY: Final = 256
"""Decisions between two counts of them: an attempt adds some hundred names."""


class Rounds:
    """Nodes that overdue attempts have found unable to serve a pod, by pod and combination of alternatives.

    The next attempt begins with the other nodes. Once a decision completes, nothing is kept for its pod.

    One thread at a time.
    """

    def __init__(self) -> None:
        self._tried: dict[str, dict[int, set[str]]] = {}
        self._calls = 0

    def of(self, pod: str) -> Callable[[int], set[str]]:
        """Return a function from the number of a combination to the nodes that the pod's earlier attempts found unable
        to serve it. Callers add to that set."""
        self._calls += 1
        if self._calls % COUNT_EVERY == 0 and self._count() > MAX_NAMES:
            self._tried.clear()
        combinations = self._tried.setdefault(pod, {})
        return lambda number: combinations.setdefault(number, set())

    def _count(self) -> int:
        return sum(1 + sum(1 + len(names) for names in one.values()) for one in self._tried.values())

    def is_under_way(self, pod: str) -> bool:
        """Whether some nodes were tried without success, and others have yet to be tried."""
        return any(self._tried.get(pod, {}).values())

    def forget(self, pod: str) -> None:
        """Note that the pod's decision is complete."""
        self._tried.pop(pod, None)


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """A table of results of a pure function. It holds at most `size` of them; the least recently used is dropped first.

    One thread at a time.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: object) -> bool:
        """Return whether the result for a key is remembered."""
        return key in self._known

    def items(self) -> tuple[tuple[K, V], ...]:
        """Return what is remembered, the least recently used first."""
        return tuple(self._known.items())

    def values(self) -> tuple[V, ...]:
        """Return the results, in the same order."""
        return tuple(self._known.values())

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """Return the result for a key, computed at the first call."""
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        value = self._known[key] = compute()
        if len(self._known) > self._size:
            self._known.popitem(last=False)
        return value
