"""The cluster with pods that take cpu: what is counted when, who is woken, and what is said."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation
from support.allocation import DRIVER, blocks, claim, device_class, machine, pod, pool_slice, request
from support.bare_cluster import abandon, bare_cluster, decide, reserved, show, write, written

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))


def node(name: str, *, cpu: str = "8", pods: str = "110", **metadata: Any) -> Node:
    document = {"metadata": {"name": name, **metadata}, "status": {"allocatable": {"cpu": cpu, "pods": pods}}}
    return msgspec.json.decode(json.dumps(document), type=Node)


def hog(name: str, on: str, cpu: str = "6", phase: str = "Running") -> Pod:
    made = asking(name, cpu=cpu, nodeName=on)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, phase=phase))


def asking(name: str, *claims: str, cpu: str = "4", **spec: Any) -> Pod:
    return pod(name, *claims, containers=[{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **spec)


class Bench:
    def __init__(self, **nodes: str) -> None:
        """Nodes by name, with their cpu."""
        self.woken: list[str] = []
        self.cluster = bare_cluster(self.woken.append)
        self.cluster.intake.class_changed(None, device_class())
        for name, cpu in nodes.items():
            self.cluster.intake.node_changed(None, node(name, cpu=cpu))
            self.cluster.intake.slice_changed(None, pool_slice(name, FOUR))

    def decide(self, name: str, count: int = 1, cpu: str = "4") -> object:
        waiting = self.cluster.pod(f"default/{name}")
        if waiting is None:
            waiting = asking(name, f"of-{name}", cpu=cpu)
            self.cluster.intake.pod_changed(None, waiting)
            self.cluster.intake.claim_changed(None, claim(f"of-{name}", request(count=count)))
        asked = self.cluster.claim(f"default/of-{name}")
        assert asked is not None
        decision = decide(self.cluster, waiting, asked)
        self.woken.clear()
        return decision

    def why(self, name: str) -> str | None:
        waiting, asked = self.cluster.pod(f"default/{name}"), self.cluster.claim(f"default/of-{name}")
        assert waiting is not None
        assert asked is not None
        found = self.cluster.explain(waiting, [asked], now_s=1_000.0)
        return None if found is None else found.text

    def write(self, decision: object) -> ResourceClaim:
        """Write what was decided, and let the watch show it."""
        assert isinstance(decision, Allocation)
        (entry,) = decision.claims
        (shown,) = write(self.cluster, decision, pod(entry.claim.metadata.name.removeprefix("of-")))
        self.cluster.intake.claim_changed(entry.claim, shown)
        self.cluster.check()
        return shown

    def take_woken(self) -> list[str]:
        woken, self.woken[:] = list(self.woken), []
        return woken


def node_of(decision: object) -> str:
    assert isinstance(decision, Allocation)
    return decision.node


def test_a_node_whose_cpu_is_taken_gets_no_pod_and_gets_it_when_the_cpu_is_free_again() -> None:
    bench = Bench(a="8", b="2")
    bench.cluster.intake.pod_changed(None, hog("h", "a"))
    assert isinstance(bench.decide("p"), NoFit)
    assert bench.why("p") == (
        "0/2 nodes fit: 1 that have less cpu than the pod needs, even when nothing else runs there (b); "
        "1 with too little free cpu (a)"
    )
    bench.cluster.intake.pod_changed(hog("h", "a"), hog("h", "a", phase="Succeeded"))
    assert bench.take_woken() == ["default/p"]
    assert node_of(bench.decide("p")) == "a"
    bench.cluster.check()


def test_what_was_decided_counts_before_and_after_it_is_written_and_bound() -> None:
    bench = Bench(a="8")
    first = bench.decide("p", cpu="6")
    assert isinstance(bench.decide("q"), NoFit)
    bench.write(first)
    assert isinstance(bench.decide("q"), NoFit)
    waiting = bench.cluster.pod("default/p")
    assert waiting is not None
    bound = asking("p", "of-p", cpu="6", nodeName="a")
    bench.cluster.intake.pod_changed(waiting, bound)
    assert isinstance(bench.decide("q"), NoFit)
    assert bench.take_woken() == []
    bench.cluster.intake.pod_changed(bound, None)
    assert "default/q" in bench.take_woken()
    assert node_of(bench.decide("q")) == "a"


def test_a_decision_that_was_not_written_gives_the_cpu_back_and_wakes_who_lacked_it() -> None:
    bench = Bench(a="8")
    assert isinstance(bench.decide("p", cpu="6"), Allocation)
    assert isinstance(bench.decide("q"), NoFit)
    abandon(bench.cluster, claim("of-p"))
    assert set(bench.take_woken()) == {"default/q"}
    assert isinstance(bench.decide("q"), Allocation)


def test_a_reservation_that_is_taken_back_gives_the_cpu_back_when_its_pod_cannot_be_bound_any_more() -> None:
    bench = Bench(a="8")
    shown = bench.write(bench.decide("p", cpu="6"))
    assert isinstance(bench.decide("q"), NoFit)
    show(bench.cluster, reserved(shown))
    assert isinstance(bench.decide("q"), NoFit), "the pod may be on its way to its node"
    bench.cluster.intake.pod_changed(bench.cluster.pod("default/p"), None)
    assert "default/q" in bench.take_woken()
    assert isinstance(bench.decide("q"), Allocation)


def test_a_pod_whose_other_claim_is_allocated_already_does_not_count_against_itself() -> None:
    bench = Bench(a="8", b="8")
    shown = bench.write(bench.decide("p", cpu="6"))
    waiting = asking("p", "of-p", "second", cpu="6")
    bench.cluster.intake.pod_changed(bench.cluster.pod("default/p"), waiting)
    asked = claim("second", request(count=1))
    bench.cluster.intake.claim_changed(None, asked)
    assert bench.cluster._state.inventory.resources.node_of(pod_name(waiting)) == node_of_claim(shown)
    decision = decide(bench.cluster, waiting, shown, asked)
    assert node_of(decision) == node_of_claim(shown)


def node_of_claim(item: ResourceClaim) -> str:
    assert item.status.allocation is not None
    return item.status.allocation.devices.results[0].pool


def test_heartbeats_wake_no_pod_and_more_allocatable_wakes_only_who_lacked_it() -> None:
    bench = Bench(a="2")
    assert isinstance(bench.decide("cpu"), NoFit)
    assert isinstance(bench.decide("gpus", count=9, cpu="1"), NoFit | Refused)
    bench.cluster.intake.node_changed(node("a", cpu="2"), node("a", cpu="2", resourceVersion="2"))
    assert bench.take_woken() == []
    bench.cluster.intake.node_changed(node("a", cpu="2"), node("a", cpu="1"))
    assert bench.take_woken() == []
    bench.cluster.intake.node_changed(node("a", cpu="1"), node("a", cpu="8"))
    assert bench.take_woken() == ["default/cpu"]
    assert node_of(bench.decide("cpu")) == "a"
    bench.cluster.check()


def test_pods_that_end_wake_no_pod_who_lacks_gpus_and_nobody_when_the_node_has_none() -> None:
    bench = Bench(a="8")
    bench.cluster.intake.node_changed(None, node("cpu-only"))
    bench.cluster.intake.pod_changed(None, hog("h", "a", cpu="1"))
    bench.cluster.intake.pod_changed(None, hog("i", "cpu-only"))
    assert isinstance(bench.decide("gpus", count=5, cpu="1"), NoFit)
    bench.cluster.intake.pod_changed(hog("h", "a", cpu="1"), None)
    assert bench.take_woken() == []
    assert isinstance(bench.decide("cpu", cpu="9"), NoFit)
    bench.cluster.intake.pod_changed(hog("i", "cpu-only"), None)
    assert bench.take_woken() == []


def test_a_pod_with_a_quantity_that_cannot_be_read_is_refused_by_name() -> None:
    bench = Bench(a="8")
    decision = bench.decide("p", cpu="much")
    assert isinstance(decision, Refused)
    assert decision.text == "pod default/p: request for cpu: 'much' is not a quantity"


def test_a_pod_without_claims_that_comes_back_with_claims_is_known() -> None:
    bench = Bench(a="8")
    plain, with_claims = asking("p"), asking("p", "c")
    bench.cluster.intake.pod_changed(None, with_claims)
    bench.cluster.intake.pod_changed(with_claims, plain)
    assert bench.cluster.pod("default/p") is None
    bench.cluster.intake.pod_changed(plain, with_claims)
    assert bench.cluster.pod("default/p") == with_claims


def test_a_pod_that_is_refused_for_a_selector_without_an_answer_somewhere_is_asked_when_another_node_has_room() -> None:
    bench = Bench(a="8", b="8")
    named = pool_slice("b", machine("named", blocks(4, inside="PIX", outside="PIX"), product_name="B"))
    bench.cluster.intake.slice_changed(pool_slice("b", FOUR), named)
    bench.cluster.intake.pod_changed(None, hog("h", "b"))
    is_b = {"cel": {"expression": f'device.attributes["{DRIVER}"].productName == "B"'}}
    waiting, asked = asking("p", "c"), claim("c", request(selectors=[is_b]))
    bench.cluster.intake.pod_changed(None, waiting)
    bench.cluster.intake.claim_changed(None, asked)
    assert isinstance(decide(bench.cluster, waiting, asked), Refused)
    bench.take_woken()
    bench.cluster.intake.pod_changed(hog("h", "b"), None)
    assert bench.take_woken() == ["default/p"]
    assert node_of(decide(bench.cluster, waiting, asked)) == "b"


def test_a_decision_that_is_shown_reserved_for_somebody_else_gives_the_cpu_back() -> None:
    bench = Bench(a="8")
    decision = bench.decide("p", cpu="6")
    assert isinstance(decision, Allocation)
    assert isinstance(bench.decide("q"), NoFit)
    (shown,) = written(decision, pod("r"))
    bench.cluster.shown(shown)
    assert set(bench.take_woken()) == {"default/p", "default/q"}
    assert node_of(bench.decide("q")) == "a"
