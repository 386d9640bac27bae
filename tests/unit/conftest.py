"""What one unit test changes for the whole process, and no other may see."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterator
from typing import NoReturn

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from structlog.testing import LogCapture
from structlog.typing import EventDict

# A busy machine is no fault of the code: no property test is timed. Those that set no number of examples draw few in
# `make test`, others each time, and more in the two targets that load the other profiles.
settings.register_profile("test", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", settings.get_profile("test"), max_examples=200)
settings.register_profile("long", settings.get_profile("test"), max_examples=1_000)
settings.load_profile("test")

# Hypothesis also draws the constants of whatever local modules are loaded, which differ by worker and with each change
# of the source: a test with a fixed seed then finds something in one run of many. Reading them costs seconds, too.
assert "_get_local_constants" in vars(providers)
vars(providers)["_get_local_constants"] = lambda: providers._local_constants

PLAIN = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
"""The renderer that structlog starts with draws tracebacks with all local variables: up to seconds of CPU for each."""


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands under test configure logging as their programs do; the next test shall see all lines again, but for
    those of threads that an earlier test left: they would stand in what this one reads of its own output."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    others = set(threading.enumerate()) - {threading.current_thread()}

    def without_others(_logger: object, _name: str, line: EventDict) -> EventDict:
        if threading.current_thread() in others:
            raise structlog.DropEvent
        return line

    capture = LogCapture.__call__

    def capture_own(self: LogCapture, logger: object, name: str, line: EventDict) -> NoReturn:
        capture(self, logger, name, without_others(logger, name, line))

    structlog.configure(processors=[without_others, *structlog.get_config()["processors"][:-1], PLAIN])
    monkeypatch.setattr(LogCapture, "__call__", capture_own)  # it takes the place of all processors
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: object) -> list[pytest.Item] | None:
    """Make no items of what `make test` leaves out: there are thousands, and each worker would make all of them."""
    if collector.config.getoption("markexpr") != "not search and not long":
        return None
    marks: list[pytest.Mark] = vars(obj).get("pytestmark", []) if inspect.isfunction(obj) else []
    if any(mark.name in LARGER_TIERS for mark in marks):
        return []
    marks[:] = [_without_larger_tiers(mark) if mark.name == "parametrize" else mark for mark in marks]
    return [] if any(mark.name == "parametrize" and mark.args[1] == [] for mark in marks) else None


LARGER_TIERS = {"search", "long"}
"""Marks of what `make test` leaves out."""


def _without_larger_tiers(mark: pytest.Mark) -> pytest.Mark:
    """Leave out those sets of parameters that are so marked. Where ids are listed, one belongs to each set."""
    names, values, *rest = mark.args
    if "ids" in mark.kwargs and not callable(mark.kwargs["ids"]):
        return mark
    values = [
        one for one in values if not any(getattr(of, "name", "") in LARGER_TIERS for of in getattr(one, "marks", ()))
    ]
    return pytest.mark.parametrize(names, values, *rest, **mark.kwargs).mark
