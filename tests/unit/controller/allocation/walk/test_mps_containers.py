"""Containers in which a share by MPS would make other devices useless are refused before anything is allocated."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.request import Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.walk.pod_demand import shape
from dracaena.controller.cache.pods import kept_pod
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, claim, device_class, device_name, holding, node, own_config, pod, pool_slice
from support.allocation import request as whole
from support.clusters import SMALL
from support.shares import holding_share, in_shares, share, sharing

MPS = sharing("MPS")
BEST_EFFORT = {**MPS, "sharing": {"strategy": "MPS", "enforcement": "BestEffort"}}
SHARE = claim("s", share("s", "1Gi", 10), configs=[own_config(MPS)])
GPU = claim("g", whole("g"))
OTHER = claim("o", share("o", "1Gi", 10), configs=[own_config(MPS)])
HELD = {
    "a whole GPU": holding(claim("h"), "a", device_name(SMALL, 1)),
    "a share": holding_share("h", "a", device_name(SMALL, 1), {"memory": "1Gi", "cores": "0"}),
    "a share by MPS": holding_share("h", "a", device_name(SMALL, 1), {"memory": "1Gi", "cores": "0"}, mode="MPS"),
}
"""Claims that have something already."""


def container(*uses: tuple[str, str] | str) -> dict[str, Any]:
    names = [use if isinstance(use, tuple) else (use, "") for use in uses]
    return {"name": "c", "resources": {"claims": [{"name": alias, "request": request} for alias, request in names]}}


def decided(*claims: ResourceClaim, containers: list[dict[str, Any]], first: bool = False) -> Allocation | str:
    """What the controller answers to a pod whose claims are c0, c1 …; `first`: the first container is an init one."""
    inventory = make_inventory(
        DRIVER,
        nodes=[node("a")],
        slices=[in_shares(pool_slice("a", SMALL))],
        claims=[each for each in claims if each.status.allocation is not None],
        classes=[device_class()],
    )
    init, main = (containers[:1], containers[1:]) if first else ([], containers)
    made = pod("p", *(each.metadata.name for each in claims), containers=main, initContainers=init)
    answers = [Allocator().allocate(inventory, each, claims) for each in (made, kept_pod(made))]
    texts = [answer.text if isinstance(answer, Refused) else "" for answer in answers]
    assert texts[0] == texts[1], "what is kept of a pod is enough"
    found = answers[0]
    if isinstance(found, Refused):
        return found.text
    assert isinstance(found, Allocation), found
    return found


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("other", "named"),
    [(GPU, "request g"), (OTHER, "request o"), *((held, "request gpus") for held in HELD.values())],
    ids=["a whole GPU", "another share by MPS", *(f"{name} that it has" for name in HELD)],
)
def test_a_share_by_mps_next_to_another_device_is_refused_by_name(
    other: ResourceClaim, named: str, first: bool
) -> None:
    for claims in itertools.permutations((SHARE, other)):
        answer = decided(*claims, containers=[container("c0", "c1"), container()], first=first)
        assert isinstance(answer, str)
        assert answer.startswith("pod default/p: one container uses claim default/")
        assert "claim default/s, request s" in answer
        assert named in answer
        assert "give the share to a container of its own" in answer
        apart = decided(*claims, containers=[container("c0"), container("c1")], first=first)
        assert isinstance(apart, Allocation)


def test_a_new_gpu_next_to_a_share_by_mps_that_the_pod_has_is_refused() -> None:
    answer = str(decided(HELD["a share by MPS"], GPU, containers=[container("c0", "c1")]))
    assert "one container uses claim default/h, request gpus, a share by MPS, and claim default/g, request g" in answer
    assert isinstance(decided(HELD["a share"], GPU, containers=[container("c0", "c1")]), Allocation)


def test_requests_of_one_claim_are_distinguished_by_the_containers_that_name_them() -> None:
    both = claim("b", share("s", "1Gi"), whole("g"), configs=[own_config(MPS, "s")])
    assert isinstance(decided(both, containers=[container("c0")]), str)
    assert isinstance(decided(both, containers=[container(("c0", "s"), ("c0", "g"))]), str)
    assert isinstance(decided(both, containers=[container(("c0", "s")), container(("c0", "g"))]), Allocation)
    assert isinstance(decided(both, containers=[container(("c0", "s"), ("c0", "s"))]), Allocation)


def test_several_shares_of_one_request_are_too_many_for_a_container() -> None:
    two = claim("t", share("s", "1Gi", count=2), configs=[own_config(MPS)])
    assert "a share by MPS, and another like it" in str(decided(two, containers=[container("c0")]))


def test_what_may_do_without_mps_is_left_to_the_node() -> None:
    lenient = claim("s", share("s", "1Gi", 10), configs=[own_config(BEST_EFFORT)])
    slices = claim("s", share("s", "1Gi", 10), configs=[own_config(sharing("TimeSlicing"))])
    alternatives = {
        "name": "s",
        "firstAvailable": [
            {"name": name, "deviceClassName": DRIVER, "count": 1, "capacity": {"requests": {"memory": "1Gi"}}}
            for name in ("a", "b")
        ],
    }
    either = claim("s", alternatives, configs=[own_config(MPS, "s/a")])
    for may in (lenient, slices, either):
        assert isinstance(decided(may, GPU, containers=[container("c0", "c1")]), Allocation)
    always = claim("s", alternatives, configs=[own_config(MPS, "s")])
    assert isinstance(decided(always, GPU, containers=[container("c0", "c1")]), str)


def test_pods_that_use_their_claims_in_other_containers_wait_for_themselves() -> None:
    """Equal pods wait behind one another, and share an answer."""
    together, apart = ([container("c0", "c1")], [container("c0"), container("c1")])
    pods = [kept_pod(pod(f"p{n}", "s", "g", containers=each)) for n, each in enumerate((together, apart, together))]
    shapes = [shape(each, [SHARE, GPU]) for each in pods]
    assert shapes[0] == shapes[2] != shapes[1]
