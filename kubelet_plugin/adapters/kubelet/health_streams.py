"""Serves kubelet's health streams, both versions: the full list at once, at each change, and at intervals.

Kubelet 1.36 opens the stream of every DRA driver, whether it announced one or not, and logs an error every 5 s if there
is none. If nothing watches the GPUs, the stream stays open and silent: to kubelet that means the same as no stream, the
health of all devices is unknown.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from dracaena.kubelet_plugin.discovery.health.device_health import STALE_S, DeviceHealth, Status
from dracaena.process.clock import Clock, SystemClock
from dracaena.proto.health.v1 import api_pb2 as v1
from dracaena.proto.health.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.health.v1alpha1 import api_pb2 as v1alpha1
from dracaena.proto.health.v1alpha1 import api_pb2_grpc as v1alpha1_grpc

RESEND_S = 10.0
"""Pause between two full lists without a change: three fit into kubelet's 30 s, whatever a device's own limit is."""

ReadHealth = Callable[[], Sequence[DeviceHealth]]


class _Stream:
    """One open stream."""

    def __init__(self) -> None:
        self.ended = False


class HealthStreams:
    """Keeps one stream per version open: kubelet opens one, and each occupies a thread of the server.

    `read` returns the health of all devices of the pool; without it nothing is ever sent.
    """

    def __init__(self, pool: str = "", read: ReadHealth | None = None, clock: Clock | None = None) -> None:
        self._pool = pool
        self._read = read
        self._clock = clock or SystemClock()
        self._condition = threading.Condition()
        self._changes = 0
        self._open: dict[str, _Stream] = {}
        self._stopping = False

    def changed(self) -> None:
        """Send the list to all streams. From any thread; never blocks."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def serve(self, messages: Any, version: str, context: grpc.ServicerContext) -> Iterator[Any]:
        """Yield lists until the caller has gone, a newer stream of the version was opened, or stop() was called."""
        stream = _Stream()

        def end() -> None:
            with self._condition:
                stream.ended = True
                self._condition.notify_all()

        with self._condition:
            if self._stopping or not context.add_callback(end):
                return
            if version in self._open:
                self._open[version].ended = True
                self._condition.notify_all()
            self._open[version] = stream
            seen = self._changes
        context.send_initial_metadata(())  # tells the caller that the stream is open
        while not stream.ended:
            devices = self._read() if self._read is not None else ()
            if devices:  # before the first look nothing is known: an empty list would mean that there are no devices
                yield self._message(messages, devices)
            seen = self._wait(stream, seen)

    def stop(self) -> None:
        """End all streams, and any later one at once: the server waits for them when it stops."""
        with self._condition:
            self._stopping = True
            for stream in self._open.values():
                stream.ended = True
            self._condition.notify_all()

    def _wait(self, stream: _Stream, seen: int) -> int:
        """Wait for a change, the end, or the time to send again; return the number of changes by then."""
        deadline_s = self._clock.monotonic() + (RESEND_S if self._read is not None else math.inf)
        with self._condition:
            while not stream.ended and self._changes == seen:
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0:
                    break
                self._clock.wait(self._condition, left_s if left_s < math.inf else None)
            return self._changes

    def _message(self, messages: Any, devices: Sequence[DeviceHealth]) -> Any:
        response = messages.NodeWatchResourcesResponse()
        values = {
            Status.UNKNOWN: messages.UNKNOWN,
            Status.HEALTHY: messages.HEALTHY,
            Status.UNHEALTHY: messages.UNHEALTHY,
        }
        for health in devices:
            response.devices.add(
                device=messages.DeviceIdentifier(pool_name=self._pool, device_name=health.device),
                health=values[health.status],
                last_updated_time=health.updated_s,
                health_check_timeout_seconds=int(STALE_S),
                message=health.message,
            )
        return response


def add_health_services(streams: HealthStreams, server: grpc.Server) -> None:
    """Add both versions to a server."""
    # The generated code has no types.
    v1_grpc.add_DRAResourceHealthServicer_to_server(_HealthV1(streams), server)  # type: ignore[no-untyped-call]
    v1alpha1_grpc.add_DRAResourceHealthServicer_to_server(_HealthV1Alpha1(streams), server)  # type: ignore[no-untyped-call]


class _HealthV1(v1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: HealthStreams) -> None:
        self._streams = streams

    def NodeWatchResources(  # noqa: N802 - the wire's name
        self, _request: v1.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[v1.NodeWatchResourcesResponse]:
        return self._streams.serve(v1, "v1", context)


class _HealthV1Alpha1(v1alpha1_grpc.DRAResourceHealthServicer):
    def __init__(self, streams: HealthStreams) -> None:
        self._streams = streams

    def NodeWatchResources(  # noqa: N802 - the wire's name
        self, _request: v1alpha1.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[v1alpha1.NodeWatchResourcesResponse]:
        return self._streams.serve(v1alpha1, "v1alpha1", context)
