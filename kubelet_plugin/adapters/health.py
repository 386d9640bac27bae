"""Serves kubelet's health streams. Nothing watches the GPUs' health yet, so nothing is said about it.

Kubelet 1.36 opens the stream of every DRA driver, whether it announced one or not, and logs an error every 5 s while
there is none. A stream that stays open and silent means the same to it as no stream: the health of all devices is
unknown. So the services are not announced at registration either.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc

from dracaena.proto.health.v1 import api_pb2 as v1
from dracaena.proto.health.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.health.v1alpha1 import api_pb2 as v1alpha1
from dracaena.proto.health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc


class SilentStreams:
    """Keeps one stream a version open: kubelet has one, and each takes a thread of the server as long as it lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, threading.Event] = {}
        self._stopping = False

    def wait(self, version: str, context: grpc.ServicerContext) -> None:
        """Return when the caller has gone, a newer stream of the version was opened, or stop() was called."""
        ended = threading.Event()
        with self._lock:
            if self._stopping or not context.add_callback(ended.set):
                return
            earlier, self._open[version] = self._open.get(version), ended
        if earlier is not None:
            earlier.set()
        context.send_initial_metadata(())  # tells the caller that the stream is open
        ended.wait()

    def stop(self) -> None:
        """End all streams, and each later one at once: the server waits for them when it stops."""
        with self._lock:
            self._stopping = True
            for ended in self._open.values():
                ended.set()


def add_health_services(streams: SilentStreams, server: grpc.Server) -> None:
    """Add both versions to a server."""
    # The generated code has no types.
    v1_grpc.add_DRAResourceHealthServicer_to_server(_V1(streams), server)  # type: ignore[no-untyped-call]
    v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(_V1Alpha1(streams), server)  # type: ignore[no-untyped-call]


class _V1(v1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: SilentStreams) -> None:
        self._streams = streams

    def NodeWatchResources(  # noqa: N802 - the wire's name
        self, _request: v1.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[v1.NodeWatchResourcesResponse]:
        self._streams.wait("v1", context)
        yield from ()


class _V1Alpha1(v1alpha1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: SilentStreams) -> None:
        self._streams = streams

    def NodeWatchResources(  # noqa: N802 - the wire's name
        self, _request: v1alpha1.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[v1alpha1.NodeWatchResourcesResponse]:
        self._streams.wait("v1alpha1", context)
        yield from ()
