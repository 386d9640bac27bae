"""What a new leader takes for true: what the server's own state shows, and nothing that a user can write."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.decision import Decision, RunnerUp, encode_decision
from dracaena.api.names import decision_driver
from dracaena.api.objects import OwnerReference, Pod
from dracaena.api.resource_objects import ResourceClaimStatus
from dracaena.controller.allocation.state.node_state import claim_holder, held_devices, other_holdings
from dracaena.controller.lifecycle.phases import Phase
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, pod, pool_slice, request
from support.quota_world import moved
from support.reconciling import RULES, Bench
from support.shares import in_shares, share

EIGHT = machine("eight", blocks(8, inside="PIX", outside="PIX"))
ONE = machine("one", blocks(1, inside="PIX", outside="PIX"))
NODES = ("a", "b")


def note(node: str, *devices: str) -> str:
    """What an older version of this program wrote, or anybody else, into an annotation of a claim."""
    second = RunnerUp(node, "", "node_name", devices)
    return bytes(encode_decision(Decision(node, "", (), len(devices), second))).decode()


@pytest.mark.parametrize("is_there", [False, True])
def test_made_up_decisions_hold_no_device_at_a_change_of_leader(is_there: bool) -> None:
    """Two pods name each claim, and with `is_there` a third that is made on a node and misses another claim."""
    bench = Bench(a=EIGHT, b=EIGHT)
    for node in NODES:
        names = [device_name(EIGHT, ordinal) for ordinal in range(8)]
        config = {"opaque": {"driver": decision_driver(DRIVER), "parameters": msgspec.json.decode(note(node, *names))}}
        annotations = {f"{DRIVER}/decision": note(node, *names)}
        evil = claim(f"evil-{node}", request(count=1000), configs=[config], annotations=annotations)
        bench.add(moved(evil, "evil"))
        for number in range(2):
            bench.add(moved(pod(f"evil-{node}-{number}", f"evil-{node}", schedulerName="nobody"), "evil"))
        if is_there:
            there = pod(f"evil-{node}-there", f"evil-{node}", "not-there", nodeName="no-such-node")
            bench.add(moved(there, "evil"))
    bench.run()
    leader = bench.next_leader()
    leader.run()
    for name, count in (("x", 8), ("y", 8)):
        leader.add(claim(name, request(count=count)), pod(name, name))
        leader.run()
        assert leader.held(name) is not None, leader.told()


def test_a_share_that_was_given_back_holds_nothing_at_a_change_of_leader() -> None:
    """Half of a GPU, which two pods wait to have again; they also miss another claim."""

    def shared(bench: Bench) -> Bench:
        whole = pool_slice("n0", ONE)
        bench.cluster.intake.slice_changed(whole, in_shares(whole, 80))
        return bench

    bench = shared(Bench(n0=ONE))
    bench.add(claim("h", share("gpus", "40Gi")), pod("u", "h"))
    bench.run()
    assert bench.held("h") is not None
    bench.remove_pod("default/u")
    bench.api.put(msgspec.structs.replace(bench.api.claims["default/h"], status=ResourceClaimStatus()))
    bench.run()
    for number in range(2):
        bench.add(pod(f"w{number}", "h", "not-there"))
    bench.run()
    leader = shared(bench.next_leader())
    leader.run()
    leader.add(claim("y", share("gpus", "20Gi")), pod("y", "y"))
    leader.run()
    assert leader.held("y") is not None, leader.told()


def nominated(item: Pod, node: str) -> Pod:
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, nominated_node_name=node))


def users(leader: Bench, name: str) -> list[str]:
    return [user.name for user in leader.api.claims[f"default/{name}"].status.reserved_for]


def elsewhere(name: str, *claims: str) -> Pod:
    """A pod that fits on no node any more."""
    return pod(name, *claims, nodeSelector={"gone": "label"})


def test_a_claim_that_a_pod_may_be_bound_with_goes_to_no_other_pod_until_that_is_settled() -> None:
    """kube-scheduler cleared it for q while p is being bound to b with it, and named b in p before: q would take the
    claim to a."""
    bench = Bench(a=ONE, b=ONE)
    bench.add(claim("c"), nominated(elsewhere("p", "c"), "b"), pod("q", "c"))
    leader = bench.next_leader()
    leader.pass_time(5)
    assert leader.held("c") is None
    leader.add(claim("d"), claim("e"), pod("d", "d"))
    leader.run()
    assert leader.held("d") is not None, "no device rests"
    leader.bind("p", "b")
    leader.run()
    assert leader.on_node("c") == "b"


def test_the_pod_that_may_be_bound_with_it_gets_it_at_once() -> None:
    """The reservation that comes with it keeps the bind from adding its own."""
    bench = Bench(a=ONE, b=ONE)
    bench.add(claim("c"), nominated(pod("p", "c"), "b"), pod("q", "c"))
    leader = bench.next_leader()
    leader.pass_time(5)
    assert users(leader, "c") == ["p"]


def test_a_claim_waits_for_the_node_of_a_pod_that_kube_scheduler_has_just_looked_at() -> None:
    """It names a node in p after the change of leader, with what it saw of the claim before."""
    bench = Bench(a=ONE, b=ONE)
    bench.add(claim("c"), elsewhere("p", "c"), pod("q", "c"))
    leader = bench.next_leader()
    leader.pass_time(1)
    assert leader.held("c") is None
    leader.add(nominated(leader.api.pods["default/p"], "b"))
    leader.pass_time(20)
    assert leader.held("c") is None
    leader.bind("p", "b")
    leader.run()
    assert leader.on_node("c") == "b"


def test_a_node_that_was_named_and_withdrawn_counts() -> None:
    """A failed attempt may have done that, or this program, because p fits nowhere."""
    bench = Bench(a=ONE, b=ONE)
    bench.add(claim("c"), elsewhere("p", "c"), pod("q", "c"))
    leader = bench.next_leader()
    for node in ("b", ""):
        leader.add(nominated(leader.api.pods["default/p"], node))
    leader.pass_time(20)
    assert leader.held("c") is None


def test_a_claim_goes_to_any_of_its_pods_once_it_is_certain_that_none_is_named_a_node() -> None:
    bench = Bench(a=ONE, b=ONE)
    bench.add(claim("c"), pod("p", "c"), pod("q", "c"))
    leader = bench.next_leader()
    leader.pass_time(int(RULES.bounds.settle_s) + 2)
    assert leader.held("c") is not None


def test_pods_that_wait_for_a_claim_are_only_asked_about_and_not_written_to() -> None:
    """kube-scheduler said of each of them that it fits nowhere."""
    bench = Bench(a=ONE)
    pods = [f"p{number}" for number in range(30)]
    bench.add(claim("c", request(count=2)), *(pod(name, "c") for name in pods))
    for name in pods:
        bench.say(name, "0/1 nodes are available")
    leader = bench.next_leader()
    asked = len(leader.record("c").stale_binds)
    leader.pass_time(int(RULES.bounds.settle_s) + 2)
    assert (asked, leader.record("c").stale_binds) == (30, ())
    assert not any(verb == "probe" for verb, _ in leader.api.writes)


def test_a_claim_goes_to_no_later_pod_while_its_first_one_may_be_bound_with_it() -> None:
    """Another pod had it, and is gone; q comes after the change of leader, and p fits nowhere any more."""
    bench = Bench(a=ONE, b=ONE)
    bench.add(claim("c"), nominated(elsewhere("p", "c"), "b"))
    leader = bench.next_leader()
    leader.add(pod("q", "c"))
    leader.pass_time(20)
    assert leader.held("c") is None
    leader.remove_pod("default/p")
    leader.pass_time(2)
    assert leader.held("c") is not None


@pytest.mark.parametrize("is_generated", [False, True])
def test_a_pod_that_has_its_claim_for_itself_waits_for_nothing(is_generated: bool) -> None:
    asked = claim("c")
    if is_generated:
        owner = OwnerReference("uid-p", "Pod", "p", "v1", controller=True)
        metadata = msgspec.structs.replace(asked.metadata, owner_references=[owner])
        asked = msgspec.structs.replace(asked, metadata=metadata)
    bench = Bench(a=ONE)
    bench.add(asked, pod("p", "c"))
    leader = bench.next_leader()
    assert bool(leader.record("c").stale_binds) is not is_generated, "nobody is asked about a claim for one pod alone"
    leader.run()
    assert leader.held("c") is not None


def test_a_claim_that_a_pod_may_be_bound_with_is_decided_for_once_no_bind_takes_that_long() -> None:
    bench = Bench(a=ONE, b=ONE)
    bench.add(claim("c"), nominated(elsewhere("p", "c"), "b"), pod("q", "c"))
    leader = bench.next_leader()
    metadata = msgspec.structs.replace(leader.api.claims["default/c"].metadata, labels={"any": "label"})
    leader.api.put(msgspec.structs.replace(leader.api.claims["default/c"], metadata=metadata))
    leader.advance(RULES.bounds.longest_bind_s - 1)
    assert leader.held("c") is None
    leader.pass_time(20)
    assert leader.held("c") is not None


def test_what_rests_for_a_pod_on_a_node_that_misses_another_claim_does_not_rest_for_ever() -> None:
    bench = Bench(a=ONE)
    bench.add(claim("c"), pod("p", "c"), pod("q", "c"))
    bench.run()
    bench.take_back("c")
    bench.run()
    bench.add(pod("there", "c", "not-there", nodeName="a"))
    cleared = msgspec.structs.replace(bench.api.claims["default/c"], status=ResourceClaimStatus())
    bench.api.put(cleared)
    bench.run()
    assert bench.record("c").phase is Phase.RESTING
    bench.remove_pod("default/p")
    bench.remove_pod("default/q")
    bench.add(claim("d"), pod("d", "d"))
    bench.pass_time(10)
    assert (bench.record("c").phase, bench.held("d")) == (Phase.RESTING, None)
    bench.advance(RULES.bounds.settle_s + RULES.bounds.longest_bind_s + 60)
    bench.pass_time(2)
    assert bench.held("d") is not None


@dataclass(frozen=True)
class Written:
    """What users may write of one claim and its pods."""

    devices: tuple[int, ...]
    count: int
    note: bool
    pods: int
    there: bool
    misses: bool


WRITTEN = st.builds(
    Written,
    devices=st.lists(st.integers(0, 7), max_size=8).map(tuple),
    count=st.sampled_from((1, 4, 8, 1000)),
    note=st.booleans(),
    pods=st.integers(0, 3),
    there=st.booleans(),
    misses=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(WRITTEN, max_size=4), st.lists(st.integers(0, 7), unique=True, max_size=3), st.integers(0, 1))
def test_a_new_leader_holds_what_allocations_show_and_nothing_else(
    written: list[Written], taken: list[int], deleted: int
) -> None:
    """Any annotations on any claims, with any pods, on nodes or not, that may miss another claim."""
    bench = Bench(a=EIGHT, b=EIGHT)
    for ordinal in taken:
        bench.add(holding(claim(f"taken-{ordinal}"), "a", device_name(EIGHT, ordinal)))
    for number, one in enumerate(written):
        names = [device_name(EIGHT, ordinal) for ordinal in one.devices]
        annotations = {f"{DRIVER}/decision": note("a", *names)} if one.note else {}
        bench.add(claim(f"c{number}", request(count=one.count), annotations=annotations))
        missing = ("not-there",) if one.misses else ()
        for index in range(one.pods):
            bench.add(pod(f"p{number}-{index}", f"c{number}", *missing))
        if one.there:
            bench.add(pod(f"there{number}", f"c{number}", *missing, nodeName="a"))
    for name in list(bench.api.claims)[:deleted]:
        bench.api.remove(name)
    leader = bench.next_leader()
    books = leader.cluster._state.inventory.holdings
    for item in leader.api.claims.values():
        shown = held_devices(item, DRIVER), other_holdings(item, DRIVER)
        assert books.held_by(claim_holder(item)) == shown
    leader.cluster.check()
