"""Whether kubelet can call us, checked the way kubelet calls; and the gRPC health service that answers probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import grpc

from dracaena.api.errors import BadInputError
from dracaena.kubelet_plugin.adapters.kubelet.workers import Workers
from dracaena.proto.dra.v1 import api_pb2 as dra
from dracaena.proto.dra.v1 import api_pb2_grpc as dra_grpc
from dracaena.proto.grpc_health.v1 import api_pb2 as health
from dracaena.proto.grpc_health.v1 import api_pb2_grpc as health_grpc
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as registration_grpc

CALL_S = 5.0
"""Longest that each of the two calls may take. They do no work: a longer one means that no thread is free."""

WORKERS = 2
"""Concurrent probes: one for liveness, one for readiness."""

Problem = Callable[[], str | None]
"""Returns what is wrong, in words, or None."""


def socket_problem(dra_socket: Path, registration_socket: Path) -> str | None:
    """Call both of our sockets as kubelet does; return which one does not answer and why, None if both do.

    If somebody removes a socket file, its server runs on but cannot be reached: a restart creates the file again.
    """
    try:
        with grpc.insecure_channel(f"unix:{registration_socket}") as channel:
            stub = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]  # generated
            stub.GetInfo(registration.InfoRequest(), timeout=CALL_S)
    except grpc.RpcError as error:
        return _says(registration_socket, error)
    try:
        with grpc.insecure_channel(f"unix:{dra_socket}") as channel:
            dra_grpc.DRAPluginStub(channel).NodePrepareResources(  # type: ignore[no-untyped-call]
                dra.NodePrepareResourcesRequest(), timeout=CALL_S
            )
    except grpc.RpcError as error:
        return _says(dra_socket, error)
    return None


def _says(socket: Path, error: grpc.RpcError) -> str:
    code = getattr(error, "code", None)  # what a call raises has it, the declared class does not
    return f"socket {socket} does not answer: {code().name if code is not None else error}"


class ProbeServer:
    """Serves grpc.health.v1 on a TCP port: kubelet's gRPC probes cannot use unix sockets. start() once, stop() once."""

    def __init__(self, address: str, services: Mapping[str, Problem]) -> None:
        """`address` is `host:port`, port 0 takes a free one. `services`: name → what is wrong with it."""
        self._address = address
        # Otherwise we would share the port with another gRPC server that has it, and probes would reach either one.
        alone = (("grpc.so_reuseport", 0),)
        self._workers = Workers(WORKERS, "probes")
        self._server = grpc.server(self._workers, options=alone)
        health_grpc.add_HealthServicer_to_server(_Health(services), self._server)  # type: ignore[no-untyped-call]
        self.port = 0

    def start(self) -> None:
        """Bind and serve. Raises BadInputError naming the address; PermanentError as Workers.start() does."""
        try:
            self.port = self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise BadInputError(f"gRPC health address {self._address}: cannot listen: {error}") from error
        self._workers.start()
        self._server.start()

    def stop(self) -> None:
        """Close the port, even if it was never open."""
        self._server.stop(0).wait()
        self._workers.shutdown(wait=False)


class _Health(health_grpc.HealthServicer):
    def __init__(self, services: Mapping[str, Problem]) -> None:
        self._services = services

    def Check(self, request: health.HealthCheckRequest, context: grpc.ServicerContext) -> health.HealthCheckResponse:  # noqa: N802 - the wire's name
        problem = self._services.get(request.service)
        if problem is None:
            known = ", ".join(repr(name) for name in self._services)
            context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here, there are {known}")
        found = problem()
        if found is None:
            return health.HealthCheckResponse(status=health.HealthCheckResponse.SERVING)
        context.set_trailing_metadata((("problem", found.encode("ascii", "replace").decode()),))
        return health.HealthCheckResponse(status=health.HealthCheckResponse.NOT_SERVING)
