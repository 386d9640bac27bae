"""When a cache is fresh: against a slow version that goes through every second, and over sockets."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.objects import Pod
from dracaena.kube.freshness import QUIET_S, STALE_S, Freshness, cache_trouble, unfollowed
from dracaena.kube.reflector import SILENCE_S, Kept, Reflector
from support.clock import FakeClock
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer
from support.scripted_watches import listing, open_watch

EVENTS = ("listed", "opened", "heard", "closed", "rested", "failed")


@dataclass(slots=True)
class Slow:
    """What happened at which second, and freshness found by asking for every second since the start."""

    happened: list[tuple[int, str]]

    def stale_s(self, now: int) -> int:
        return now - max(second for second in range(now + 1) if second == 0 or self.fresh(second))

    def fresh(self, second: int) -> bool:
        before = [(at, what) for at, what in self.happened if at <= second]
        if (second, "listed") in before:
            return True
        spans = [what for at, what in self.happened if at < second and what in ("opened", "rested", "closed")]
        spans += [what for at, what in before if at == second and what in ("opened", "rested")]
        state = spans[-1] if spans else "closed"
        return state == "rested" or (state == "opened" and any(second - QUIET_S <= at for at in self.signs(before)))

    @staticmethod
    def signs(before: list[tuple[int, str]]) -> list[int]:
        """Seconds at which the server showed that it knows us."""
        found = []
        counts = True
        for at, what in before:
            if what in ("listed", "heard") or (what == "opened" and counts):
                found.append(at)
            if what in ("listed", "heard", "opened"):
                counts = what != "opened"
        return found


def play(events: list[tuple[int, str]], made: Callable[[FakeClock], Freshness] = Freshness) -> None:
    """Let things happen to a cache in turn, each some seconds after the one before; what cannot happen is left out."""
    clock = FakeClock()
    freshness, slow = made(clock), Slow([])
    is_open = False
    for wait_s, what in events:
        for part_s in (wait_s // 2, wait_s - wait_s // 2):
            clock.advance(part_s)
            now = int(clock.monotonic())
            assert freshness.stale_s == slow.stale_s(now), (slow.happened, now)
        possible = {"opened": not is_open, "rested": not is_open, "listed": not is_open, "heard": is_open}
        if what == "failed" or not possible.get(what, is_open):
            continue
        if what == "heard" and slow.happened[-1][1] == "rested":
            continue
        getattr(freshness, what)()
        slow.happened.append((int(clock.monotonic()), what))
        is_open = what in ("opened", "rested", "heard")


HISTORIES = st.lists(st.tuples(st.sampled_from((1, 2, 29, 31, 59, 61, 90)), st.sampled_from(EVENTS)), max_size=12)


@settings(derandomize=True)
@given(events=HISTORIES)
def test_it_is_fresh_when_the_slow_version_says_so(events: list[tuple[int, str]]) -> None:
    play(events)


class OpeningIsEnough(Freshness):
    def opened(self) -> None:
        self._opening_counts = True
        super().opened()


class ClosingIsForgotten(Freshness):
    def closed(self) -> None:
        pass


@pytest.mark.parametrize("blunder", [OpeningIsEnough, ClosingIsForgotten])
def test_a_weaker_rule_is_found_out(blunder: type[Freshness]) -> None:
    with pytest.raises(AssertionError):
        play_many(500, blunder)


def play_many(count: int, made: type[Freshness]) -> None:
    rng = random.Random(1)
    for _ in range(count):
        play([(rng.choice((1, 31, 61, 90)), rng.choice(EVENTS)) for _ in range(12)], made)


def test_a_silent_watch_is_given_up_before_its_cache_is_stale() -> None:
    assert QUIET_S < SILENCE_S < QUIET_S + STALE_S


def test_an_open_watch_without_a_word_for_a_minute_is_well_and_one_that_is_never_heard_is_not() -> None:
    clock = FakeClock()
    freshness = Freshness(clock)
    freshness.listed()
    freshness.opened()
    clock.advance(60)
    assert freshness.stale_s == 0
    clock.advance(30)
    freshness.closed()
    assert freshness.stale_s == 30
    freshness.opened()
    for _ in range(3):
        freshness.closed()
        freshness.opened()
        clock.advance(90)
    assert freshness.stale_s >= 3 * 90 - 60


@dataclass(frozen=True, slots=True)
class Told:
    resource: str
    synced: bool = True
    stale_s: float = 0.0
    last_error: str | None = None
    followed: bool = True


def test_trouble_names_the_cache_that_is_worst_and_those_beside_it() -> None:
    well, gone = Told("nodes", stale_s=29.9, last_error="x"), Told("pods", stale_s=31, last_error="GET pods: 503")
    worse = Told("resourceslices", stale_s=45.4, last_error="GET slices: 500")
    assert cache_trouble([well]) is None
    assert cache_trouble([well, gone]) == "the cache of pods has not been fresh for 31 s: GET pods: 503"
    assert cache_trouble([gone, worse, worse]) == (
        "the cache of resourceslices has not been fresh for 45 s (nor are pods): GET slices: 500"
    )
    never = Told("resourceclaims", synced=False)
    assert cache_trouble([worse, never]) == (
        "the first list of resourceclaims is not complete (nor are resourceslices): no answer from the API server yet"
    )


def test_a_cache_that_is_not_watched_is_named_with_its_last_error() -> None:
    assert unfollowed([Told("nodes"), Told("pods")]) is None
    assert (
        unfollowed([Told("nodes"), Told("pods", followed=False, last_error="403")]) == "pods are not being watched: 403"
    )


def watching(server: ScriptedServer, folder: Path, clock: FakeClock) -> Reflector[Pod]:
    return Reflector(client_for(server.url, folder), Pod, clock=clock, rng=random.Random(1))


def trouble_after(clock: FakeClock, cache: Reflector[Pod], seconds: int) -> str | None:
    for _ in range(seconds):
        clock.advance(1)
    return cache_trouble([cache])


def served(lists: Callable[[Request], None], watches: Callable[[Request], None]) -> ScriptedServer:
    return ScriptedServer(lambda request: (watches if request.watching else lists)(request))


def test_a_watch_that_cannot_be_opened_is_told_after_half_a_minute_with_its_error(tmp_path: Path) -> None:
    clock = FakeClock()

    def refuse(request: Request) -> None:
        request.answer(403, {"reason": "Forbidden", "message": "pods is forbidden"})

    with served(lambda request: request.answer(200, listing(1)), refuse) as server:
        cache = watching(server, tmp_path, clock)
        cache.start()
        try:
            wait_for(lambda: cache.synced and cache.last_error, "a refused watch")
            assert trouble_after(clock, cache, 29) is None
            told = trouble_after(clock, cache, 2)
        finally:
            cache.stop()
    assert told is not None
    assert told.startswith("the cache of pods has not been fresh for 31 s: ")
    assert "pods is forbidden" in told


def test_an_open_watch_that_says_nothing_is_well_for_ninety_seconds_and_a_bookmark_makes_it_well_again(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    wave: list[Request] = []
    server_ends = threading.Event()

    def quiet(request: Request) -> None:
        request.begin_stream()
        wave.append(request)
        server_ends.wait(10)

    with served(lambda request: request.answer(200, listing(1)), quiet) as server:
        cache = watching(server, tmp_path, clock)
        cache.start()
        try:
            wait_for(lambda: wave and cache.followed, "an open watch")
            assert trouble_after(clock, cache, 60) is None
            assert cache.stale_s == 0
            assert trouble_after(clock, cache, 29) is None
            assert "has not been fresh for 30 s" in (trouble_after(clock, cache, 1) or "")
            wave[0].send_event("BOOKMARK", {"metadata": {"resourceVersion": "2"}})
            wait_for(lambda: cache.stale_s == 0, "a bookmark")
            assert cache_trouble([cache]) is None
        finally:
            server_ends.set()
            cache.stop()


def test_a_list_that_cannot_be_taken_in_leaves_the_cache_unready_with_the_fault(tmp_path: Path) -> None:
    clock = FakeClock()

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    document = {"metadata": {"name": "p", "namespace": "ns", "resourceVersion": "1", "uid": "u"}}
    with served(lambda request: request.answer(200, listing(1, document)), open_watch()) as server:
        cache = Reflector(client_for(server.url, tmp_path), Pod, clock=clock, on_change=fail, set_aside=fail)
        cache.start()
        try:
            wait_for(lambda: cache.last_error, "the fault")
            assert cache_trouble([cache]) == "the first list of pods is not complete: ZeroDivisionError: a bug"
            assert trouble_after(clock, cache, 40) is not None
        finally:
            cache.stop()


def test_a_kind_that_is_not_served_is_no_trouble(tmp_path: Path) -> None:
    class Older(Pod, frozen=True):
        pass

    clock = FakeClock()

    def nothing(request: Request) -> None:
        request.answer(404, {"reason": "NotFound", "message": "the server could not find the requested resource"})

    kept: Kept[Pod] = Kept(older=(Older,))
    with served(nothing, open_watch()) as server:
        cache = Reflector(client_for(server.url, tmp_path), Pod, clock=clock, rng=random.Random(1), kept=kept)
        cache.start()
        try:
            wait_for(lambda: cache.synced and cache.followed, "the first look, and the rest after it")
            assert trouble_after(clock, cache, 200) is None
        finally:
            cache.stop()
