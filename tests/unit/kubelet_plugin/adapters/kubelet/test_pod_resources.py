"""kubelet asked over a real socket (adapters/kubelet/pod_resources.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.adapters.kubelet.pod_resources import PodResourcesWitness
from dracaena.kubelet_plugin.device_kinds.cdi_spec import qualified_name
from dracaena.kubelet_plugin.prepare.cdi.devices import claim_of_device
from dracaena.proto.podresources.v1 import api_pb2 as v1
from dracaena.proto.podresources.v1 import api_pb2_grpc as v1_grpc
from support.plugin import DRIVER, device_name

UID = ClaimUid("2c2ce8ad-ea0e-49b4-a526-0fda9321c86d")


def pod(*cdi_names: str) -> v1.PodResources:
    claimed = v1.ClaimResource(cdi_devices=[v1.CDIDevice(name=name) for name in cdi_names], driver_name=DRIVER)
    resource = v1.DynamicResource(claim_name="c", claim_namespace="default", claim_resources=[claimed])
    container = v1.ContainerResources(name="main", dynamic_resources=[resource])
    return v1.PodResources(name="pod", namespace="default", containers=[container])


class Kubelet(v1_grpc.PodResourcesListerServicer):
    """A kubelet that answers with the pods given."""

    def __init__(self, *pods: v1.PodResources) -> None:
        self.pods = pods
        self.while_asked: Callable[[], None] = lambda: None

    def List(self, request: Any, context: Any) -> v1.ListPodResourcesResponse:  # noqa: N802 - generated name
        self.while_asked()
        return v1.ListPodResourcesResponse(pod_resources=self.pods)


@contextmanager
def served(kubelet: Kubelet, socket: Path) -> Iterator[None]:
    server = grpc.server(ThreadPoolExecutor(1))
    v1_grpc.add_PodResourcesListerServicer_to_server(kubelet, server)  # type: ignore[no-untyped-call]
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


def witness(socket: Path, *, ready: bool = True) -> PodResourcesWitness:
    return PodResourcesWitness(socket, DRIVER, lambda: ready)


def test_kubelet_tells_the_claims_of_our_driver(tmp_path: Path) -> None:
    ours = qualified_name(DRIVER, UID, device_name(0))
    kubelet = Kubelet(pod(ours, "nic.example.com/claim=1-nic-0"), pod("nvidia.com/gpu=0"), pod())
    with served(kubelet, tmp_path / "s"):
        first, second = witness(tmp_path / "s").look(), witness(tmp_path / "s").look()
    assert first == second
    assert first.claims == {UID}


def test_each_start_of_kubelet_is_another_run(tmp_path: Path) -> None:
    runs = []
    for _ in range(2):
        with served(Kubelet(), tmp_path / "s"):
            runs.append(witness(tmp_path / "s").look().run)
    assert runs[0] != runs[1]


def test_a_kubelet_that_is_not_there_or_does_not_answer_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match=f"kubelet has no socket {tmp_path}/s"):
        witness(tmp_path / "s").look()
    (tmp_path / "s").touch()
    with pytest.raises(TemporaryError, match=f"kubelet does not answer at {tmp_path}/s: UNAVAILABLE"):
        witness(tmp_path / "s").look()


def test_an_answer_counts_only_while_the_node_is_ready(tmp_path: Path) -> None:
    with served(Kubelet(), tmp_path / "s"), pytest.raises(TemporaryError, match="the node is not ready"):
        witness(tmp_path / "s", ready=False).look()


def test_a_kubelet_that_was_started_anew_meanwhile_is_not_believed(tmp_path: Path) -> None:
    kubelet = Kubelet()

    def start_anew() -> None:
        (tmp_path / "s").unlink()
        (tmp_path / "s").touch()

    kubelet.while_asked = start_anew
    with served(kubelet, tmp_path / "s"), pytest.raises(TemporaryError, match="restarted while it was asked"):
        witness(tmp_path / "s").look()


@pytest.mark.parametrize(
    ("name", "uid"),
    [
        (f"{DRIVER}/claim={UID}-{device_name(3)}", UID),
        (f"{DRIVER}/claim={UID}-mig-0041dacf-0000-0000-0000-000000000003-1g-5gb-0", UID),
        (f"{DRIVER}/claim=plain-gpu-1", "plain"),
        (f"{DRIVER}/metadata={UID}_gpus", None),
        (f"other.example.com/claim={UID}-{device_name(3)}", None),
        ("", None),
        ("=", None),
    ],
)
def test_a_cdi_name_tells_whose_it_is(name: str, uid: str | None) -> None:
    assert claim_of_device(DRIVER, name) == uid
