"""What kubelet sees: real gRPC over real unix sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from dracaena.api.errors import PermanentError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.adapters.kubelet.grpc_server import CALL_WORKERS, UnixServer, plugin_server
from dracaena.kubelet_plugin.adapters.kubelet.registration import WORKERS as REGISTRATION_WORKERS
from dracaena.kubelet_plugin.adapters.kubelet.registration import registration_server
from dracaena.kubelet_plugin.claims.calls import MAX_WAIT_S, ClaimCalls
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference
from dracaena.proto.dra.v1 import api_pb2 as v1
from dracaena.proto.dra.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.dra.v1beta1 import api_pb2 as v1beta1
from dracaena.proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dracaena.proto.health.v1 import api_pb2 as health
from dracaena.proto.health.v1 import api_pb2_grpc as health_grpc
from dracaena.proto.health.v1alpha1 import api_pb2 as health_alpha
from dracaena.proto.health.v1alpha1 import api_pb2_grpc as health_alpha_grpc
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as registration_grpc
from support.plugin import DRIVER, NODE, FakeClaims, FakePods, PluginNode, device_name, make_claim, make_pod, make_share
from support.sockets import short_folder

VERSIONS = [(v1, v1_grpc), (v1beta1, v1beta1_grpc)]
CALL_S = 10


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def dra_server(folder: Path) -> Iterator[tuple[UnixServer, Path]]:
    """A served driver with the claims good (GPUs 0 and 1), held (GPU 1) and shared (GPU 2, a share)."""
    claims = FakeClaims(
        make_claim("good", (0, 1), request="gpus/two", reserved_for={"pod": "pod-uid"}),
        make_claim("held", (1,)),
        make_share("shared", 2, share_id="share-1"),
    )
    node = PluginNode(folder / "node", claims, FakePods(make_pod(claims={"claim": "good"})))
    server = plugin_server(folder / "p" / "dra.sock", DRIVER, ClaimCalls(node.context, node.state))
    server.start()
    yield server, folder / "p" / "dra.sock"
    server.stop()


@pytest.fixture
def dra_socket(dra_server: tuple[UnixServer, Path]) -> Path:
    return dra_server[1]


def claims_of(messages: ModuleType, *names: str) -> list[Any]:
    return [messages.Claim(namespace="default", name=name, uid=f"{name}-uid") for name in names]


class TimedCalls:
    """Answers nothing, and notes how much time each call has."""

    def __init__(self) -> None:
        self.within_s: list[float] = []

    def prepare_claims(self, references: Iterable[ClaimReference], *, within_s: float) -> Mapping[ClaimUid, Any]:
        self.within_s.append(within_s)
        return {}

    def unprepare_claims(self, references: Iterable[ClaimReference]) -> Mapping[ClaimUid, Any]:
        return {}


@pytest.mark.parametrize(("messages", "services"), VERSIONS, ids=["v1", "v1beta1"])
def test_a_call_has_the_time_of_its_deadline_and_without_one_more_than_it_ever_waits(
    folder: Path, messages: ModuleType, services: ModuleType
) -> None:
    calls = TimedCalls()
    server = plugin_server(folder / "dra.sock", DRIVER, calls)
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{folder / 'dra.sock'}") as channel:
            stub = services.DRAPluginStub(channel)
            stub.NodePrepareResources(messages.NodePrepareResourcesRequest(), timeout=600)
            stub.NodePrepareResources(messages.NodePrepareResourcesRequest())
    finally:
        server.stop()
    with_deadline, without = calls.within_s
    assert with_deadline == pytest.approx(600, abs=60)
    assert without > 1000 * MAX_WAIT_S


@pytest.mark.parametrize(("messages", "services"), VERSIONS, ids=["v1", "v1beta1"])
def test_both_versions_answer_each_claim_by_its_uid(
    messages: ModuleType, services: ModuleType, dra_socket: Path
) -> None:
    with grpc.insecure_channel(f"unix:{dra_socket}") as channel:
        stub = services.DRAPluginStub(channel)
        request = messages.NodePrepareResourcesRequest(claims=claims_of(messages, "good", "held", "gone"))
        answer = stub.NodePrepareResources(request, timeout=CALL_S).claims
        assert set(answer) == {"good-uid", "held-uid", "gone-uid"}
        assert answer["good-uid"].error == ""
        assert [(list(d.request_names), d.pool_name, d.device_name) for d in answer["good-uid"].devices] == [
            (["gpus"], NODE, device_name(0)),
            (["gpus"], NODE, device_name(1)),
        ]
        assert list(answer["good-uid"].devices[0].cdi_device_ids) == [
            f"gpu.dracaena.dev/claim=good-uid-{device_name(0)}"
        ]
        assert "still held by claim default/good" in answer["held-uid"].error
        assert "gone" in answer["gone-uid"].error
        assert stub.NodePrepareResources(request, timeout=CALL_S).claims["good-uid"] == answer["good-uid"]
        unprepare = messages.NodeUnprepareResourcesRequest(claims=claims_of(messages, "good", "gone"))
        for _ in range(2):
            done = stub.NodeUnprepareResources(unprepare, timeout=CALL_S).claims
            assert {uid: entry.error for uid, entry in done.items()} == {"good-uid": "", "gone-uid": ""}


def test_a_call_without_claims_has_an_empty_answer(dra_socket: Path) -> None:
    with grpc.insecure_channel(f"unix:{dra_socket}") as channel:
        stub = v1_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
        answer = stub.NodePrepareResources(v1.NodePrepareResourcesRequest(), timeout=CALL_S)
        assert not answer.claims


def test_only_v1_tells_the_share(dra_socket: Path) -> None:
    with grpc.insecure_channel(f"unix:{dra_socket}") as channel:
        for messages, services in VERSIONS:
            request = messages.NodePrepareResourcesRequest(claims=claims_of(messages, "shared"))
            answer = services.DRAPluginStub(channel).NodePrepareResources(request, timeout=CALL_S)
            device = answer.claims["shared-uid"].devices[0]
            assert getattr(device, "share_id", None) == ("share-1" if messages is v1 else None)


HEALTH_VERSIONS = [(health, health_grpc), (health_alpha, health_alpha_grpc)]


def open_stream(messages: ModuleType, services: ModuleType, channel: grpc.Channel) -> Any:
    stub = services.DRAResourceHealthStub(channel)
    stream = stub.NodeWatchResources(messages.NodeWatchResourcesRequest(), timeout=CALL_S)
    stream.initial_metadata()  # the server has it
    return stream


@pytest.mark.parametrize(("messages", "services"), HEALTH_VERSIONS, ids=["v1", "v1alpha1"])
def test_a_health_stream_stays_open_and_says_nothing_until_the_server_stops(
    messages: ModuleType, services: ModuleType, dra_server: tuple[UnixServer, Path]
) -> None:
    server, path = dra_server
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stream = open_stream(messages, services, channel)
        assert stream.is_active()
        server.stop()
        assert list(stream) == []
        assert stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(("messages", "services"), HEALTH_VERSIONS, ids=["v1", "v1alpha1"])
def test_streams_that_nobody_ended_do_not_keep_claims_waiting(
    messages: ModuleType, services: ModuleType, dra_socket: Path
) -> None:
    with grpc.insecure_channel(f"unix:{dra_socket}") as channel:
        streams = [open_stream(messages, services, channel) for _ in range(2 * CALL_WORKERS)]
        assert [list(stream) for stream in streams[:-1]] == [[]] * (2 * CALL_WORKERS - 1)
        assert streams[-1].is_active()
        request = v1.NodePrepareResourcesRequest(claims=claims_of(v1, "good"))
        stub = v1_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
        assert stub.NodePrepareResources(request, timeout=CALL_S).claims["good-uid"].error == ""


def test_registration_tells_kubelet_who_we_are_and_hears_its_answer(folder: Path) -> None:
    heard: list[str | None] = []
    path, endpoint = folder / "r" / "reg.sock", folder / "p" / "dra.sock"
    server = registration_server(path, DRIVER, endpoint, heard.append)
    server.start()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]  # generated
        info = stub.GetInfo(registration.InfoRequest(), timeout=CALL_S)
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(endpoint))
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        stub.NotifyRegistrationStatus(registration.RegistrationStatus(plugin_registered=True), timeout=CALL_S)
        stub.NotifyRegistrationStatus(registration.RegistrationStatus(error="bad name"), timeout=CALL_S)
    server.stop()
    assert heard == [None, "bad name"]
    assert not path.exists()


def test_a_socket_that_a_killed_process_left_is_taken_over(folder: Path) -> None:
    path = folder / "reg.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    server = registration_server(path, DRIVER, folder / "dra.sock", lambda _refusal: None)
    server.start()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]  # generated
        assert stub.GetInfo(registration.InfoRequest(), timeout=CALL_S).name == DRIVER
    server.stop()


def test_a_file_in_the_way_of_a_socket_is_named_and_kept(folder: Path) -> None:
    path = folder / "reg.sock"
    path.write_text("mine")
    server = registration_server(path, DRIVER, folder / "dra.sock", lambda _refusal: None)
    with pytest.raises(PermanentError, match=f"{path} is in the way"):
        server.start()
    server.stop()
    assert path.read_text() == "mine"


def test_a_call_to_a_socket_that_is_bound_waits_until_it_is_served(folder: Path) -> None:
    calls = TimedCalls()
    server = plugin_server(folder / "dra.sock", DRIVER, calls)
    server.bind()
    with grpc.insecure_channel(f"unix:{folder / 'dra.sock'}") as channel:
        stub = v1_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
        answer = stub.NodePrepareResources.future(v1.NodePrepareResourcesRequest(), timeout=CALL_S)
        assert calls.within_s == []
        server.start()
        assert answer.result().claims == {}
    server.stop()
    assert len(calls.within_s) == 1


def test_a_socket_that_was_bound_and_never_served_is_removed(folder: Path) -> None:
    server = plugin_server(folder / "dra.sock", DRIVER, TimedCalls())
    server.bind()
    assert (folder / "dra.sock").is_socket()
    for _ in range(2):
        server.stop()
        assert not (folder / "dra.sock").exists()


class CallsAtOnce:
    """Ends no call before as many are there as may be."""

    def __init__(self, count: int) -> None:
        self._all = threading.Barrier(count)

    def prepare_claims(self, references: Iterable[ClaimReference], *, within_s: float) -> Mapping[ClaimUid, Any]:
        self._all.wait(within_s)
        return {}

    def unprepare_claims(self, references: Iterable[ClaimReference]) -> Mapping[ClaimUid, Any]:
        return {}


def test_all_threads_that_answer_calls_are_there_from_the_start(folder: Path) -> None:
    before = set(threading.enumerate())  # those of an earlier test may still be ending

    def threads() -> set[threading.Thread]:
        answering = {each for each in threading.enumerate() if each.name.startswith(("dra_", "registration_"))}
        return answering - before

    socket_path = folder / "dra.sock"
    servers = [
        plugin_server(socket_path, DRIVER, CallsAtOnce(CALL_WORKERS)),
        registration_server(folder / "reg.sock", DRIVER, socket_path, lambda _: None),
    ]
    for server in servers:
        server.start()
    try:
        there = threads()
        assert len(there) == CALL_WORKERS + REGISTRATION_WORKERS
        with (
            grpc.insecure_channel(f"unix:{socket_path}") as calls,
            grpc.insecure_channel(f"unix:{folder / 'reg.sock'}") as watcher,
        ):
            stub = v1_grpc.DRAPluginStub(calls)  # type: ignore[no-untyped-call]  # generated
            ask = registration_grpc.RegistrationStub(watcher).GetInfo  # type: ignore[no-untyped-call]  # generated
            asked = [
                stub.NodePrepareResources.future(v1.NodePrepareResourcesRequest(), timeout=CALL_S)
                for _ in range(CALL_WORKERS)
            ]
            asked += [ask.future(registration.InfoRequest(), timeout=CALL_S) for _ in range(CALL_WORKERS)]
            for each in asked:
                each.result()
        assert threads() == there
    finally:
        for server in servers:
            server.stop()
    for each in there:
        each.join()  # they end with their server
