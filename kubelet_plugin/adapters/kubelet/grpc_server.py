"""Serves DRA v1 and v1beta1 to kubelet over one unix socket, with the health streams, and translates their messages."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import grpc

from dracaena.api.errors import PermanentError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.adapters.kubelet.health_streams import HealthStreams, add_health_services
from dracaena.kubelet_plugin.adapters.kubelet.workers import Workers
from dracaena.kubelet_plugin.device_kinds.cdi_spec import qualified_name
from dracaena.kubelet_plugin.ports import ClaimFailure
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.device_metadata import cdi_ids
from dracaena.proto.dra.v1 import api_pb2 as v1
from dracaena.proto.dra.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.dra.v1beta1 import api_pb2 as v1beta1
from dracaena.proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc

CALL_WORKERS = 32
"""Most concurrent calls, including one for each health stream. Work on the node is serial, but each claim that waits
for a slow API server occupies a thread, for 15 s at most, and a node with 16 GPUs may have a pod for each: the probe of
our own socket, an unprepare and the answers for prepared claims must find a free thread. One that waits costs some tens
of KiB."""

STOP_GRACE_S = 10.0
"""Time for calls in progress to end: a claim takes milliseconds, a slow API some seconds. Kubelet retries the rest."""


class NodeDriver(Protocol):
    """What answers the two calls (dracaena.kubelet_plugin.claims.calls)."""

    def prepare_claims(
        self, references: Iterable[ClaimReference], *, within_s: float
    ) -> Mapping[ClaimUid, PreparedClaim | ClaimFailure]:
        """Return one result for each claim. within_s is the time left for the call."""
        ...

    def unprepare_claims(self, references: Iterable[ClaimReference]) -> Mapping[ClaimUid, ClaimFailure | None]:
        """Return one result for each claim."""
        ...


class UnixServer:
    """A gRPC server on a unix socket of our own. The caller holds the lock that makes this name ours.

    grpc silently takes a name away from a live server, so the lock comes first. `workers` answer its calls; start()
    starts them.
    """

    def __init__(
        self,
        path: Path,
        add_services: Callable[[grpc.Server], None],
        workers: Workers,
        *,
        end_streams: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._end_streams = end_streams
        self._workers = workers
        self._server = grpc.server(workers)
        self._bound = False
        add_services(self._server)

    def bind(self) -> None:
        """Remove a socket that an earlier process left, and listen: calls wait until start(). Does nothing if it is
        bound. Raises PermanentError naming the path.
        """
        if self._bound:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale_socket(self._path)
            self._server.add_insecure_port(f"unix:{self._path}")
            self._bound = True
        except (OSError, RuntimeError) as error:
            raise PermanentError(f"cannot listen on {self._path}: {error}") from error

    def start(self) -> None:
        """Serve, after bind() if that was not called. Raises PermanentError naming the path, or the threads that could
        not be started.
        """
        self.bind()
        self._workers.start()
        self._server.start()

    def stop(self) -> None:
        """Accept no more calls, let those in progress end, remove the socket if it is ours: it stays without bind().
        May be called again.
        """
        if self._bound:
            self._path.unlink(missing_ok=True)  # first, so that kubelet sees us leave before calls are refused
        self._end_streams()
        self._server.stop(STOP_GRACE_S).wait()
        self._workers.shutdown(wait=False)


def plugin_server(path: Path, driver_name: str, driver: NodeDriver, streams: HealthStreams | None = None) -> UnixServer:
    """Return the server of both DRA versions, not started; without `streams` health is not reported."""
    health = streams or HealthStreams()

    def add_services(server: grpc.Server) -> None:
        # The generated code has no types.
        v1_grpc.add_DRAPluginServicer_to_server(_PluginV1(driver_name, driver), server)  # type: ignore[no-untyped-call]
        v1beta1_grpc.add_DRAPluginServicer_to_server(_PluginV1Beta1(driver_name, driver), server)  # type: ignore[no-untyped-call]
        add_health_services(health, server)

    return UnixServer(path, add_services, Workers(CALL_WORKERS, "dra"), end_streams=health.stop)


class _Calls:
    """Both versions: the messages differ in one field only. `_messages` is the version's module."""

    _messages: Any
    _has_share_id: bool

    def __init__(self, driver_name: str, driver: NodeDriver) -> None:
        self._driver_name = driver_name
        self._driver = driver

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802 - the wire's name
        response = self._messages.NodePrepareResourcesResponse()
        # Without a caller's deadline this is some 10^18 s, which ClaimCalls limits to MAX_WAIT_S.
        results = self._driver.prepare_claims(_references(request), within_s=context.time_remaining())
        for uid, result in results.items():
            if isinstance(result, ClaimFailure):
                response.claims[uid].error = result.error
            else:
                response.claims[uid].devices.extend(self._devices(result))
        return response

    def NodeUnprepareResources(self, request: Any, _context: grpc.ServicerContext) -> Any:  # noqa: N802 - the wire's name
        response = self._messages.NodeUnprepareResourcesResponse()
        for uid, result in self._driver.unprepare_claims(_references(request)).items():
            response.claims[uid].error = "" if result is None else result.error
        return response

    def _devices(self, prepared: PreparedClaim) -> Iterable[Any]:
        for device, metadata in zip(prepared.devices, cdi_ids(prepared, self._driver_name), strict=True):
            own = qualified_name(self._driver_name, prepared.claim.uid, device.device, device.share_id)
            message = self._messages.Device(
                request_names=[device.request_name],
                pool_name=device.pool,
                device_name=device.device,
                cdi_device_ids=[own] if metadata is None else [own, metadata],
            )
            if self._has_share_id and device.share_id is not None:
                message.share_id = device.share_id
            yield message


class _PluginV1(_Calls, v1_grpc.DRAPluginServicer):
    _messages = v1
    _has_share_id = True


class _PluginV1Beta1(_Calls, v1beta1_grpc.DRAPluginServicer):
    _messages = v1beta1
    _has_share_id = False


def _references(request: Any) -> tuple[ClaimReference, ...]:
    return tuple(ClaimReference(claim.namespace, claim.name, ClaimUid(claim.uid)) for claim in request.claims)


def _remove_stale_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise PermanentError(f"{path} is in the way: it is not a socket; remove it")
    path.unlink()
