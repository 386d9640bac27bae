"""The allocator decides by the rules of the version that is served."""

from __future__ import annotations

import pytest

from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.result import Allocation, allocated_claim
from dracaena.controller.allocation.state.inventory import Inventory
from support.allocation import DRIVER, blocks, claim, device_class, machine, node, own_config, pod, pool_slice, request
from support.inventories import filled

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
POLICY = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "requirement": "PIX"}


@pytest.mark.parametrize(("version", "named"), [((1, 36), [["gpus"]]), ((1, 37), [[]])])
def test_a_config_that_covers_each_request_names_none_from_1_37_on(
    version: tuple[int, int], named: list[list[str]]
) -> None:
    inventory = Inventory(DRIVER)
    filled(inventory, nodes=[node("n")], slices=[pool_slice("n", FOUR)], classes=[device_class()])
    config = {**own_config(POLICY), "requests": ["gpus"]}
    allocator = Allocator()
    for served in ((1, 37), (1, 36), version):
        allocator.serve(Features.of(served))
    decision = allocator.allocate(inventory, pod("p", "c"), [claim("c", request("gpus", count=2), configs=[config])])
    assert isinstance(decision, Allocation)
    stored = allocated_claim(decision, decision.claims[0], "2026-01-01T00:00:00Z")
    assert stored.status.allocation is not None
    assert [entry.requests for entry in stored.status.allocation.devices.config] == named
