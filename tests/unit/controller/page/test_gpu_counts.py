from __future__ import annotations

from dataclasses import replace

from dracaena.controller.page.gpu_counts import KEPT_S, GpuCounts
from dracaena.controller.page.snapshots import LatestSnapshot
from dracaena.controller.views.snapshot import Watched
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, node, pool_slice
from support.clock import FakeClock

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))


class Cluster:
    """Two nodes, and how often somebody looked at them."""

    def __init__(self) -> None:
        names = ("a", "b")
        self.watched = Watched([node(name) for name in names], [pool_slice(name, FOUR) for name in names], [])
        self.looks = 0

    def look(self) -> Watched:
        self.looks += 1
        return self.watched


def test_all_numbers_of_a_scrape_come_of_one_count_and_those_of_the_next_of_another() -> None:
    cluster, clock = Cluster(), FakeClock()
    counts = GpuCounts(LatestSnapshot(DRIVER, cluster.look, clock), clock)
    assert (counts.of("free"), counts.most_free_on_a_node()) == (8, 4)
    taken = [holding(claim(f"c{place}"), "b", device_name(FOUR, place)) for place in range(3)]
    cluster.watched = replace(cluster.watched, claims=taken, nodes=[node("a", unschedulable=True), node("b")])
    assert (counts.of("free"), counts.of("used"), cluster.looks) == (8, 0, 1)
    clock.advance(KEPT_S)
    assert [counts.of(state) for state in ("free", "used", "closed")] == [1, 3, 4]
    assert (counts.most_free_on_a_node(), cluster.looks) == (1, 2)


def test_a_cluster_without_gpus_has_none_in_any_state() -> None:
    counts = GpuCounts(LatestSnapshot(DRIVER, lambda: Watched([node("a")], [], []), FakeClock()), FakeClock())
    assert (counts.of("free"), counts.of("unpublished"), counts.most_free_on_a_node()) == (0, 0, 0)
