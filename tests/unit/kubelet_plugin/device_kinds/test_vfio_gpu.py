"""Claims for GPUs of virtual machines, from the allocation to what containers get, on real files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import DeviceNodes, DeviceNodesMissingError, DevRoot
from dracaena.kubelet_plugin.claims.device_state import SetAsideError
from dracaena.kubelet_plugin.device_kinds.plan import allocated_claim
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from support.fake_pci import FakePciBus
from support.gpu_driver_root import PROC_DEVICES, look_at_text, put
from support.passthrough import passthrough_claim, passthrough_gpu, passthrough_pool
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

POOL = passthrough_pool(passthrough_gpu(0), passthrough_gpu(1), passthrough_gpu(2, product_name=None))
H100 = "PCI_RESOURCE_NVIDIA_COM_H100_80GB_HBM3"


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


def test_a_container_gets_the_nodes_of_vfio_and_the_variable_of_kubevirt(tmp_path: Path) -> None:
    claim = passthrough_claim(reserved_for={"pod": "pod-uid"})
    node = node_of(tmp_path, claim, gpu_driver_edits=no_driver)
    prepared = node.state.prepare(reference_to(claim))
    assert given(node) == [(["/dev/vfio/vfio", "/dev/vfio/40"], [f"{H100}=0000:20:00.0"])]
    assert spec_of(node)["devices"][0]["name"] == "claim-uid-vfio-0000-20-00-0"
    assert spec_of(node)["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [device.uuid for device in prepared.devices] == ["0000:20:00.0"]
    (listed,) = json.loads((tmp_path / "pod-resources/podlist.json").read_bytes())
    assert listed["gpu_list"] == ["0000:20:00.0"]


def test_each_gpu_of_a_request_names_all_of_its_product(tmp_path: Path) -> None:
    claim = passthrough_claim(numbers=(1, 0, 2))
    node = node_of(tmp_path, claim)
    node.state.prepare(reference_to(claim))
    both, other = f"{H100}=0000:21:00.0,0000:20:00.0", "PCI_RESOURCE_NVIDIA_COM_10DE_2330=0000:22:00.0"
    assert [env for _, env in given(node)] == [[both], [both], [other]]


def test_a_claim_with_a_gpu_for_the_container_too_gets_the_driver_for_that(tmp_path: Path) -> None:
    pool = replace(make_pool(1), passthrough=POOL.passthrough)
    document = {"driver": DRIVER, "pool": NODE}
    results = [
        {**document, "request": "own", "device": device_name(0)},
        {**document, "request": "vm", "device": passthrough_gpu(0).device_name},
    ]
    claim = claim_of("claim", {"results": results})
    node = node_of(tmp_path, claim, pool=pool)
    node.state.prepare(reference_to(claim))
    assert [paths for paths, _ in given(node)] == [["/dev/nvidia0"], ["/dev/vfio/vfio", "/dev/vfio/40"]]
    assert spec_of(node)["containerEdits"]["deviceNodes"] == [{"path": "/dev/nvidiactl"}]


def refusal(folder: Path, claim: ResourceClaim, **settings: Any) -> str:
    with pytest.raises(DracaenaError) as refused:
        node_of(folder, claim, **settings).state.prepare(reference_to(claim))
    assert not (folder / "cdi").exists() or not list((folder / "cdi").glob("*.json"))
    return str(refused.value)


def test_a_gpu_that_vfio_does_not_have_any_more_is_refused(tmp_path: Path) -> None:
    words = refusal(tmp_path, passthrough_claim(), pool=passthrough_pool(passthrough_gpu(1)))
    assert "no VFIO driver has the GPU at 0000:20:00.0 any more, or its IOMMU group is refused: bind it to" in words


def test_whoever_only_looks_gets_nothing(tmp_path: Path) -> None:
    assert "is for one virtual machine at a time" in refusal(tmp_path, passthrough_claim(adminAccess=True))


def test_such_a_gpu_is_not_shared(tmp_path: Path) -> None:
    results = [{"request": "vm", "driver": DRIVER, "pool": NODE, "device": passthrough_gpu(0).device_name}]
    claim = claim_of("claim", {"results": results, "config": [sharing_config(strategy="MPS")]})
    assert "goes to one virtual machine as a whole" in refusal(tmp_path, claim)


def test_two_claims_never_have_one_gpu(tmp_path: Path) -> None:
    one, other = passthrough_claim("one"), passthrough_claim("other", (1, 0))
    node = node_of(tmp_path, one, other)
    node.state.prepare(reference_to(one))
    with pytest.raises(TemporaryError, match="vfio-0000-20-00-0 is still held by claim default/one"):
        node.state.prepare(reference_to(other))
    node.state.unprepare(reference_to(one))
    assert len(node.state.prepare(reference_to(other)).devices) == 2


def moved_pool(*in_vfio: int) -> PublishedPool:
    """Three physical GPUs, of which VFIO has these and the NVIDIA driver the others."""
    gpus = {
        device_name(n): Gpu(gpu_uuid(n), n, n, pci_bus_id=passthrough_gpu(n).pci_bus_id)
        for n in range(3)
        if n not in in_vfio
    }
    handed = passthrough_pool(*(passthrough_gpu(n) for n in in_vfio)).passthrough
    return replace(make_pool(0), gpus=gpus, passthrough=handed)


def test_a_gpu_that_was_bound_back_is_held_by_its_address_until_the_claim_is_unprepared(tmp_path: Path) -> None:
    machine, whole = passthrough_claim("machine"), make_claim("whole", (0,))
    node = node_of(tmp_path, machine, whole, pool=moved_pool(0))
    node.state.prepare(reference_to(machine))
    after = node_of(tmp_path, machine, whole, pool=moved_pool())
    with pytest.raises(TemporaryError, match="is still held as a part of the same GPU, by device vfio-0000-20-00-0,"):
        after.state.prepare(reference_to(whole))
    with pytest.raises(SetAsideError, match=r"no VFIO driver has the GPU at 0000:20:00\.0 any more"):
        after.state.prepare(reference_to(machine))
    assert not list((tmp_path / "cdi").glob("*.json")), "no container of it can be started"
    after.state.unprepare(reference_to(machine))
    assert after.state.prepare(reference_to(whole)).devices[0].minor == 0


def test_a_whole_gpu_that_was_bound_to_vfio_is_held_from_virtual_machines(tmp_path: Path) -> None:
    whole, machine = make_claim("whole", (0,)), passthrough_claim("machine")
    node_of(tmp_path, whole, pool=moved_pool()).state.prepare(reference_to(whole))
    after = node_of(tmp_path, whole, machine, pool=moved_pool(0))
    with pytest.raises(TemporaryError, match=r"vfio-0000-20-00-0 is still held .* by device gpu-"):
        after.state.prepare(reference_to(machine))


def test_a_group_that_was_numbered_anew_is_followed_and_its_old_number_held(tmp_path: Path) -> None:
    one, other = passthrough_claim("one"), passthrough_claim("other", (1,))
    node_of(tmp_path, one).state.prepare(reference_to(one))
    pool = passthrough_pool(passthrough_gpu(0, iommu_group=77), passthrough_gpu(1, iommu_group=40))
    after = node_of(tmp_path, one, other, pool=pool)
    after.state.prepare(reference_to(one))
    assert given(after, "one")[0][0] == ["/dev/vfio/vfio", "/dev/vfio/77"]
    with pytest.raises(TemporaryError, match=r"21-00-0 is /dev/vfio/40 now, which containers of .* still have"):
        after.state.prepare(reference_to(other))


def test_what_a_broken_checkpoint_held_is_known_by_its_spec(tmp_path: Path) -> None:
    one, same, other = passthrough_claim("one"), passthrough_claim("same"), passthrough_claim("other", (1,))
    node_of(tmp_path, one).state.prepare(reference_to(one))
    (tmp_path / "claims/one-uid.json").write_bytes(b"no checkpoint")
    after = node_of(tmp_path, same, other)
    with pytest.raises(TemporaryError, match="vfio-0000-20-00-0 is still held"):
        after.state.prepare(reference_to(same))
    assert after.state.prepare(reference_to(other)).devices[0].iommu_group == 41


def test_a_whole_gpu_of_a_broken_checkpoint_is_held_from_virtual_machines(tmp_path: Path) -> None:
    """Its CDI spec names the GPU by UUID, and who has it in VFIO knows the address alone."""
    whole, machine = make_claim("whole", (0,)), passthrough_claim("machine")
    node_of(tmp_path, whole, pool=moved_pool()).state.prepare(reference_to(whole))
    (tmp_path / "claims/whole-uid.json").write_bytes(b"no checkpoint")
    after = node_of(tmp_path, whole, machine, pool=moved_pool(0))
    words = "vfio-0000-20-00-0 may be gpu-.*, which is still held by claim UID whole-uid: its PCI address is not known"
    with pytest.raises(TemporaryError, match=words):
        after.state.prepare(reference_to(machine))
    with pytest.raises(DracaenaError, match="this node has no device gpu-"):
        after.state.prepare(reference_to(whole))
    with pytest.raises(TemporaryError, match="still held by claim default/whole"):
        after.state.prepare(reference_to(machine))
    after.state.unprepare(reference_to(whole))
    assert after.state.prepare(reference_to(machine)).devices[0].iommu_group == 40


def test_a_broken_checkpoint_of_a_gpu_that_the_driver_has_keeps_no_other_from_virtual_machines(tmp_path: Path) -> None:
    whole, machine = make_claim("whole", (1,)), passthrough_claim("machine")
    node_of(tmp_path, whole, pool=moved_pool()).state.prepare(reference_to(whole))
    (tmp_path / "claims/whole-uid.json").write_bytes(b"no checkpoint")
    after = node_of(tmp_path, machine, pool=moved_pool(0))
    assert after.state.prepare(reference_to(machine)).devices[0].iommu_group == 40


def test_a_claim_that_is_set_aside_keeps_the_address_of_its_gpu(tmp_path: Path) -> None:
    whole = make_claim("whole", (0,))
    node = node_of(tmp_path, whole, pool=moved_pool())
    earlier = node.state.prepare(reference_to(whole)).devices
    allocated = allocated_claim(whole, moved_pool(0), earlier)
    assert allocated is not None
    assert [device.pci_bus_id for device in allocated.devices] == ["0000:20:00.0"]


def nodes_of(folder: Path, **files: str) -> DeviceNodes:
    put(folder, "proc/devices", PROC_DEVICES.replace("Block", "239 vfio\n 10 misc\n\nBlock").encode())
    for name, numbers in files.items():
        put(folder, f"dev/vfio/{name.removeprefix('n')}", numbers.encode())
    (folder / "dev").mkdir(exist_ok=True)
    if not (folder / "sys").exists():
        bus_of(folder)
    return DeviceNodes(
        [DevRoot(str(folder / "driver"), "/driver")],
        required=True,
        host=DevRoot(str(folder), "/"),
        proc=str(folder / "proc"),
        sys=str(folder / "sys"),
        look=look_at_text,
    )


def bus_of(folder: Path, driver: str | None = "vfio-pci", group: int | None = 40) -> FakePciBus:
    """The kernel's word on the first GPU."""
    bus = FakePciBus(folder / "sys")
    bus.add(passthrough_gpu(0).pci_bus_id, group, driver=driver)
    return bus


def test_the_nodes_are_those_of_the_host_and_nothing_of_the_nvidia_driver(tmp_path: Path) -> None:
    put(tmp_path, "driver/dev/nvidiactl", b"195:255")
    claim = passthrough_claim()
    node = node_of(tmp_path / "node", claim, claim_nodes=nodes_of(tmp_path, vfio="10:196", n40="239:3").of_claim)
    node.state.prepare(reference_to(claim))
    assert given(node)[0][0] == ["/dev/vfio/vfio", "/dev/vfio/40"]
    assert "deviceNodes" not in spec_of(node)["containerEdits"]
    assert "hostPath" not in spec_of(node)["devices"][0]["containerEdits"]["deviceNodes"][0]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"vfio": "10:196"}, "/dev/vfio/40 is missing: .* bind the GPU to vfio-pci"),
        ({"n40": "239:0"}, "/dev/vfio/vfio is missing: .*modprobe vfio"),
        ({"vfio": "10:196", "n40": "195:0"}, "/dev/vfio/40 is device 195:0, but the loaded driver has it at 239:0"),
    ],
)
def test_a_gpu_that_was_taken_from_vfio_since_the_last_reading_is_refused_by_its_node(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    claim = passthrough_claim()
    node = node_of(tmp_path / "node", claim, claim_nodes=nodes_of(tmp_path, **files).of_claim)
    with pytest.raises(DeviceNodesMissingError, match=words):
        node.state.prepare(reference_to(claim))
    assert not files_below(tmp_path / "node/claims")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (
            {"driver": "nvidia"},
            "GPU vfio-0000-20-00-0 at 0000:20:00.0 has driver nvidia now, and had a VFIO driver .*: bind the GPU",
        ),
        ({"driver": None}, "at 0000:20:00.0 has no driver now"),
        ({"driver": "vfio-pci-not"}, "at 0000:20:00.0 has driver vfio-pci-not now"),
        (
            {"group": 41},
            "was in IOMMU group 40 when the GPUs were last read, and is in IOMMU group 41: waiting for the",
        ),
        ({"group": None}, "was in IOMMU group 40 when the GPUs were last read, and is in no IOMMU group"),
    ],
)
def test_a_node_that_is_another_devices_by_now_is_not_given(tmp_path: Path, kernel: Any, words: str) -> None:
    """/dev/vfio/40 is there, and the last reading says that it is the GPU's."""
    bus_of(tmp_path, **kernel)
    claim = passthrough_claim()
    node = node_of(tmp_path / "node", claim, claim_nodes=nodes_of(tmp_path, vfio="10:196", n40="239:3").of_claim)
    with pytest.raises(DeviceNodesMissingError, match=words):
        node.state.prepare(reference_to(claim))
    assert not files_below(tmp_path / "node/claims")
    assert not files_below(tmp_path / "node/cdi")


def by_iommufd(
    name: str = "claim", iommu: str = "IOMMUFD", reserved_for: Mapping[str, str] | None = None
) -> ResourceClaim:
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "VfioConfig", "iommu": iommu}
    results = [{"request": "vm", "driver": DRIVER, "pool": NODE, "device": passthrough_gpu(0).device_name}]
    config = {"source": "FromClaim", "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}}
    return claim_of(name, {"results": results, "config": [config]}, reserved_for=reserved_for)


def test_a_claim_can_ask_for_iommufd_and_gets_the_gpus_own_node(tmp_path: Path) -> None:
    own = bus_of(tmp_path).device(passthrough_gpu(0).pci_bus_id) / "vfio-dev/vfio3"
    own.mkdir(parents=True)
    put(tmp_path, "dev/iommu", b"10:124")
    nodes = nodes_of(tmp_path, **{"vfio": "10:196", "n40": "239:3", "devices/vfio3": "240:3"})
    put(tmp_path, "proc/devices", PROC_DEVICES.replace("Block", "240 vfio-dev\n 10 misc\n\nBlock").encode())
    claim = by_iommufd()
    node = node_of(tmp_path / "node", claim, claim_nodes=nodes.of_claim)
    prepared = node.state.prepare(reference_to(claim))
    assert given(node)[0] == (["/dev/iommu", "/dev/vfio/devices/vfio3"], [f"{H100}=0000:20:00.0"])
    again = node_of(tmp_path / "node", claim, claim_nodes=nodes.of_claim)
    assert again.state.prepare(reference_to(claim)) == prepared, "its checkpoint says so"
    by_group = by_iommufd(iommu="Group")
    node = node_of(tmp_path / "other", by_group)
    node.state.prepare(reference_to(by_group))
    assert given(node)[0][0] == ["/dev/vfio/vfio", "/dev/vfio/40"]


def test_a_node_without_iommufd_says_so_and_gives_nothing_in_its_place(tmp_path: Path) -> None:
    nodes, claim = nodes_of(tmp_path, vfio="10:196", n40="239:3"), by_iommufd()
    for words in ("/dev/iommu is missing: .*this node has no iommufd", "no VFIO device of GPU .* Linux 6.6"):
        node = node_of(tmp_path / "node", claim, claim_nodes=nodes.of_claim)
        with pytest.raises(DeviceNodesMissingError, match=words):
            node.state.prepare(reference_to(claim))
        put(tmp_path, "dev/iommu", b"10:124")
    assert not files_below(tmp_path / "node/claims")


def test_a_lost_spec_is_not_written_again_for_a_gpu_that_is_not_in_vfio_any_more(tmp_path: Path) -> None:
    bus, claim = bus_of(tmp_path), passthrough_claim()
    node = node_of(tmp_path / "node", claim, claim_nodes=nodes_of(tmp_path, vfio="10:196", n40="239:3").of_claim)
    node.state.prepare(reference_to(claim))
    (tmp_path / "node/cdi" / f"{DRIVER}-claim_claim-uid.json").unlink()
    bus.write("bus/pci/drivers/vfio-pci/unbind", passthrough_gpu(0).pci_bus_id)
    with pytest.raises(DeviceNodesMissingError, match="has no driver now"):
        node.state.prepare(reference_to(claim))
    assert not files_below(tmp_path / "node/cdi")


def test_status_and_restart_keep_what_a_claim_has(tmp_path: Path) -> None:
    claim = passthrough_claim(reserved_for={"pod": "pod-uid"})
    first = node_of(tmp_path, claim)
    prepared = first.state.prepare(reference_to(claim))
    (tmp_path / "cdi" / f"{DRIVER}-claim_claim-uid.json").unlink()
    again = node_of(tmp_path, claim)
    assert again.state.prepare(reference_to(claim)) == prepared
    assert given(again) == [(["/dev/vfio/vfio", "/dev/vfio/40"], [f"{H100}=0000:20:00.0"])]


def test_the_runtime_class_of_the_pod_decides_what_its_containers_get(tmp_path: Path) -> None:
    """A pod of Kata gets the groups and nothing else; KubeVirt's launcher, a pod of the host, all that it reads."""
    claim = passthrough_claim(numbers=(0, 1), reserved_for={"pod": "pod-uid"})
    node = node_of(tmp_path, claim, gpu_driver_edits=no_driver, control_nodes=tuple)
    node.pods.add(make_pod(runtime_class="kata-qemu-nvidia-gpu"))
    node.state.prepare(reference_to(claim))
    spec = spec_of(node)
    assert spec["containerEdits"] == {}
    assert [device["containerEdits"] for device in spec["devices"]] == [
        {"deviceNodes": [{"path": "/dev/vfio/40"}]},
        {"deviceNodes": [{"path": "/dev/vfio/41"}]},
    ]
    again = PluginNode(tmp_path, node.claims, node.pods, pool=POOL, gpu_driver_edits=no_driver, control_nodes=tuple)
    (node.folder / "cdi" / f"{DRIVER}-claim_claim-uid.json").unlink()
    again.recovery.recover(())  # while its pod runs, from the checkpoint alone
    assert spec_of(again) == spec
    again.state.unprepare(reference_to(claim))
    node.pods.add(make_pod())
    again.state.prepare(reference_to(claim))
    spec = spec_of(again)
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert spec["devices"][0]["containerEdits"]["env"] == [f"{H100}=0000:20:00.0,0000:21:00.0"]
    assert {"path": "/dev/vfio/vfio"} in spec["devices"][0]["containerEdits"]["deviceNodes"]


def test_a_pod_in_a_virtual_machine_gets_by_iommufd_the_node_of_its_gpu_alone(tmp_path: Path) -> None:
    (bus_of(tmp_path).device(passthrough_gpu(0).pci_bus_id) / "vfio-dev/vfio3").mkdir(parents=True)
    put(tmp_path, "dev/iommu", b"10:124")
    nodes = nodes_of(tmp_path, **{"devices/vfio3": "240:3"})
    put(tmp_path, "proc/devices", PROC_DEVICES.replace("Block", "240 vfio-dev\n 10 misc\n\nBlock").encode())
    claim = by_iommufd(reserved_for={"pod": "pod-uid"})
    node = node_of(tmp_path / "node", claim, claim_nodes=nodes.of_claim, gpu_driver_edits=no_driver)
    node.pods.add(make_pod(runtime_class="kata"))
    assert node.state.prepare(reference_to(claim)).in_guest
    assert given(node)[0] == (["/dev/vfio/devices/vfio3"], [])


def test_a_gpu_for_virtual_machines_waits_until_it_is_known_which_runtime_its_pod_has(tmp_path: Path) -> None:
    claim = passthrough_claim(reserved_for={"late": "late-uid"})
    node = node_of(tmp_path, claim, gpu_driver_edits=no_driver)
    with pytest.raises(
        TemporaryError, match="pod UID late-uid, for which claim default/claim is reserved, is not known"
    ):
        node.state.prepare(reference_to(claim))
    assert not (tmp_path / "cdi").exists() or not list((tmp_path / "cdi").iterdir())
    node.pods.add(make_pod("late", runtime_class="kata"))
    assert node.state.prepare(reference_to(claim)).in_guest


def test_a_gpu_of_the_host_is_refused_to_a_pod_in_a_virtual_machine(tmp_path: Path) -> None:
    claim = make_claim(reserved_for={"pod": "pod-uid"})
    node = node_of(tmp_path, claim, pool=make_pool())
    node.pods.add(make_pod(runtime_class="kata-clh"))
    with pytest.raises(DracaenaError, match="in which there is no NVIDIA driver of this node"):
        node.state.prepare(reference_to(claim))
    assert files_below(tmp_path) == {} or not any("claim-uid" in name for name in files_below(tmp_path))
