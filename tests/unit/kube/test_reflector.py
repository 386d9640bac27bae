"""The reflector against servers that misbehave in every way that was seen of real ones."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.kube.client import Watch
from dracaena.kube.errors import ApiUnavailableError
from dracaena.kube.freshness import cache_trouble
from dracaena.kube.reflector import Backoff, Kept, Reflector
from dracaena.process.clock import SystemClock
from support.clock import FakeClock, RestingClock
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer
from support.scripted_watches import closed_watch, listing, open_watch, tick_until

Seen = list[tuple[str | None, str | None]]


def pod(name: str, version: int, uid: str = "u") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "resourceVersion": str(version), "uid": uid}}


def label(item: Pod | None) -> str | None:
    return f"{item.metadata.name}@{item.metadata.resource_version}" if item else None


@contextmanager
def reflecting(server: ScriptedServer, folder: Path, clock: FakeClock, seen: Seen) -> Iterator[Reflector[Pod]]:
    reflector = Reflector(
        client_for(server.url, folder),
        Pod,
        clock=clock,
        on_change=lambda old, new: seen.append((label(old), label(new))),
        rng=random.Random(1),
        kept=Kept(field_selector="spec.nodeName=n"),
    )
    reflector.start()
    try:
        yield reflector
    finally:
        reflector.stop()


def rubbish(request: Request) -> None:
    request.begin_stream()
    request.send_bytes(b"<html>\n")
    request.end_stream()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def scripted(lists: list[Any], watches: list[Callable[[Request], None]]) -> ScriptedServer:
    """Serve the given lists and watches in turn; the last of each again and again. A number is an HTTP status."""
    box: list[ScriptedServer] = []
    counts = {"list": 0, "watch": 0}

    def answer(request: Request) -> None:
        if request.watching:
            index = min(counts["watch"], len(watches) - 1)
            counts["watch"] += 1
            watches[index](request)
            return
        document = lists[min(counts["list"], len(lists) - 1)]
        counts["list"] += 1
        if isinstance(document, int):
            request.answer(document, {"reason": "Scripted", "message": "scripted"})
        else:
            request.answer(200, document)

    box.append(ScriptedServer(answer))
    return box[0]


def test_list_then_changes_in_order(clock: FakeClock, tmp_path: Path) -> None:
    seen: Seen = []
    events = open_watch(
        ("ADDED", pod("b", 11)), ("MODIFIED", pod("a", 12)), ("DELETED", pod("b", 13)), ("BOOKMARK", pod("", 14))
    )
    with scripted([listing(10, pod("a", 5))], [events]) as server, reflecting(server, tmp_path, clock, seen) as cache:
        wait_for(lambda: len(seen) == 4, "four changes")
        assert seen == [(None, "a@5"), (None, "b@11"), ("a@5", "a@12"), ("b@11", None)]
        assert [label(item) for item in cache.values()] == ["a@12"]
        assert label(cache.get("ns/a")) == "a@12"
        assert cache.get("ns/b") is None
    assert server.watches()[0].query["resourceVersion"] == "10"
    assert server.watches()[0].query["allowWatchBookmarks"] == "true"
    assert {request.query["fieldSelector"] for request in server.requests} == {"spec.nodeName=n"}


def test_a_list_tells_deletions_first_and_then_what_is_to_come_first(clock: FakeClock, tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    lists = [
        listing(10, pod("c", 5), pod("z", 6)),
        listing(20, pod("a", 11), pod("b", 12), pod("c", 13)),
    ]
    with scripted(lists, [closed_watch(("ERROR", {"code": 410, "message": "too old"})), open_watch()]) as server:
        cache = Reflector(
            client_for(server.url, tmp_path),
            Pod,
            clock=clock,
            on_change=lambda old, new: seen.append(((new or old).metadata.name, new is None)),  # type: ignore[union-attr]
            first=lambda old, new: old is not None and old.metadata.name == new.metadata.name == "c",
        )
        cache.start()
        try:
            tick_until(clock, lambda: len(seen) == 6, "both lists")
        finally:
            cache.stop()
    assert seen[:2] == [("c", False), ("z", False)]
    assert seen[2:] == [("z", True), ("c", False), ("a", False), ("b", False)]


def test_what_is_kept_and_told_is_what_transform_makes_of_each_object(clock: FakeClock, tmp_path: Path) -> None:
    seen: list[tuple[str, ...]] = []

    def labelled(item: Pod) -> Pod:
        metadata = msgspec.structs.replace(item.metadata, labels={"kept": item.metadata.name})
        return msgspec.structs.replace(item, metadata=metadata)

    events = open_watch(("MODIFIED", pod("a", 12)))
    with scripted([listing(10, pod("a", 5))], [events]) as server:
        cache = Reflector(
            client_for(server.url, tmp_path),
            Pod,
            clock=clock,
            on_change=lambda old, new: seen.append(tuple(item.metadata.labels["kept"] for item in (old, new) if item)),
            kept=Kept(transform=labelled),
        )
        cache.start()
        try:
            wait_for(lambda: len(seen) == 2, "two changes")
            assert seen == [("a",), ("a", "a")]
            assert [item.metadata.labels for item in cache.values()] == [{"kept": "a"}]
        finally:
            cache.stop()


def test_what_a_second_list_shows_unchanged_is_in_memory_once(clock: FakeClock, tmp_path: Path) -> None:
    told: list[Pod] = []
    made: list[str] = []

    def noted(item: Pod) -> Pod:
        made.append(label(item) or "")
        return item

    lists = [listing(10, pod("a", 5), pod("b", 6)), listing(20, pod("a", 5), pod("b", 12))]
    with scripted(lists, [closed_watch(("ERROR", {"code": 410, "message": "too old"})), open_watch()]) as server:
        cache = Reflector(
            client_for(server.url, tmp_path),
            Pod,
            clock=clock,
            on_change=lambda old, new: told.append(new) if new is not None else None,
            kept=Kept(transform=noted),
        )
        cache.start()
        try:
            tick_until(clock, lambda: len(told) == 3, "both lists")
            assert cache.get("ns/a") is told[0]
            assert cache.get("ns/b") is told[2]
        finally:
            cache.stop()
    assert made == ["a@5", "b@6", "b@12"]


def test_synced_means_that_all_of_the_list_was_told(clock: FakeClock, tmp_path: Path) -> None:
    seen: Seen = []
    lists = [listing(10, pod("b", 5), pod("a", 6))]
    with scripted(lists, [open_watch()]) as server, reflecting(server, tmp_path, clock, seen) as cache:
        wait_for(lambda: cache.synced, "synced")
        assert seen == [(None, "a@6"), (None, "b@5")]


def test_broken_watch_goes_on_from_the_last_version_without_a_list(clock: FakeClock, tmp_path: Path) -> None:
    seen: Seen = []
    watches = [closed_watch(("ADDED", pod("a", 11)), ("BOOKMARK", pod("", 15))), open_watch(("ADDED", pod("b", 16)))]
    with scripted([listing(10)], watches) as server, reflecting(server, tmp_path, clock, seen):
        wait_for(lambda: len(server.watches()) == 1 and seen, "the first watch")
        tick_until(clock, lambda: len(seen) == 2, "the second watch")
    assert [request.query["resourceVersion"] for request in server.watches()] == ["10", "15"]
    assert len(server.lists()) == 1


def test_a_watch_that_breaks_off_goes_on_from_the_last_version_that_it_showed(clock: FakeClock, tmp_path: Path) -> None:
    def broken_off(request: Request) -> None:
        request.begin_stream()
        request.send_bytes(msgspec.json.encode({"type": "ADDED", "object": pod("a", 11)}) + b"\n<html>\n")
        request.end_stream()

    seen: Seen = []
    watches = [broken_off, open_watch(("ADDED", pod("b", 12)))]
    with scripted([listing(10)], watches) as server, reflecting(server, tmp_path, clock, seen):
        wait_for(lambda: len(server.watches()) == 1 and seen, "the first watch")
        tick_until(clock, lambda: len(seen) == 2, "the second watch")
    assert [request.query["resourceVersion"] for request in server.watches()] == ["10", "11"]
    assert seen == [(None, "a@11"), (None, "b@12")]


def test_expired_version_lists_again_and_finds_what_was_missed(clock: FakeClock, tmp_path: Path) -> None:
    seen: Seen = []
    lists = [listing(10, pod("a", 5), pod("b", 6)), listing(90, pod("b", 50), pod("c", 60))]
    expired = closed_watch(("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}))
    with scripted(lists, [expired, open_watch()]) as server, reflecting(server, tmp_path, clock, seen) as cache:
        tick_until(clock, lambda: len(seen) == 5, "the second list")
        assert seen[2:] == [("a@5", None), ("b@6", "b@50"), (None, "c@60")]
        wait_for(lambda: len(server.watches()) == 2, "a watch from the new list")
        assert [label(item) for item in cache.values()] == ["b@50", "c@60"]
        assert {label(item) for item in cache.snapshot()} == {"b@50", "c@60"}
    assert server.watches()[1].query["resourceVersion"] == "90"


def test_object_recreated_under_its_name_is_told(clock: FakeClock, tmp_path: Path) -> None:
    seen: Seen = []
    lists = [listing(10, pod("a", 5, "first")), listing(20, pod("a", 15, "second"))]
    gone = lambda request: request.answer(410, {"reason": "Expired", "message": "too old"})  # noqa: E731
    with scripted(lists, [gone, open_watch()]) as server, reflecting(server, tmp_path, clock, seen):
        tick_until(clock, lambda: len(seen) == 2, "the second list")
    assert seen == [(None, "a@5"), ("a@5", "a@15")]


def test_last_error_is_the_newest_failure_until_a_list_or_an_event_comes_through(
    clock: FakeClock, tmp_path: Path
) -> None:
    lists = [503, listing(10), listing(20)]
    refused = lambda request: request.answer(500, {"reason": "InternalError", "message": "no watch"})  # noqa: E731
    watches = [refused, open_watch(("BOOKMARK", pod("", 15)))]
    with scripted(lists, watches) as server, reflecting(server, tmp_path, clock, []) as cache:
        wait_for(lambda: cache.last_error is not None, "the refused list")
        assert "503" in (cache.last_error or "")
        tick_until(clock, lambda: "no watch" in (cache.last_error or ""), "the refused watch")
        assert cache.synced
        tick_until(clock, lambda: cache.last_error is None, "the bookmark")


@pytest.mark.parametrize(
    "failure",
    [
        "watch closed at once",
        "watch refused",
        "list refused",
        "error in the watch",
        "rubbish in the watch",
        "rubbish in the list",
    ],
)
def test_failing_server_is_asked_ever_more_rarely(failure: str, tmp_path: Path) -> None:
    """In 60 s of clock a failing server gets a handful of requests, not thousands."""
    clock = RestingClock()
    watch = {
        "watch closed at once": closed_watch(),
        "watch refused": lambda request: request.answer(500, {"reason": "InternalError", "message": "no"}),
        "list refused": open_watch(),
        "error in the watch": closed_watch(("ERROR", {"code": 500, "reason": "InternalError", "message": "no"})),
        "rubbish in the watch": rubbish,
        "rubbish in the list": open_watch(),
    }[failure]
    lists: list[Any] = [{"list refused": 503, "rubbish in the list": b"<html>"}.get(failure, listing(10))]
    with scripted(lists, [watch]) as server, reflecting(server, tmp_path, clock, []):
        for _ in range(60):
            before = len(server.requests)
            clock.advance(1)
            wait_for(lambda: clock.rests, "the reflector, which may be too eager, to rest")
            assert len(server.requests) - before <= 2
        assert 4 <= len(server.requests) <= 16


@pytest.mark.parametrize("what", ["list", "watch"])
def test_a_server_that_asks_to_be_left_alone_is_left_alone_for_so_long(what: str, tmp_path: Path) -> None:
    """The first wait of its own would be below 1.2 s."""
    clock = RestingClock()
    asked = 0

    def answer(request: Request) -> None:
        nonlocal asked
        is_meant = request.watching == (what == "watch")
        asked += is_meant
        if is_meant and asked == 1:
            request.answer(429, b"slow down", {"Retry-After": "20"})
        elif request.watching:
            open_watch(("ADDED", pod("a", 11)))(request)
        else:
            request.answer(200, listing(10))

    seen: Seen = []
    with ScriptedServer(answer) as server, reflecting(server, tmp_path, clock, seen):
        wait_for(lambda: clock.rests, "the rest after the first request")
        assert asked == 1
        began_s = clock.monotonic()
        while not seen and clock.monotonic() - began_s < 60.0:
            clock.advance(1.0)
            wait_for(lambda: seen or clock.rests, "the reflector to rest, or to go on")
        assert seen == [(None, "a@11")]
        assert 20.0 <= clock.monotonic() - began_s <= 25.0


def test_refusal_of_a_watch_that_breaks_off_is_borne(clock: FakeClock, tmp_path: Path) -> None:
    def cut_off(request: Request) -> None:
        request.answer_cut_off(500, b'{"reason": "InternalEr')

    seen: Seen = []
    with scripted([listing(10)], [cut_off, open_watch(("ADDED", pod("a", 11)))]) as server:
        with reflecting(server, tmp_path, clock, seen):
            tick_until(clock, lambda: len(seen) == 1, "the second watch")


def test_object_that_stops_decoding_keeps_its_last_state(clock: FakeClock, tmp_path: Path) -> None:
    """To take it for deleted would free what it holds."""
    seen: Seen = []
    odd = {"metadata": {"name": "a", "namespace": "ns", "resourceVersion": 7}}
    lists = [listing(10, pod("a", 5)), listing(20, odd, pod("b", 15))]
    gone = lambda request: request.answer(410, {"reason": "Expired", "message": "too old"})  # noqa: E731
    with scripted(lists, [gone, open_watch()]) as server, reflecting(server, tmp_path, clock, seen) as cache:
        tick_until(clock, lambda: len(seen) == 2, "the second list")
        assert seen == [(None, "a@5"), (None, "b@15")]
        assert [label(item) for item in cache.values()] == ["a@5", "b@15"]


def test_silent_connection_is_given_up(tmp_path: Path) -> None:
    """A watch whose peer vanished without a word: the read time-out is real, so it is made short here."""
    hang = open_watch()
    with scripted([listing(10)], [hang]) as server:
        client = client_for(server.url, tmp_path)

        def opened() -> Watch[Pod] | None:
            with suppress(ApiUnavailableError):  # the server may take longer than that to begin its answer
                return client.watch(Pod, resource_version="10", timeout_s=300, read_timeout_s=0.2)
            return None

        watch = wait_for(opened, "an open watch")
        with pytest.raises(Exception, match="the stream broke"):
            list(watch)
        watch.close()


@pytest.mark.parametrize("what", ["lists", "watches"])
def test_a_server_that_accepts_and_never_answers_is_given_up_and_asked_again(
    what: str, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time-outs are real: the one that is to pass is made short here, until the server answers again."""
    hangs, short_s, long_s = 3, 0.2, 30.0
    asked = {"lists": 0, "watches": 0}
    end = threading.Event()

    def answer(request: Request) -> None:
        kind = "watches" if request.watching else "lists"
        if request.given_up:  # this server has come too late to it
            return
        asked[kind] += 1
        if kind == what and asked[kind] <= hangs:
            if asked[kind] == hangs:
                wait_at_most(long_s, long_s)
            end.wait(10)
        elif request.watching:
            open_watch(("ADDED", pod("b", 11)))(request)
        else:
            request.answer(200, listing(10, pod("a", 5)))

    def wait_at_most(list_s: float, watch_s: float) -> None:
        """Of each later request."""
        client._transport._read_timeout_s = list_s
        monkeypatch.setattr("dracaena.kube.reflector.SILENCE_S", watch_s)

    seen: Seen = []
    with ScriptedServer(answer) as server:
        client = client_for(server.url, tmp_path)
        wait_at_most(*((short_s, long_s) if what == "lists" else (long_s, short_s)))
        cache = Reflector(client, Pod, clock=clock, on_change=lambda old, new: seen.append((label(old), label(new))))
        cache.start()
        tick_until(clock, lambda: (None, "b@11") in seen, "the watch of the server that answers again")
        assert seen == [(None, "a@5"), (None, "b@11")]
        assert asked[what] == hangs + 1
        assert (asked["lists"] == hangs + 1) if what == "lists" else (1 <= asked["lists"] <= hangs + 1)
        end.set()
        cache.stop()


def test_a_watch_that_tells_nothing_is_no_trouble_as_long_as_all_can_be_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A real server sends no bookmark of a kind of which nothing has happened since it started. The time-out is real,
    and so is the clock, by which the reflector knows that a watch was silent for so long."""
    monkeypatch.setattr("dracaena.kube.reflector.SILENCE_S", 0.2)
    lists = 0

    def answer(request: Request) -> None:
        nonlocal lists
        if request.watching:
            open_watch()(request)
        else:
            lists += 1
            request.answer(200, listing(10, pod("a", 5)))

    with ScriptedServer(answer) as server:
        cache = Reflector(client_for(server.url, tmp_path), Pod, clock=SystemClock())
        cache.start()
        try:
            wait_for(lambda: lists >= 4, "lists, one after each silent watch")
            assert cache.last_error is None
            assert cache_trouble([cache]) is None
        finally:
            cache.stop()


def test_pages_are_one_list_and_a_list_whose_pages_have_expired_begins_again(clock: FakeClock, tmp_path: Path) -> None:
    """Of the half that came nothing is told: what is missing there would count as deleted."""
    seen: Seen = []
    asked: list[str] = []

    def page(token: str, *items: dict[str, Any]) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "30", "continue": token}, "items": list(items)}

    def answer(request: Request) -> None:
        if request.watching:
            open_watch()(request)
            return
        assert int(request.query["limit"]) > 0
        token = request.query.get("continue", "")
        asked.append(token)
        if token == "":
            request.answer(200, page("next", pod("a", len(asked))))
        elif asked.count("next") == 1:
            request.answer(410, {"reason": "Expired", "message": "The provided continue parameter is too old"})
        else:
            request.answer(200, page("", pod("b", 7)))

    with ScriptedServer(answer) as server, reflecting(server, tmp_path, clock, seen) as cache:
        tick_until(clock, lambda: cache.synced, "the second list")
        assert seen == [(None, "a@3"), (None, "b@7")]
        assert asked == ["", "next", "", "next"]
        wait_for(server.watches, "the watch")
        assert server.watches()[0].query["resourceVersion"] == "30"


def test_stop_ends_an_open_watch_at_once(clock: FakeClock, tmp_path: Path) -> None:
    seen: Seen = []
    before = set(threading.enumerate())
    with scripted([listing(10, pod("a", 5))], [open_watch()]) as server:
        with reflecting(server, tmp_path, clock, seen):
            wait_for(server.watches, "an open watch")
        assert seen == [(None, "a@5")]
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "reflector-pods"]


def test_backoff_doubles_to_its_limit_and_starts_again() -> None:
    backoff = Backoff(random.Random(3))
    waits = [backoff.next_s() for _ in range(12)]
    steps = [0.8, 1.6, 3.2, 6.4, 12.8, 25.6] + [30.0] * 6
    assert all(step * 0.5 <= wait <= step * 1.5 for step, wait in zip(steps, waits, strict=True))
    backoff.reset()
    assert backoff.next_s() <= 1.2


def test_a_list_that_is_asked_for_is_made_at_once_although_the_watch_tells_nothing(
    clock: FakeClock, tmp_path: Path
) -> None:
    seen: Seen = []
    lists = [listing(10, pod("a", 5)), listing(20, pod("a", 5), pod("b", 15))]
    with scripted(lists, [open_watch()]) as server, reflecting(server, tmp_path, clock, seen) as cache:
        wait_for(server.watches, "the watch")
        assert cache.wait_listed(0.0)
        cache.begin_list()
        wait_for(lambda: cache.wait_listed(0.0), "the list")
        assert seen == [(None, "a@5"), (None, "b@15")]
        wait_for(lambda: len(server.watches()) == 2, "the next watch")
        assert server.watches()[1].query["resourceVersion"] == "20"


def test_a_list_that_is_asked_for_is_done_only_when_one_that_began_later_has_come(
    clock: FakeClock, tmp_path: Path
) -> None:
    """The list in progress may be older than the question."""
    asked, counted = threading.Event(), threading.Event()
    lists: list[Request] = []

    def answer(request: Request) -> None:
        if request.watching:
            open_watch()(request)
            return
        lists.append(request)
        if len(lists) == 1:
            counted.set()
            asked.wait(10)
            request.answer(200, listing(10))
        elif len(lists) == 2:
            request.answer(500, {"reason": "Scripted", "message": "scripted"})
        else:
            request.answer(200, listing(30, pod("late", 25)))

    seen: Seen = []
    with ScriptedServer(answer) as server, reflecting(server, tmp_path, clock, seen) as cache:
        assert counted.wait(10)
        cache.begin_list()
        asked.set()
        wait_for(lambda: len(lists) >= 2, "the second list")
        assert not cache.wait_listed(0.0)
        tick_until(clock, lambda: cache.wait_listed(0.0), "the third list")
        assert (len(lists), seen) == (3, [(None, "late@25")])
