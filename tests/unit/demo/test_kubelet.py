"""The kubelet stand-in with a real API server over HTTP and a plugin on real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.demo.apiserver import ApiServer
from dracaena.demo.cluster import short_folder
from dracaena.demo.kubelet import SERVICES, Kubelet, NodeFolders, PluginSockets
from dracaena.demo.kubelet_claims import ClaimInfo
from dracaena.demo.kubelet_pods import ClaimNotReadyError
from dracaena.kube.client import KubeClient
from dracaena.kube.events import Event
from dracaena.process.clock import SystemClock
from support.dra_plugin import FakeDraPlugin
from support.kube import client_for, wait_for
from support.workload import NAMESPACE, allocate, create_claim, create_pod, get_pod, pod_names


@pytest.fixture
def root() -> Iterator[Path]:
    with short_folder() as folder:  # tmp_path is too long for a unix socket
        yield folder


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer(port=0) as server:
        yield client_for(server.url, tmp_path)


@contextmanager
def kubelet(client: KubeClient, root: Path, **settings: Any) -> Iterator[Kubelet]:
    part = Kubelet(
        client,
        SystemClock(),
        node_name="n1",
        folders=NodeFolders(root / "kubelet", root / "cdi"),
        retry_s=0.05,
        **settings,
    )
    part.start()
    try:
        yield part
        assert part.failure is None
    finally:
        part.stop()


def plugin(root: Path, **settings: Any) -> FakeDraPlugin:
    (root / "cdi").mkdir(exist_ok=True)
    return FakeDraPlugin(root / "kubelet", root / "cdi", **settings)


def bound_pod(client: KubeClient, name: str, claim: str) -> Pod:
    return create_pod(client, name, claim=claim, node="n1")


def is_running(client: KubeClient, name: str) -> bool:
    return get_pod(client, name).status.phase == "Running"


def reasons(client: KubeClient) -> set[str]:
    return {event.reason for event in client.list(Event).items}


def slice_document(node: str, driver: str) -> dict[str, Any]:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def test_registers_its_node(client: KubeClient, root: Path) -> None:
    with kubelet(client, root, labels={"rack": "r1"}):
        assert client.get(Node, "n1").metadata.labels["rack"] == "r1"
    with kubelet(client, root):  # a restart finds it there
        assert client.get(Node, "n1").metadata.labels["kubernetes.io/hostname"] == "n1"


@pytest.mark.parametrize("version", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
def test_a_claim_is_prepared_once_for_two_pods_and_unprepared_after_the_last(
    client: KubeClient, root: Path, version: str
) -> None:
    with kubelet(client, root), plugin(root, versions=[version]) as driver:
        create_claim(client, "c1")
        first, second = bound_pod(client, "p1", "c1"), bound_pod(client, "p2", "c1")
        allocate(client, "c1", "n1", pods=(first, second))
        for name in ("p1", "p2"):
            wait_for(partial(is_running, client, name), f"{name} to run")
        client.delete(Pod, "p1", namespace=NAMESPACE)
        wait_for(lambda: pod_names(client) == ["p2"], "p1 to be gone")
        assert driver.calls == [("prepare", "c1")]
        client.delete(Pod, "p2", namespace=NAMESPACE)
        wait_for(lambda: pod_names(client) == [], "p2 to be gone")
        assert driver.calls == [("prepare", "c1"), ("unprepare", "c1")]
        wait_for(lambda: driver.statuses, "the plugin to be told, which pods do not wait for")
        assert driver.statuses == [(True, "")]


def test_a_failed_prepare_becomes_an_event_and_is_tried_again(client: KubeClient, root: Path) -> None:
    with kubelet(client, root), plugin(root) as driver:
        driver.errors["c1"] = "the disk is full"
        create_claim(client, "c1")
        allocate(client, "c1", "n1", pods=(bound_pod(client, "p1", "c1"),))
        wait_for(lambda: "FailedPrepareDynamicResources" in reasons(client), "the event")
        assert get_pod(client, "p1").status.phase == "Pending"
        driver.errors.clear()
        wait_for(lambda: is_running(client, "p1"), "p1 to run")


def test_a_pod_that_the_claim_is_not_reserved_for_does_not_start(client: KubeClient, root: Path) -> None:
    with kubelet(client, root), plugin(root) as driver:
        create_claim(client, "c1")
        bound_pod(client, "p1", "c1")
        allocate(client, "c1", "n1")
        wait_for(lambda: "FailedPrepareDynamicResources" in reasons(client), "the event")
        assert driver.calls == []


def test_a_pod_waits_for_its_driver_to_register(client: KubeClient, root: Path) -> None:
    with kubelet(client, root):
        create_claim(client, "c1")
        allocate(client, "c1", "n1", pods=(bound_pod(client, "p1", "c1"),))
        wait_for(lambda: "FailedPrepareDynamicResources" in reasons(client), "the event")
        with plugin(root):
            wait_for(lambda: is_running(client, "p1"), "p1 to run")


def test_a_cdi_device_without_a_spec_keeps_the_container_from_starting(client: KubeClient, root: Path) -> None:
    with kubelet(client, root), plugin(root) as driver:
        driver.named_otherwise = True
        create_claim(client, "c1")
        allocate(client, "c1", "n1", pods=(bound_pod(client, "p1", "c1"),))
        wait_for(lambda: "Failed" in reasons(client), "the event")
        assert get_pod(client, "p1").status.phase == "Pending"


def test_a_restarted_kubelet_unprepares_for_a_pod_that_was_force_deleted_meanwhile(
    client: KubeClient, root: Path
) -> None:
    with plugin(root) as driver:
        with kubelet(client, root):
            create_claim(client, "c1")
            allocate(client, "c1", "n1", pods=(bound_pod(client, "p1", "c1"),))
            wait_for(lambda: is_running(client, "p1"), "p1 to run")
        client.delete(Pod, "p1", namespace=NAMESPACE, grace_period_s=0)
        assert driver.calls == [("prepare", "c1")]
        with kubelet(client, root):
            wait_for(lambda: driver.calls[1:] == [("unprepare", "c1")], "the claim to be unprepared")


def test_a_plugin_of_another_type_or_version_is_refused_and_told_why(client: KubeClient, root: Path) -> None:
    with kubelet(client, root):
        with plugin(root, plugin_type="CSIPlugin") as driver:
            wait_for(lambda: driver.statuses, "the refusal")
            assert driver.statuses[0][0] is False
            assert "CSIPlugin" in driver.statuses[0][1]
        with plugin(root, versions=["v7.DRAPlugin"]) as driver:
            wait_for(lambda: driver.statuses, "the refusal")
            assert "v7.DRAPlugin" in driver.statuses[0][1]


def registered(driver: FakeDraPlugin) -> bool:
    return driver.statuses == [(True, "")]


def test_a_plugin_that_comes_back_on_the_same_path_is_registered_anew(client: KubeClient, root: Path) -> None:
    with kubelet(client, root):
        for _ in range(2):
            with plugin(root) as driver:
                wait_for(partial(registered, driver), "the registration")


def test_a_plugin_that_goes_just_before_it_is_called_is_not_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, changes = root / "kubelet" / "plugins_registry", list[int]()
    sockets = PluginSockets(
        registry,
        SystemClock(),
        versions=tuple(SERVICES),
        wipe_after_s=60.0,
        on_change=lambda: changes.append(len(changes)),
        on_gone=lambda _driver: None,
    )
    find = sockets._latest

    def found_too_late(driver: str) -> Any:
        instance = find(driver)
        for path in registry.iterdir():
            path.unlink()
        wait_for(lambda: len(changes) == 2, "the plugin to be forgotten")
        return instance

    with plugin(root):
        sockets.start()
        try:
            wait_for(lambda: changes, "the registration")
            monkeypatch.setattr(sockets, "_latest", found_too_late)
            with pytest.raises(ClaimNotReadyError, match=f"{DEFAULT_DRIVER_NAME} is no longer registered"):
                sockets.prepare(DEFAULT_DRIVER_NAME, [ClaimInfo("u", "ns", "c", (DEFAULT_DRIVER_NAME,), ("p",))])
        finally:
            sockets.stop()


def test_slices_of_the_node_go_when_kubelet_starts(client: KubeClient, root: Path) -> None:
    for node in ("n1", "n2"):
        client.create(ResourceSlice, slice_document(node, DEFAULT_DRIVER_NAME))
    with kubelet(client, root):
        assert [item.spec.node_name for item in client.list(ResourceSlice).items] == ["n2"]


def test_slices_of_a_driver_that_is_gone_are_wiped_after_the_wait(client: KubeClient, root: Path) -> None:
    with kubelet(client, root, wipe_after_s=0.2):
        with plugin(root) as driver:
            wait_for(lambda: driver.statuses, "the registration")
            client.create(ResourceSlice, slice_document("n1", DEFAULT_DRIVER_NAME))
            client.create(ResourceSlice, slice_document("n1", "other.test"))
        wait_for(lambda: [item.spec.driver for item in client.list(ResourceSlice).items] == ["other.test"], "the wipe")
