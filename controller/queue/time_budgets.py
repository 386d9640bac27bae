"""How long each pod's decision may take, and when pods with slow decisions get their turn.
docs/design/0018-deadline.md"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from dracaena.controller.queue.deadline import Deadline
from dracaena.process.clock import Clock

DECISION_S: Final = 0.05
"""Time limit of a decision, fifty times an ordinary one. Other pods wait that long for it."""

LONGEST_DECISION_S: Final = 0.15
"""Longest time limit, after several tries without a decision; by then the pod comes behind all others. With what cannot
be stopped halfway, compiling one selector of 10 KiB (0.1 s), it is a quarter of a second."""

SLOW_S: Final = 0.01
"""A decision that takes longer counts as slow: five times the slowest ordinary one."""

ALLOWANCE_S: Final = 0.1
"""Time that a namespace may spend on slow decisions before its pods come behind those of others. This, and the decision
that exceeds it, is how long it can hold up others at a stretch."""

REFILL: Final = ALLOWANCE_S / 60
"""Seconds of the allowance that come back per second."""

FIRST_REST_S: Final = 0.2
LONGEST_REST_S: Final = 30.0
"""How long a pod rests after an overdue decision; doubled each time that all nodes were tried in vain."""

IDLE: Final = 3
"""After a decision for a pod that comes behind others, the next such decision waits this many times as long as that one
took: changes from the watches have to be taken in, which needs the same lock."""


@dataclass(slots=True)
class _Account:
    used_s: float = 0.0
    at_s: float = 0.0


class TimeBudgets:
    """What is known about slow decisions, under a lock of its own. Keys are `namespace/name`."""

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

    def decided(self, key: str, used_s: float, *, overdue: bool, goes_on: bool = False) -> float:
        """Note how long a decision took; return how long the pod has to rest.

        A pod whose next try `goes_on` where this one stopped rests only briefly: in a large cluster it takes several
        tries, and each comes behind all others anyway.
        """
        with self._lock:
            if used_s > SLOW_S:
                self._charge(_namespace(key), used_s)
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

        A pod comes there when its last decision was overdue, or when its namespace has used up its allowance.
        """
        namespace = _namespace(key)
        with self._lock:
            if key in self._overruns:
                return namespace
            account = self._accounts.get(namespace)
            if account is None:
                return None
            self._refill(account)
            if account.used_s <= 0:
                del self._accounts[namespace]
            return namespace if account.used_s >= ALLOWANCE_S else None

    def _charge(self, namespace: str, used_s: float) -> None:
        account = self._accounts.setdefault(namespace, _Account())
        self._refill(account)
        # The debt is at most twice the allowance: a minute after its last slow decision a namespace is like any other.
        account.used_s = min(account.used_s + used_s, 2 * ALLOWANCE_S)

    def _refill(self, account: _Account) -> None:
        now_s = self._clock.monotonic()
        account.used_s = max(0.0, account.used_s - (now_s - account.at_s) * REFILL)
        account.at_s = now_s


def _namespace(key: str) -> str:
    return key.partition("/")[0]
