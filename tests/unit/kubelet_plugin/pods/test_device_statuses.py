from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.prepare.reports.device_status import with_our_devices
from support.plugin import (
    DRIVER,
    NODE,
    FakeClaims,
    FakePods,
    PluginNode,
    device_name,
    gpu_uuid,
    make_claim,
    make_pod,
    prepared_claim,
    reference_to,
)

CLAIM = make_claim(devices=(0, 1), reserved_for={"pod": "pod-uid"})
NIC = {"driver": "nic.example.com", "pool": NODE, "device": "nic-0", "networkData": {"interfaceName": "eth1"}}


def ours(number: int, **more: Any) -> dict[str, Any]:
    return {"driver": DRIVER, "pool": NODE, "device": device_name(number), "data": {"uuid": gpu_uuid(number), **more}}


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def plain(entries: Any) -> Any:
    """Entries as values, whether they are text or not."""
    return msgspec.json.decode(msgspec.json.encode(entries))


def with_devices(claim: ResourceClaim, *devices: dict[str, Any]) -> ResourceClaim:
    status = msgspec.structs.replace(claim.status, devices=[raw(device) for device in devices])
    return msgspec.structs.replace(claim, status=status)


def node_with(folder: Path, claim: ResourceClaim) -> PluginNode:
    node = PluginNode(folder, FakeClaims(claim), FakePods(make_pod()), claim_status=True)
    node.state.prepare(reference_to(claim))
    return node


def test_each_device_has_its_uuid_and_what_else_is_known() -> None:
    assert with_our_devices([], prepared_claim(), DRIVER) == [ours(0)]
    whole = prepared_claim(pci_bus_id="0000:0f:00.0")
    assert with_our_devices([], whole, DRIVER) == [ours(0, pciBusID="0000:0f:00.0")]
    part = prepared_claim(parent_uuid="GPU-9")
    assert with_our_devices([], part, DRIVER) == [ours(0, parentUUID="GPU-9")]
    share = prepared_claim(share_id="share-1", memory_bytes=20 << 30, cores=30)
    assert with_our_devices([], share, DRIVER) == [{**ours(0, memory="20Gi", cores=30), "shareID": "share-1"}]


def test_two_shares_of_one_gpu_have_an_entry_each() -> None:
    one = prepared_claim(share_id="one", memory_bytes=1 << 30)
    both = replace(one, devices=(*one.devices, replace(one.devices[0], share_id="two", cores=5)))
    entries = with_our_devices([], both, DRIVER)
    assert entries == [
        {**ours(0, memory="1Gi", cores=0), "shareID": "one"},
        {**ours(0, memory="1Gi", cores=5), "shareID": "two"},
    ]
    assert with_our_devices([msgspec.Raw(msgspec.json.encode(entry)) for entry in entries], both, DRIVER) is None


def test_a_device_that_answers_two_requests_has_one_entry() -> None:
    assert with_our_devices([], prepared_claim("claim", (0, 0)), DRIVER) == [ours(0)]


def test_entries_that_are_not_ours_stay_as_and_where_they_are() -> None:
    conditions = [{"type": "Ready", "status": "True"}]
    elsewhere = {**ours(5), "pool": "node-2"}
    stale = {**ours(0), "data": {"uuid": "GPU-old"}, "conditions": conditions}
    merged = with_our_devices([raw(stale), raw(NIC), raw(elsewhere)], prepared_claim("claim", (0, 1)), DRIVER)
    assert plain(merged) == [{**ours(0), "conditions": conditions}, NIC, elsewhere, ours(1)]
    assert with_our_devices([raw(entry) for entry in plain(merged)], prepared_claim("claim", (0, 1)), DRIVER) is None


@pytest.mark.parametrize("data", [b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}", rb'{"a":"\ud800"}'])
def test_data_of_others_is_never_read_and_written_back_as_it_is(data: bytes) -> None:
    nic = msgspec.Raw(b'{"driver":"nic.example.com","pool":"p","device":"d","data":%s}' % data)
    merged = with_our_devices([nic], prepared_claim(), DRIVER)
    assert merged == [nic, ours(0)]


def test_data_of_ours_that_cannot_be_read_is_written_anew() -> None:
    text = msgspec.json.encode({**ours(0), "data": "X"}).replace(
        b'"X"', b'{"uuid":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    )
    assert with_our_devices([msgspec.Raw(text)], prepared_claim(), DRIVER) == [ours(0)]


def test_the_claim_says_which_gpus_it_has_and_is_written_once(tmp_path: Path) -> None:
    node = node_with(tmp_path, with_devices(CLAIM, NIC))
    node.reporter.reconcile()
    assert plain(node.claims.by_key[CLAIM.key].status.devices) == [NIC, ours(0), ours(1)]
    reads = node.claims.reads
    node.reporter.reconcile()
    assert (node.claims.status_writes, node.claims.reads) == ([CLAIM.key], reads)


def test_a_restart_reads_it_again_and_writes_only_what_differs(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    node.reporter.reconcile()
    again = PluginNode(tmp_path, node.claims, node.pods, claim_status=True)
    again.reporter.reconcile()
    assert node.claims.status_writes == [CLAIM.key]
    node.claims.put(CLAIM)  # without entries
    PluginNode(tmp_path, node.claims, node.pods, claim_status=True).reporter.reconcile()
    assert node.claims.status_writes == [CLAIM.key] * 2


def test_a_write_that_fails_for_now_is_tried_again_and_hinders_nothing_else(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    node.claims.refusals = [TemporaryError("PATCH: the object has been modified")]
    with pytest.raises(DracaenaError, match="has been modified"):
        node.reporter.reconcile()
    assert node.pods.annotations("pod")
    node.reporter.reconcile()
    assert node.claims.status_writes == [CLAIM.key]


def test_a_write_that_the_server_refuses_as_such_is_not_repeated(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    node.claims.refusals = [PermanentError("PATCH: forbidden")]
    node.reporter.reconcile()
    node.reporter.reconcile()
    assert node.claims.status_writes == []
    assert node.claims.refusals == []


def test_a_claim_that_is_gone_or_deallocated_is_left_alone(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    status = msgspec.structs.replace(CLAIM.status, allocation=None)
    node.claims.put(msgspec.structs.replace(CLAIM, status=status))
    node.reporter.reconcile()
    again = PluginNode(tmp_path, FakeClaims(), node.pods, claim_status=True)
    again.reporter.reconcile()
    assert node.claims.status_writes == again.claims.status_writes == []


def test_a_claim_prepared_anew_with_the_same_uid_is_written_anew(tmp_path: Path) -> None:
    node = node_with(tmp_path, CLAIM)
    node.reporter.reconcile()
    node.state.unprepare(reference_to(CLAIM))
    node.reporter.reconcile()
    node.claims.put(make_claim(devices=(2,), reserved_for={"pod": "pod-uid"}))
    node.state.prepare(reference_to(CLAIM))
    node.reporter.reconcile()
    assert plain(node.claims.by_key[CLAIM.key].status.devices) == [ours(2)]
