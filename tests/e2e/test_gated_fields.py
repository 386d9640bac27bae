"""Fields of slices and requests that 1.37 has behind gates: what our controller makes of them, beside kube-scheduler.

Each test publishes the same devices twice: as ours, which kube-scheduler must not touch, and as those of a driver that
leaves the choice to kube-scheduler (its twin). The same pods then ask for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from e2e.installation import DRIVER
from e2e.made_up import CONTROLLER_PORT, FOUR, NODES, MadeUpCluster
from e2e.pods import CLAIMS, DEVICE_CLASS, EVENTS, Pod, create_claim, create_pod, wait_event, wait_pending
from e2e.waiting import eventually, never
from support.allocation import pool_slice
from support.readiness import metric

GATES: Final = "--feature-gates=" + ",".join(
    f"{gate}=true"
    for gate in (
        "DRADerivedAttributes",
        "DRADeviceCompatibilityGroups",
        "DRANodeAllocatableResources",
        "DRAOptionalNodeOperations",
        "DRAPartitionableDevicesType",
        "DRAResourcePoolStatus",
    )
)

TWIN: Final = "twin.example.com"
CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
SKIPPED: Final = ["NodePrepareResources", "NodeUnprepareResources"]
DECLARED: Final = ("DRANodeAllocatableResources", "DRAOptionalNodeOperations")
"""Features of the kubelet. Without the first the server takes no such slice for its node (403), and without the second
kube-scheduler and we pass over devices whose calls are left out."""
PARITY: Final = "derived.example.com/parity"

QUIET_S: Final = 2.0
"""Longer than our controller and kube-scheduler take for a pod that fits: 0.5 s."""
HEARD_S: Final = 10.0

Change = Callable[[dict[str, Any]], None]
"""Changes the spec of a slice before it is published."""


@dataclass(frozen=True, slots=True)
class Side:
    """Who allocates, and from which driver's devices."""

    driver: str
    device_class: str

    def claim(self, count: int = 1, expression: str = "", **request: Any) -> dict[str, Any]:
        """Return the spec of a claim; `expression` selects devices and may say `driver`."""
        exactly = {"deviceClassName": self.device_class, "count": count, **request}
        if expression:
            exactly["selectors"] = [{"cel": {"expression": self.said(expression)}}]
        return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}

    def said(self, expression: str) -> str:
        """Put the driver's name into an expression."""
        return expression.replace("driver", f'"{self.driver}"')


OURS: Final = Side(DRIVER, DEVICE_CLASS)
THEIRS: Final = Side(TWIN, TWIN)
BOTH: Final = pytest.mark.parametrize(
    "side", [pytest.param(OURS, id="ours"), pytest.param(THEIRS, id="kube-scheduler")]
)


@pytest.fixture(scope="module")
def switched_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """Switch the gates on, and make a class for the twin: once for all tests here."""
    made_up: MadeUpCluster = request.getfixturevalue("_made_up")
    plane = made_up.control_plane
    with ExitStack() as switched:
        switched.callback(restart_clients, made_up)
        switched.enter_context(plane.apiserver.restarted_with(GATES))
        plane.wait_ready()
        switched.enter_context(plane.scheduler.restarted_with(GATES))
        made_up.restart_controller()  # its watches would come back after a back-off
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": TWIN}}
        spec = {"selectors": [{"cel": {"expression": f'device.driver == "{TWIN}"'}}]}
        made_up.api.create(CLASSES, {**kind, "spec": spec})
        yield
        made_up.api.delete(f"{CLASSES}/{TWIN}")


def restart_clients(cluster: MadeUpCluster) -> None:
    """Let everybody see the server that was started again at once, and not after a back-off."""
    cluster.control_plane.restart_clients()
    cluster.restart_controller()


@pytest.fixture
def gated(switched_on: None, made_up: MadeUpCluster) -> MadeUpCluster:
    """Give the control plane with the gates on."""
    return made_up


def publish(cluster: MadeUpCluster, side: Side, change: Change, counters: Sequence[Any] = ()) -> None:
    """Publish four GPUs of a node as devices of a side's driver, changed; `counters` come in a slice of their own."""
    spec: dict[str, Any] = msgspec.to_builtins(pool_slice("a", FOUR).spec)
    if side is THEIRS:
        for device in spec["devices"]:
            del device["taints"]
    spec["driver"] = side.driver
    spec["pool"]["resourceSliceCount"] = 2 if counters else 1
    change(spec)
    cluster.publish(f"a-{side.driver}", spec)
    if counters:
        shared = {key: spec[key] for key in ("driver", "pool", "nodeName")}
        cluster.publish(f"a-{side.driver}-counters", {**shared, "sharedCounters": list(counters)})


def add_node(cluster: MadeUpCluster) -> None:
    """Make a node without GPUs, whose kubelet says that it knows what these fields ask of it."""
    cluster.add_node("a", FOUR)
    cluster.api.delete("/apis/resource.k8s.io/v1/resourceslices/a-1")
    node = cluster.api.get(f"{NODES}/a")
    status = {"status": {**node["status"], "declaredFeatures": list(DECLARED)}}
    cluster.api.patch(f"{NODES}/a/status", status)


def ask(cluster: MadeUpCluster, name: str, spec: dict[str, Any]) -> Pod:
    """Make a claim and its pod."""
    create_claim(cluster.api, name, spec)
    pod = Pod(name, claims={"gpus": name})
    create_pod(cluster.api, pod)
    return pod


def results(cluster: MadeUpCluster, claim: str) -> list[dict[str, Any]]:
    """Return what a claim has been given."""
    status = cluster.api.get(f"{CLAIMS}/{claim}").get("status", {})
    found: list[dict[str, Any]] = status.get("allocation", {}).get("devices", {}).get("results", [])
    return found


def indexes(cluster: MadeUpCluster, claim: str) -> set[int]:
    """Return the indexes of the GPUs that a claim has: their devices are published in that order."""
    order = [device["name"] for device in msgspec.to_builtins(pool_slice("a", FOUR).spec)["devices"]]
    return {order.index(result["device"]) for result in results(cluster, claim)}


def check_waits(cluster: MadeUpCluster, side: Side, pod: Pod) -> None:
    """Check that a pod gets nothing, and that whoever decides says so."""
    wait_pending(cluster.api, pod, "cannot allocate all claims")
    if side is OURS:
        wait_event(cluster.api, pod, "WaitingForGPUs", "")
    never(lambda: results(cluster, pod.name), f"{pod.name} is given something", for_s=QUIET_S)


GROUPS: Final = (["x"], ["x", "y"], ["y"], None)
"""Of the four devices, on one counter set that has room for all of them."""

BOARD: Final = {"name": "board", "counters": {"slots": {"value": "4"}}}


def consume(spec: dict[str, Any], groups: Sequence[list[str] | None]) -> None:
    """Let each device take a slot of the board, with these groups."""
    for device, its_groups in zip(spec["devices"], groups, strict=True):
        consumption: dict[str, Any] = {"counterSet": "board", "counters": {"slots": {"value": "1"}}}
        device["consumesCounters"] = [consumption | ({"compatibilityGroups": its_groups} if its_groups else {})]


@BOTH
def test_only_devices_with_a_compatibility_group_in_common_are_in_use_at_once(gated: MadeUpCluster, side: Side) -> None:
    add_node(gated)
    publish(gated, side, lambda spec: consume(spec, GROUPS), [BOARD])
    for number in (0, 1):
        assert gated.wait_bound(ask(gated, f"g{number}", side.claim(expression=index_is(number)))) == "a"
    assert [indexes(gated, f"g{number}") for number in (0, 1)] == [{0}, {1}]
    for number in (2, 3):
        check_waits(gated, side, ask(gated, f"g{number}", side.claim(expression=index_is(number))))


def index_is(number: int) -> str:
    return f"device.attributes[driver].index == {number}"


@BOTH
def test_a_constraint_compares_what_requests_derive(gated: MadeUpCluster, side: Side) -> None:
    """Without it the first two devices would do."""
    add_node(gated)
    publish(gated, side, lambda spec: None)
    derived = [{"name": PARITY, "expression": side.said("device.attributes[driver].index % 2")}]
    claim = side.claim(2, derivedAttributes=derived)
    claim["devices"]["constraints"] = [{"matchAttribute": PARITY}]
    for name in ("first", "second"):
        assert gated.wait_bound(ask(gated, name, claim)) == "a"
    assert sorted(map(sorted, (indexes(gated, "first"), indexes(gated, "second")))) == [[0, 2], [1, 3]]
    check_waits(gated, side, ask(gated, "third", claim))


def test_a_result_says_which_calls_kubelet_leaves_out_as_kube_scheduler_writes_it(gated: MadeUpCluster) -> None:
    """Without it kubelet waits for a plugin that is not there. Of our own driver such a pool is left alone: a GPU that
    our plugin does not prepare is of no use."""
    add_node(gated)
    publish(gated, OURS, lambda spec: None)
    publish(gated, THEIRS, lambda spec: spec.update(skipNodeOperations=SKIPPED))
    with gated.controller_with(f"--allowed-drivers={TWIN}", "--longest-bind-s=1"):
        mixed = OURS.claim()
        mixed["devices"]["requests"].append({"name": "other", "exactly": {"deviceClassName": TWIN}})
        assert gated.wait_bound(ask(gated, "mixed", mixed)) == "a"
        assert gated.wait_bound(ask(gated, "alone", THEIRS.claim())) == "a"
    written = {(r["driver"], tuple(r.get("skipNodeOperations", ()))) for r in results(gated, "mixed")}
    assert written == {(DRIVER, ()), (TWIN, tuple(SKIPPED))}
    assert [result["skipNodeOperations"] for result in results(gated, "alone")] == [SKIPPED]


def test_a_pool_of_ours_whose_calls_are_left_out_gives_nothing(gated: MadeUpCluster) -> None:
    add_node(gated)
    publish(gated, OURS, lambda spec: spec.update(skipNodeOperations=SKIPPED))
    check_waits(gated, OURS, ask(gated, "skipped", OURS.claim()))


def test_devices_that_take_of_the_nodes_own_resources_are_left_alone_and_that_is_said(gated: MadeUpCluster) -> None:
    """kube-scheduler counts what they take into the pod's room; we do not, so we give none of them."""

    def change(spec: dict[str, Any]) -> None:
        for device in spec["devices"]:
            device["nodeAllocatableResources"] = {"cpu": {"overhead": {"perPod": "1"}}}

    add_node(gated)
    for side in (OURS, THEIRS):
        publish(gated, side, change)
    check_waits(gated, OURS, ask(gated, "ours", OURS.claim()))
    assert gated.wait_bound(ask(gated, "theirs", THEIRS.claim())) == "a"
    labelled = f'dracaena_controller_not_understood_slices{{driver="{DRIVER}"}}'
    eventually(lambda: metric(CONTROLLER_PORT, labelled) == 1.0, "the slice is counted", within_s=HEARD_S)
    told = lambda: [e for e in gated.api.items(EVENTS) if e.get("reason") == "SliceNotUnderstood"]  # noqa: E731
    (event,) = eventually(told, "an Event names the field", within_s=HEARD_S)
    assert "nodeAllocatableResources" in event["message"]


@BOTH
def test_the_attribute_that_names_a_partitions_type_changes_no_allocation(gated: MadeUpCluster, side: Side) -> None:
    """The server takes it only beside devices that consume counters."""

    def change(spec: dict[str, Any]) -> None:
        spec["partitionTypeAttribute"] = f"{side.driver}/type"
        consume(spec, [None] * len(spec["devices"]))

    add_node(gated)
    publish(gated, side, change, [BOARD])
    assert gated.wait_bound(ask(gated, "one", side.claim(4))) == "a"
    assert indexes(gated, "one") == {0, 1, 2, 3}
