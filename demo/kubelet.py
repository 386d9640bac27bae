"""Stand-in for kubelet on one node: real sockets and real gRPC to the plugin process, no containers.

What it does, as the real one does it:
* registers its Node, and deletes the ResourceSlices of its node when it starts;
* watches <root>/plugins_registry for sockets; calls GetInfo, uses the first DRA service of the plugin that it knows,
  answers NotifyRegistrationStatus; the instance that registered last is used; a vanished socket ends a registration;
* wipes the driver's slices of its node when no instance was connected for a while (30 s in the real one);
* for a pod bound here: reads the claims from the API, wants the pod in reservedFor and every driver registered, calls
  NodePrepareResources for claims not prepared yet (a second pod leads to no call), has the runtime resolve the CDI
  devices, reports Running; what fails becomes an Event and is tried again;
* for a pod that is deleted: NodeUnprepareResources for claims without another pod, then deletes it with grace 0;
* keeps in <root>/dra_manager_state what to unprepare after its own restart.

What it does not do: containers, volumes, probes, networks, evictions, node heartbeats, restarts, device health, grace
periods (containers end at once).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISSOCK
from threading import Lock
from typing import Any

import grpc
import structlog

from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceSlice
from dracaena.demo.kubelet_claims import ClaimInfo, PluginDevice
from dracaena.demo.kubelet_pods import ClaimNotReadyError, PodRunner
from dracaena.demo.pod_status import node_document
from dracaena.demo.reconcile import ReconcileLoop
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from dracaena.process.clock import Clock, rfc3339
from dracaena.proto.dra.v1 import api_pb2 as v1
from dracaena.proto.dra.v1 import api_pb2_grpc as v1_grpc
from dracaena.proto.dra.v1beta1 import api_pb2 as v1beta1
from dracaena.proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dracaena.proto.pluginregistration.v1 import api_pb2 as registration
from dracaena.proto.pluginregistration.v1 import api_pb2_grpc as registration_grpc

DRA_PLUGIN_TYPE = "DRAPlugin"

SERVICES: Mapping[str, tuple[Any, Any]] = {
    "v1.DRAPlugin": (v1, v1_grpc.DRAPluginStub),
    "v1beta1.DRAPlugin": (v1beta1, v1beta1_grpc.DRAPluginStub),
}
"""Messages and stub of each version that we speak."""

POLL_S = 0.1
"""How often the registry folder is read; the real one is notified by inotify."""

REGISTER_TIMEOUT_S = 5.0
"""Deadline of GetInfo and NotifyRegistrationStatus: a plugin answers both from memory."""

CALL_TIMEOUT_S = 45.0
"""The real kubelet's deadline for prepare and unprepare."""

WIPE_AFTER_S = 30.0
"""The real kubelet's wait before it deletes the slices of a driver that is gone."""

CHANNEL_OPTIONS = (("grpc.client_idle_timeout_ms", 2**31 - 1),)
"""gRPC would close a connection without calls after 30 minutes, and here a closed connection means a lost plugin."""

RETRY_S = 1.0
"""Pause before a failed prepare is tried again; the real one takes about ten times as long."""

log = structlog.get_logger()


@dataclass(eq=False)
class _PluginInstance:
    """One registered plugin instance."""

    driver: str
    messages: Any
    stub: Any
    """Made before anybody could close the channel: gRPC crashes where one is made of a closed channel."""
    channel: grpc.Channel
    connected: bool = field(default=True)
    is_closed: bool = field(default=False)

    def close(self) -> None:
        """End its connection. Whoever is about to call it hears that it is gone."""
        self.is_closed = True
        self.channel.close()


class PluginSockets:
    """The plugins that registered through the sockets of one folder. Thread-safe.

    `on_change` is called when an instance came or went, `on_gone(driver)` once none was connected for wipe_after_s.
    """

    def __init__(
        self,
        registry: Path,
        clock: Clock,
        *,
        versions: Sequence[str],
        wipe_after_s: float,
        on_change: Callable[[], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._versions = tuple(versions)
        self._wipe_after_s = wipe_after_s
        self._on_change = on_change
        self._on_gone = on_gone
        self._lock = Lock()
        # By socket identity, in order of registration.
        self._instances: dict[tuple[str, int, int], _PluginInstance] = {}
        self._refused: set[tuple[str, int, int]] = set()
        self._gone_at_s: dict[str, float] = {}  # driver → steady time at which its slices are wiped
        self._loop = ReconcileLoop("kubelet plugins", self._look, clock)

    @property
    def failure(self) -> Exception | None:
        """The bug that ended the watch, if one did."""
        return self._loop.failure

    def start(self) -> None:
        """Begin to watch the folder; it is made if needed."""
        self._registry.mkdir(parents=True, exist_ok=True)
        self._loop.start()

    def stop(self) -> None:
        """End the watch and all connections."""
        self._loop.stop()
        with self._lock:
            instances, self._instances = list(self._instances.values()), {}
        for instance in instances:
            instance.close()

    # what the pod side asks

    def require(self, driver: str) -> None:
        """See DraPlugins."""
        self._latest(driver)

    def prepare(self, driver: str, claims: Sequence[ClaimInfo]) -> dict[str, tuple[PluginDevice, ...] | str]:
        """See DraPlugins."""
        instance = self._latest(driver)
        request = instance.messages.NodePrepareResourcesRequest(claims=_claims(instance.messages, claims))
        response = _call(instance, instance.stub.NodePrepareResources, request, claims)
        return {
            uid: entry.error
            or tuple(
                PluginDevice(tuple(device.request_names), tuple(device.cdi_device_ids)) for device in entry.devices
            )
            for uid, entry in response.claims.items()
        }

    def unprepare(self, driver: str, claims: Sequence[ClaimInfo]) -> dict[str, str]:
        """See DraPlugins."""
        instance = self._latest(driver)
        request = instance.messages.NodeUnprepareResourcesRequest(claims=_claims(instance.messages, claims))
        response = _call(instance, instance.stub.NodeUnprepareResources, request, claims)
        return {uid: entry.error for uid, entry in response.claims.items()}

    def _latest(self, driver: str) -> _PluginInstance:
        with self._lock:
            for instance in reversed(self._instances.values()):
                if instance.driver == driver:
                    return instance
        raise ClaimNotReadyError(f"DRA driver {driver} is not registered")

    # the folder

    def _look(self) -> float:
        sockets = self._sockets()
        with self._lock:
            vanished = [identity for identity in self._instances if identity not in sockets]
        for identity in vanished:
            self._forget(identity)
        self._refused &= sockets
        for identity in sorted(sockets - self._instances.keys() - self._refused):
            self._register(identity)
        self._wipe_gone()
        return POLL_S

    def _sockets(self) -> set[tuple[str, int, int]]:
        """Return path, inode and change time of each socket: a new file under an old name is a new registration."""
        found = set()
        for path in self._registry.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if S_ISSOCK(status.st_mode):
                found.add((str(path), status.st_ino, status.st_ctime_ns))
        return found

    def _register(self, identity: tuple[str, int, int]) -> None:
        path = identity[0]
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = registration_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]  # generated code
            try:
                info = stub.GetInfo(registration.InfoRequest(), timeout=REGISTER_TIMEOUT_S)
                problem = self._problem(info)
                status = registration.RegistrationStatus(plugin_registered=not problem, error=problem)
                if not problem:
                    self._connect(identity, info)
                stub.NotifyRegistrationStatus(status, timeout=REGISTER_TIMEOUT_S)
            except grpc.RpcError as error:
                log.debug("plugin does not answer yet", socket=path, error=_words(error))
                return
        if problem:
            self._refused.add(identity)
            log.warning("plugin refused", socket=path, problem=problem)
        else:
            self._on_change()

    def _problem(self, info: Any) -> str:
        if info.type != DRA_PLUGIN_TYPE:
            return f"plugin type {info.type!r} is not served here, expected {DRA_PLUGIN_TYPE}"
        if not any(version in self._versions for version in info.supported_versions):
            return f"none of {', '.join(info.supported_versions)} is served here, only {', '.join(self._versions)}"
        return ""

    def _connect(self, identity: tuple[str, int, int], info: Any) -> None:
        version = next(version for version in info.supported_versions if version in self._versions)
        messages, make_stub = SERVICES[version]
        channel = grpc.insecure_channel(f"unix:{info.endpoint}", CHANNEL_OPTIONS)
        instance = _PluginInstance(info.name, messages, make_stub(channel), channel)

        def follow(state: grpc.ChannelConnectivity) -> None:
            instance.connected = state is grpc.ChannelConnectivity.READY

        channel.subscribe(follow, try_to_connect=True)
        with self._lock:
            self._instances[identity] = instance
        log.info("plugin registered", driver=info.name, version=version, endpoint=info.endpoint)

    def _forget(self, identity: tuple[str, int, int]) -> None:
        with self._lock:
            instance = self._instances.pop(identity)
            others = any(other.driver == instance.driver for other in self._instances.values())
            if not others:
                self._gone_at_s.setdefault(instance.driver, self._clock.monotonic() + self._wipe_after_s)
        instance.close()
        log.info("plugin gone", driver=instance.driver, socket=identity[0])
        self._on_change()

    def _wipe_gone(self) -> None:
        """Start and end the waits of drivers without a connection, and report those whose wait is over."""
        now_s = self._clock.monotonic()
        with self._lock:
            connected = {instance.driver for instance in self._instances.values() if instance.connected}
            for instance in self._instances.values():
                if instance.driver not in connected:
                    self._gone_at_s.setdefault(instance.driver, now_s + self._wipe_after_s)
            self._gone_at_s = {name: at_s for name, at_s in self._gone_at_s.items() if name not in connected}
            over = sorted(name for name, at_s in self._gone_at_s.items() if at_s <= now_s)
            for driver in over:
                self._gone_at_s[driver] = float("inf")  # once, until it comes back
        for driver in over:
            self._on_gone(driver)


def _claims(messages: Any, claims: Sequence[ClaimInfo]) -> list[Any]:
    return [messages.Claim(namespace=claim.namespace, uid=claim.uid, name=claim.name) for claim in claims]


def _call(instance: _PluginInstance, method: Callable[..., Any], request: Any, claims: Sequence[ClaimInfo]) -> Any:
    """Call a plugin and insist on one answer for each claim and no others."""
    driver = instance.driver
    try:
        response = method(request, timeout=CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        raise ClaimNotReadyError(f"{driver}: {_words(error)}") from error
    except ValueError as error:  # what gRPC says of a channel that another thread has closed
        if not instance.is_closed:
            raise
        raise ClaimNotReadyError(f"DRA driver {driver} is no longer registered") from error
    asked, answered = {claim.uid for claim in claims}, set(response.claims)
    if asked != answered:
        raise ClaimNotReadyError(
            f"{driver}: skipped claims {', '.join(sorted(asked - answered)) or 'none'}, "
            f"answered unknown claims {', '.join(sorted(answered - asked)) or 'none'}"
        )
    return response


def _words(error: Any) -> str:
    """Return code and details of an RpcError; what calls raise is also a grpc.Call, which its type does not say."""
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """Where one node keeps its files."""

    kubelet_root: Path
    cdi_root: Path

    @property
    def podlist(self) -> Path:
        """The file that monitoring reads."""
        return self.kubelet_root / "pod-resources" / "podlist.json"

    @property
    def mig_instances(self) -> Path:
        """Folder in which a recorded machine keeps the MIG instances of each GPU."""
        return self.plugin_data / "recorded-mig"

    @property
    def plugin_data(self) -> Path:
        """The plugin's own folder: socket, lock, checkpoints."""
        return self.kubelet_root / "plugins" / DEFAULT_DRIVER_NAME


class Kubelet:
    """One node between start() and stop(). Stopping one and starting another on the same folders restarts kubelet."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        node_name: str,
        folders: NodeFolders,
        labels: Mapping[str, str] | None = None,
        versions: Sequence[str] = tuple(SERVICES),
        wipe_after_s: float = WIPE_AFTER_S,
        retry_s: float = RETRY_S,
    ) -> None:
        self._client = client
        self._clock = clock
        self._node_name = node_name
        self._kubelet_root = kubelet_root = folders.kubelet_root
        self._labels = dict(labels or {})
        self._plugins = PluginSockets(
            kubelet_root / "plugins_registry",
            clock,
            versions=versions,
            wipe_after_s=wipe_after_s,
            on_change=self._plugins_changed,
            on_gone=self._wipe_slices,
        )
        for folder in (kubelet_root / "plugins", kubelet_root / "pod-resources", folders.cdi_root):
            folder.mkdir(parents=True, exist_ok=True)
        self._pods = PodRunner(
            client,
            clock,
            node_name=node_name,
            kubelet_root=kubelet_root,
            cdi_root=folders.cdi_root,
            plugins=self._plugins,
            retry_s=retry_s,
        )

    @property
    def failure(self) -> Exception | None:
        """The bug that ended the stand-in, if one did."""
        return self._plugins.failure or self._pods.failure

    def start(self) -> None:
        """Register the node, wipe its slices, begin to serve. Raises KubeError when the API does not answer."""
        try:
            self._client.create(Node, node_document(self._node_name, self._labels, rfc3339(self._clock.now())))
        except AlreadyExistsError:
            log.debug("node is registered already", node=self._node_name)
        self._delete_slices(f"spec.nodeName={self._node_name}")
        self._plugins.start()
        self._pods.start()

    def stop(self) -> None:
        """End all threads; the node and its pods stay in the API."""
        self._pods.stop()
        self._plugins.stop()

    def _plugins_changed(self) -> None:
        self._pods.wake()

    def _wipe_slices(self, driver: str) -> None:
        log.info("driver gone, deleting its slices", driver=driver, node=self._node_name)
        try:
            self._delete_slices(f"spec.nodeName={self._node_name},spec.driver={driver}")
        except KubeError as error:
            log.warning("slices not deleted", driver=driver, node=self._node_name, error=str(error))

    def _delete_slices(self, field_selector: str) -> None:
        for item in self._client.list(ResourceSlice, field_selector=field_selector).items:
            try:
                self._client.delete(ResourceSlice, item.metadata.name, uid=item.metadata.uid)
            except NotFoundError:
                continue
