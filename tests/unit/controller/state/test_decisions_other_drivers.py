"""Pods that also ask for a network card: nodes that certainly cannot serve that are not tried, and each node is tried
before one is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from dracaena.api.resource_objects import ResourceClaimStatus
from dracaena.controller.lifecycle.pod_record import TRIED, Growth
from support.allocation import blocks, claim, machine, pod, request
from support.other_drivers import SLOW, held_nic, nic, nic_class, nic_request, nic_slice
from support.reconciling import RULES, Bench

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))

BACK_OFF_S = (1, 2, 4, 8, 10)
"""kube-scheduler's, between its attempts for a pod; the last one goes on."""


class Patient(Bench):
    """With the back-off of the program, in which a node may come up again while others were never tried."""

    rules = replace(RULES, growth=Growth(first_s=60.0, longest_s=1_800.0))


def cluster(nodes: int) -> Patient:
    bench = Patient(**{f"n{number:02}": TWO for number in range(nodes)})
    bench.cluster.intake.class_changed(None, nic_class())
    return bench


def ask(bench: Bench, name: str = "p") -> None:
    """A pod asks for a GPU and for a network card."""
    bench.add(claim(f"{name}-gpu", request()), claim(f"{name}-nic", nic_request()))
    bench.add(pod(name, f"{name}-gpu", f"{name}-nic"))
    bench.run()


def try_nodes(bench: Bench, times: int) -> Sequence[str]:
    """Let kube-scheduler refuse the pod's node and clear its claim so many times, as 1.36 does; return the nodes."""
    tried: list[str] = []
    while len(tried) < times:
        node = bench.on_node("p-gpu")
        if node is None:
            bench.pass_time(1)
            continue
        tried.append(node)
        bench.pass_time(BACK_OFF_S[min(len(tried), len(BACK_OFF_S)) - 1])
        bench.say("p", f"resourceclaim not available on the node, attempt {len(tried)}")
        cleared = msgspec.structs.replace(bench.api.claims["default/p-gpu"], status=ResourceClaimStatus())
        bench.api.put(cleared)
        bench.run()
    return tried


def test_the_only_node_with_a_network_card_is_found_at_once() -> None:
    bench = cluster(50)
    bench.cluster.intake.follow_other_drivers()
    bench.cluster.intake.slice_changed(None, nic_slice("n49", [nic("0")]))
    ask(bench)
    assert bench.on_node("p-gpu") == "n49"


def test_of_equal_nodes_each_is_tried_before_one_is_tried_again() -> None:
    bench = cluster(15)
    ask(bench)
    tried = try_nodes(bench, 30)
    assert sorted(tried[:15]) == sorted(bench.machines)
    assert sorted(tried[15:]) == sorted(bench.machines)


def test_a_pod_waits_for_a_network_card_and_learns_so() -> None:
    bench = cluster(2)
    bench.cluster.intake.follow_other_drivers()
    bench.add(held_nic("other", "n01", "0"))
    bench.cluster.intake.slice_changed(None, nic_slice("n01", [nic("0")]))
    ask(bench)
    assert bench.on_node("p-gpu") is None
    suits = "devices that suit claim default/p-nic (DeviceClass nic), which kube-scheduler allocates"
    (told,) = bench.told()
    assert f"1 without {suits} (n00)" in told
    assert f"1 without free {suits} (n01)" in told
    bench.claim_changed(bench.api.claims.pop("default/other"), None)
    bench.run()
    assert bench.on_node("p-gpu") == "n01"


def test_a_network_card_that_comes_later_is_noticed() -> None:
    bench = cluster(2)
    bench.cluster.intake.follow_other_drivers()
    ask(bench)
    assert bench.on_node("p-gpu") is None
    bench.cluster.intake.slice_changed(None, nic_slice("n01", [nic("0", SLOW)]))
    bench.run()
    assert bench.on_node("p-gpu") == "n01"
    bench.cluster.check()


def test_a_controller_that_does_not_know_other_drivers_refuses_no_node_for_them() -> None:
    bench = cluster(2)
    ask(bench)
    assert bench.on_node("p-gpu") == "n00"


def test_a_node_that_was_tried_is_tried_again_when_no_other_has_room() -> None:
    bench = cluster(1)
    ask(bench)
    assert try_nodes(bench, 2) == ["n00", "n00"]
    assert any(TRIED in message for message in bench.told())
