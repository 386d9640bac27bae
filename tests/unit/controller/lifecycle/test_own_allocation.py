from __future__ import annotations

import msgspec
import pytest

from dracaena.api.decision import Decision, decision_config
from dracaena.api.names import decision_driver
from dracaena.api.resource_objects import AllocationConfig, OpaqueConfig, ResourceClaim
from dracaena.controller.lifecycle.own_allocation import our_node
from support.allocation import DRIVER, claim, decided, holding, with_configs

HELD = holding(claim("c"), "node-a", "gpu-1")
DOCUMENT = decision_config(Decision("node-a", "one GPU", (), 1), DRIVER)
NOTE = DOCUMENT["opaque"]["parameters"]


def entry(source: str = "FromClass", driver: str = decision_driver(DRIVER), note: bytes = NOTE) -> AllocationConfig:
    return AllocationConfig(source, [], OpaqueConfig(driver, msgspec.Raw(note)))


@pytest.mark.parametrize(
    ("item", "node"),
    [
        (decided(HELD), "node-a"),
        (with_configs(HELD, entry("FromClaim"), entry()), "node-a"),
        (with_configs(HELD, entry(note=b'{"kind":"Later"}')), "node-a"),
        (with_configs(HELD, entry("FromClaim")), None),
        (with_configs(HELD, entry(driver=DRIVER)), None),
        (with_configs(HELD, entry(driver="decision.example.com")), None),
        (with_configs(HELD, AllocationConfig("FromClass", [])), None),
        (HELD, None),
        (decided(holding(claim("c"), "node-a", "gpu-1", driver="nic.example.com")), None),
        (claim("c"), None),
    ],
)
def test_an_allocation_is_ours_when_it_carries_our_decision(item: ResourceClaim, node: str | None) -> None:
    assert our_node(item, DRIVER) == node


@pytest.mark.parametrize("notes", [{}, {f"{DRIVER}/decision": '{"node":"node-b"}', "more": "x"}])
def test_no_annotation_makes_an_allocation_ours_or_somebody_elses(notes: dict[str, str]) -> None:
    for item, node in ((decided(HELD), "node-a"), (HELD, None)):
        noted = msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, annotations=notes))
        assert our_node(noted, DRIVER) == node
