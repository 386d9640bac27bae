"""Who has which GPU, told by the whole plugin: on the claim, in podlist.json, for dcgm-exporter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import PermanentError
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.errors import ConflictError
from dracaena.kubelet_plugin.adapters.kube import KubeClaims
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.kubelet_plugin.ports import ClaimGoneError
from dracaena.kubelet_plugin.program import Program
from support.api_ground import ApiGround
from support.kube import wait_for
from support.plugin_world import DRIVER, GPUS, MACHINE, NODE, World, http
from support.sockets import short_folder

NIC = "nic.example.com"
MOMENT = "2026-01-01T00:00:00Z"


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        yield World(server, folder)


def entry_of(text: msgspec.Raw) -> dict[str, Any]:
    """An entry of status.devices."""
    return msgspec.json.decode(text, type=dict[str, Any])


def started(world: World, **settings: Any) -> Program:
    program = Program(world.settings(**settings), registry=CollectorRegistry())
    program.start()
    world.register()
    return program


@pytest.fixture
def plugin(world: World) -> Iterator[Program]:
    program = started(world)
    yield program
    program.stop()


def claim_with_nic(world: World, gpu: int) -> ResourceClaim:
    """A claim with a GPU and a network card, of which the card's driver has written its entry."""
    requests = [
        {"name": name, "exactly": {"deviceClassName": driver}} for name, driver in (("gpu", DRIVER), ("nic", NIC))
    ]
    world.create(ResourceClaim, {"metadata": {"name": "both"}, "spec": {"devices": {"requests": requests}}}, "default")
    results = [
        {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": gpu_device_name(GPUS[gpu])},
        {"request": "nic", "driver": NIC, "pool": NODE, "device": "nic-0"},
    ]
    nic = {"driver": NIC, "pool": NODE, "device": "nic-0", "networkData": {"interfaceName": "eth1"}}
    status = {"allocation": {"devices": {"results": results}}, "devices": [nic]}
    return world.client.merge_patch(
        ResourceClaim, "both", {"status": status}, namespace="default", subresource="status"
    )


def test_the_claim_says_which_gpu_it_has_and_keeps_the_entry_of_another_driver(world: World, plugin: Program) -> None:
    claim = claim_with_nic(world, 2)
    (nic,) = map(entry_of, claim.status.devices)
    assert world.prepare(claim)[claim.metadata.uid].error == ""

    def devices() -> list[dict[str, Any]]:
        return list(map(entry_of, world.client.get(ResourceClaim, "both", namespace="default").status.devices))

    wait_for(lambda: len(devices()) == 2, "our entry is there")
    gpu = read_machine(MACHINE).gpus[2]
    data = {"uuid": gpu.uuid, **({"pciBusID": gpu.pci_bus_id} if gpu.pci_bus_id else {})}
    mine = next(entry for entry in devices() if entry["driver"] == DRIVER)
    assert (mine["pool"], mine["device"], mine["data"]) == (NODE, gpu_device_name(gpu.uuid), data)
    assert [entry for entry in devices() if entry["driver"] == NIC] == [nic]
    assert world.unprepare(claim) == {claim.metadata.uid: ""}


def test_an_entry_that_came_since_the_claim_was_read_is_never_overwritten(world: World) -> None:
    read = claim_with_nic(world, 2)
    claims = KubeClaims(world.client)
    condition = {"type": "Ready", "status": "True", "reason": "Up", "message": "", "lastTransitionTime": MOMENT}
    nic = {**entry_of(read.status.devices[0]), "conditions": [condition]}
    world.client.merge_patch(
        ResourceClaim, "both", {"status": {"devices": [nic]}}, namespace="default", subresource="status"
    )
    ours = {"driver": DRIVER, "pool": NODE, "device": gpu_device_name(GPUS[2]), "data": {"uuid": GPUS[2]}}
    with pytest.raises(ConflictError):
        claims.set_devices(read, [*read.status.devices, ours])
    now = world.client.get(ResourceClaim, "both", namespace="default")
    assert entry_of(now.status.devices[0])["conditions"] == [condition]
    claims.set_devices(now, [*now.status.devices, ours])
    after = world.client.get(ResourceClaim, "both", namespace="default").status.devices
    assert [entry_of(entry)["driver"] for entry in after] == [NIC, DRIVER]
    assert after[0] == now.status.devices[0]


def test_what_the_server_refuses_and_a_claim_that_is_gone_are_told_apart(world: World) -> None:
    read = claim_with_nic(world, 2)
    claims = KubeClaims(world.client)
    not_allocated = {"driver": DRIVER, "pool": NODE, "device": "gpu-that-nobody-has", "data": {}}
    with pytest.raises(PermanentError, match=r"status.devices\[0\]"):
        claims.set_devices(read, [not_allocated])
    status = {"status": {"devices": None, "allocation": None, "reservedFor": None}}
    world.client.merge_patch(ResourceClaim, "both", status, namespace="default", subresource="status")
    world.client.delete(ResourceClaim, "both", namespace="default")
    with pytest.raises(ClaimGoneError):
        claims.set_devices(read, read.status.devices)


def test_without_the_setting_the_claim_is_not_written(world: World) -> None:
    program = started(world, claim_status=False)
    try:
        pod = world.pod("pod", "claim")
        claim = world.allocated_claim("claim", [0], pod)
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        wait_for(lambda: f"{DRIVER}/uuids" in world.annotations("pod"), "reconciled")
        assert world.client.get(ResourceClaim, "claim", namespace="default").status.devices == []
    finally:
        program.stop()


def test_old_readers_get_indices_in_the_file_they_mounted_and_job_files(world: World) -> None:
    jobs = world.folder / "jobs"
    podlist = world.kubelet / "pod-resources" / "podlist.json"
    podlist.parent.mkdir(parents=True)
    podlist.write_bytes(b"[]\n")
    mounted = podlist.stat().st_ino
    program = started(world, podlist_gpus="index", podlist_in_place=True, job_mapping_dir=str(jobs))
    try:
        pod = world.pod("pod", "claim")
        claim = world.allocated_claim("claim", [3, 4], pod)
        assert world.prepare(claim)[claim.metadata.uid].error == ""
        assert world.podlist() == [("pod", ("3", "4"))]
        assert podlist.stat().st_ino == mounted
        wait_for(lambda: sorted(p.name for p in jobs.glob("[0-9]*")) == ["3", "4"], "a file for each GPU")
        assert (jobs / "3").read_text() == "default/pod/main\n"
        world.unprepare(claim)
        wait_for(lambda: (jobs / "3").read_bytes() == (jobs / "4").read_bytes() == b"", "emptied, not removed")
        assert (world.podlist(), podlist.stat().st_ino) == ([], mounted)
    finally:
        program.stop()


def test_containers_are_told_their_gpus_when_an_admin_wants_it(world: World) -> None:
    program = started(world, device_metadata=True)
    try:
        wait_for(lambda: program.ready() is None, "ready")
        claim = world.allocated_claim("claim", [3, 4], world.pod("pod", "claim"))
        answer = world.prepare(claim)[claim.metadata.uid]
        uid = claim.metadata.uid
        assert [device.cdi_device_ids[1:] for device in answer.devices] == [[f"{DRIVER}/metadata={uid}_gpus"], []]
        spec = json.loads((world.folder / "cdi" / f"{DRIVER}_metadata_{uid}_gpus.json").read_bytes())
        (mount,) = spec["devices"][0]["containerEdits"]["mounts"]
        newest, _ = json.JSONDecoder().raw_decode(Path(mount["hostPath"]).read_text(encoding="utf-8"))
        devices = newest["requests"][0]["devices"]
        assert [device["attributes"]["uuid"]["string"] for device in devices] == [GPUS[3], GPUS[4]]
        (published,) = world.slices()
        sent = msgspec.to_builtins(published.spec.devices[3].attributes)
        assert devices[0]["attributes"] == sent
        world.unprepare(claim)
        assert not Path(mount["hostPath"]).exists()
        assert list((world.folder / "cdi").iterdir()) == []
    finally:
        program.stop()


def test_a_pod_that_comes_before_the_last_one_is_torn_down_needs_no_second_try(world: World, plugin: Program) -> None:
    old, new = world.allocated_claim("old", [0]), world.allocated_claim("new", [0])
    assert world.prepare(old)[old.metadata.uid].error == ""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(world.prepare, new)
        assert world.unprepare(old) == {old.metadata.uid: ""}
        assert waiting.result(20)[new.metadata.uid].error == ""


def test_a_start_removes_specs_that_belong_to_nobody(world: World) -> None:
    stray = world.folder / "cdi" / f"{DRIVER}-claim_00000000-0000-0000-0000-000000000001.json"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"{}")
    others = stray.with_name("nvidia.com-gpu.json")
    others.write_bytes(b"{}")
    program = started(world)
    try:
        wait_for(lambda: not stray.exists(), "the first sweep")
        wait_for(lambda: 'dracaena_plugin_swept_total{kind="spec"} 1.0' in http(program, "/metrics")[1], "counted")
        assert others.exists()
    finally:
        program.stop()
