"""The allocator decides by the rules of the version that is served."""

from __future__ import annotations

import pytest

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator, NoFit
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation, allocated_claim
from dracaena.controller.allocation.state.inventory import Inventory
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    machine,
    node,
    own_config,
    pod,
    pool_slice,
    request,
)
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
    *configs, _ = stored.status.allocation.devices.config
    assert [entry.requests for entry in configs] == named


PAIRS = machine("pairs", blocks(2, 2, inside="NV4", outside="PIX"))


def derived(expression: str, count: int) -> ResourceClaim:
    attributes = [{"name": "derived/key", "expression": expression}]
    asked = claim("c", request("gpus", count=count, derivedAttributes=attributes))
    asked.spec["devices"]["constraints"] = [{"matchAttribute": "derived/key"}]
    return asked


def given(nodes: list[str], asked: ResourceClaim) -> object:
    inventory = Inventory(DRIVER)
    slices = [pool_slice(name, PAIRS) for name in nodes]
    filled(inventory, nodes=[node(name) for name in nodes], slices=slices, classes=[device_class()])
    decision = Allocator().allocate(inventory, pod("p", "c"), [asked])
    if not isinstance(decision, Allocation):
        return decision
    names = [device_name(PAIRS, ordinal) for ordinal in range(4)]
    return sorted(names.index(result.device) for entry in decision.claims for result in entry.results)


@pytest.mark.parametrize("nodes", [["a"], ["a", "b", "c"]])
@pytest.mark.parametrize(
    ("expression", "gpus"),
    [
        ("ordinal % 2", [0, 2]),
        ("ordinal / 2", [0, 1]),
        ("ordinal == 3", [0, 1]),
        ("ordinal == 0 || device.attributes[DRIVER].ordinal == 3", [0, 3]),
        ("uuid.endsWith('0')", None),
    ],
)
def test_gpus_agree_in_what_a_claim_derives(nodes: list[str], expression: str, gpus: list[int] | None) -> None:
    text = f"device.attributes[DRIVER].{expression}".replace("DRIVER", f"'{DRIVER}'")
    if gpus is not None:
        assert given(nodes, derived(text, 2)) == gpus
    else:
        assert given(nodes, derived(text, 3)) == [1, 2, 3]
        assert isinstance(given(nodes, derived(text, 4)), NoFit)


@pytest.mark.parametrize("expression", ["1 +", "1.5", "[1, 'a']"])
def test_a_derived_attribute_that_does_not_compile_is_refused(expression: str) -> None:
    refused = given(["a"], derived(expression, 2))
    assert isinstance(refused, Refused)
    assert refused.kind is RefusalKind.SELECTOR
    assert refused.text.startswith("claim default/c, request gpus: derived attribute derived/key: ")


def test_what_one_claim_derives_says_nothing_about_another() -> None:
    inventory = Inventory(DRIVER)
    names = [f"n{number}" for number in range(3)]
    slices = [pool_slice(name, PAIRS) for name in names]
    filled(inventory, nodes=[node(name) for name in names], slices=slices, classes=[device_class()])
    allocator = Allocator()
    ordinal = f"device.attributes['{DRIVER}'].ordinal"
    for expression, fits in ((ordinal, False), (f"{ordinal} % 2", True), (ordinal, False), (f"{ordinal} / 2", True)):
        decision = allocator.allocate(inventory, pod("p", "c"), [derived(expression, 2)])
        assert isinstance(decision, Allocation if fits else NoFit), expression
