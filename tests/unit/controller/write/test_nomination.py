from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.objects import Pod
from dracaena.controller.lifecycle.pod_record import ELSEWHERE
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.wiring import DOUBT_S
from dracaena.controller.write.nomination import NEVER, Nomination
from dracaena.kube.errors import ApiUnavailableError, InvalidError
from support.allocation import blocks, claim, holding, machine, pod
from support.claim_api import FakeClaims
from support.reconciling import REFUSED_WAIT_S, SEEN_S, Bench
from support.watched_cluster import WatchedCluster

POD = pod("p", "c")
TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))


def nominated(item: Pod, node: str) -> Pod:
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, nominated_node_name=node))


class Alone:
    def __init__(self, stored: Pod = POD, *, nodes: int = 10, above_nodes: int = 5) -> None:
        self.api = FakeClaims(stored)
        self.registry = CollectorRegistry()
        metrics = ControllerMetrics(self.registry)
        self.nomination = Nomination(self.api, lambda: nodes, metrics, above_nodes=above_nodes)

    @property
    def named(self) -> str:
        return self.api.pods["default/p"].status.nominated_node_name

    def counted(self, result: str) -> float | None:
        return self.registry.get_sample_value("dracaena_controller_nominations_total", {"result": result})


@pytest.mark.parametrize(("nodes", "above_nodes", "named"), [(5, 5, ""), (6, 5, "a"), (1, 0, "a"), (10_000, NEVER, "")])
def test_a_node_is_named_in_large_clusters_only(nodes: int, above_nodes: int, named: str) -> None:
    alone = Alone(nodes=nodes, above_nodes=above_nodes)
    stored = alone.nomination.set(POD, "a")
    assert alone.named == stored.status.nominated_node_name == named
    assert alone.counted("set") == (1 if named else None)


def test_a_name_that_somebody_else_gave_stays() -> None:
    other = nominated(POD, "b")
    alone = Alone(other)
    assert alone.nomination.set(other, "a") is other
    alone.nomination.clear(other, "a")
    assert alone.named == "b"
    assert alone.api.writes == []


def test_a_name_that_was_given_meanwhile_stays_and_nothing_is_made_of_it() -> None:
    newer = msgspec.structs.replace(
        nominated(POD, "b"), metadata=msgspec.structs.replace(POD.metadata, resource_version="2")
    )
    alone = Alone(newer)
    assert alone.nomination.set(POD, "a") is POD
    alone.nomination.clear(nominated(POD, "a"), "a")
    assert alone.named == "b"
    assert alone.counted("refused") == 2


def test_it_is_cleared_as_long_as_it_is_ours_and_the_pod_unbound() -> None:
    alone = Alone()
    stored = alone.nomination.set(POD, "a")
    bound = msgspec.structs.replace(stored, spec=msgspec.structs.replace(stored.spec, node_name="a"))
    alone.nomination.clear(bound, "a")
    assert alone.named == "a"
    alone.nomination.clear(stored, "a")
    assert alone.named == ""


def test_it_is_written_between_the_finalizer_and_the_allocation_and_goes_with_a_take_back() -> None:
    bench = Bench(WatchedCluster, 1, a=TWO, b=TWO)
    bench.add(POD, claim("c"))
    bench.run()
    assert [verb for verb, _ in bench.api.writes] == ["mark", "nominate", "allocate"]
    assert bench.api.pods["default/p"].status.nominated_node_name == "a"
    bench.pass_time(6)
    bench.change_pod("p", lambda old: nominated(old, ""))  # a try that fails wipes it
    bench.say("p", f"0/2 nodes are available: 1 no room, 1 {ELSEWHERE}.")
    bench.pass_time(int(REFUSED_WAIT_S + SEEN_S) + 1)
    bench.try_in_vain("p")
    bench.run()
    assert bench.on_node("c") == "b"
    assert bench.api.pods["default/p"].status.nominated_node_name == "b"


def test_a_hint_of_ours_that_kube_scheduler_never_looked_at_is_cleared_with_the_allocation() -> None:
    bench = Bench(WatchedCluster, 0, a=TWO)
    bench.add(POD, claim("c"))
    bench.run()
    bench.take_back("c", "passed-over")
    bench.run()
    bench.pass_time(int(SEEN_S) + 1)
    bench.try_in_vain("p")
    bench.leave_all_out("p")
    bench.run()
    assert bench.on_node("c") is None
    assert bench.api.pods["default/p"].status.nominated_node_name == ""


def test_a_server_that_refuses_it_does_not_stop_the_allocation() -> None:
    bench = Bench(WatchedCluster, 0, a=TWO)

    def refuse(verb: str, key: str) -> None:
        if verb == "nominate":
            raise ApiUnavailableError(f"PATCH {key}", 503, "ServiceUnavailable", "not now")

    bench.api.before = refuse
    bench.add(POD, claim("c"))
    bench.run()
    assert bench.on_node("c") == "a"
    assert bench.metric("nominations_total", result="refused") == 1


def test_it_is_cleared_when_the_allocation_is_lost_to_somebody_else() -> None:
    bench = Bench(WatchedCluster, 0, a=TWO)

    def steal(verb: str, key: str) -> None:
        if verb == "allocate":
            bench.api.before = lambda verb, key: None
            bench.api.put(holding(bench.api.claims[key], "elsewhere", "gpu-of-somebody"))

    bench.api.before = steal
    bench.add(claim("c"), POD)
    bench.run()
    assert [verb for verb, _ in bench.api.writes] == ["mark", "nominate", "nominate"]
    assert bench.api.pods[POD.key].status.nominated_node_name == ""


def lose_allocations(bench: Bench) -> None:
    """From now on no allocation reaches the server, and no answer comes."""

    def lose(verb: str, key: str) -> None:
        if verb == "allocate":
            raise ApiUnavailableError(f"PATCH {key}", None, "", "no answer")

    bench.api.before = lose


def with_a_hint_of_a_write_that_was_lost(bench: Bench) -> None:
    """The pod is told of node a, and what became of the allocation there is not known for a while."""
    lose_allocations(bench)
    bench.add(POD, claim("c"))
    bench.run()
    assert (bench.on_node("c"), bench.api.pods[POD.key].status.nominated_node_name) == (None, "a")
    bench.add(bench.api.pods[POD.key])
    bench.leave_out("p", "a")


def test_a_hint_of_a_decision_that_was_not_written_gives_way_to_the_next_one() -> None:
    bench = Bench(WatchedCluster, 0, a=TWO, b=TWO)
    with_a_hint_of_a_write_that_was_lost(bench)
    bench.api.before = lambda verb, key: None
    bench.pass_time(int(DOUBT_S) + 1)
    assert bench.on_node("c") == "b"
    assert bench.api.pods[POD.key].status.nominated_node_name == "b"


def test_a_hint_of_a_decision_that_was_not_written_goes_when_the_pod_fits_nowhere_any_more() -> None:
    """kube-scheduler would keep cpu free there for a pod that waits for devices."""
    bench = Bench(WatchedCluster, 0, a=TWO)
    with_a_hint_of_a_write_that_was_lost(bench)
    bench.api.before = lambda verb, key: None
    bench.pass_time(int(DOUBT_S) + 1)
    assert bench.on_node("c") is None
    assert bench.api.pods[POD.key].status.nominated_node_name == ""
    assert [verb for verb, _ in bench.api.writes] == ["mark", "nominate", "nominate"]


def test_a_hint_of_somebody_else_stays_next_to_a_decision_that_was_not_written() -> None:
    bench = Bench(WatchedCluster, 0, a=TWO, b=TWO)
    with_a_hint_of_a_write_that_was_lost(bench)
    bench.change_pod("p", lambda old: nominated(old, "elsewhere"))
    bench.api.before = lambda verb, key: None
    bench.pass_time(int(DOUBT_S) + 1)
    assert bench.on_node("c") == "b"
    assert bench.api.pods[POD.key].status.nominated_node_name == "elsewhere"


def test_a_hint_of_ours_is_overwritten_and_withdrawn_and_forgotten_with_its_pod() -> None:
    alone = Alone()
    first = alone.nomination.set(POD, "a")
    second = alone.nomination.set(first, "b")
    assert alone.named == "b"
    alone.nomination.withdraw(first)
    assert alone.named == "b", "somebody named that one meanwhile, as far as we know"
    alone.nomination.withdraw(second)
    assert alone.named == ""
    third = alone.nomination.set(alone.api.pods["default/p"], "c")
    alone.nomination.forget("default/p")
    alone.nomination.withdraw(third)
    assert alone.named == "c"


def test_a_hint_on_another_pod_of_the_name_is_not_ours() -> None:
    alone = Alone()
    again = msgspec.structs.replace(
        alone.nomination.set(POD, "a"), metadata=msgspec.structs.replace(POD.metadata, uid="another")
    )
    alone.api.put_pod(again)
    alone.nomination.withdraw(alone.api.pods["default/p"])
    assert alone.named == "a"


def test_a_pod_whose_allocation_is_refused_is_not_tried_without_a_pause_although_its_hint_comes_and_goes() -> None:
    """Each hint changes the pod, and a change of the pod alone adds it to the queue."""
    bench = Bench(WatchedCluster, 0, a=TWO)
    bench.add(pod("p", "c"), claim("c"))
    tries: list[float] = []

    def refuse(verb: str, key: str) -> None:
        if verb == "allocate":
            tries.append(bench.clock.monotonic())
            assert len(tries) < 100, "it is tried again and again"
            raise InvalidError("PATCH", 422, "Invalid", "denied by a policy")

    bench.api.before = refuse
    bench.pass_time(60)
    assert 2 <= len(tries) <= 20, tries
