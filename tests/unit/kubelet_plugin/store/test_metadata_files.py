"""Device metadata: which files a claim has, what stands in them, and when they go (KEP-5304)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.errors import TemporaryError
from dracaena.api.machine import Machine
from dracaena.api.names import POD_CLAIM_NAME_ANNOTATION, ClaimUid, PoolName
from dracaena.api.resource_objects import DeviceAttribute, ResourceClaim
from dracaena.api.resourceslice import encode_devices
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.reports.device_metadata import (
    cdi_ids,
    claim_of_document,
    claim_of_spec_name,
    spec_name,
)
from support.passthrough import NO_GPUS, passthrough_claim, passthrough_gpu, with_passthrough
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    claim_of,
    device_name,
    gpu_uuid,
    make_claim,
    make_pool,
    reference_to,
)
from support.vgpus import mediated, vgpu_claim, virtual_function, with_vgpus

CLAIM = make_claim(devices=(0, 1))
DOCUMENT = "metadata/default_claim/gpus/metadata.json"
SPEC = f"cdi/{DRIVER}_metadata_claim-uid_gpus.json"
GPU, FUNCTION = passthrough_gpu(0), virtual_function(0)
PCI = "resource.kubernetes.io/pciBusID"
ATTRIBUTES = {"uuid": DeviceAttribute(string=gpu_uuid(0)), "ordinal": DeviceAttribute(int_value=0)}


def generated(claim: ResourceClaim, pod_claim_name: str) -> ResourceClaim:
    annotations = {POD_CLAIM_NAME_ANNOTATION: pod_claim_name}
    metadata = msgspec.structs.replace(claim.metadata, annotations=annotations)
    return msgspec.structs.replace(claim, metadata=metadata)


def node_with(folder: Path, *claims: ResourceClaim, device_metadata: bool = True, **changes: Any) -> PluginNode:
    pool = replace(make_pool(), attributes={device_name(0): ATTRIBUTES})
    settings = {"pool": pool, "device_metadata": device_metadata, **changes}
    return PluginNode(folder, FakeClaims(*claims), FakePods(), **settings)


def objects(data: bytes) -> list[dict[str, Any]]:
    """The objects of a JSON stream, read one by one as any reader does."""
    decoder, text, found = json.JSONDecoder(), data.decode().strip(), []
    while text:
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:].lstrip()
    return found


def test_a_request_has_a_document_in_both_versions_newest_first(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    node.state.prepare(reference_to(CLAIM))
    newest, older = objects(node.files()[DOCUMENT])
    assert [newest.pop("apiVersion"), older.pop("apiVersion")] == [
        "metadata.resource.k8s.io/v1beta1",
        "metadata.resource.k8s.io/v1alpha1",
    ]
    devices = [{"driver": DRIVER, "pool": NODE, "name": device_name(n)} for n in (0, 1)]
    devices[0]["attributes"] = {"uuid": {"string": gpu_uuid(0)}, "ordinal": {"int": 0}}  # type: ignore[assignment]
    assert newest == {
        "kind": "DeviceMetadata",
        "metadata": {"name": "claim", "namespace": "default", "uid": "claim-uid", "generation": 1},
        "requests": [{"name": "gpus", "devices": devices}],
    }
    assert older == newest
    assert (tmp_path / DOCUMENT).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("claim", "place"),
    [(CLAIM, "resourceclaims/claim"), (generated(CLAIM, "gpus-of-pod"), "resourceclaimtemplates/gpus-of-pod")],
)
def test_containers_find_it_by_what_stands_in_their_pod(tmp_path: Path, claim: ResourceClaim, place: str) -> None:
    node = node_with(tmp_path, claim)
    prepared = node.state.prepare(reference_to(claim))
    spec = json.loads(node.files()[SPEC])
    assert (spec["cdiVersion"], spec["kind"]) == ("0.5.0", f"{DRIVER}/metadata")
    (device,) = spec["devices"]
    assert device["name"] == "claim-uid_gpus"
    assert device["containerEdits"]["mounts"] == [
        {
            "hostPath": "/host/metadata/default_claim/gpus/metadata.json",
            "containerPath": f"/var/run/kubernetes.io/dra-device-attributes/{place}/gpus/{DRIVER}-metadata.json",
            "options": ["ro", "bind"],
        }
    ]
    assert cdi_ids(prepared, DRIVER) == (f"{DRIVER}/metadata=claim-uid_gpus", None)
    (newest, _) = objects(node.files()[DOCUMENT])
    assert newest.get("podClaimName") == ("gpus-of-pod" if place.startswith("resourceclaimtemplates") else None)


@pytest.mark.parametrize(
    ("claim", "machine", "attribute", "found"),
    [
        (passthrough_claim(), with_passthrough(NO_GPUS, [GPU]), PCI, GPU.pci_bus_id),
        (vgpu_claim(), with_vgpus(NO_GPUS, mediated(0)), "mdevUUID", mediated(0).identity),
        (vgpu_claim(vgpus=[FUNCTION]), with_vgpus(NO_GPUS, FUNCTION), PCI, FUNCTION.identity),
    ],
    ids=["vfio", "mediated device", "virtual function"],
)
def test_kubevirt_finds_the_device_of_a_virtual_machine(
    tmp_path: Path, claim: ResourceClaim, machine: Machine, attribute: str, found: str
) -> None:
    """As its launcher does (1.8 and later): of a request with one device `mdevUUID`, else the standard PCI address."""
    pool = node_pool(machine, DRIVER, PoolName(NODE), (encode_devices(machine),))
    node = node_with(tmp_path, claim, pool=pool)
    node.state.prepare(reference_to(claim))
    (newest, _) = objects(node.files()["metadata/default_claim/vm/metadata.json"])
    (request,) = newest["requests"]
    (device,) = request["devices"]
    names = [name for name in ("mdevUUID", PCI) if name in device["attributes"]]
    assert (request["name"], names) == ("vm", [attribute])
    assert device["attributes"][attribute] == {"string": found}


def test_each_request_has_its_own_and_a_sub_request_counts_as_its_request(tmp_path: Path) -> None:
    results = [
        {"request": request, "driver": DRIVER, "pool": NODE, "device": device_name(n)}
        for n, request in enumerate(["big/first", "big/first", "small"])
    ]
    claim = claim_of("claim", {"results": results})
    node = node_with(tmp_path, claim)
    prepared = node.state.prepare(reference_to(claim))
    assert sorted(name for name in node.files() if name.startswith("metadata/")) == [
        "metadata/default_claim/big/metadata.json",
        "metadata/default_claim/small/metadata.json",
    ]
    newest, _ = objects(node.files()["metadata/default_claim/big/metadata.json"])
    (request,) = newest["requests"]
    assert (request["name"], len(request["devices"])) == ("big/first", 2)
    assert [cdi_id and cdi_id.rpartition("_")[2] for cdi_id in cdi_ids(prepared, DRIVER)] == ["big", None, "small"]
    node.state.unprepare(reference_to(claim))
    assert [name for name in node.files() if not name.startswith("pod-resources/")] == []
    assert list((tmp_path / "metadata").iterdir()) == []


def test_without_the_setting_nothing_is_written_and_the_answer_names_nothing(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM, device_metadata=False)
    prepared = node.state.prepare(reference_to(CLAIM))
    assert not [name for name in node.files() if "metadata" in name]
    assert cdi_ids(prepared, DRIVER) == (None, None)
    assert prepared.metadata is None


@pytest.mark.parametrize("first", [True, False])
def test_a_prepared_claim_keeps_its_answer_whatever_the_setting_is_by_then(tmp_path: Path, first: bool) -> None:
    before = node_with(tmp_path, CLAIM, device_metadata=first).state.prepare(reference_to(CLAIM))
    later = node_with(tmp_path, CLAIM, device_metadata=not first)
    files = later.files()
    assert later.state.prepare(reference_to(CLAIM)) == before
    assert later.files() == files
    later.state.unprepare(reference_to(CLAIM))
    assert not [name for name in later.files() if "metadata" in name]


@pytest.mark.parametrize("lost", [[DOCUMENT], [SPEC], [DOCUMENT, SPEC]])
def test_a_file_that_was_lost_is_there_again_before_the_next_answer(tmp_path: Path, lost: list[str]) -> None:
    node = node_with(tmp_path, CLAIM)
    node.state.prepare(reference_to(CLAIM))
    files = node.files()
    for name in lost:
        (tmp_path / name).unlink()
    node.state.prepare(reference_to(CLAIM))
    assert node.files() == files


def test_a_lost_document_waits_for_the_gpus_to_be_known(tmp_path: Path) -> None:
    node_with(tmp_path, CLAIM).state.prepare(reference_to(CLAIM))
    (tmp_path / DOCUMENT).unlink()

    def unknown() -> Any:
        raise TemporaryError("the GPUs of this node are not known yet")

    again = node_with(tmp_path, CLAIM, read_pool=unknown)
    with pytest.raises(TemporaryError, match="not known yet"):
        again.state.prepare(reference_to(CLAIM))
    assert not again.recovery.recover(())


def test_the_document_of_a_claim_that_took_the_name_over_stays(tmp_path: Path) -> None:
    old, new = CLAIM, make_claim(devices=(2,), uid="new-uid")
    node = node_with(tmp_path, old)
    node.state.prepare(reference_to(old))
    node.claims.put(new)
    node.state.prepare(reference_to(new))
    node.state.unprepare(reference_to(old))
    assert claim_of_document(node.files()[DOCUMENT]) == "new-uid"
    assert SPEC not in node.files()
    node.state.unprepare(reference_to(new))
    assert not [name for name in node.files() if "metadata" in name]


def test_a_sweep_removes_what_no_checkpoint_speaks_of(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    node.state.prepare(reference_to(CLAIM))
    files = node.files()
    node.documents.write("default_gone/gpus/metadata.json", files[DOCUMENT].replace(b"claim-uid", b"gone-uid"))
    node.documents.write("default_strange/gpus/metadata.json", b"no document")
    node.specs.write(spec_name(DRIVER, ClaimUid("gone-uid"), "gpus"), b"{}")
    node.specs.write("other.vendor_metadata_gone-uid_gpus.json", b"{}")
    node.sweeper.sweep()
    assert node.files() == {**files, "cdi/other.vendor_metadata_gone-uid_gpus.json": b"{}"}
    assert node.metrics.sweeping.swept.labels("metadata")._value.get() == 3


def test_a_failed_preparation_leaves_none(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    (tmp_path / "pod-resources").write_text("in the way")
    with pytest.raises(Exception, match="pod-resources"):
        node.state.prepare(reference_to(CLAIM))
    assert not [name for name in node.files() if "metadata" in name]


def test_names_of_specs_tell_their_claim() -> None:
    assert claim_of_spec_name(DRIVER, spec_name(DRIVER, ClaimUid("5ab9-1"), "gpus")) == "5ab9-1"
    for name in (
        f"{DRIVER}-claim_5ab9.json",
        f"{DRIVER}_metadata_5ab9.json",
        "x_metadata_5ab9_gpus.json",
        "metadata.json",
    ):
        assert claim_of_spec_name(DRIVER, name) is None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"metadata": 1}', b'{"metadata": {"uid": ', b"\xff", b"[" * 100_000]
)
def test_what_is_no_document_is_nobodys(data: bytes) -> None:
    assert claim_of_document(data) is None
