"""A plugin of pytest that holds up the threads of our programs, each at random places, as a crowded machine does.

The test itself goes on at full speed. So it looks while something is half done, and finds out whether what it waited
for is really the last thing that it relies on; and what two threads do, they do in orders that are rare otherwise. Only
threads of this process are held up. `make test-held-up SEED=n` runs the integration tests this way.
"""

from __future__ import annotations

import random
import threading
import time
from types import CodeType, FrameType
from typing import Any

import pytest

import dracaena

SOURCES = dracaena.__path__[0]
DEMO = f"{SOURCES}/demo/"
"""The servers that programs talk to are the outside world, with all that they call."""


class _Holding(threading.local):
    """Of one thread: when it is held up next."""

    def __init__(self) -> None:
        self.rng: random.Random | None = None
        self.calls_left = 0
        self.is_outside: bool | None = None


class HeldUpThreads:
    """Sleeps in every `calls`-th call of our functions on average, `longest_s` at most and mostly much less."""

    def __init__(self, seed: int, calls: float, longest_s: float) -> None:
        self._seed = seed
        self._calls = calls
        self._longest_s = longest_s
        self._ours: dict[CodeType, bool] = {}
        self._threads = 0
        self._holding = _Holding()

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """See threading.setprofile()."""
        if event == "call" and self._is_ours(frame.f_code) and not self._is_outside(frame):
            self._pass()

    def _is_ours(self, code: CodeType) -> bool:
        if code not in self._ours:
            file = code.co_filename
            self._ours[code] = file.startswith(SOURCES) and not file.startswith(DEMO)
        return self._ours[code]

    def _is_outside(self, frame: FrameType) -> bool:
        """Whether the thread works for a server of the demo, which its first call of ours shows."""
        mine = self._holding
        if mine.is_outside is None:
            callers: list[str] = []
            caller = frame.f_back
            while caller is not None:
                callers.append(caller.f_code.co_filename)
                caller = caller.f_back
            mine.is_outside = any(file.startswith(DEMO) for file in callers)
        return mine.is_outside

    def _pass(self) -> None:
        mine = self._holding
        if mine.rng is None:
            self._threads += 1
            mine.rng = random.Random(f"{self._seed} {self._threads} {threading.current_thread().name}")
            mine.calls_left = self._draw(mine.rng)
        mine.calls_left -= 1
        if mine.calls_left <= 0:
            mine.calls_left = self._draw(mine.rng)
            time.sleep(self._longest_s * mine.rng.random() ** 3)

    def _draw(self, rng: random.Random) -> int:
        return round(rng.expovariate(1.0 / self._calls))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("held up threads")
    group.addoption("--hold-up", type=int, default=None, metavar="SEED", help="hold up the threads of our programs")
    group.addoption("--hold-up-calls", type=float, default=1000.0, help="one in so many calls is held up")
    group.addoption("--hold-up-longest", type=float, default=0.5, metavar="SECONDS", help="the longest sleep")


def pytest_configure(config: pytest.Config) -> None:
    seed = config.getoption("--hold-up")
    if seed is not None:
        longest_s = config.getoption("--hold-up-longest")
        threading.setprofile(HeldUpThreads(seed, config.getoption("--hold-up-calls"), longest_s))
