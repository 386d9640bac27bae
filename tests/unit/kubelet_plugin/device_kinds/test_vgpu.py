"""Claims for vGPUs, from the allocation to what containers get, on real files."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.vgpu import Vgpu
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import DeviceNodes, DeviceNodesMissingError, DevRoot
from dracaena.kubelet_plugin.claims.device_state import SetAsideError
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from dracaena.kubelet_plugin.prepare.reports.device_status import with_our_devices
from support.fake_pci import FakePciBus
from support.fake_vgpu import A100_TYPES, H200_TYPES, FakeVgpus
from support.gpu_driver_root import PROC_DEVICES, look_at_text, put
from support.killed_steps import KilledSteps, StopError
from support.passthrough import passthrough_claim, passthrough_gpu
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    claim_of,
    device_name,
    files_below,
    gpu_uuid,
    make_claim,
    make_pod,
    make_pool,
    reference_to,
    sharing_config,
)
from support.vgpus import mediated, vgpu_claim, vgpu_pool, virtual_function

POOL = vgpu_pool(mediated(0), mediated(1), virtual_function(0), virtual_function(1))
GPU = passthrough_gpu(0).pci_bus_id
MDEV, FUNCTION = "MDEV_PCI_RESOURCE_NVIDIA_COM_NVIDIA_A100-1-5C", "PCI_RESOURCE_NVIDIA_COM_NVIDIA_H200X-1-18C"


def node_of(folder: Path, *claims: ResourceClaim, **settings: Any) -> PluginNode:
    pods = FakePods(*(make_pod(claims={"claim": claim.metadata.name}) for claim in claims[:1]))
    return PluginNode(folder, FakeClaims(*claims), pods, **{"pool": POOL, **settings})


def no_driver() -> Any:
    raise TemporaryError("there is no NVIDIA driver")


def spec_of(node: PluginNode, name: str = "claim") -> Any:
    return json.loads((node.folder / "cdi" / f"{DRIVER}-claim_{name}-uid.json").read_bytes())


def given(node: PluginNode, name: str = "claim") -> list[tuple[list[str], list[str]]]:
    """Device nodes and variables of each device of a claim."""
    edits = [device["containerEdits"] for device in spec_of(node, name)["devices"]]
    return [([one["path"] for one in each["deviceNodes"]], each.get("env", [])) for each in edits]


@pytest.mark.parametrize(
    ("vgpu", "group", "variable"),
    [(mediated(0), 100, MDEV), (virtual_function(0), 200, FUNCTION)],
    ids=["mediated device", "virtual function"],
)
def test_a_container_gets_the_nodes_of_vfio_and_the_variable_of_kubevirt(
    tmp_path: Path, vgpu: Vgpu, group: int, variable: str
) -> None:
    claim = vgpu_claim(vgpus=(vgpu,), reserved_for={"pod": "pod-uid"})
    node = node_of(tmp_path, claim, gpu_driver_edits=no_driver)
    prepared = node.state.prepare(reference_to(claim))
    assert given(node) == [(["/dev/vfio/vfio", f"/dev/vfio/{group}"], [f"{variable}={vgpu.identity}"])]
    assert spec_of(node)["devices"][0]["name"] == f"claim-uid-{vgpu.device_name}"
    assert spec_of(node)["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [(device.uuid, device.pci_bus_id) for device in prepared.devices] == [(vgpu.identity, GPU)]
    (listed,) = json.loads((tmp_path / "pod-resources/podlist.json").read_bytes())
    assert listed["gpu_list"] == [vgpu.identity]


def test_each_vgpu_of_a_request_names_all_of_its_type(tmp_path: Path) -> None:
    claim = vgpu_claim(vgpus=(mediated(1), mediated(0), virtual_function(0)))
    node = node_of(tmp_path, claim)
    node.state.prepare(reference_to(claim))
    both = f"{MDEV}={mediated(1).identity},{mediated(0).identity}"
    assert [env for _, env in given(node)] == [[both], [both], [f"{FUNCTION}=0000:20:04.0"]]


def refusal(folder: Path, claim: ResourceClaim, **settings: Any) -> str:
    with pytest.raises(DracaenaError) as refused:
        node_of(folder, claim, **settings).state.prepare(reference_to(claim))
    assert not (folder / "cdi").exists() or not list((folder / "cdi").glob("*.json"))
    return str(refused.value)


def test_a_vgpu_that_is_not_there_any_more_is_refused(tmp_path: Path) -> None:
    words = refusal(tmp_path / "mdev", vgpu_claim(), pool=vgpu_pool(mediated(1)))
    assert f"vGPU {mediated(0).identity} was removed, or is refused: make it again with the same type and UUID" in words
    claim = vgpu_claim(vgpus=(virtual_function(0),))
    assert "same type and virtual function, or delete" in refusal(tmp_path / "vf", claim, pool=vgpu_pool(mediated(1)))


def test_a_name_that_is_none_is_no_device_of_the_node(tmp_path: Path) -> None:
    results = [{"request": "vm", "driver": DRIVER, "pool": NODE, "device": "vgpu-0000-20-04-9"}]
    words = refusal(tmp_path, claim_of("claim", {"results": results}))
    assert "this node has no device vgpu-0000-20-04-9 (it has 4 devices)" in words


def test_whoever_only_looks_gets_nothing_and_none_is_shared(tmp_path: Path) -> None:
    assert "is for one virtual machine at a time" in refusal(tmp_path / "look", vgpu_claim(adminAccess=True))
    results = [{"request": "vm", "driver": DRIVER, "pool": NODE, "device": mediated(0).device_name}]
    claim = claim_of("claim", {"results": results, "config": [sharing_config(strategy="MPS")]})
    assert "goes to one virtual machine as a whole" in refusal(tmp_path / "share", claim)


def test_two_claims_have_two_vgpus_of_one_gpu_and_never_the_same(tmp_path: Path) -> None:
    one, other, both = vgpu_claim("one"), vgpu_claim("other", (mediated(1),)), vgpu_claim("both", (mediated(1),))
    node = node_of(tmp_path, one, other, both)
    node.state.prepare(reference_to(one))
    node.state.prepare(reference_to(other))
    with pytest.raises(TemporaryError, match=f"{mediated(1).device_name} is still held by claim default/other"):
        node.state.prepare(reference_to(both))
    node.state.unprepare(reference_to(other))
    assert node.state.prepare(reference_to(both)).devices[0].iommu_group == 101


def test_no_vgpu_is_given_away_of_a_gpu_whose_vgpus_are_being_made_anew(tmp_path: Path) -> None:
    claim = vgpu_claim()
    node = node_of(tmp_path, claim)
    node.changing |= {passthrough_gpu(1).pci_bus_id, mediated(0).parent}
    with pytest.raises(TemporaryError, match=f"request vm: {mediated(0).parent} is being divided into another layout"):
        node.state.prepare(reference_to(claim))
    node.changing.remove(mediated(0).parent)
    assert len(node.state.prepare(reference_to(claim)).devices) == 1


def in_hands_of(who: str) -> PublishedPool:
    """One GPU that the NVIDIA driver, VFIO or the vGPU manager has."""
    gpu = Gpu(gpu_uuid(0), 0, 0, pci_bus_id=GPU)
    if who == "vgpu manager":
        return replace(vgpu_pool(mediated(0), mediated(1)), gpus={device_name(0): gpu})
    handed = {passthrough_gpu(0).device_name: passthrough_gpu(0)} if who == "vfio" else {}
    return replace(make_pool(0), gpus={device_name(0): gpu} if who == "driver" else {}, passthrough=handed)


CLAIMS = {
    "driver": make_claim("driver", (0,)),
    "vfio": passthrough_claim("vfio"),
    "vgpu manager": vgpu_claim("vgpu"),
}


def test_a_gpu_that_the_vgpu_manager_has_is_given_to_no_container(tmp_path: Path) -> None:
    words = refusal(tmp_path, CLAIMS["driver"], pool=in_hands_of("vgpu manager"))
    assert f"the vGPU manager has GPU {gpu_uuid(0)} at {GPU}: virtual machines get vGPUs of it" in words


@pytest.mark.parametrize("first", list(CLAIMS))
@pytest.mark.parametrize("second", list(CLAIMS))
@pytest.mark.parametrize("broken", [False, True], ids=["known", "broken"])
def test_a_gpu_that_changes_hands_is_held_until_its_claim_is_unprepared(
    tmp_path: Path, first: str, second: str, broken: bool
) -> None:
    """By its address, and where a broken checkpoint lost that, because it may be this GPU."""
    if first == second:
        return
    mine, theirs = CLAIMS[first], CLAIMS[second]
    node_of(tmp_path, mine, pool=in_hands_of(first)).state.prepare(reference_to(mine))
    if broken:
        (tmp_path / "claims" / f"{mine.metadata.uid}.json").write_bytes(b"no checkpoint")
    after = node_of(tmp_path, mine, theirs, pool=in_hands_of(second))
    with pytest.raises(TemporaryError, match="still held"):
        after.state.prepare(reference_to(theirs))
    after.state.unprepare(reference_to(mine))
    assert len(after.state.prepare(reference_to(theirs)).devices) == 1


def test_a_vgpu_of_which_nobody_knows_the_gpu_is_told_so(tmp_path: Path) -> None:
    node_of(tmp_path, CLAIMS["vgpu manager"], pool=in_hands_of("vgpu manager")).state.prepare(
        reference_to(CLAIMS["vgpu manager"])
    )
    (tmp_path / "claims/vgpu-uid.json").write_bytes(b"no checkpoint")
    words = refusal_after(tmp_path, CLAIMS["driver"], in_hands_of("driver"))
    assert f"may have been the GPU of {mediated(0).device_name}, which is still held by claim UID vgpu-uid" in words
    other = vgpu_claim("other", (mediated(1),))
    after = node_of(tmp_path, other, pool=in_hands_of("vgpu manager"))
    assert after.state.prepare(reference_to(other)).devices, "a vGPU beside it is none of its business"


def refusal_after(folder: Path, claim: ResourceClaim, pool: PublishedPool) -> str:
    with pytest.raises(TemporaryError) as refused:
        node_of(folder, claim, pool=pool).state.prepare(reference_to(claim))
    return str(refused.value)


def test_a_claim_whose_vgpu_goes_is_set_aside_and_comes_back_with_it(tmp_path: Path) -> None:
    claim = vgpu_claim()
    node_of(tmp_path, claim).state.prepare(reference_to(claim))
    gone = node_of(tmp_path, claim, pool=vgpu_pool(mediated(1)))
    with pytest.raises(SetAsideError, match="was removed, or is refused"):
        gone.state.prepare(reference_to(claim))
    assert not list((tmp_path / "cdi").glob("*.json")), "no container of it can be started"
    again = node_of(tmp_path, claim, pool=vgpu_pool(mediated(0, iommu_group=177)))
    again.state.prepare(reference_to(claim))
    assert given(again)[0][0] == ["/dev/vfio/vfio", "/dev/vfio/177"]


def test_status_says_which_it_is_and_whose(tmp_path: Path) -> None:
    claim = vgpu_claim(vgpus=(mediated(0), virtual_function(0)), reserved_for={"pod": "pod-uid"})
    node = node_of(tmp_path, claim)
    prepared = node.state.prepare(reference_to(claim))
    entries = [cast("Mapping[str, Any]", entry) for entry in with_our_devices([], prepared, DRIVER) or ()]
    assert [entry["data"] for entry in entries] == [
        {"mDevUUID": mediated(0).identity, "parentPCIBusID": GPU},
        {"pciBusID": "0000:20:04.0", "parentPCIBusID": GPU},
    ]


def kernel_of(folder: Path) -> FakeVgpus:
    """A kernel with a mediated device and a virtual function, and the nodes of both."""
    put(folder, "proc/devices", PROC_DEVICES.replace("Block", "239 vfio\n 10 misc\n\nBlock").encode())
    put(folder, "dev/vfio/vfio", b"10:196")
    vgpus = FakeVgpus(FakePciBus(folder / "sys"))
    vgpus.add_gpu("0000:20:00.0", A100_TYPES, group=1)
    vgpus.add_gpu("0000:21:00.0", H200_TYPES, mdev=False, group=2)
    return vgpus


def nodes_of(folder: Path) -> DeviceNodes:
    return DeviceNodes(
        [DevRoot(str(folder / "driver"), "/driver")],
        required=True,
        host=DevRoot(str(folder), "/"),
        proc=str(folder / "proc"),
        sys=str(folder / "sys"),
        look=look_at_text,
    )


def test_type_and_group_are_read_again_before_a_spec_is_written(tmp_path: Path) -> None:
    vgpus = kernel_of(tmp_path)
    functions = vgpus.add_functions("0000:21:00.0", 2)
    vgpus.create("0000:20:00.0", 475, mediated(0).identity)
    vgpus.set_type(functions[0], 1414)
    pool = vgpu_pool(
        mediated(0, iommu_group=103), virtual_function(0, identity=functions[0], parent="0000:21:00.0", iommu_group=101)
    )
    for group in ("101", "103"):
        put(tmp_path, f"dev/vfio/{group}", b"239:1")
    claim = vgpu_claim(vgpus=list(pool.vgpus.values()))

    def prepare(number: int) -> str:
        node = node_of(tmp_path / f"node{number}", claim, pool=pool, claim_nodes=nodes_of(tmp_path).of_claim)
        try:
            node.state.prepare(reference_to(claim))
        except DeviceNodesMissingError as error:
            assert not files_below(tmp_path / f"node{number}/claims")
            assert not files_below(tmp_path / f"node{number}/cdi")
            return str(error)
        return ""

    assert prepare(0) == ""
    vgpus.set_type(functions[0], 0)
    assert (
        f"vGPU {functions[0]} of the GPU at 0000:21:00.0 was there when the GPUs were last read, and is gone"
        in prepare(1)
    )
    vgpus.set_type(functions[0], 1428)
    assert "was of type 1414 when the GPUs were last read, and is of 1428: make the vGPU again" in prepare(2)
    vgpus.set_type(functions[0], 0)
    vgpus.set_type(functions[0], 1414)
    vgpus.write(f"bus/mdev/devices/{mediated(0).identity}/remove", "1")
    assert f"vGPU {mediated(0).identity} of the GPU at 0000:20:00.0 was there" in prepare(3)
    vgpus.create("0000:20:00.0", 468, mediated(0).identity)
    assert "was of type nvidia-475 when the GPUs were last read, and is of nvidia-468" in prepare(4)
    vgpus.write(f"bus/mdev/devices/{mediated(0).identity}/remove", "1")
    vgpus.create("0000:20:00.0", 475, mediated(0).identity)
    assert "was in IOMMU group 103 when the GPUs were last read, and is in IOMMU group 105" in prepare(5)


def run_in_any_order(folder: Path, seed: int) -> None:
    """One GPU changes hands while claims come and go, checkpoints break, and the plugin is killed in between."""
    random_ = random.Random(seed)
    claims = [*CLAIMS.values(), vgpu_claim("second", (mediated(1),)), vgpu_claim("third", (mediated(0),))]
    hands_of = {"driver": "driver", "vfio": "vfio", "vgpu": "vgpu manager", "second": "vgpu manager",
                "third": "vgpu manager"}  # fmt: skip
    devices = {claim.metadata.uid: {one.device for one in claim.status.allocation.devices.results}
               for claim in claims if claim.status.allocation is not None}  # fmt: skip
    who = "driver"
    for _ in range(25):
        if random_.random() < 0.3:
            who = random_.choice(list(CLAIMS))
        steps = KilledSteps(random_.randrange(1, 9)) if random_.random() < 0.3 else FileSteps()
        node = node_of(folder, *claims, pool=in_hands_of(who), steps=steps)
        call = node.state.prepare if random_.random() < 0.6 else node.state.unprepare
        with contextlib.suppress(DracaenaError, StopError):
            fitting = [claim for claim in claims if hands_of[claim.metadata.name] == who]
            call(reference_to(random_.choice(fitting if random_.random() < 0.7 else claims)))
        good, _, broken = node_of(folder, pool=in_hands_of(who)).node_claims.by_boot()
        holding = {one.prepared.claim.uid for one in good if one.in_use or one.aside} | {one.uid for one in broken}
        assert len({hands_of[uid.removesuffix("-uid")] for uid in holding}) <= 1, f"{holding} have one GPU"
        for one in holding:
            for other in holding - {one}:
                assert not devices[one] & devices[other], f"{one} and {other} have one vGPU"
        known = sorted(one.prepared.claim.uid for one in good if one.in_use)
        if known and random_.random() < 0.2:
            (folder / f"claims/{random_.choice(known)}.json").write_bytes(b"no checkpoint")


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_of_events_a_gpu_is_in_the_hands_of_one(tmp_path: Path, seed: int) -> None:
    run_in_any_order(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3, 60))
def test_in_any_order_of_many_events_a_gpu_is_in_the_hands_of_one(tmp_path: Path, seed: int) -> None:
    run_in_any_order(tmp_path, seed)


@pytest.mark.parametrize("guard", ["device_kinds.holders._changed_driver", "claims.last_guard.of_unknown_address"])
def test_a_guard_that_misses_a_change_of_hands_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    monkeypatch.setattr(f"dracaena.kubelet_plugin.{guard}", lambda *_: ())
    with pytest.raises(AssertionError, match="have one GPU"):
        _run_all(tmp_path)


def _run_all(folder: Path) -> None:
    for seed in range(8):
        run_in_any_order(folder / str(seed), seed)


def test_a_vgpu_is_opened_by_iommufd_through_its_own_node_not_that_of_its_gpu(tmp_path: Path) -> None:
    vgpus = kernel_of(tmp_path)
    functions = vgpus.add_functions("0000:21:00.0", 2)
    vgpus.create("0000:20:00.0", 475, mediated(0).identity)
    vgpus.set_type(functions[0], 1414)
    mdev = mediated(0, iommu_group=103)
    function = virtual_function(0, identity=functions[0], parent="0000:21:00.0", iommu_group=101)
    put(tmp_path, "proc/devices", PROC_DEVICES.replace("Block", "238 vfio-dev\n 10 misc\n\nBlock").encode())
    put(tmp_path, "dev/iommu", b"10:126")
    config = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "VfioConfig", "iommu": "IOMMUFD"}
    results = [{"request": "vm", "driver": DRIVER, "pool": NODE, "device": one.device_name} for one in (mdev, function)]
    opaque = {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": config}}
    claim = claim_of("claim", {"results": results, "config": [opaque]})
    node = node_of(tmp_path / "node", claim, pool=vgpu_pool(mdev, function), claim_nodes=nodes_of(tmp_path).of_claim)
    (vgpus.bus.device("0000:20:00.0") / "vfio-dev/vfio9").mkdir(parents=True)
    (vgpus.bus.device(functions[0]) / "vfio-dev/vfio4").mkdir(parents=True)
    put(tmp_path, "dev/vfio/devices/vfio4", b"238:4")
    with pytest.raises(DeviceNodesMissingError, match=f"no VFIO device of GPU {mdev.device_name} in .*{mdev.identity}"):
        node.state.prepare(reference_to(claim))
    (vgpus.mdev(mdev.identity) / "vfio-dev/vfio3").mkdir(parents=True)
    put(tmp_path, "dev/vfio/devices/vfio3", b"238:3")
    node.state.prepare(reference_to(claim))
    assert [paths for paths, _ in given(node)] == [
        ["/dev/iommu", "/dev/vfio/devices/vfio3"],
        ["/dev/iommu", "/dev/vfio/devices/vfio4"],
    ]
