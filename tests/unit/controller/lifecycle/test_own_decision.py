from __future__ import annotations

import pytest

from dracaena.api.decision import Decision, encode_decision
from dracaena.api.names import decision_annotation
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.lifecycle.own_decision import noted_decision, our_decision
from support.allocation import DRIVER, claim, holding


def decided(*devices: str, cut: bool = False) -> dict[str, str]:
    decision = Decision(node="node-a", devices=devices, links="", score=(), pod_devices=len(devices), cut=cut)
    return {decision_annotation(DRIVER): encode_decision(decision)}


@pytest.mark.parametrize(
    ("item", "ours"),
    [
        (holding(claim("c", annotations=decided("gpu-1")), "node-a", "gpu-1"), True),
        (holding(claim("c", annotations=decided("gpu-2")), "node-a", "gpu-1"), False),
        (holding(claim("c", annotations=decided("gpu-1")), "node-a", "gpu-1", driver="nic.example.com"), False),
        (holding(claim("c", annotations={decision_annotation(DRIVER): "{"}), "node-a", "gpu-1"), False),
        (holding(claim("c"), "node-a", "gpu-1"), False),
        (holding(claim("c", annotations=decided("gpu-2", cut=True)), "node-a", "gpu-1"), False),  # runner-up cut
        (holding(claim("c", annotations=decided("gpu-1", cut=True)), "node-a", "gpu-1"), True),
        (holding(claim("c", annotations=decided(cut=True)), "node-a", "gpu-1"), True),
        (claim("c", annotations=decided("gpu-1")), False),
    ],
)
def test_an_allocation_is_ours_when_the_decision_tells_of_it(item: ResourceClaim, ours: bool) -> None:
    assert (our_decision(item, DRIVER) is not None) is ours


def test_a_decision_is_noted_whatever_became_of_it() -> None:
    noted = noted_decision(claim("c", annotations=decided("gpu-1")), DRIVER)
    assert noted is not None
    assert noted.node == "node-a"
    assert noted_decision(claim("c"), DRIVER) is None
