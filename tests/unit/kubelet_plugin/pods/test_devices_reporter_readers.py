"""Readers that know only the four published keys, and keep one container for each GPU."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft7Validator

from dracaena.api.objects import ContainerState, ContainerStatus, Pod
from dracaena.api.podlist import podlist_schema
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from support.plugin import FakeClaims, FakePods, PluginNode, gpu_uuid, make_claim, make_pod, make_share, reference_to
from support.podlist_readers import ListedPod, device_to_first_pod, device_to_last_pod, list_pods

WHOLE = make_claim(devices=(0, 1), reserved_for={"train": "train-uid"})
SHARES = [make_share(name, 2, reserved_for={name: f"{name}-uid"}) for name in ("a", "b")]
STAGES = [
    ({}, {"warmup", "main"}),
    ({"warmup": "running", "main": "waiting"}, {"warmup"}),
    ({"warmup": "terminated", "main": "waiting"}, {"main"}),
    ({"warmup": "terminated", "main": "running"}, {"main"}),
]
"""What kubelet tells of the containers of a pod as it starts, and whom a reader may name."""


def train(states: dict[str, str]) -> Pod:
    uses = [("claim", "")]
    pod = make_pod("train", containers={"main": uses}, init={"warmup": uses}, phase="Pending")
    found = {
        name: ContainerStatus(name, msgspec.convert({state: {}}, ContainerState)) for name, state in states.items()
    }
    status = msgspec.structs.replace(
        pod.status,
        init_container_statuses=[found[name] for name in ("warmup",) if name in found],
        container_statuses=[found[name] for name in ("main",) if name in found],
    )
    return msgspec.structs.replace(pod, status=status)


def listed(folder: Path) -> list[ListedPod]:
    path = folder / "pod-resources" / "podlist.json"
    Draft7Validator(podlist_schema()).validate(json.loads(path.read_text()))
    return list_pods(path)


@pytest.mark.parametrize("reader", [device_to_first_pod, device_to_last_pod])
def test_a_reader_that_keeps_one_container_per_gpu_names_one_that_runs(tmp_path: Path, reader: type) -> None:
    pods = FakePods(train({}))
    node = PluginNode(tmp_path, FakeClaims(WHOLE), pods)
    node.state.prepare(reference_to(WHOLE))
    for states, expected in STAGES:
        pods.add(train(states))
        node.reporter.reconcile()
        found = reader(listed(tmp_path))
        assert set(found) == {gpu_uuid(0), gpu_uuid(1)}
        assert {(pod.name, pod.namespace) for pod in found.values()} == {("train", "default")}
        assert {pod.container for pod in found.values()} <= expected
    pods.add(make_pod("train", phase="Succeeded"))
    node.reporter.reconcile()
    assert reader(listed(tmp_path)) == {}


def test_pods_that_share_a_gpu_are_all_listed_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    pods = FakePods(*(make_pod(name, claims={"claim": name}) for name in ("a", "b")))
    node = PluginNode(tmp_path, FakeClaims(*SHARES), pods)
    for claim in SHARES:
        node.state.prepare(reference_to(claim))
    node.reporter.reconcile()
    before = listed(tmp_path)
    assert [(pod.name, pod.gpu_list) for pod in before] == [("a", (gpu_uuid(2),)), ("b", (gpu_uuid(2),))]
    PluginNode(tmp_path, FakeClaims(*SHARES), pods).reporter.reconcile()
    assert listed(tmp_path) == before


def test_a_reader_of_device_names_finds_them_where_that_is_set(tmp_path: Path) -> None:
    node = PluginNode(
        tmp_path, FakeClaims(WHOLE), FakePods(make_pod("train")), gpu_name_format=GpuNameFormat.DEVICE_NAME
    )
    node.state.prepare(reference_to(WHOLE))
    node.reporter.reconcile()
    assert set(device_to_last_pod(listed(tmp_path))) == {"nvidia0", "nvidia1"}
