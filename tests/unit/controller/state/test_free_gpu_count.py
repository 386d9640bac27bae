from __future__ import annotations

from dracaena.controller.state.cluster import ClusterState, Wakers
from dracaena.controller.state.free_gpu_count import KEPT_S, FreeGpuCount
from support.allocation import DRIVER, blocks, machine, node, pool_slice
from support.clock import FakeClock
from support.reconciling import RULES, no_fault


def test_both_numbers_of_a_scrape_come_of_one_count_and_those_of_the_next_of_another() -> None:
    clock = FakeClock()
    wakers = Wakers(lambda key: None, lambda key: None, lambda key: None, lambda key, delay_s: None, no_fault)
    state = ClusterState(DRIVER, wakers, RULES, clock.monotonic())
    count = FreeGpuCount(state, clock)
    for name, gpus in (("a", 4), ("b", 8)):
        state.inventory.set_node(node(name))
        state.inventory.change_slice(None, pool_slice(name, machine(name, blocks(gpus, inside="PIX", outside="PIX"))))
    assert count.total() == 12
    state.inventory.remove_node("b")
    assert count.most_on_a_node() == 8
    clock.advance(KEPT_S)
    assert (count.most_on_a_node(), count.total()) == (4, 4)
