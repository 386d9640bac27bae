"""Asks kubelet which claims its pods have, over its pod-resources socket (v1.PodResourcesLister)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.ports import KubeletView
from dracaena.kubelet_plugin.prepare.cdi.devices import claim_of_device
from dracaena.proto.podresources.v1 import api_pb2 as v1
from dracaena.proto.podresources.v1 import api_pb2_grpc as v1_grpc

SOCKET = "kubelet.sock"
"""In the folder pod-resources of kubelet's root folder."""

CALL_S = 10.0
"""Longest that a call may take, as in dcgm-exporter; kubelet answers from memory."""

MAX_ANSWER_BYTES = 16 << 20
"""The limit of kubelet's own clients. One of our pods takes some 300 bytes, and a node has 110 pods by default."""


class PodResourcesWitness:
    """Implements ports.KubeletWitness.

    List only returns active pods (1.34 and later), and a kubelet that has just started and has not reached the API
    server yet has none. So an answer counts only while the node is ready: kubelet reports that to the API server every
    10 s, and 50 s after the last report the node no longer counts as ready. Kubelet recreates the socket at each start.
    """

    def __init__(self, socket: Path, driver: str, node_is_ready: Callable[[], bool]) -> None:
        """`node_is_ready` may raise TemporaryError."""
        self._socket = socket
        self._driver = driver
        self._node_is_ready = node_is_ready

    def look(self) -> KubeletView:
        """See KubeletWitness."""
        before = self._run()
        claims = self._claims()
        if self._run() != before:
            raise TemporaryError(f"kubelet restarted while it was asked at {self._socket}")
        if not self._node_is_ready():
            raise TemporaryError("the node is not ready: its kubelet has not reported to the API server lately")
        return KubeletView(before, claims)

    def _run(self) -> str:
        try:
            seen = self._socket.stat()
        except OSError as error:
            raise TemporaryError(f"kubelet has no socket {self._socket}: {error.strerror}") from error
        return f"{seen.st_dev}:{seen.st_ino}:{seen.st_ctime_ns}"

    def _claims(self) -> frozenset[ClaimUid]:
        options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
        try:
            with grpc.insecure_channel(f"unix:{self._socket}", options) as channel:
                stub = v1_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]  # generated
                answer: v1.ListPodResourcesResponse = stub.List(v1.ListPodResourcesRequest(), timeout=CALL_S)
        except grpc.RpcError as error:
            code = getattr(error, "code", None)  # what a call raises has it, the declared class does not
            said = code().name if code is not None else str(error)
            raise TemporaryError(f"kubelet does not answer at {self._socket}: {said}") from error
        names = (
            device.name
            for pod in answer.pod_resources
            for container in pod.containers
            for resource in container.dynamic_resources
            for claimed in resource.claim_resources
            for device in claimed.cdi_devices
        )
        return frozenset(uid for uid in (claim_of_device(self._driver, name) for name in names) if uid is not None)
