"""Nobody who waits is forgotten, however the watch, the answers of the server and the workers overtake each other."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from dracaena.api.mig import MigDevice
from dracaena.api.objects import ObjectMeta, Pod, Taint
from dracaena.api.resource_objects import (
    ConsumerReference,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from dracaena.controller.allocation.allocator import NoFit, Settled
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.lifecycle.phases import OURS, Phase, RecordEvent
from dracaena.controller.lifecycle.proof import BEHIND_S
from dracaena.controller.state.answers import InProgress
from dracaena.controller.wiring import DOUBT_S
from dracaena.kube.errors import ApiUnavailableError
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    pod,
    pool_slice,
    request,
)
from support.bare_cluster import DECISION, abandon, bare_cluster, decide, newer, written
from support.reconciling import Bench

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))


class Books:
    """A cluster of one node with two GPUs, and whom it wakes."""

    def __init__(self) -> None:
        self.woken: list[str] = []
        self.cluster = bare_cluster(self.woken.append)
        self.cluster.intake.node_changed(None, node("n"))
        self.cluster.intake.slice_changed(None, pool_slice("n", TWO))
        self.cluster.intake.class_changed(None, device_class())

    def add(self, *objects: Pod | ResourceClaim) -> None:
        for item in objects:
            if isinstance(item, Pod):
                self.cluster.intake.pod_changed(None, item)
            else:
                self.cluster.intake.claim_changed(None, item)

    def decide(self, name: str, *claims: str) -> object:
        waiting = self.cluster.pod(f"default/{name}")
        asked = [self.cluster.claim(f"default/{key}") for key in claims]
        assert waiting is not None
        return decide(self.cluster, waiting, *(item for item in asked if item is not None))

    def take_woken(self) -> list[str]:
        woken, self.woken[:] = sorted(set(self.woken)), []
        return woken


def given_all() -> tuple[Books, ResourceClaim, ResourceClaim]:
    """Pod p got both GPUs by claim c, shared with pod s; pod q waits for one. Returns c before and after its write."""
    books = Books()
    before = claim("c", request(count=2))
    books.add(pod("p", "c"), pod("s", "c"), before, pod("q", "d"), claim("d"))
    decision = books.decide("p", "c")
    assert isinstance(decision, Allocation)
    assert not isinstance(books.decide("q", "d"), Allocation)
    assert isinstance(books.decide("s", "c"), InProgress)
    books.take_woken()
    (after,) = written(decision, pod("p", "c"))
    return books, before, after


def test_a_claim_that_goes_while_it_is_decided_for_wakes_who_waits_for_its_devices() -> None:
    books, before, _ = given_all()
    books.cluster.intake.claim_changed(before, None)
    assert books.take_woken() == ["default/p", "default/q", "default/s"]
    assert isinstance(books.decide("q", "d"), Allocation)


def test_a_claim_that_was_made_again_meanwhile_wakes_them_too() -> None:
    books, before, _ = given_all()
    again = msgspec.structs.replace(before, metadata=msgspec.structs.replace(before.metadata, uid="another"))
    books.cluster.intake.claim_changed(before, again)
    assert "default/q" in books.take_woken()


def test_an_allocation_that_was_shown_and_cleared_before_its_answer_came_wakes_who_waits_for_its_devices() -> None:
    books, before, after = given_all()
    assert books.cluster.send_allocation(before, DECISION)
    books.cluster.intake.claim_changed(before, after)
    books.take_woken()
    books.cluster.intake.claim_changed(after, newer(before))
    assert "default/q" in books.take_woken()
    books.cluster.shown(after)  # the answer is older than what was shown by now: it says nothing
    books.cluster.ended([before], DECISION, RecordEvent.ANSWERED)
    assert isinstance(books.decide("q", "d"), Allocation)


@pytest.mark.parametrize("first", ["watch", "answer"])
def test_the_first_to_show_an_allocation_wakes_the_other_pods_of_the_claim_and_the_second_wakes_no_pod(
    first: str,
) -> None:
    books, before, after = given_all()
    assert books.cluster.send_allocation(before, DECISION)
    woken = []
    for by in ("watch", "answer") if first == "watch" else ("answer", "watch"):
        if by == "watch":
            books.cluster.intake.claim_changed(before, after)
        else:
            books.cluster.shown(after)
        woken.append(books.take_woken())
    assert woken == [["default/p", "default/s"], []]
    books.cluster.ended([before], DECISION, RecordEvent.ANSWERED)
    assert books.take_woken() == []


def test_a_decision_that_is_given_up_wakes_the_other_pods_of_the_claim_and_who_waits_for_its_devices() -> None:
    books, before, _ = given_all()
    abandon(books.cluster, before)
    assert books.take_woken() == ["default/q", "default/s"]


def test_a_pod_that_shares_a_claim_gets_its_own_although_the_watch_was_faster_than_the_answer() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("a", "shared"), claim("shared"))

    def sharing_pod_looks(verb: str, key: str) -> None:
        bench.api.after = lambda verb, key: None
        bench.add(pod("b", "shared", "own"), claim("own"))
        while bench.queue._ready:
            bench.step()

    bench.api.after = lambda verb, key: sharing_pod_looks(verb, key) if verb == "allocate" else None
    bench.run()
    assert bench.held("own") == (1,)


def test_a_pod_that_shares_a_claim_gets_it_when_it_was_taken_back_from_the_other() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("a", "shared", "x"), claim("shared"), claim("x"))
    came: list[tuple[str, ...]] = []

    def disturb(verb: str, key: str) -> None:
        if (verb, key) == ("allocate", "default/x"):
            bench.api.put(holding(bench.api.claims[key], "elsewhere", "gpu-of-somebody"))
        if verb == "deallocate":
            bench.add(pod("b", "shared"))
            while bench.queue._ready:
                bench.step()
            came.append(bench.cluster._state.records.blocked_pods("default/shared"))

    bench.api.before = disturb
    bench.pass_time(4)
    bench.try_in_vain("a")
    bench.run()
    bench.pass_time(3)
    bench.try_in_vain("a")
    bench.run()
    assert len(came) == 1
    assert "default/b" in came[0]
    assert bench.users("shared") == ["b"]


def divided(*taints: Taint) -> ResourceSlice:
    """A node whose first GPU is divided into two MIG devices; the second of them has these taints."""
    parts = tuple(
        MigDevice(TWO.gpus[0].uuid, f"MIG-{number:08x}-0000-0000-0000-000000000000", number, 0, "1g.10gb", number, 1)
        for number in range(2)
    )
    published = pool_slice("n", dataclasses.replace(TWO, mig_devices=parts))
    devices = [
        msgspec.structs.replace(device, taints=[*device.taints, *taints])
        if device.name == parts[1].device_name
        else device
        for device in published.spec.devices
    ]
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))


def test_a_mig_device_that_loses_a_taint_wakes_who_waits() -> None:
    books = Books()
    is_mig = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "mig"'
    books.cluster.intake.class_changed(None, device_class("mig", selectors=[{"cel": {"expression": is_mig}}]))
    before, after = divided(Taint(key="ill", effect="NoSchedule")), divided()
    books.cluster.intake.slice_changed(pool_slice("n", TWO), before)
    books.add(pod("p", "c"), claim("c", request("part", 2, "mig")))
    assert not isinstance(books.decide("p", "c"), Allocation)
    books.take_woken()
    books.cluster.intake.slice_changed(before, after)
    assert books.take_woken() == ["default/p"]
    assert isinstance(books.decide("p", "c"), Allocation)


def a_rule(selector: DeviceTaintSelector) -> DeviceTaintRule:
    spec = DeviceTaintRuleSpec(Taint(key="ill", effect="NoSchedule"), selector)
    return DeviceTaintRule(ObjectMeta(name="rule"), spec=spec)


RULES_ABOUT_THE_NODE = (
    DeviceTaintSelector(),
    DeviceTaintSelector(driver=DRIVER),
    DeviceTaintSelector(pool="n"),
    DeviceTaintSelector(device=device_name(TWO, 0)),
)


@pytest.mark.parametrize("selector", RULES_ABOUT_THE_NODE)
def test_what_a_rule_taints_is_given_to_no_pod_from_its_event_on_and_its_end_wakes_who_waits(
    selector: DeviceTaintSelector,
) -> None:
    books, rule = Books(), a_rule(selector)
    books.add(pod("p", "c"), claim("c", request(count=2)))
    books.cluster.intake.taint_rule_changed(None, rule)
    assert isinstance(books.decide("p", "c"), NoFit)
    books.take_woken()
    books.cluster.intake.taint_rule_changed(rule, None)
    assert books.take_woken() == ["default/p"]
    assert isinstance(books.decide("p", "c"), Allocation)


def test_a_taint_on_all_devices_wakes_no_pod_when_it_comes() -> None:
    books = Books()
    books.add(pod("p", "c"), claim("c", request(count=3)))
    assert isinstance(books.decide("p", "c"), NoFit)
    books.take_woken()
    books.cluster.intake.taint_rule_changed(None, a_rule(DeviceTaintSelector()))
    assert books.take_woken() == []


# Writes in doubt and devices that are kept


def test_a_claim_with_admin_access_whose_write_was_lost_is_allocated_when_the_doubt_is_over() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("p", "c"), claim("c", request(adminAccess=True)))
    down = [True]

    def fail(verb: str, key: str) -> None:
        if down[0] and verb == "allocate":
            raise ApiUnavailableError("PATCH", None, "", "no answer")

    bench.api.before = fail
    bench.run()
    down[0] = False
    for _ in range(int(DOUBT_S) + 2):
        bench.advance(1)
    assert bench.held("c") is not None
    assert bench.phases() == {Phase.ALLOCATED}


@pytest.mark.parametrize("how", ["bound", "reserved by another pod"])
def test_devices_that_a_take_back_leaves_to_a_pod_are_nobody_elses_while_the_watch_is_behind(how: str) -> None:
    bench = Bench(n=TWO)
    named = {"nodeName": "n"} if how == "bound" else {}
    bench.add(pod("p", "x", "y", **named), pod("r", "x"), claim("x"), claim("y"))
    kept: list[tuple[ResourceClaim | None, ResourceClaim | None]] = []

    def steal(verb: str, key: str) -> None:
        if (verb, key) != ("allocate", "default/y"):
            return
        bench.api.before = lambda verb, key: None
        bench.api.put(holding(bench.api.claims[key], "elsewhere", "gpu-of-somebody"))
        if not named:
            held = bench.api.claims["default/x"]
            users = [ConsumerReference("pods", "r", "uid-r")]
            bench.api.put(
                msgspec.structs.replace(held, status=msgspec.structs.replace(held.status, reserved_for=users))
            )

    bench.api.before = steal
    kept = bench.hold_the_watch()
    bench.run()
    bench.advance(1)
    assert bench.held("x") is not None
    kept_back = bench.metric("take_backs_total", reason="half-written", end="kept")
    assert kept_back == (None if how == "bound" else 1)
    bench.add(pod("q", "z"))
    bench.api.claims["default/z"] = claim("z", request(count=2))
    bench.claim_changed(None, bench.api.claims["default/z"])
    bench.run()
    assert bench.held("z") is None, "one of the two GPUs is in the hands of p"
    bench.show(kept)
    bench.run()
    bench.cluster.check()
    assert not bench.phases() & OURS
    assert [device_name(TWO, ordinal) for ordinal in bench.held("x") or ()] != []


def test_a_class_that_becomes_ours_wakes_a_pod_whose_other_claim_has_its_devices() -> None:
    books = Books()
    other = 'device.driver == "other.example.com"'
    before = device_class("later", selectors=[{"cel": {"expression": other}}])
    books.cluster.intake.class_changed(None, before)
    given = holding(claim("c"), "n", device_name(TWO, 0))
    books.add(pod("p", "c", "d"), given, claim("d", request("g", 1, "later")))
    assert isinstance(books.decide("p", "c", "d"), Settled)
    books.take_woken()
    books.cluster.intake.class_changed(before, device_class("later"))
    assert books.take_woken() == ["default/p"]
    assert isinstance(books.decide("p", "c", "d"), Allocation)


def test_what_was_written_and_answered_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(n=TWO)

    def read_claim(namespace: str, name: str) -> ResourceClaim | None:
        raise AssertionError(f"claim {name} is read")

    monkeypatch.setattr(bench.api, "read_claim", read_claim)
    bench.add(pod("p", "c", "d"), claim("c"), claim("d"))
    bench.advance(1)
    assert (bench.held("c"), bench.held("d")) == ((0,), (1,))


@pytest.mark.parametrize("what", ["is being deleted", "has no claim any more", "is held"])
def test_who_stands_behind_a_pod_that_cannot_be_served_now_gets_what_is_freed(what: str) -> None:
    bench = Bench(n=TWO)
    blocker = holding(claim("blocker", request(count=2)), "n", device_name(TWO, 0), device_name(TWO, 1))
    bench.add(blocker, pod("a", "of-a"), claim("of-a"))
    bench.run()
    bench.add(pod("b", "of-b"), claim("of-b"))
    bench.run()
    first = bench.api.pods["default/a"]
    if what == "is being deleted":
        going = msgspec.structs.replace(first.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        bench.change_pod("a", lambda old: msgspec.structs.replace(old, metadata=going))
    elif what == "has no claim any more":
        bench.api.remove("default/of-a")
    else:
        bench.leave_all_out("a")
        bench.change_pod("a", lambda old: old)
    bench.advance(BEHIND_S)
    bench.api.put(msgspec.structs.replace(bench.api.claims["default/blocker"], status=ResourceClaimStatus()))
    while bench.held("of-b") is None and bench.queue._ready:
        bench.step()
    assert bench.held("of-b") is not None
