from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Pod
from dracaena.controller.allocation.nodes.node_resources import pod_name
from dracaena.controller.allocation.nodes.pod_resources import pod_resources
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.lifecycle.claim_record import PodIdentity
from dracaena.controller.state.pod_accounting import PodAccounting
from support.allocation import DRIVER, pod


def asking(name: str, *claims: str, cpu: str = "2", phase: str = "Pending", uid: str = "", **spec: Any) -> Pod:
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    made = pod(name, *claims, containers=containers, **spec)
    replace = msgspec.structs.replace
    meta = replace(made.metadata, uid=uid or made.metadata.uid)
    return replace(made, metadata=meta, status=replace(made.status, phase=phase))


class Places:
    def __init__(self) -> None:
        inventory = Inventory(DRIVER)
        self.books = inventory.resources
        self.places = PodAccounting(inventory)
        self.told: dict[str, dict[PodIdentity, str]] = {}

    def claim(self, name: str, *pods: Pod, node: str = "a") -> frozenset[str]:
        """Let a claim tell that these pods will go to a node, and no others; return the nodes that have more left."""
        before = self.told.get(name, {})
        self.told[name] = {PodIdentity(item.key, item.metadata.uid): node for item in pods}
        return self.places.claim_changed(name, before, self.told[name])

    def node_of(self, item: Pod) -> str | None:
        return self.books.node_of(pod_name(item))


def test_a_bound_pod_counts_on_its_node_until_it_ends() -> None:
    known = Places()
    bound = asking("p", nodeName="a")
    assert known.places.pod_changed(None, bound) == frozenset()
    assert known.node_of(bound) == "a"
    ended = asking("p", nodeName="a", phase="Succeeded")
    assert known.places.pod_changed(bound, ended) == {"a"}
    assert known.node_of(bound) is None
    assert known.places.pod_changed(ended, None) == frozenset()


def test_a_pod_counts_where_its_claim_tells_until_it_is_bound_without_a_gap() -> None:
    known = Places()
    waiting = asking("p", "c")
    known.places.pod_changed(None, waiting)
    assert known.node_of(waiting) is None
    assert known.claim("c", waiting) == frozenset()
    assert known.node_of(waiting) == "a"
    bound = asking("p", "c", nodeName="a")
    assert known.places.pod_changed(waiting, bound) == frozenset()
    assert known.claim("c") == frozenset()
    assert known.node_of(bound) == "a"


def test_the_last_claim_that_tells_of_a_node_gives_the_room_back() -> None:
    known = Places()
    waiting = asking("p", "c", "d")
    known.places.pod_changed(None, waiting)
    known.claim("c", waiting)
    known.claim("d", waiting)
    assert known.claim("c") == frozenset()
    assert known.claim("d") == {"a"}
    assert known.claim("c", waiting, node="b") == frozenset()
    assert known.node_of(waiting) == "b"
    assert known.claim("c", waiting, node="a") == {"b"}
    assert known.node_of(waiting) == "a"


def test_a_new_leader_finds_the_same_from_the_api_alone_in_any_order() -> None:
    waiting = asking("p", "c")
    for claim_first in (False, True):
        known = Places()
        if claim_first:
            known.claim("c", waiting)
        known.places.pod_changed(None, waiting)
        if not claim_first:
            known.claim("c", waiting)
        assert known.node_of(waiting) == "a"


def test_another_pod_of_the_same_name_is_another_pod() -> None:
    known = Places()
    first, second = asking("p", "c"), asking("p", "c", uid="other")
    known.places.pod_changed(None, first)
    known.claim("c", first)
    known.places.pod_changed(first, second)
    assert (known.node_of(first), known.node_of(second)) == (None, None)
    known.claim("c", second)
    assert known.node_of(second) == "a"


def test_a_pod_counts_next_to_an_earlier_one_of_its_name_that_the_claim_still_tells_of() -> None:
    """kube-controller-manager takes the reservation of a pod that is gone away only after a while."""
    known = Places()
    first, second = asking("p", "c"), asking("p", "c", uid="other")
    known.places.pod_changed(None, second)
    known.claim("c", second, first)
    assert known.node_of(second) == "a"


def test_a_claim_that_tells_the_same_as_before_changes_nothing() -> None:
    known = Places()
    waiting = asking("p", "c")
    known.places.pod_changed(None, waiting)
    known.claim("c", waiting)
    assert known.claim("c", waiting) == frozenset()
    assert known.node_of(waiting) == "a"


def test_a_pod_with_a_quantity_that_no_server_lets_pass_still_takes_a_place() -> None:
    known = Places()
    odd = asking("p", cpu="many", nodeName="a")
    known.places.pod_changed(None, odd)
    known.books.set_node("a", {"pods": 1, "cpu": 1000})
    assert known.books.shortage("a", pod_resources(asking("q", cpu="1"))) == "that already run as many pods as they may"


@pytest.mark.parametrize("seed", range(20))
def test_after_any_changes_each_pod_counts_where_the_last_of_them_says(seed: int) -> None:
    rng = random.Random(seed)
    known = Places()
    pods: dict[str, Pod] = {}
    for _ in range(200):
        number = rng.randrange(4)
        key = f"p{number}"
        if rng.random() < 0.5:
            old = pods.pop(key, None)
            new = None
            if rng.random() < 0.8:
                uid = f"{key}-{rng.randrange(2)}" if old is None or rng.random() < 0.2 else old.metadata.uid
                where = {"nodeName": rng.choice("ab")} if rng.random() < 0.3 else {}
                phase = rng.choice(["Pending", "Pending", "Running", "Failed"])
                cpu = rng.choice(["1", "2"])
                new = pods[key] = asking(key, f"c{number}", f"d{number}", cpu=cpu, uid=uid, phase=phase, **where)
            known.places.pod_changed(old, new)
        else:
            users = [asking(key, uid=f"{key}-{version}") for version in range(2) if rng.random() < 0.6]
            known.claim(f"{rng.choice('cd')}{number}", *users, node=rng.choice("ab"))
        allowed = {item.metadata.uid: nodes_said(item, known.told) for item in pods.values()}
        for uid, nodes in allowed.items():
            assert known.books.node_of(uid) in nodes
        counted = {uid for uid in (f"p{n}-{v}" for n in range(4) for v in range(2)) if known.books.node_of(uid)}
        assert counted <= allowed.keys(), "who is gone counts nowhere"
        known.books.check({})


def nodes_said(item: Pod, told: dict[str, dict[PodIdentity, str]]) -> set[str | None]:
    """Return the node where a pod counts; several when its claims say different ones."""
    if item.status.phase == "Failed":
        return {None}
    if item.spec.node_name:
        return {item.spec.node_name}
    me = PodIdentity(item.key, item.metadata.uid)
    nodes: set[str | None] = {places[me] for places in told.values() if me in places}
    return nodes or {None}


def test_what_a_waiting_pod_takes_is_known_as_it_is_now_until_it_waits_no_more() -> None:
    known = Places()
    waiting = asking("p", "c", cpu="2")
    known.places.pod_changed(None, waiting)
    assert known.books.known(waiting) == pod_resources(waiting)
    resized = asking("p", "c", cpu="3")
    assert known.books.known(resized) is None
    known.places.pod_changed(waiting, resized)
    assert known.books.known(resized) == pod_resources(resized) != pod_resources(waiting)
    assert known.books.known(waiting) is None
    bound = asking("p", "c", cpu="3", nodeName="a")
    known.places.pod_changed(resized, bound)
    assert known.books.known(resized) is known.books.known(bound) is None
    known.places.pod_changed(bound, None)
    other = asking("q", "c")
    known.places.pod_changed(None, other)
    known.places.pod_changed(other, None)
    assert known.books.known(other) is None


def test_a_waiting_pod_with_an_amount_that_cannot_be_read_is_known_as_none() -> None:
    known = Places()
    waiting = asking("p", "c", cpu="two")
    known.places.pod_changed(None, waiting)
    assert known.books.known(waiting) is None
    assert known.claim("c", waiting) == frozenset()
    assert known.node_of(waiting) == "a"
