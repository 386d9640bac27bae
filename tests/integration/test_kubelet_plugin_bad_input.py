"""Claims that cannot be prepared, asked for as kubelet asks: a clear error, nothing left, and the next one works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround
from support.kube import wait_for
from support.plugin import files_below
from support.plugin_world import DRIVER, GPUS, NODE, World, http
from support.sockets import short_folder

GPU = gpu_device_name(GPUS[0])
NO_GPU = "gpu-00000000-0000-0000-0000-000000000000"
RESULT = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": GPU}
GROUP = "gpu.dracaena.dev/v1alpha1"
CONFIG = "opaque config 0 of the allocation (from the claim): "


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        yield World(server, folder)


@pytest.fixture
def plugin(world: World) -> Iterator[Program]:
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    yield program
    program.stop()


def allocated(world: World, result: dict[str, Any], parameters: dict[str, Any] | None = None) -> ResourceClaim:
    request = {"name": "gpus", "exactly": {"deviceClassName": DRIVER}}
    world.create(ResourceClaim, {"metadata": {"name": "bad"}, "spec": {"devices": {"requests": [request]}}}, "default")
    devices: dict[str, Any] = {"results": [result]}
    if parameters is not None:
        devices["config"] = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]
    status = {"allocation": {"devices": devices}}
    return world.client.merge_patch(ResourceClaim, "bad", {"status": status}, namespace="default", subresource="status")


@pytest.mark.parametrize(
    ("result", "parameters", "error"),
    [
        (
            {**RESULT, "driver": "other.example.com"},
            None,
            f"the allocation of claim default/bad holds no device of driver {DRIVER}",
        ),
        (
            {**RESULT, "pool": "node-2"},
            None,
            f"request gpus: device {GPU} is of pool node-2, but this node serves pool {NODE}",
        ),
        (
            {**RESULT, "device": NO_GPU},
            None,
            f"request gpus: this node has no device {NO_GPU} (it has {len(GPUS)} devices)",
        ),
        (
            RESULT,
            {"apiVersion": GROUP, "kind": "TopologyPolicy", "requirement": "FAR"},
            f"{CONFIG}$.requirement: 'FAR', expected one of 'BestEffort', 'NVLink', 'PIX', 'PXB', 'PHB', 'NODE'",
        ),
        (
            RESULT,
            {"apiVersion": GROUP, "kind": "GpuConfig", "colour": True},
            f"{CONFIG}$.colour: True, expected no such field (known: apiVersion, confidential, kind, sharing)",
        ),
        (
            RESULT,
            {"apiVersion": "other/v1", "kind": "Whatever"},
            f"{CONFIG}$.apiVersion: 'other/v1', expected '{GROUP}'",
        ),
    ],
)
def test_kubelet_hears_what_is_wrong_and_nothing_is_left(
    world: World, plugin: Program, result: dict[str, Any], parameters: dict[str, Any] | None, error: str
) -> None:
    claim = allocated(world, result, parameters)
    assert world.prepare(claim)[claim.metadata.uid].error == error
    assert files_below(world.folder / "cdi") == {}
    assert files_below(world.kubelet / "plugins" / DRIVER / "claims") == {}
    assert 'dracaena_plugin_claims_total{operation="prepare",result="refused"} 1.0' in http(plugin, "/metrics")[1]
    good = world.allocated_claim("good", [0])
    assert world.prepare(good)[good.metadata.uid].error == ""
    assert world.unprepare(claim) == {claim.metadata.uid: ""}


def test_folders_that_cannot_be_written_are_told_on_the_node_at_the_start(world: World) -> None:
    (world.folder / "a-file").write_text("in the way")
    jobs = world.folder / "jobs"
    program = Program(
        world.settings(cdi_root=str(world.folder / "a-file"), job_mapping_dir=str(jobs)), registry=CollectorRegistry()
    )
    program.start()
    try:
        wait_for(lambda: told(world), "an Event on the node")
    finally:
        program.stop()
    assert told(world) == [f"claims cannot be prepared here: cannot write to {world.folder}/a-file: Not a directory"]
    assert list(jobs.iterdir()) == []


def told(world: World) -> list[str]:
    return [event.message for event in world.events() if event.reason == "FolderNotWritable"]
