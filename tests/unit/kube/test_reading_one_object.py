"""One object in trouble, whatever it is, costs nothing but itself: it is not read, or nobody can take it in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from dracaena.api.objects import KubeObject, Node, ObjectMeta, Pod
from dracaena.api.resource_objects import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dracaena.kube.client import PAGE_BYTES
from dracaena.kube.errors import KubeError
from dracaena.kube.reading import Reader, Unread
from dracaena.kube.reflector import Kept, Reflector
from support.clock import FakeClock, RestingClock
from support.kube import client_for, wait_for
from support.scripted_server import Request, ScriptedServer
from support.scripted_watches import closed_watch, tick_at_rest_until, tick_until

KINDS: list[type[KubeObject]] = [
    Pod,
    Node,
    ResourceClaim,
    ResourceClaimTemplate,
    DeviceClass,
    ResourceSlice,
    DeviceTaintRule,
]
DEEP = b"[" * 9_000 + b"]" * 9_000


def meta(name: str, version: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "ns", "uid": f"uid-{name}", "resourceVersion": str(version), **more}


def text(name: str, version: int = 1, **more: Any) -> bytes:
    """An object of any kind; each `@` in it is something nested very deeply."""
    return json.dumps({"metadata": meta(name, version), **more}).encode().replace(b'"@"', DEEP)


def claim_text(name: str, version: int = 1, parameters: Any = "@", **more: Any) -> bytes:
    devices = {"requests": [], "config": [{"opaque": {"driver": "d", "parameters": parameters}}]}
    return text(name, version, spec={"devices": devices}, **more)


def page(*items: bytes, version: int = 10) -> bytes:
    return b'{"kind":"List","metadata":{"resourceVersion":"%d"},"items":[%s]}' % (version, b",".join(items))


def event(kind: str, item: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), item)


ODD = {
    "too deep": claim_text("b"),
    "half a surrogate pair": claim_text("b", parameters={"a": "X"}).replace(b"X", rb"\ud800"),
    "no utf-8": claim_text("b", parameters={"a": "X"}).replace(b"X", b"\xff"),
    "a huge number": claim_text("b", parameters={"a": 7}).replace(b"7", b"1e999"),
    "managed fields that are too deep": text("b").replace(b'"ns"', b'"ns","managedFields":[' + DEEP + b"]"),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_what_the_server_takes_in_opaque_fields_is_read(odd: bytes, tmp_path: Path) -> None:
    """Before, one of these in a page or a watch failed the page or the watch, and so the whole kind for ever."""
    a, c = claim_text("a", parameters={}), claim_text("c", parameters={})

    def answer(request: Request) -> None:
        if not request.watching:
            request.answer(200, page(a, odd, c))
            return
        request.begin_stream()
        request.send_bytes(event("ADDED", odd) + event("DELETED", odd) + event("ADDED", c))
        request.end_stream()

    with ScriptedServer(answer) as server:
        client = client_for(server.url, tmp_path)
        listing = client.list(ResourceClaim)
        assert [item.metadata.name for item in listing.items] == ["a", "b", "c"]
        assert (listing.unread, listing.resource_version) == ((), "10")
        watch = client.watch(ResourceClaim, resource_version="10", timeout_s=300, read_timeout_s=30)
        assert [(one.deleted, one.object.key) for one in watch if not hasattr(one, "resource_version")] == [
            (False, "ns/b"),
            (True, "ns/b"),
            (False, "ns/c"),
        ]


def test_an_object_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    broken = text("b", 7, spec="no object at all")
    nameless = b'{"metadata":{"name":5},"spec":"@"}'.replace(b'"@"', DEEP)
    with ScriptedServer(lambda request: request.answer(200, page(text("a"), broken, nameless, text("c")))) as server:
        with capture_logs() as logs:
            listing = client_for(server.url, tmp_path).list(Pod)
    assert [item.metadata.name for item in listing.items] == ["a", "c"]
    first, second = listing.unread
    assert first.key == "ns/b"
    assert (first.metadata.uid, first.metadata.resource_version) == ("uid-b", "7")
    assert "Expected `object`, got `str` - at `$.spec`" in first.reason
    assert second.key == ""
    assert [(entry["object"], entry["event"]) for entry in logs] == [
        ("ns/b", "cannot be read, left out"),
        ("", "cannot be read, left out"),
    ]


@pytest.mark.parametrize("error", [RecursionError("deep"), MemoryError(), KeyError("bug"), RuntimeError("what\never")])
def test_whatever_one_object_raises_is_about_this_one_alone(error: Exception, tmp_path: Path) -> None:
    def keep(pod: Pod) -> Pod:
        if pod.metadata.name == "b":
            raise error
        return pod

    with ScriptedServer(lambda request: request.answer(200, page(text("a"), text("b"), text("c")))) as server:
        listing = client_for(server.url, tmp_path).list(Pod, reader=Reader(keep))
    assert [item.metadata.name for item in listing.items] == ["a", "c"]
    (unread,) = listing.unread
    assert unread.key == "ns/b"
    assert unread.reason.startswith(type(error).__name__)
    assert "\n" not in unread.reason


def test_what_stands_in_is_made_of_name_text_and_reason(tmp_path: Path) -> None:
    def stand_in(metadata: ObjectMeta, whole: bytes, reason: str) -> Pod:
        return Pod(metadata=msgspec.structs.replace(metadata, labels={"text": whole.decode(), "reason": reason}))

    broken = text("b", spec=1)
    with ScriptedServer(lambda request: request.answer(200, page(broken))) as server:
        listing = client_for(server.url, tmp_path).list(Pod, reader=Reader(stand_in=stand_in))
    (unread,) = listing.unread
    assert unread.instead is not None
    assert unread.instead.key == "ns/b"
    assert unread.instead.metadata.labels == {"text": broken.decode(), "reason": unread.reason}


def test_a_stand_in_that_cannot_be_made_fails_the_list_and_names_the_object(tmp_path: Path) -> None:
    def stand_in(metadata: ObjectMeta, whole: bytes, reason: str) -> Pod:
        raise ValueError("no results")

    with ScriptedServer(lambda request: request.answer(200, page(text("a"), text("b", spec=1)))) as server:
        with pytest.raises(KubeError, match="Pod b cannot be read, nor what it holds: no results"):
            client_for(server.url, tmp_path).list(Pod, reader=Reader(stand_in=stand_in))


@pytest.mark.parametrize("metadata", ['{"name":1}', "1", '{"namespace":"ns"}'])
def test_an_object_without_a_name_fails_the_list_where_something_has_to_stand_in(tmp_path: Path, metadata: str) -> None:
    """Left out of the list it would count as deleted, and its devices as free."""
    nameless = b'{"metadata":%s,"spec":1}' % metadata.encode()
    reader = Reader(stand_in=lambda meta, _text, _why: Pod(metadata=meta))
    with ScriptedServer(lambda request: request.answer(200, page(text("a"), nameless))) as server:
        with pytest.raises(KubeError, match="its name cannot be read either"):
            client_for(server.url, tmp_path).list(Pod, reader=reader)
        assert [item.metadata.name for item in client_for(server.url, tmp_path).list(Pod).items] == ["a"]


def test_pages_that_are_too_long_are_asked_for_with_fewer_objects(tmp_path: Path) -> None:
    """In memory is one page, however fat the objects are; small ones come by the hundred."""
    small, fat = text("small"), text("fat", note="x" * (PAGE_BYTES // 40))
    items = [small] * 600 + [fat] * 200 + [small] * 600

    def answer(request: Request) -> None:
        begin, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        more = b',"continue":"%d"' % (begin + limit) if begin + limit < len(items) else b""
        taken = b",".join(items[begin : begin + limit])
        sizes.append((begin, limit, len(taken)))
        request.answer(200, b'{"metadata":{"resourceVersion":"1"%s},"items":[%s]}' % (more, taken))

    sizes: list[tuple[int, int, int]] = []
    with ScriptedServer(answer) as server:
        listing = client_for(server.url, tmp_path).list(Pod)
    assert len(listing.items) == len(items)
    good = {begin: size for begin, _, size in sizes if size <= PAGE_BYTES}
    assert sum(good.values()) >= 200 * len(fat), "no page that was too long was used"
    assert len(sizes) < 40


def test_one_object_that_is_longer_than_a_page_is_read(tmp_path: Path) -> None:
    fat = text("fat", note="x" * (PAGE_BYTES + 10))
    with ScriptedServer(lambda request: request.answer(200, page(fat))) as server:
        listing = client_for(server.url, tmp_path).list(Pod)
    assert [item.key for item in listing.items] == ["ns/fat"]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=3)
            | st.sampled_from(["metadata", "spec", "status", "devices", "config", "opaque", "parameters", "allocation"])
            | st.sampled_from(["data", "managedFields", "labels", "results", "driver", "pool", "items", "object"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(["spec", "status", "data", "parameters", "x"]), json_values, max_size=3),
    st.dictionaries(st.sampled_from(["labels", "managedFields", "uid", "generation", "x"]), json_values, max_size=3),
    st.sampled_from([b"", b'"@"', b'{"a":"\\ud800"}', b'"\xff"', b"1e999", b'"\\u0000"', b"[" * 9_000 + b"]" * 9_000]),
    st.sampled_from(["spec", "status", "metadata", "x"]),
)
def test_any_json_with_a_name_is_an_object_or_a_named_refusal(
    kind: type[KubeObject], fields: dict[str, Any], more: dict[str, Any], odd: bytes, where: str
) -> None:
    document = {"metadata": {**more, "name": "n", "namespace": "ns"}, **fields}
    whole = json.dumps(document).encode()
    if odd:
        whole = whole[:-1] + b',"%s":%s}' % (b"x" if where == "metadata" else where.encode(), odd)
    reader: Reader[Any] = Reader()
    found = reader.read(kind, whole)
    assert isinstance(found, (Unread, kind))
    assert found.key == "ns/n"


# What nobody can take in


@contextmanager
def cache_of(
    answer: Callable[[Request], None], folder: Path, clock: FakeClock, handle: Callable[[Any, Any], None], **more: Any
) -> Iterator[Reflector[Pod]]:
    with ScriptedServer(answer) as server:
        aside = {"set_aside": more.pop("set_aside")} if "set_aside" in more else {}
        cache = Reflector(
            client_for(server.url, folder), Pod, clock=clock, on_change=handle, kept=Kept(**more), **aside
        )
        cache.start()
        try:
            yield cache
        finally:
            cache.stop()


def label(item: Pod | None) -> str | None:
    return None if item is None else f"{item.metadata.name}@{item.metadata.resource_version}"


class Handler:
    """Notes what is told, and fails for the objects of one name while it is told to."""

    def __init__(self, failing: str = "b") -> None:
        self.failing = failing
        self.tried: list[tuple[str | None, str | None]] = []
        self.told: list[tuple[str | None, str | None]] = []

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        change = (label(old), label(new))
        self.tried.append(change)
        if self.failing and (new or old).metadata.name == self.failing:  # type: ignore[union-attr]
            raise ZeroDivisionError("a bug")
        self.told.append(change)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def lists_then(first: bytes, *events: bytes, later: bytes | None = None) -> Callable[[Request], None]:
    """Answer one list and one watch that stays open; with `later` the watch expires and another list comes."""
    count = {"list": 0, "watch": 0}

    def answer(request: Request) -> None:
        if not request.watching:
            count["list"] += 1
            request.answer(200, first if count["list"] == 1 or later is None else later)
            return
        count["watch"] += 1
        if later is not None and count["watch"] == 1:
            closed_watch(("ERROR", {"code": 410, "message": "too old"}))(request)
            return
        request.begin_stream()
        request.send_bytes(b"".join(events) or event("BOOKMARK", text("", 11)))
        request.wait()

    return answer


def test_a_change_that_fails_is_told_again_ever_more_rarely_while_all_else_goes_on(tmp_path: Path) -> None:
    clock, handler = RestingClock(), Handler()
    answer = lists_then(page(text("a"), text("b"), text("c")), event("ADDED", text("d", 11)))
    aside: list[str | None] = []
    with cache_of(answer, tmp_path, clock, handler, set_aside=lambda item: aside.append(label(item))) as cache:
        wait_for(lambda: (None, "d@11") in handler.told, "the watch, although b was not taken in")
        assert cache.synced
        assert cache.last_error is None
        assert handler.told == [(None, "a@1"), (None, "c@1"), (None, "d@11")]
        assert cache.troubles() == {"ns/b": "ZeroDivisionError: a bug"}
        assert aside == ["b@1"], "told before all else goes on, and once"
        for tries in (2, 3, 4, 5):
            tick_at_rest_until(clock, lambda tries=tries: handler.tried.count((None, "b@1")) == tries, "the next try")  # type: ignore[misc]
        assert 14 <= clock.monotonic() <= 40, "after waits of 1, 2, 4, 8 s"
        handler.failing = ""
        tick_until(clock, lambda: (None, "b@1") in handler.told, "the try that goes well")
        assert cache.troubles() == {}
        assert [label(item) for item in cache.values()] == ["a@1", "b@1", "c@1", "d@11"]


def test_a_change_that_failed_is_part_of_the_next_one_of_its_object(clock: FakeClock, tmp_path: Path) -> None:
    handler = Handler("")
    go = lists_then(
        page(text("b", 1)),
        event("MODIFIED", text("b", 11)),
        event("MODIFIED", text("b", 12)),
        event("ADDED", text("z", 13)),
    )

    def handle(old: Pod | None, new: Pod | None) -> None:
        handler.failing = "b" if label(new) == "b@11" else ""
        handler(old, new)

    with cache_of(go, tmp_path, clock, handle) as cache:
        wait_for(lambda: (None, "z@13") in handler.told, "the watch")
        assert handler.told == [(None, "b@1"), ("b@1", "b@12"), (None, "z@13")]
        assert cache.troubles() == {}


def test_a_deletion_that_fails_is_told_again(clock: FakeClock, tmp_path: Path) -> None:
    handler = Handler("")
    with cache_of(
        lists_then(page(text("a"), text("b")), event("DELETED", text("b", 11))), tmp_path, clock, handler
    ) as cache:
        wait_for(lambda: cache.synced, "the list")
        handler.failing = "b"
        wait_for(lambda: ("b@1", None) in handler.tried or ("b@1", None) in handler.told, "the deletion")
        handler.failing = ""
        tick_until(clock, lambda: ("b@1", None) in handler.told, "the deletion once more")
        assert [label(item) for item in cache.values()] == ["a@1"]


def test_an_object_that_was_only_set_aside_is_told_to_be_gone(clock: FakeClock, tmp_path: Path) -> None:
    """Whoever took note of it when it was set aside has to forget it."""

    handler = Handler()

    def handle(old: Pod | None, new: Pod | None) -> None:
        handler.failing = "b" if new is not None else ""
        handler(old, new)

    answer = lists_then(page(text("a"), text("b")), later=page(text("a")))
    with cache_of(answer, tmp_path, clock, handle) as cache:
        tick_until(clock, lambda: ("b@1", None) in handler.told, "the list without it")
        assert cache.troubles() == {}


def test_what_cannot_even_be_set_aside_fails_the_list(clock: FakeClock, tmp_path: Path) -> None:
    def set_aside(item: Pod) -> None:
        raise ValueError("what it holds is not known")

    answer = lists_then(page(text("a"), text("b")))
    with cache_of(answer, tmp_path, clock, Handler(), set_aside=set_aside) as cache:
        tick_until(clock, lambda: cache.last_error is not None, "the failure")
        assert cache.last_error == "ValueError: what it holds is not known"
        assert not cache.synced


def stood_in(metadata: ObjectMeta, whole: bytes, reason: str) -> Pod:
    return Pod(metadata=msgspec.structs.replace(metadata, labels={"stands in": "yes"}))


def test_a_stand_in_is_told_until_the_object_can_be_read_also_at_the_same_version(
    clock: FakeClock, tmp_path: Path
) -> None:
    """Memory may have been short for a moment: nothing of the object has changed then."""
    fails = {"b": 1}
    seen: list[tuple[str | None, bool]] = []

    def keep(pod: Pod) -> Pod:
        if fails.get(pod.metadata.name, 0):
            fails[pod.metadata.name] -= 1
            raise MemoryError
        return pod

    def handle(old: Pod | None, new: Pod | None) -> None:
        seen.append((label(new), new is not None and bool(new.metadata.labels)))

    answer = lists_then(page(text("a"), text("b")), later=page(text("a"), text("b")))
    with cache_of(answer, tmp_path, clock, handle, transform=keep, stand_in=stood_in) as cache:
        tick_until(clock, lambda: len(seen) == 3, "the second list")
        assert seen == [("a@1", False), ("b@1", True), ("b@1", False)]
        assert cache.troubles() == {}


def test_an_object_that_can_no_longer_be_read_at_the_same_version_stays_as_it_was(
    clock: FakeClock, tmp_path: Path
) -> None:
    reads = {"b": 0}

    def keep(pod: Pod) -> Pod:
        reads["b"] += pod.metadata.name == "b"
        if pod.metadata.name == "b" and reads["b"] == 2:
            raise MemoryError
        return pod

    handler = Handler("")
    answer = lists_then(page(text("b")), event("ADDED", text("z", 20)), later=page(text("b")))
    with cache_of(answer, tmp_path, clock, handler, transform=keep, stand_in=stood_in) as cache:
        tick_until(clock, lambda: (None, "z@20") in handler.told, "the watch after the second list")
        assert handler.told == [(None, "b@1"), (None, "z@20")]
        assert [item.metadata.labels for item in cache.values()] == [{}, {}]


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(("unread_is_gone", "left"), [(False, ["a@1", "b@1"]), (True, ["a@1"])])
def test_what_can_no_longer_be_read_keeps_its_last_state_or_is_gone(
    listed: bool, unread_is_gone: bool, left: list[str], clock: FakeClock, tmp_path: Path
) -> None:
    """To take a claim for deleted would free what it holds; devices of a slice that is not known are not given out."""
    odd = text("b", 15, spec=1)
    handler = Handler("")
    events = [event("MODIFIED", odd), event("ADDED", text("z", 20)), event("DELETED", text("z", 21))]
    later = page(text("a"), odd) if listed else None
    answer = lists_then(page(text("a"), text("b")), *events, later=later)
    with capture_logs() as logs, cache_of(answer, tmp_path, clock, handler, unread_is_gone=unread_is_gone) as cache:
        tick_until(clock, lambda: ("z@20", None) in handler.told, "all events")
        assert [label(item) for item in cache.values()] == left
        assert list(cache.troubles()) == ["ns/b"]
    said = [entry for entry in logs if entry["event"] == "object cannot be read"]
    assert [(entry["object"], entry["version"]) for entry in said] == [("ns/b", "15")], "once for a version"


def test_what_cannot_be_read_and_is_deleted_is_gone(clock: FakeClock, tmp_path: Path) -> None:
    handler = Handler("")
    odd = text("b", 15, spec="@")
    answer = lists_then(page(text("a"), text("b")), event("MODIFIED", odd), event("DELETED", odd))
    with cache_of(answer, tmp_path, clock, handler) as cache:
        wait_for(lambda: ("b@1", None) in handler.told, "the deletion")
        assert cache.troubles() == {}


def test_a_deletion_that_fails_once_is_told_although_the_object_never_was(tmp_path: Path) -> None:
    """What set_aside() holds for an object that could not be told has to be given back when the object is gone."""
    clock, told, fails, held = FakeClock(), [], [True, True], set()

    def on_change(old: Pod | None, new: Pod | None) -> None:
        if fails:
            fails.pop()
            raise ValueError("not now")
        told.append((old and old.metadata.uid, new and new.metadata.uid))

    cache = Reflector(
        client_for("http://127.0.0.1:1", tmp_path),
        Pod,
        clock=clock,
        on_change=on_change,
        set_aside=lambda item: held.add(item.metadata.uid),
    )
    pod = Pod(metadata=ObjectMeta(name="p", namespace="ns", uid="u", resource_version="1"))
    try:
        cache._apply(pod.key, pod)
        cache._apply(pod.key, None)
        assert held == {"u"}

        def is_told() -> bool:
            clock.advance(1)
            return bool(told)

        wait_for(is_told, "the deletion")
        assert told == [("u", None)]
    finally:
        cache.stop()
