"""A DRA driver of a few lines on real sockets, to test what kubelet's stand-in asks of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.proto.dra.v1 import api_pb2 as v1
from dracaena.proto.dra.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.dra.v1beta1 import api_pb2 as v1beta1
from dracaena.proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as registration_grpc


class FakeDraPlugin:
    """Registers, writes one CDI device a claim, keeps the calls. `errors` makes a claim of that name fail."""

    def __init__(
        self,
        kubelet_root: Path,
        cdi_root: Path,
        *,
        versions: Sequence[str] = ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        plugin_type: str = "DRAPlugin",
    ) -> None:
        self.calls: list[tuple[str, str]] = []  # ("prepare" | "unprepare", claim name)
        self.errors: dict[str, str] = {}
        self.named_otherwise = False  # answer with a CDI device that no spec has
        self.statuses: list[tuple[bool, str]] = []
        self._cdi_root = cdi_root
        self._versions = tuple(versions)
        self._type = plugin_type
        self._dra_socket = kubelet_root / "plugins" / "dra.sock"
        self._registry_socket = kubelet_root / "plugins_registry" / "fake-reg.sock"

    def __enter__(self) -> Self:
        for path in (self._dra_socket, self._registry_socket):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        self._dra = grpc.server(ThreadPoolExecutor(2))
        v1_grpc.add_DRAPluginServicer_to_server(_Dra(self, v1), self._dra)  # type: ignore[no-untyped-call]  # generated
        v1beta1_grpc.add_DRAPluginServicer_to_server(_Dra(self, v1beta1), self._dra)  # type: ignore[no-untyped-call]  # generated
        self._dra.add_insecure_port(f"unix:{self._dra_socket}")
        self._dra.start()
        self._registrar = grpc.server(ThreadPoolExecutor(2))
        registration_grpc.add_RegistrationServicer_to_server(_Registration(self), self._registrar)  # type: ignore[no-untyped-call]  # generated
        self._registrar.add_insecure_port(f"unix:{self._registry_socket}")
        self._registrar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._registrar.stop(None).wait()
        self._dra.stop(None).wait()
        self._registry_socket.unlink(missing_ok=True)

    @property
    def info(self) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=self._type,
            name=DEFAULT_DRIVER_NAME,
            endpoint=str(self._dra_socket),
            supported_versions=self._versions,
        )

    def prepare(self, claim: Any) -> str:
        """Return the CDI device id of a claim."""
        self.calls.append(("prepare", claim.name))
        device = {"name": claim.uid, "containerEdits": {"env": [f"CLAIM={claim.name}"]}}
        document = {"cdiVersion": "0.6.0", "kind": "gpu.test/claim", "devices": [device]}
        (self._cdi_root / f"{claim.uid}.json").write_text(json.dumps(document))
        return f"gpu.test/claim={claim.uid}{'-missing' if self.named_otherwise else ''}"

    def unprepare(self, claim: Any) -> None:
        self.calls.append(("unprepare", claim.name))
        (self._cdi_root / f"{claim.uid}.json").unlink(missing_ok=True)


class _Registration:
    def __init__(self, plugin: FakeDraPlugin) -> None:
        self._plugin = plugin

    def GetInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - the service's name
        return self._plugin.info

    def NotifyRegistrationStatus(self, request: Any, _context: Any) -> Any:  # noqa: N802
        self._plugin.statuses.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()


class _Dra:
    """Both versions of the service: their messages have equal names."""

    def __init__(self, plugin: FakeDraPlugin, messages: Any) -> None:
        self._plugin = plugin
        self._messages = messages

    def NodePrepareResources(self, request: Any, _context: Any) -> Any:  # noqa: N802
        messages, plugin = self._messages, self._plugin
        answer = messages.NodePrepareResourcesResponse()
        for claim in request.claims:
            if claim.name in plugin.errors:
                answer.claims[claim.uid].error = plugin.errors[claim.name]
            else:
                device = messages.Device(pool_name="n1", device_name="gpu-0", cdi_device_ids=[plugin.prepare(claim)])
                answer.claims[claim.uid].devices.append(device)
        return answer

    def NodeUnprepareResources(self, request: Any, _context: Any) -> Any:  # noqa: N802
        answer = self._messages.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self._plugin.unprepare(claim)
            answer.claims[claim.uid].error = ""
        return answer
