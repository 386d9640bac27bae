"""Probes: a program whose sockets kubelet cannot reach says so over HTTP and over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.errors import BadInputError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.adapters.kubelet.grpc_server import plugin_server
from dracaena.kubelet_plugin.adapters.kubelet.probes import ProbeServer, socket_problem
from dracaena.kubelet_plugin.adapters.kubelet.registration import registration_server
from dracaena.kubelet_plugin.ports import ClaimFailure
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from dracaena.kubelet_plugin.program import Program
from dracaena.proto.dra.v1 import api_pb2 as dra
from dracaena.proto.dra.v1 import api_pb2_grpc as dra_grpc
from dracaena.proto.grpc_health.v1 import api_pb2 as health
from dracaena.proto.grpc_health.v1 import api_pb2_grpc as health_grpc
from support.api_ground import ApiGround
from support.kube import wait_for
from support.plugin_world import CALL_S, START_S, World, http, start_process
from support.sockets import short_folder

GPUS = 16
"""The most that a node has."""

SERVING, NOT_SERVING = health.HealthCheckResponse.SERVING, health.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        yield World(server, folder)


@pytest.fixture
def plugin(world: World) -> Iterator[Program]:
    program = Program(world.settings(grpc_health_address="127.0.0.1:0"), registry=CollectorRegistry())
    program.start()
    yield program
    program.stop()


def check(program: Program, service: str) -> int:
    assert program.probes is not None
    with grpc.insecure_channel(f"127.0.0.1:{program.probes.port}") as channel:
        stub = health_grpc.HealthStub(channel)  # type: ignore[no-untyped-call]  # generated
        status: int = stub.Check(health.HealthCheckRequest(service=service), timeout=CALL_S).status
        return status


def test_liveness_comes_with_the_sockets_and_readiness_with_the_publication(world: World, plugin: Program) -> None:
    assert [check(plugin, service) for service in ("", "liveness", "readiness")] == [SERVING, SERVING, NOT_SERVING]
    assert (http(plugin, "/healthz")[0], http(plugin, "/readyz")[0]) == (200, 503)
    world.register()
    wait_for(lambda: check(plugin, "readiness") == SERVING, "ready")
    assert http(plugin, "/readyz")[0] == 200


def test_a_socket_that_somebody_removed_is_a_reason_for_a_new_start(world: World, plugin: Program) -> None:
    socket = world.socket()
    socket.unlink()
    assert http(plugin, "/healthz") == (503, f"not alive: socket {socket} does not answer: UNAVAILABLE\n")
    assert [check(plugin, service) for service in ("", "liveness")] == [NOT_SERVING, NOT_SERVING]


def test_a_service_that_is_not_there_is_not_found(plugin: Program) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        check(plugin, "other")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "no service 'other' here, there are '', 'liveness', 'readiness'" in str(caught.value.details())


def test_the_health_service_is_off_unless_it_is_asked_for(world: World) -> None:
    program = Program(world.settings(), registry=CollectorRegistry())
    program.start()
    try:
        assert program.probes is None
    finally:
        program.stop()


def test_a_port_that_is_taken_is_named_and_nothing_stays(world: World, plugin: Program) -> None:
    assert plugin.http is not None
    address = f"127.0.0.1:{plugin.http.port}"
    second = Program(world.settings(pod_uid="uid-2", grpc_health_address=address), registry=CollectorRegistry())
    with pytest.raises(BadInputError, match=f"gRPC health address {address}: cannot listen"):
        second.start()
    assert not list((world.kubelet / "plugins_registry").glob("*uid-2*"))


def test_a_port_that_another_grpc_server_has_is_not_shared_with_it(plugin: Program) -> None:
    assert plugin.probes is not None
    second = ProbeServer(f"127.0.0.1:{plugin.probes.port}", {})
    with pytest.raises(BadInputError, match="cannot listen"):
        second.start()
    second.stop()


def test_claims_that_wait_for_the_api_do_not_make_the_plugin_look_dead() -> None:
    class Waiting:
        """A driver whose API server does not answer."""

        answered = threading.Event()

        def prepare_claims(
            self, references: Iterable[ClaimReference], *, within_s: float
        ) -> Mapping[ClaimUid, PreparedClaim | ClaimFailure]:
            if references:
                self.answered.wait(60)
            return {}

        def unprepare_claims(self, references: Iterable[ClaimReference]) -> Mapping[ClaimUid, ClaimFailure | None]:
            return {}

    driver = Waiting()
    with short_folder() as folder:
        dra_socket, registration_socket = folder / "dra.sock", folder / "reg.sock"
        servers = [
            plugin_server(dra_socket, "driver", driver),
            registration_server(registration_socket, "driver", dra_socket, lambda _refusal: None),
        ]
        for server in servers:
            server.start()
        with grpc.insecure_channel(f"unix:{dra_socket}") as channel:
            stub = dra_grpc.DRAPluginStub(channel)  # type: ignore[no-untyped-call]  # generated
            request = dra.NodePrepareResourcesRequest(claims=[dra.Claim(namespace="default", name="a", uid="a")])
            calls = [stub.NodePrepareResources.future(request, timeout=60) for _ in range(GPUS)]
            assert socket_problem(dra_socket, registration_socket) is None
            assert not any(call.done() for call in calls)
            driver.answered.set()
            for call in calls:
                call.result()
        for server in servers:
            server.stop()


def test_an_address_without_a_port_ends_in_one_line(world: World) -> None:
    process = start_process(world, more=["--grpc-health-address", "localhost"])
    _, text = process.communicate(timeout=START_S)
    assert (process.returncode, len(text.splitlines())) == (2, 1)
    assert "--grpc-health-address: 'localhost' is not host:port" in text
