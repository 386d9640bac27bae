"""The reflector and kinds that a server has in an older version, or not at all."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from dracaena.api.resource_objects import DeviceTaintRule, DeviceTaintRuleV1Beta2
from dracaena.kube.reflector import UNSERVED_S, Kept, Reflector
from support.clock import FakeClock
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer
from support.scripted_watches import closed_watch, listing, open_watch, tick_until


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def rule(version: int) -> dict[str, Any]:
    meta = {"name": "r", "resourceVersion": str(version), "uid": "u"}
    return {"metadata": meta, "spec": {"taint": {"key": "k"}}}


@contextmanager
def reflecting_rules(server: ScriptedServer, folder: Path, clock: FakeClock) -> Iterator[Reflector[DeviceTaintRule]]:
    client = client_for(server.url, folder)
    kept: Kept[DeviceTaintRule] = Kept(older=(DeviceTaintRuleV1Beta2,))
    cache = Reflector(
        client,
        DeviceTaintRule,
        clock=clock,
        rng=random.Random(1),
        kept=kept,
    )
    cache.start()
    try:
        yield cache
    finally:
        cache.stop()


def test_a_kind_is_read_by_the_first_version_that_is_served(clock: FakeClock, tmp_path: Path) -> None:
    def answer(request: Request) -> None:
        if "/v1beta2/" not in request.path:
            request.answer(404, {"reason": "NotFound", "message": "no such version"})
        elif request.watching:
            open_watch()(request)
        else:
            request.answer(200, listing(10, rule(5)))

    with ScriptedServer(answer) as server, reflecting_rules(server, tmp_path, clock) as cache:
        wait_for(lambda: cache.synced and len(server.watches()) == 1, "the watch of the older version")
        assert [item.key for item in cache.values()] == ["r"]
        paths = [request.path.split("/")[3] for request in server.requests]
    assert paths == ["v1", "v1beta2", "v1beta2"]


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (501, "NotImplemented")])
def test_an_optional_kind_that_is_not_served_has_no_objects(
    clock: FakeClock, tmp_path: Path, status: int, reason: str
) -> None:
    def answer(request: Request) -> None:
        request.answer(status, {"reason": reason, "message": "no such kind"})

    with ScriptedServer(answer) as server:
        client = client_for(server.url, tmp_path)
        cache = Reflector(client, DeviceTaintRule, clock=clock, rng=random.Random(1), kept=Kept(optional=True))
        cache.start()
        try:
            wait_for(lambda: cache.synced, "the empty list")
            assert cache.values() == ()
        finally:
            cache.stop()


def test_a_kind_that_no_version_is_served_of_has_no_objects_and_is_asked_for_rarely(
    clock: FakeClock, tmp_path: Path
) -> None:
    served = threading.Event()

    def answer(request: Request) -> None:
        if not served.is_set() or "/v1/" not in request.path:
            request.answer(404, {"reason": "NotFound", "message": "no such kind"})
        elif request.watching:
            open_watch()(request)
        else:
            request.answer(200, listing(10, rule(5)))

    with ScriptedServer(answer) as server, reflecting_rules(server, tmp_path, clock) as cache:
        wait_for(lambda: cache.synced, "the empty list")
        assert cache.values() == ()
        clock.advance(UNSERVED_S * 0.7)
        served.set()
        asked = len(server.requests)
        assert asked == 2, "each version once"
        tick_until(clock, lambda: bool(cache.values()), "the next look", step_s=UNSERVED_S / 20)
        assert len(server.requests) >= 3


def test_a_kind_that_is_served_no_more_loses_its_objects(clock: FakeClock, tmp_path: Path) -> None:
    gone = threading.Event()

    def answer(request: Request) -> None:
        if gone.is_set():
            request.answer(404, {"reason": "NotFound", "message": "no such kind"})
        elif request.watching:
            gone.set()
            closed_watch()(request)
        else:
            request.answer(200, listing(10, rule(5)))

    with ScriptedServer(answer) as server, reflecting_rules(server, tmp_path, clock) as cache:
        tick_until(clock, lambda: gone.is_set() and cache.synced and cache.values() == (), "the rules to be forgotten")


def test_a_kind_that_we_can_do_without_and_may_not_read_has_no_objects_and_that_is_said_once(
    clock: FakeClock, tmp_path: Path
) -> None:
    allowed, taken_away = threading.Event(), threading.Event()
    listed: list[bool] = []

    def answer(request: Request) -> None:
        if taken_away.is_set() or not allowed.is_set():
            request.answer(403, {"reason": "Forbidden", "message": "no right"})
        elif request.watching:
            closed_watch()(request)
        else:
            request.answer(200, listing(10, rule(5)))

    with ScriptedServer(answer) as server, capture_logs() as logs:
        kept: Kept[DeviceTaintRule] = Kept(on_listed=listed.append, older=(DeviceTaintRuleV1Beta2,))
        client = client_for(server.url, tmp_path)
        cache = Reflector(client, DeviceTaintRule, clock=clock, rng=random.Random(1), kept=kept)
        cache.start()
        try:
            wait_for(lambda: cache.synced, "the empty list")
            assert (cache.values(), len(server.requests)) == ((), 2)
            tick_until(clock, lambda: len(server.requests) > 2, "another look", step_s=UNSERVED_S / 20)
            allowed.set()
            tick_until(clock, lambda: bool(cache.values()), "the right", step_s=UNSERVED_S / 20)
            taken_away.set()
            tick_until(clock, lambda: not cache.values(), "the right to be gone", step_s=UNSERVED_S / 20)
        finally:
            cache.stop()
    assert [entry["event"] for entry in logs].count("may not be read") == 1
    assert [*dict.fromkeys(listed)] == [False, True]
    assert listed[-1] is False


def test_any_other_kind_that_we_may_not_read_is_an_error(clock: FakeClock, tmp_path: Path) -> None:
    def answer(request: Request) -> None:
        request.answer(403, {"reason": "Forbidden", "message": "no right"})

    with ScriptedServer(answer) as server, reflecting_rules(server, tmp_path, clock) as cache:
        wait_for(lambda: cache.last_error is not None, "the error")
        assert not cache.synced
