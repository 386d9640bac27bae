"""How `dracaena status --watch` keeps to what an API server can bear. As a process: tests/integration."""

from __future__ import annotations

import json
import threading
from typing import Any, NoReturn, cast

import pytest

from dracaena.api.errors import BadInputError
from dracaena.api.mig_layout import ConditionedNode
from dracaena.api.objects import ObjectMeta
from dracaena.cli.status import StatusObjects, Wanted, status_lines
from dracaena.cli.status_watch import GAP_S, await_change, shown_now
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from support.allocation import DRIVER, blocks, machine, pool_slice
from support.clock import FakeClock

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))


class ChangingMeanwhile(FakeClock):
    """While somebody sleeps, objects go on changing."""

    def __init__(self, changed: threading.Event) -> None:
        super().__init__()
        self.changed, self.slept_s = changed, list[float]()

    def sleep_until_set(self, event: threading.Event, timeout_s: float) -> bool:
        self.slept_s.append(timeout_s)
        self.changed.set()
        return event.is_set()


def test_changes_within_a_second_are_shown_together() -> None:
    changed = threading.Event()
    clock = ChangingMeanwhile(changed)
    changed.set()
    await_change(changed, clock)
    assert clock.slept_s == [GAP_S]
    assert not changed.is_set()


@pytest.mark.parametrize("as_json", [False, True])
def test_a_server_that_fails_for_a_moment_does_not_end_it(as_json: bool) -> None:
    class Failing:
        def list(self, *_args: Any, **_options: Any) -> NoReturn:
            raise KubeError("GET /api/v1/events", 503, "Unavailable", "etcd has no leader")

    wanted = Wanted(DRIVER, ("a",), as_json=as_json)
    read = StatusObjects((ConditionedNode(metadata=ObjectMeta(name="a")),), (pool_slice("a", FOUR),), (), (), ())
    (line,) = shown_now(cast(KubeClient, Failing()), wanted, read)
    said = json.loads(line)["error"] if as_json else line
    assert said == "GET /api/v1/events: 503 Unavailable: etcd has no leader"


def test_only_nodes_that_are_there_are_asked_for_their_events() -> None:
    def events_of(name: str) -> NoReturn:
        raise AssertionError(name)

    wanted = Wanted(DRIVER, ("a,involvedObject.name=b",))
    with pytest.raises(BadInputError, match=r"node a,.* does not exist"):
        status_lines(wanted, StatusObjects((), (), (), (), ()), events_of)
