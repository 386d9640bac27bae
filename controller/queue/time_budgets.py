"""How much time each pod's decision may take, and when the pods of a namespace that costs much get their turn.
docs/design/queue-and-fairness.md"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from dracaena.controller.allocation.effort import never
from dracaena.controller.queue.work import claim_of_work
from dracaena.process.clock import Clock

DECISION_S: Final = 0.05
"""Time limit of a decision, fifty times an ordinary one. Other pods wait for it that long."""

LONGEST_DECISION_S: Final = 0.15
"""Longest time limit, after several attempts without a decision; by then the pod comes behind all others. Together with
what cannot be stopped halfway, compiling one selector of 10 KiB (0.1 s), it is a quarter of a second."""

SLOW_S: Final = 0.01
"""A decision that takes longer counts as slow: five times the slowest ordinary one."""

ALLOWANCE_S: Final = 0.08
"""Time that a namespace may cost before its pods come behind those of others. It can hold up others at a stretch for
ALLOWANCE_S / (1 - REFILL), which is 0.1 s, plus the decision that exceeds it."""

REFILL: Final = 0.2
"""Seconds of the allowance that come back per second: 400 ordinary decisions, more than are written in a second."""

SLOW_REFILL: Final = ALLOWANCE_S / 60
"""The same for slow work."""

RECOVERED: Final = 0.5
"""Part of the allowance at which a namespace that had used it up is like any other again. Its keys change places then,
so it must not come and go with each decision."""

FIRST_REST_S: Final = 0.2
LONGEST_REST_S: Final = 30.0
"""How long a pod rests after an overdue decision; doubles each time that all nodes were tried without success."""

IDLE: Final = 3
"""After work for a namespace that comes behind others, unless it gave a pod its devices, the next such work waits this
many times as long as it took: all that comes behind others takes a quarter of a processor, and taking in changes from
the watches needs the same lock."""

LEAST_STEPS: Final = 10_000
"""Steps (allocation.effort, about a microsecond each) that work may take whatever the clock says: work that has done
fewer was slowed down by the machine, so it is not heavy, and mostly ends soon."""

LATEST: Final = 3
"""Multiple of the limit after which work is ended even within LEAST_STEPS."""

TURN_S: Final = 0.002
"""Work in turns releases the lock after this long: a few ordinary decisions."""

LONGEST_TURN_S: Final = DECISION_S
"""The most that one node may take: as long as a decision."""

LONGEST_WORK_S: Final = 0.5
"""The most that all turns of one piece of work may take: ten times what the reasons of 10,000 nodes take."""


class Deadline:
    """Starts when the work does, so that waiting for a lock does not count. For one piece of work in one thread."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._began_s: float | None = None
        self._ended_s: float | None = None

    def begin(self) -> Callable[[int], bool]:
        """Start; return a function that takes the steps since its last call and returns whether the time is over.

        The time is over at the limit if LEAST_STEPS were done by then; otherwise once they are done, or at LATEST times
        the limit.
        """
        self._began_s = self._clock.monotonic()
        return _over_after(self._limit_s, self._clock, self._began_s)

    def end(self) -> None:
        """Note that the work is done."""
        self._ended_s = self._clock.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds from begin() to end(), or until now; 0 before."""
        if self._began_s is None:
            return 0.0
        return (self._clock.monotonic() if self._ended_s is None else self._ended_s) - self._began_s


@contextmanager
def within(deadline: Deadline | None) -> Iterator[Callable[[int], bool]]:
    """Begin and end a deadline around work; yield the function that returns whether it is over. None: it never is."""
    if deadline is None:
        yield never
        return
    try:
        yield deadline.begin()
    finally:
        deadline.end()


class TurnDeadline:
    """Splits long work into short turns (allocation.explanation.Pace). For one piece of work in one thread."""

    def __init__(self, clock: Clock, limit_s: float = LONGEST_WORK_S) -> None:
        self._clock = clock
        self._left_s = limit_s
        self._began_s = 0.0
        self._never = threading.Event()

    def begin_turn(self) -> Callable[[int], bool]:
        """Begin a turn; return a function like Deadline.begin() does, for whether one node, or all turns, took too
        long."""
        self._began_s = self._clock.monotonic()
        return _over_after(min(self._left_s, LONGEST_TURN_S), self._clock, self._began_s)

    def turn_is_up(self) -> bool:
        """Return whether others should have a turn."""
        used_s = self._clock.monotonic() - self._began_s
        if used_s < TURN_S:
            return False
        self._left_s -= used_s
        return True

    def rest(self) -> None:
        """Wait for as long as a turn: a thread that takes a lock again at once gets it before the waiting threads."""
        self._clock.sleep_until_set(self._never, TURN_S)


def _over_after(limit_s: float, clock: Clock, began_s: float) -> Callable[[int], bool]:
    done = 0

    def is_over(steps: int) -> bool:
        nonlocal done
        done += steps
        return clock.monotonic() - began_s >= (limit_s if done >= LEAST_STEPS else limit_s * LATEST)

    return is_over


@dataclass(slots=True)
class _Account:
    quick_s: float = 0.0
    slow_s: float = 0.0
    at_s: float = 0.0
    is_used_up: bool = False

    @property
    def used_s(self) -> float:
        return self.quick_s + self.slow_s


class TimeBudgets:
    """What each namespace has cost, and what we know about slow decisions, under a lock of its own. Keys are those of
    the queue: a pod's `namespace/name`, or a claim's work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._overruns: dict[str, int] = {}  # decisions that were overdue
        self._rounds: dict[str, int] = {}  # those after which the next one starts from scratch
        self._accounts: dict[str, _Account] = {}

    def deadline(self, key: str) -> Deadline:
        """Return the time that the next decision for a pod may take."""
        with self._lock:
            tries = self._overruns.get(key, 0)
        return Deadline(self._clock, min(DECISION_S * 2 ** min(tries, 10), LONGEST_DECISION_S))

    def charge(self, key: str, used_s: float, *, gave_devices: bool = False) -> float:
        """Charge work to the namespace of a key, however short it was; return how long all that comes behind others has
        to rest because of it.

        A quick decision that `gave_devices` costs nothing. It ends the pod's wait, and takes its author some requests
        and devices; and if a pod of lower priority came first meanwhile, it would take the devices.
        """
        is_slow = used_s > SLOW_S
        if not used_s or (gave_devices and not is_slow):
            return 0.0
        with self._lock:
            is_behind = self._is_behind_others(key) is not None
            self._charge(_namespace(key), used_s)
        return IDLE * used_s if is_behind else 0.0

    def decided(self, key: str, used_s: float, *, overdue: bool, goes_on: bool = False) -> float:
        """Note how a decision that took so long ended; return how long the pod has to rest.

        A pod whose next attempt `goes_on` where this one stopped rests only briefly: in a large cluster it takes
        several attempts, and each comes behind all others anyway.
        """
        with self._lock:
            if not overdue:
                self._forget(key)
                return 0.0
            self._overruns[key] = self._overruns.get(key, 0) + 1
            if goes_on:
                return FIRST_REST_S
            rounds = self._rounds[key] = self._rounds.get(key, 0) + 1
            return min(FIRST_REST_S * 2.0 ** min(rounds - 1, 20), LONGEST_REST_S)

    def forget(self, key: str) -> None:
        """Forget a pod that is gone or wants no devices."""
        with self._lock:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._overruns.pop(key, None)
        self._rounds.pop(key, None)

    def behind_others(self, key: str) -> str | None:
        """Return the namespace of a pod that comes behind all others, where namespaces take turns; None for other pods.

        A pod is put there when its last decision was overdue, or when its namespace has used up its allowance.
        """
        with self._lock:
            return self._is_behind_others(key)

    def _is_behind_others(self, key: str) -> str | None:
        namespace = _namespace(key)
        if key in self._overruns:
            return namespace
        account = self._accounts.get(namespace)
        if account is None:
            return None
        self._refill(account)
        if account.used_s <= 0:
            del self._accounts[namespace]
        return namespace if account.is_used_up else None

    def _charge(self, namespace: str, used_s: float) -> None:
        account = self._accounts.setdefault(namespace, _Account(at_s=self._clock.monotonic()))
        self._refill(account)
        # The debt is at most twice the allowance: a minute after its last slow work a namespace is like any other.
        most_s = 2 * ALLOWANCE_S - account.used_s
        if used_s > SLOW_S:
            account.slow_s += min(used_s, most_s)
        else:
            account.quick_s += min(used_s, most_s)
        account.is_used_up = account.is_used_up or account.used_s >= ALLOWANCE_S

    def _refill(self, account: _Account) -> None:
        now_s = self._clock.monotonic()
        for_s = now_s - account.at_s
        account.quick_s = max(0.0, account.quick_s - for_s * REFILL)
        account.slow_s = max(0.0, account.slow_s - for_s * SLOW_REFILL)
        account.is_used_up = account.is_used_up and account.used_s > RECOVERED * ALLOWANCE_S
        account.at_s = now_s


def _namespace(key: str) -> str:
    return (claim_of_work(key) or key).partition("/")[0]
