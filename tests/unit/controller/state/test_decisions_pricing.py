"""What pods ask for decides which node a pod gets where nodes differ (docs/design/choice-of-node.md)."""

from __future__ import annotations

import pytest

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.score.order import Prices
from support.allocation import claim, pod, request
from support.reconciling import Bench
from support.recorded import recorded_machines

MACHINES = {machine.name: machine for machine in recorded_machines()}
BRIDGED, SWITCHED = MACHINES["h100-pcie-bridged-numa-3-5"], MACHINES["hgx-h100"]


def asks(name: str, gpus: int) -> ResourceClaim:
    return claim(name, request(count=gpus))


def prices(bench: Bench) -> Prices:
    found = bench.cluster._state.decisions._allocator.engine.prices
    assert found is not None
    return found


def node_of(bench: Bench, key: str) -> str:
    allocation = bench.api.claims[key].status.allocation
    assert allocation is not None
    return allocation.devices.results[0].pool


@pytest.mark.parametrize(("others", "node"), [(0, "switched"), (15, "bridged")])
def test_a_pod_of_two_leaves_the_switches_to_those_who_use_them(others: int, node: str) -> None:
    machines = {f"other{number:02}": SWITCHED for number in range(others)}
    bench = Bench(bridged=BRIDGED, switched=SWITCHED, **machines)
    for name in machines:
        bench.add(asks(name, 8), pod(name, name, nodeSelector={"kubernetes.io/hostname": name}))
    bench.run()
    bench.cluster.reprice(0.0)
    bench.add(asks("c", 2), pod("p", "c"))
    bench.run()
    assert node_of(bench, "default/c") == node


def test_prices_follow_the_pods_that_hold_gpus_and_that_wait_for_some() -> None:
    bench = Bench(bridged=BRIDGED)
    bench.cluster.reprice(0.0)
    assert prices(bench) == Prices((0, 0, 0), (9, 11, 300))
    bench.add(asks("c", 4), pod("p", "c"))
    bench.run()
    bench.cluster.reprice(1e6)
    assert prices(bench).shares == (0, 42, 0)
    bench.add(asks("d", 8), pod("waits", "d"))
    bench.run()
    bench.cluster.reprice(2e6)
    assert prices(bench).shares == (36, 18, 0)
    bench.remove_pod("default/waits")
    bench.run()
    bench.cluster.reprice(3e6)
    assert prices(bench).shares == (0, 42, 0)


def test_prices_that_are_about_right_stay() -> None:
    bench = Bench(bridged=BRIDGED)
    bench.cluster.reprice(0.0)
    before = prices(bench)
    bench.add(asks("c", 4), pod("p", "c"))
    bench.run()
    bench.cluster.reprice(60.0)
    assert prices(bench) is before
