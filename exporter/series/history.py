"""State between readings: counters that must not decrease, and since when devices are idle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dracaena.exporter.series.owners import Owner

CounterKey = tuple[str, str]
"""UUID and name of a counter."""
IdleKey = tuple[str, Owner]
"""UUID of a device and its owner."""


@dataclass(frozen=True, slots=True)
class CounterState:
    """One counter as last shown."""

    session: int
    shown: float
    below: float | None = None
    """The last value, if it was less than what was shown."""


def next_count(state: CounterState | None, session: int, value: float) -> CounterState:
    """Return the state after a new value of the driver.

    Prometheus takes a counter that decreases for reset, and `rate()` adds its whole value once more. So a single lower
    value is not shown. Two lower values in a row that rise are a real reset. A new session of the driver resets all.
    """
    if state is None or state.session != session or value >= state.shown:
        return CounterState(session, value)
    if state.below is not None and value >= state.below:
        return CounterState(session, value)
    return replace(state, below=value)


def idle_since(before: Mapping[IdleKey, float], busy: Mapping[IdleKey, bool], now_s: float) -> Mapping[IdleKey, float]:
    """Return since when each device has been idle for its owner; now if it is busy, or was not there before.

    Devices without an owner are forgotten.
    """
    return {key: now_s if is_busy else before.get(key, now_s) for key, is_busy in busy.items()}
