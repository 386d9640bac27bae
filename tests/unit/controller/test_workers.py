"""When workers look for garbage: before they wait for a pod, and never while one decides."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from dracaena.controller import workers
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.controller.workers import Workers
from support.clock import FakeClock


class Deciding:
    """Stands for the reconciler; says when it decides."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen
        self.workers: Workers | None = None

    def plan(self, key: str) -> None:
        self._seen.append(f"begins with {key}")
        assert self.workers is not None
        self.workers.collect_garbage()
        self._seen.append(f"has decided for {key}")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(workers, "collect_between_decisions", lambda: found.append("looks for garbage"))
    return found


def test_garbage_is_looked_for_before_each_pod_and_not_while_it_is_decided_for(seen: list[str]) -> None:
    queue = WorkQueue(FakeClock(), random.Random(1))
    deciding = Deciding(seen)
    deciding.workers = Workers(queue, cast(Any, deciding), cast(Any, None), FakeClock())
    for key in ("default/a", "default/b"):
        queue.add(key)
        taken = deciding.workers.take()
        assert taken is not None
        assert taken[0] == key
        queue.done(key)
    assert seen == [
        "looks for garbage",
        "begins with default/a",
        "has decided for default/a",
        "looks for garbage",
        "begins with default/b",
        "has decided for default/b",
    ]


def test_what_the_watches_leave_is_looked_for_while_nothing_is_decided(seen: list[str]) -> None:
    queue = WorkQueue(FakeClock(), random.Random(1))
    Workers(queue, cast(Any, None), cast(Any, None), FakeClock()).collect_garbage()
    assert seen == ["looks for garbage"]
