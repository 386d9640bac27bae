"""Claims of a pod of which some were written and others were not: completed, or taken back, whoever came between."""

from __future__ import annotations

import msgspec
import pytest

from dracaena.api.machine import Machine
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import (
    ConsumerReference,
    ResourceClaim,
)
from dracaena.controller.lifecycle.phases import OURS, Phase
from dracaena.controller.wiring import DOUBT_S
from dracaena.kube.errors import ApiUnavailableError
from support.allocation import (
    blockers,
    claim,
    decided,
    device_name,
    holding,
    pod,
    request,
)
from support.reconciling import SEVEN, TWO, Bench


def writes(bench: Bench) -> list[tuple[str, str]]:
    return [(verb, key.removeprefix("default/")) for verb, key in bench.api.writes]


def test_a_claim_that_somebody_else_allocated_makes_the_rest_be_taken_back_and_the_pod_is_planned_again() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    bench.add(pod("p", "x", "y"), claim("x"), claim("y"))
    taken = [False]

    def steal(verb: str, key: str) -> None:
        if (verb, key) == ("allocate", "default/y") and not taken[0]:
            taken[0] = True
            bench.api.put(holding(bench.api.claims[key], "a", device_name(SEVEN, 6)))

    bench.api.before = steal
    bench.pass_time(4)
    bench.try_in_vain("p")
    bench.run()
    assert (bench.on_node("x"), bench.on_node("y")) == ("a", "a")
    assert bench.metric("take_backs_total", reason="half-written", end="cleared") == 1
    assert writes(bench) == [
        ("mark", "x"),
        ("mark", "y"),
        ("allocate", "x"),
        ("reserve", "x"),
        ("deallocate", "x"),
        ("allocate", "x"),
    ]


@pytest.mark.parametrize("is_shown", [True, False], ids=["shown by the watch", "read when the doubt is over"])
def test_a_write_without_an_answer_that_landed_is_found_and_the_rest_is_completed(is_shown: bool) -> None:
    bench = Bench()
    bench.add(pod("p", "x", "y"), claim("x"), claim("y"))
    kept = bench.hold_the_watch()
    lost = [ApiUnavailableError("PATCH", None, "", "no answer")]

    def lose(verb: str, key: str) -> None:
        if (verb, key) == ("allocate", "default/x") and lost:
            raise lost.pop()

    bench.api.after = lose
    bench.run()
    assert (bench.held("x"), bench.held("y")) == ((0,), None)
    assert (bench.record("x").phase, bench.record("y").phase) == (Phase.IN_DOUBT, Phase.FREE)
    if is_shown:
        bench.show(kept)
        bench.pass_time(1)
    else:
        bench.pass_time(int(DOUBT_S) - 1)
        assert bench.held("y") is None
        bench.pass_time(3)
    assert (bench.held("x"), bench.held("y")) == ((0,), (1,))
    assert not bench.phases() & OURS


def test_the_devices_of_a_write_in_doubt_rest_until_the_doubt_is_over() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("p", "c"), claim("c", request(count=2)))
    down = [True]

    def fail(verb: str, key: str) -> None:
        if down[0] and verb == "allocate":
            raise ApiUnavailableError("PATCH", None, "", "no answer")

    bench.api.before = fail
    bench.run()
    down[0] = False
    bench.remove_pod("default/p")
    bench.add(pod("q", "d"), claim("d"))
    bench.advance(1)
    assert bench.held("d") is None
    bench.advance(DOUBT_S)
    assert bench.held("d") == (0,)


def test_before_the_first_allocation_nothing_is_in_doubt_and_failures_are_spaced_out() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("p", "c"), claim("c", request(count=2)), pod("q", "d"), claim("d", request(count=2)))
    asked: list[str] = []

    def fail(verb: str, key: str) -> None:
        asked.append(key)
        if key == "default/c":
            raise ApiUnavailableError("PATCH", None, "", "no answer")

    bench.api.before = fail
    bench.run()
    assert asked == ["default/c", "default/d", "default/d"]
    assert bench.held("d") == (0, 1)
    bench.api.remove("default/d")
    asked.clear()
    for _ in range(100):
        bench.advance(0.1)
    assert 5 <= len(asked) <= 12  # in ten seconds, the waits doubling from 0.05 s


def half_written(name: str, node_name: str, made: Machine, ordinal: int, *users: Pod) -> ResourceClaim:
    """A claim as a killed controller left it."""
    device = device_name(made, ordinal)
    held = decided(holding(claim(name), node_name, device))
    reserved = [ConsumerReference("pods", user.metadata.name, user.metadata.uid) for user in users]
    return msgspec.structs.replace(held, status=msgspec.structs.replace(held.status, reserved_for=reserved))


def test_what_a_killed_controller_left_half_written_is_completed_on_the_same_node() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    waiting = pod("p", "x", "y")
    bench.add(waiting, half_written("x", "b", TWO, 0, waiting), claim("y"))
    bench.run()
    assert (bench.on_node("x"), bench.on_node("y")) == ("b", "b")


def test_what_cannot_be_completed_is_taken_back_and_planned_again_elsewhere() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    waiting = pod("p", "x", "y")
    bench.add(*blockers("b", TWO, 1), waiting, half_written("x", "b", TWO, 0, waiting), claim("y"))
    bench.run()
    assert (bench.on_node("x"), bench.on_node("y")) == ("a", "a")
    assert writes(bench)[0] == ("deallocate", "x"), "kube-scheduler waits for a claim that we alone can allocate"


def test_what_cannot_be_completed_needs_a_proof_where_kube_scheduler_can_allocate_the_rest() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    waiting = pod("p", "x", "y")
    tolerant = claim("y", request(tolerations=[{"operator": "Exists"}]))
    bench.add(*blockers("b", TWO, 1), waiting, half_written("x", "b", TWO, 0, waiting), tolerant)
    bench.pass_time(3)
    assert (bench.on_node("x"), bench.on_node("y")) == ("b", None)
    bench.try_in_vain("p")
    bench.run()
    assert (bench.on_node("x"), bench.on_node("y")) == ("a", "a")
    assert writes(bench)[:2] == [("reserve", "x"), ("deallocate", "x")]


def test_what_a_pod_has_that_names_its_node_is_not_taken_back_although_the_rest_does_not_fit() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    waiting = pod("p", "x", "y", nodeName="b")
    bench.add(*blockers("b", TWO, 1), waiting, half_written("x", "b", TWO, 0, waiting), claim("y"))
    bench.run()
    bench.advance(5)
    assert (bench.on_node("x"), bench.users("x"), bench.held("y")) == ("b", ["p"], None)
    assert bench.api.writes == []
    assert bench.metric("take_backs_total", reason="half-written", end="kept") is None


def test_claims_on_different_nodes_are_untangled() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    waiting = pod("p", "x", "y")
    foreign = holding(claim("y"), "a", device_name(SEVEN, 0))
    bench.add(waiting, half_written("x", "b", TWO, 0, waiting), foreign)
    bench.pass_time(3)
    bench.try_in_vain("p")
    bench.run()
    assert bench.on_node("x") == "a"


def test_a_claim_that_another_pod_uses_is_never_taken_back() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    other = pod("other", "x")
    bench.add(*blockers("b", TWO, 1), pod("p", "x", "y"), half_written("x", "b", TWO, 0, other), claim("y"))
    bench.run()
    bench.advance(5)
    assert (bench.on_node("x"), bench.users("x")) == ("b", ["other"])
    assert bench.held("y") is None
    assert bench.metric("take_backs_total", reason="half-written", end="kept") is None, "it does not even begin"
    assert "other than the node of a claim that is already allocated" in bench.told()[0]
