"""A controller killed after any of its writes: the next one reads the truth from the API and comes to the same end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.client import KubeClient
from support.allocation import DRIVER, blocks, device_name, machine
from support.api_ground import ApiGround
from support.clock import FastClock
from support.controller import (
    NAMESPACE,
    allocated_all,
    ask,
    check_invariants,
    claims_by_name,
    devices_of,
    publish,
    running_controller,
    transport,
)
from support.kube import wait_for

SEVEN = machine("seven", blocks(3, 4, inside="PIX", outside="PHB"))
TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
CLAIMS = {"x": 2, "y": 1, "z": 1}
WRITES = 2 * len(CLAIMS)
"""Of one pod: a finalizer and an allocation for each claim."""

RATE = 20.0
"""How fast time goes by for a new leader that waits until it must have seen all pods that may be on their way with an
unreserved claim (lifecycle.proof.BEHIND_S and more)."""


@pytest.mark.parametrize("writes", range(WRITES + 1))
def test_a_controller_killed_between_two_writes_is_replaced_without_a_trace(
    server: ApiGround, tmp_path: Path, writes: int
) -> None:
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"a": SEVEN, "b": TWO})
    ask(client, "p", CLAIMS)
    doomed = transport(server, tmp_path, writes=writes)
    with running_controller(doomed):
        if writes < WRITES:
            assert doomed.dead.wait(20)
        else:
            wait_for(lambda: allocated_all(client), "all claims")
            doomed.dead.set()
    check_invariants(client)
    with running_controller(transport(server, tmp_path)):
        ended = wait_for(lambda: allocated_all(client), "all claims")
    check_invariants(client)
    # The same as without a crash: the block of four, the same devices for each claim.
    assert {name: devices_of(item) for name, item in ended.items()} == {
        "x": (("a", device_name(SEVEN, 3)), ("a", device_name(SEVEN, 4))),
        "y": (("a", device_name(SEVEN, 5)),),
        "z": (("a", device_name(SEVEN, 6)),),
    }
    assert all([user.name for user in item.status.reserved_for] == ["p"] for item in ended.values())


def test_what_can_no_longer_be_completed_is_taken_back_and_planned_elsewhere(server: ApiGround, tmp_path: Path) -> None:
    """Between the crash and the new start somebody else took what the second claim was to get."""
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"a": SEVEN, "b": TWO})
    ask(client, "p", {"x": 1, "y": 1})
    doomed = transport(server, tmp_path, writes=3)
    with running_controller(doomed):
        assert doomed.dead.wait(20)
    half = claims_by_name(client)
    node = devices_of(half["x"])[0][0]
    assert (node, devices_of(half["y"])) == ("b", ())
    other = client.create(ResourceClaim, {"metadata": {"name": "thief"}, "spec": half["y"].spec}, namespace=NAMESPACE)
    result = {"request": "gpus", "driver": DRIVER, "pool": "b", "device": device_name(TWO, 1)}
    stolen = {"devices": {"results": [result]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}
    client.merge_patch(
        ResourceClaim,
        other.metadata.name,
        {"status": {"allocation": stolen}},
        namespace=NAMESPACE,
        subresource="status",
    )
    with running_controller(transport(server, tmp_path)):
        ended = wait_for(lambda: allocated_all(client), "all claims")
    assert {devices_of(ended[name])[0][0] for name in ("x", "y")} == {"a"}
    held = [device for item in ended.values() for device in devices_of(item)]
    assert len(held) == len(set(held)) == 3


def test_a_controller_killed_in_a_take_back_is_followed_by_one_that_ends_it(server: ApiGround, tmp_path: Path) -> None:
    """The reservation was dropped, the allocation not yet cleared; the claims of the pod lie on two nodes."""
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"a": SEVEN, "b": TWO})
    ask(client, "p", {"x": 1, "y": 1})
    doomed = transport(server, tmp_path, writes=3)
    with running_controller(doomed):
        assert doomed.dead.wait(20)
    client.merge_patch(ResourceClaim, "x", {"status": {"reservedFor": None}}, namespace=NAMESPACE, subresource="status")
    result = {"request": "gpus", "driver": DRIVER, "pool": "a", "device": device_name(SEVEN, 0)}
    rule = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    foreign = {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [rule]}]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
    client.merge_patch(
        ResourceClaim, "y", {"status": {"allocation": foreign}}, namespace=NAMESPACE, subresource="status"
    )
    # No kube-scheduler says anything here.
    with running_controller(transport(server, tmp_path), longest_bind_s=1.0, clock=FastClock(RATE)):
        wait_for(lambda: devices_of(claims_by_name(client)["x"])[:1] == (("a", device_name(SEVEN, 1)),), "x on a")
    check_invariants(client)


def test_many_pods_and_a_controller_that_is_killed_again_and_again(server: ApiGround, tmp_path: Path) -> None:
    client = KubeClient(transport(server, tmp_path))
    publish(client, {"a": SEVEN, "b": SEVEN, "c": TWO})
    for number in range(4):
        ask(client, f"p{number}", {f"p{number}-x": 2, f"p{number}-y": 1})
    for writes in (3, 1, 5, 2, 4):
        doomed = transport(server, tmp_path, writes=writes)
        with running_controller(doomed):
            wait_for(lambda: doomed.dead.is_set() or allocated_all(client), "the end of this one")  # noqa: B023
            doomed.dead.set()
        check_invariants(client)
    with running_controller(transport(server, tmp_path)):
        ended = wait_for(lambda: allocated_all(client), "all claims")
    check_invariants(client)
    for number in range(4):
        nodes = {pool for name in ("x", "y") for pool, _ in devices_of(ended[f"p{number}-{name}"])}
        assert len(nodes) == 1
