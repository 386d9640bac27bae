"""Tells kubelet's plugin watcher who we are and where we serve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from dracaena.kubelet_plugin.adapters.kubelet.grpc_server import UnixServer
from dracaena.kubelet_plugin.adapters.kubelet.workers import Workers
from dracaena.proto.pluginregistration.v1 import api_pb2 as messages
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as services

PLUGIN_TYPE = "DRAPlugin"

SUPPORTED_VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""In order of preference; kubelet takes the first that it knows. These names are shorter than those on the wire
(k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin)."""

HEALTH_VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Announced only if health is reported; the second is for kubelet before 1.37."""

WORKERS = 2
"""Most concurrent calls: one of kubelet, which makes one after the other, and the probe of our own socket. Neither
waits for anything."""

OnStatus = Callable[[str | None], None]
"""Called with kubelet's answer: None if it accepted the plugin, otherwise why it did not."""


def registration_server(
    path: Path, driver_name: str, endpoint: Path, on_status: OnStatus, *, health: bool = False
) -> UnixServer:
    """Return the server on the socket that kubelet finds in its plugins_registry folder, not started.

    `endpoint` must be served before this one starts: kubelet calls it at once. `health`: it reports devices' health
    too.
    """

    def add_services(server: grpc.Server) -> None:
        servicer = _Registration(driver_name, endpoint, on_status, health=health)
        services.add_RegistrationServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated

    return UnixServer(path, add_services, Workers(WORKERS, "registration"))


class _Registration(services.RegistrationServicer):
    def __init__(self, driver_name: str, endpoint: Path, on_status: OnStatus, *, health: bool) -> None:
        self._info = messages.PluginInfo(
            type=PLUGIN_TYPE,
            name=driver_name,
            endpoint=str(endpoint),
            supported_versions=SUPPORTED_VERSIONS + (HEALTH_VERSIONS if health else ()),
        )
        self._on_status = on_status

    def GetInfo(self, _request: messages.InfoRequest, _context: grpc.ServicerContext) -> messages.PluginInfo:  # noqa: N802
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802 - the wire's name
        self, request: messages.RegistrationStatus, _context: grpc.ServicerContext
    ) -> messages.RegistrationStatusResponse:
        self._on_status(None if request.plugin_registered else request.error)
        return messages.RegistrationStatusResponse()
