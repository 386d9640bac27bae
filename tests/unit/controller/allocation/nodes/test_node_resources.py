from __future__ import annotations

import random
from math import inf

import pytest

from dracaena.controller.allocation.nodes.node_resources import MAX_INDEXED, NodeResources, ResourceDemand
from dracaena.controller.allocation.nodes.pod_resources import ANY_ADDRESS, HostPort, PodResources, shared_resources

KINDS = ("cpu", "memory", "pods", "example.com/nic")
NAMES = tuple(f"n{number}" for number in range(6))
TCP_80 = HostPort(ANY_ADDRESS, "TCP", 80)


def needs(*ports: HostPort, pods: int = 1, priority: int = 0, **amounts: int) -> PodResources:
    return shared_resources(tuple(sorted({"pods": pods, **amounts}.items())), ports, priority)


def random_needs(rng: random.Random) -> PodResources:
    amounts = {kind: rng.randint(1, 5) for kind in KINDS if kind != "pods" and rng.random() < 0.5}
    addresses = (ANY_ADDRESS, "10.0.0.1", "10.0.0.2")
    ports = {HostPort(rng.choice(addresses), rng.choice(("TCP", "UDP")), 80) for _ in range(rng.choice((0, 0, 1)))}
    return needs(*sorted(ports), priority=rng.choice((-5, 0, 0, 10)), **amounts)


class SlowResources:
    """All pods are counted anew at each question."""

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, int] | None] = {}
        self.pods: dict[str, tuple[str, PodResources]] = {}

    def left(self, node: str, resource: str, but: str | None = None, least_priority: float = -inf) -> float:
        has = self.nodes[node]
        if has is None:
            return float("inf")
        taken = (
            dict(found.amounts)
            for pod, (place, found) in self.pods.items()
            if place == node and pod != but and found.priority >= least_priority
        )
        return has.get(resource, 0) - sum(amounts.get(resource, 0) for amounts in taken)

    def fits(self, node: str, wanted: PodResources, but: str | None, least_priority: float = -inf) -> bool:
        used = {
            port for pod, (place, found) in self.pods.items() if place == node and pod != but for port in found.ports
        }
        lefts = {resource: self.left(node, resource, but, least_priority) for resource, _ in wanted.amounts}
        return all(lefts[resource] >= amount for resource, amount in wanted.amounts) and not any(
            port[1:] == other[1:] and (port[0] == other[0] or ANY_ADDRESS in (port[0], other[0]))
            for port in wanted.ports
            for other in used
        )


@pytest.mark.parametrize("seed", range(20))
def test_after_any_changes_the_books_answer_as_if_all_pods_were_counted_again(seed: int) -> None:
    rng = random.Random(seed)
    books, slow = NodeResources(), SlowResources()
    for _ in range(150):
        what, name, pod = rng.random(), rng.choice(NAMES), f"p{rng.randrange(12)}"
        if what < 0.25:
            has = None if rng.random() < 0.1 else {kind: rng.randint(0, 12) for kind in KINDS if rng.random() < 0.8}
            books.set_node(name, has)
            slow.nodes[name] = has
        elif what < 0.3:
            books.remove_node(name)
            slow.nodes.pop(name, None)
        elif what < 0.8:
            place = None if rng.random() < 0.3 else name
            found = random_needs(rng)
            before = {node: {kind: slow.left(node, kind) for kind in KINDS} for node in slow.nodes}
            gaining = books.place_pod(pod, place, found)
            slow.pods.pop(pod, None)
            if place is not None:
                slow.pods[pod] = place, found
            after = {node: {kind: slow.left(node, kind) for kind in KINDS} for node in slow.nodes}
            grown = {node for node in slow.nodes if any(after[node][kind] > before[node][kind] for kind in KINDS)}
            assert grown <= {gaining}
        else:
            wanted = random_needs(rng)
            demand = ResourceDemand(books, wanted, pod=pod)
            sets = demand.with_room()
            for node in slow.nodes:
                fits = slow.fits(node, wanted, but=pod)
                assert (demand.shortage(node) is None) is fits
                assert not fits or all(node in names for names in sets)
            preempting = ResourceDemand(books, wanted, pod=pod, preempting=True)
            sets = preempting.with_room()
            for node in slow.nodes:
                fits = slow.fits(node, wanted, but=pod, least_priority=wanted.priority)
                assert (preempting.shortage(node) is None) is fits
                assert not fits or all(node in names for names in sets)
        books.check(slow.nodes)


def test_a_node_lacks_what_all_its_pods_leave_too_little_of_and_says_what() -> None:
    books = NodeResources()
    books.set_node("n", {"cpu": 4000, "memory": 100, "pods": 3})
    books.place_pod("a", "n", needs(cpu=3000, memory=60))
    assert books.shortage("n", needs(cpu=1000, memory=40)) is None
    assert books.shortage("n", needs(cpu=1001)) == "with too little free cpu"
    assert books.shortage("n", needs(cpu=1001, memory=41)) == "with too little free cpu and memory"
    assert books.shortage("n", needs(cpu=4001, memory=41)) == (
        "that have less cpu than the pod needs, even when nothing else runs there"
    )
    books.place_pod("b", "n", needs())
    books.place_pod("c", "n", needs())
    assert books.shortage("n", needs()) == "that already run as many pods as they may"
    books.place_pod("c", None, needs())
    assert books.shortage("n", needs()) is None


def test_a_resource_that_a_class_stands_for_is_only_counted_where_the_node_has_some() -> None:
    books = NodeResources()
    wanted = needs(**{"example.com/nic": 2})
    books.set_node("by-class", {"pods": 9})
    books.set_node("by-plugin", {"pods": 9, "example.com/nic": 1})
    assert books.shortage("by-class", wanted) is not None
    assert books.shortage("by-class", wanted, by_class={"example.com/nic"}) is None
    assert books.shortage("by-plugin", wanted, by_class={"example.com/nic"}) is not None


def test_host_ports_collide_by_protocol_and_address() -> None:
    books = NodeResources()
    books.set_node("n", {"pods": 9})
    books.place_pod("a", "n", needs(HostPort("10.0.0.1", "TCP", 80)))
    assert books.shortage("n", needs(TCP_80)) == "whose port 80/TCP is in use"
    assert books.shortage("n", needs(HostPort("10.0.0.1", "TCP", 80))) is not None
    assert books.shortage("n", needs(HostPort("10.0.0.2", "TCP", 80))) is None
    assert books.shortage("n", needs(HostPort(ANY_ADDRESS, "UDP", 80))) is None
    assert books.shortage("n", needs(TCP_80), but="a") is None


def test_pods_that_come_before_their_node_count_when_it_comes_and_comes_back() -> None:
    books = NodeResources()
    books.place_pod("a", "n", needs(cpu=3))
    for _ in range(2):
        assert books.set_node("n", {"cpu": 4, "pods": 9})
        assert books.shortage("n", needs(cpu=2)) is not None
        assert books.shortage("n", needs(cpu=1)) is None
        books.remove_node("n")


def test_only_more_of_something_is_news_of_a_node() -> None:
    books = NodeResources()
    assert books.set_node("n", {"cpu": 4, "pods": 9})
    assert not books.set_node("n", {"cpu": 4, "pods": 9})
    assert not books.set_node("n", {"cpu": 3, "pods": 9})
    assert books.set_node("n", {"cpu": 2, "pods": 10})
    assert books.set_node("n", None)
    assert books.shortage("n", needs(cpu=10**15)) is None


def test_moving_ending_and_shrinking_pods_tell_the_node_that_gains() -> None:
    books = NodeResources()
    assert books.place_pod("a", "n", needs(cpu=3)) is None
    assert books.place_pod("a", "n", needs(cpu=4)) is None
    assert books.place_pod("a", "n", needs(cpu=2)) == "n"
    assert books.place_pod("a", "m", needs(cpu=2)) == "n"
    assert books.place_pod("a", None, needs()) == "m"
    assert books.place_pod("a", None, needs()) is None
    books.check({})


def test_where_many_nodes_are_short_those_that_are_not_are_named() -> None:
    books = NodeResources()
    for number in range(40):
        books.set_node(f"n{number:02}", {"cpu": number, "pods": 9})
    assert books.with_room(needs(cpu=1)) == []
    assert books.with_room(needs(cpu=30)) == [frozenset(f"n{number}" for number in range(30, 40))]
    books.place_pod("a", "n35", needs(cpu=20))
    assert "n35" not in books.with_room(needs(cpu=30))[0]
    assert books.with_room(needs(cpu=99, pods=99)) == [frozenset(), frozenset()]


def test_resources_not_asked_for_lately_are_not_kept_sorted() -> None:
    books = NodeResources()
    books.set_node("n", {"cpu": 1})
    for number in range(MAX_INDEXED + 3):
        books.with_room(needs(**{f"example.com/{number}": 1}))
    assert len(books._sorted) == MAX_INDEXED
    books.place_pod("a", "n", needs(cpu=1))
    books.check({"n": {"cpu": 1}})
