from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from dracaena.api.objects import Pod, ResourceClaim
from dracaena.controller.allocation.node_resources import NodeResources, pod_name
from dracaena.controller.allocation.pod_resources import pod_resources
from dracaena.controller.pod_places import PodPlaces
from support.allocation import allocated, claim, pod


def asking(name: str, *claims: str, cpu: str = "2", phase: str = "Pending", uid: str = "", **spec: Any) -> Pod:
    containers = [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]
    made = pod(name, *claims, containers=containers, **spec)
    replace = msgspec.structs.replace
    meta = replace(made.metadata, uid=uid or made.metadata.uid)
    return replace(made, metadata=meta, status=replace(made.status, phase=phase))


def given(name: str, node: str, *users: Pod) -> ResourceClaim:
    rule = {"key": "metadata.name", "operator": "In", "values": [node]}
    return allocated(claim(name), {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [rule]}]}}, *users)


class Places:
    def __init__(self) -> None:
        self.books = NodeResources()
        self.places = PodPlaces(self.books)

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


def test_a_decision_counts_from_the_decision_until_the_pod_is_bound_without_a_gap() -> None:
    known = Places()
    waiting = asking("p", "c")
    known.places.pod_changed(None, waiting)
    assert known.node_of(waiting) is None
    known.places.decided(waiting, ["uid-c"], "a")
    assert known.node_of(waiting) == "a"
    assert known.places.claim_changed(claim("c"), given("c", "a", waiting)) == frozenset()
    assert known.places.settled("uid-c") == frozenset()
    assert known.node_of(waiting) == "a"
    bound = asking("p", "c", nodeName="a")
    assert known.places.pod_changed(waiting, bound) == frozenset()
    assert known.places.claim_changed(given("c", "a", waiting), claim("c")) == frozenset()
    assert known.node_of(bound) == "a"


def test_a_decision_that_was_not_written_and_one_that_is_taken_back_give_the_room_back() -> None:
    known = Places()
    waiting = asking("p", "c", "d")
    known.places.pod_changed(None, waiting)
    known.places.decided(waiting, ["uid-c", "uid-d"], "a")
    assert known.places.settled("uid-c") == frozenset()
    assert known.places.settled("uid-d") == {"a"}
    known.places.claim_changed(None, given("c", "b", waiting))
    assert known.node_of(waiting) == "b"
    assert known.places.claim_changed(given("c", "b", waiting), given("c", "b")) == {"b"}
    assert known.node_of(waiting) is None


def test_a_new_leader_finds_the_same_from_the_api_alone_in_any_order() -> None:
    waiting = asking("p", "c")
    for claim_first in (False, True):
        known = Places()
        if claim_first:
            known.places.claim_changed(None, given("c", "a", waiting))
        known.places.pod_changed(None, waiting)
        if not claim_first:
            known.places.claim_changed(None, given("c", "a", waiting))
        assert known.node_of(waiting) == "a"


def test_another_pod_of_the_same_name_is_another_pod() -> None:
    known = Places()
    first, second = asking("p", "c"), asking("p", "c", uid="other")
    known.places.pod_changed(None, first)
    known.places.decided(first, ["uid-c"], "a")
    known.places.claim_changed(None, given("c", "a", first))
    known.places.pod_changed(first, second)
    assert (known.node_of(first), known.node_of(second)) == (None, None)
    known.places.settled("uid-c")
    known.places.claim_changed(given("c", "a", first), given("c", "a", second))
    assert known.node_of(second) == "a"


def test_a_pod_with_a_quantity_that_no_server_lets_pass_still_takes_a_place() -> None:
    known = Places()
    odd = asking("p", cpu="many", nodeName="a")
    known.places.pod_changed(None, odd)
    known.books.set_node("a", {"pods": 1, "cpu": 1000})
    assert known.books.shortage("a", pod_resources(asking("q", cpu="1"))) == "that run as many pods as they may"


@pytest.mark.parametrize("seed", range(20))
def test_after_any_changes_each_pod_counts_where_the_last_of_them_says(seed: int) -> None:
    rng = random.Random(seed)
    known = Places()
    pods: dict[str, Pod] = {}
    claims: dict[str, ResourceClaim] = {}
    decided: dict[str, tuple[str, str]] = {}  # claim → UID of the pod, node
    for _ in range(200):
        number = rng.randrange(4)
        key, what = f"p{number}", rng.random()
        if what < 0.35:
            old = pods.pop(key, None)
            new = None
            if rng.random() < 0.8:
                uid = f"{key}-{rng.randrange(2)}" if old is None or rng.random() < 0.2 else old.metadata.uid
                where = {"nodeName": rng.choice("ab")} if rng.random() < 0.3 else {}
                phase = rng.choice(["Pending", "Pending", "Running", "Failed"])
                cpu = rng.choice(["1", "2"])
                new = pods[key] = asking(key, f"c{number}", f"d{number}", cpu=cpu, uid=uid, phase=phase, **where)
            known.places.pod_changed(old, new)
        elif what < 0.7:
            name = f"{rng.choice('cd')}{number}"
            before = claims.pop(name, None)
            after = None
            if rng.random() < 0.8:
                users = [pods[key]] if key in pods and rng.random() < 0.7 else []
                after = claims[name] = given(name, rng.choice("ab"), *users) if rng.random() < 0.7 else claim(name)
            known.places.claim_changed(before, after)
        elif what < 0.85 and key in pods:
            name, node = f"{rng.choice('cd')}{number}", rng.choice("ab")
            if name not in decided:
                decided[name] = pods[key].metadata.uid, node
                known.places.decided(pods[key], [name], node)
        else:
            name = f"{rng.choice('cd')}{number}"
            decided.pop(name, None)
            known.places.settled(name)
        allowed = {item.metadata.uid: nodes_said(item, claims, decided) for item in pods.values()}
        for uid, nodes in allowed.items():
            assert known.books.node_of(uid) in nodes
        counted = {uid for uid in (f"p{n}-{v}" for n in range(4) for v in range(2)) if known.books.node_of(uid)}
        assert counted <= allowed.keys(), "who is gone counts nowhere"
        known.books.check({})


def nodes_said(item: Pod, claims: dict[str, ResourceClaim], decided: dict[str, tuple[str, str]]) -> set[str | None]:
    """Return the node where a pod counts; several when its claims say different ones."""
    if item.status.phase == "Failed":
        return {None}
    if item.spec.node_name:
        return {item.spec.node_name}
    names = [entry.resource_claim_name or "" for entry in item.spec.resource_claims]
    assumed: set[str | None] = {
        decided[name][1] for name in names if name in decided and decided[name][0] == item.metadata.uid
    }
    if assumed:
        return assumed
    reserved: set[str | None] = set()
    for name in names:
        status = claims[name].status if name in claims else None
        if status is not None and any(user.uid == item.metadata.uid for user in status.reserved_for):
            assert status.allocation is not None
            assert status.allocation.node_selector is not None
            reserved.add(status.allocation.node_selector["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
    return reserved or {None}
