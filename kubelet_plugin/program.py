"""Joins the parts of the plugin, starts and stops them in order. The only place that knows all of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.api import limits
from dracaena.api.config.v1alpha1 import decode_config
from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid, DeviceName, NodeName, PoolName
from dracaena.api.objects import Node, ObjectMeta, Pod, ResourceClaim, ResourceSlice
from dracaena.kube.client import KubeClient
from dracaena.kube.events import EventRecorder, EventType
from dracaena.kube.freshness import cache_trouble
from dracaena.kube.reflector import Reflector
from dracaena.kube.server_version import too_old
from dracaena.kube.transport import Transport
from dracaena.kubelet_plugin.adapters.boot_id import read_boot_id
from dracaena.kubelet_plugin.adapters.driver_use import DriverUse
from dracaena.kubelet_plugin.adapters.files import DocumentFolder, DocumentTree
from dracaena.kubelet_plugin.adapters.gpu_minors import GpuMinors
from dracaena.kubelet_plugin.adapters.grpc_server import plugin_server
from dracaena.kubelet_plugin.adapters.health import HealthStreams
from dracaena.kubelet_plugin.adapters.kube import KubeClaims, KubePods, KubeSlices, node_is_ready
from dracaena.kubelet_plugin.adapters.lock import CallLock, FileLock
from dracaena.kubelet_plugin.adapters.pod_resources import SOCKET, PodResources
from dracaena.kubelet_plugin.adapters.probes import ProbeServer, socket_problem
from dracaena.kubelet_plugin.adapters.recorded_faults import RecordedFaults
from dracaena.kubelet_plugin.adapters.recorded_machine import RecordedMachine
from dracaena.kubelet_plugin.adapters.registration import registration_server
from dracaena.kubelet_plugin.assignments import PODLIST, Assignments
from dracaena.kubelet_plugin.checkpoints import BOOT_MARK, Checkpoints
from dracaena.kubelet_plugin.claim_calls import ClaimCalls
from dracaena.kubelet_plugin.claim_files import ClaimFiles
from dracaena.kubelet_plugin.device_state import DeviceState
from dracaena.kubelet_plugin.device_statuses import DeviceStatuses
from dracaena.kubelet_plugin.device_watch import DeviceWatch
from dracaena.kubelet_plugin.discovery.health import Fault, taints
from dracaena.kubelet_plugin.discovery.pool import PoolIdentity
from dracaena.kubelet_plugin.driver_release import DriverRelease
from dracaena.kubelet_plugin.from_settings import (
    USER_AGENT,
    NodeSource,
    claim_nodes,
    health_rules,
    installation,
    node_view,
    nvml_source,
)
from dracaena.kubelet_plugin.health_monitor import Ask, DeviceHealth, HealthMonitor, HealthSource, Status
from dracaena.kubelet_plugin.kept_pods import kept_pod
from dracaena.kubelet_plugin.left_overs import remove_left_overs
from dracaena.kubelet_plugin.live_machine import LiveMachine
from dracaena.kubelet_plugin.metadata_files import MetadataFiles
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.moved_claims import MovedClaims
from dracaena.kubelet_plugin.node_devices import NodeDevices
from dracaena.kubelet_plugin.node_section import NodeSection
from dracaena.kubelet_plugin.node_troubles import NodeTroubles
from dracaena.kubelet_plugin.paths import plugin_paths
from dracaena.kubelet_plugin.prepare.cdi import spec_file_name
from dracaena.kubelet_plugin.prepare.device_metadata import spec_prefix
from dracaena.kubelet_plugin.prepare.driver_files import DriverEdits
from dracaena.kubelet_plugin.prepare.gpu_forms import GpuForm
from dracaena.kubelet_plugin.prepare.plan import ClaimReference
from dracaena.kubelet_plugin.publisher import Publisher
from dracaena.kubelet_plugin.settings import CONTROLLER, PluginSettings
from dracaena.kubelet_plugin.sweeper import Sweeper
from dracaena.kubelet_plugin.unprepares import Unprepares
from dracaena.process.clock import Clock, SystemClock
from dracaena.process.ending import end_this_process, hold_end_signals, wait_for_end_signal
from dracaena.process.http import HttpEndpoint
from dracaena.process.logs import configure_logs
from dracaena.process.settings import Layers

CDI_SPEC_MODE = 0o644
CHECKPOINT_MODE = 0o600

SWITCH_S = 0.0005
"""Longest that a thread in Python code keeps the others waiting, in place of 5 ms: a prepare stops at some twenty file
operations, and behind each it may have to wait that long for a thread that follows pods or writes annotations."""

_EVENTS: Mapping[Status, tuple[EventType, str]] = {
    Status.HEALTHY: ("Normal", "GpuHealthy"),
    Status.UNHEALTHY: ("Warning", "GpuUnhealthy"),
    Status.UNKNOWN: ("Warning", "GpuHealthUnknown"),
}

_LOOK = "on the node: `nvidia-smi -q`, `dmesg | grep -i -e nvrm -e xid`"

log = structlog.get_logger()


class Program:
    """One instance of the plugin. start() once, stop() once.

    Raises DracaenaError when it cannot start: a bad setting, no connection settings, or the same instance running.
    start() does not wait for the GPU driver: until that has told the node's GPUs, kubelet is served (claims of an
    earlier run can be answered and taken back) and a new claim is refused for the time being. Nothing is published
    before that, nor before kubelet has registered the plugin.
    """

    def __init__(
        self,
        settings: PluginSettings,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        source: Callable[[DriverRelease], NodeSource] | None = None,
        section: NodeSection | None = None,
        sys_root: str = "/sys",
    ) -> None:
        """`source` makes what stands in for NVML; it is not asked when the settings name a recorded machine. `section`
        is where the settings came from, None where no label is asked for. `sys_root` is where the kernel module says
        its version.
        """
        self._section = section
        clock = clock or SystemClock()
        self._paths = plugin_paths(settings.kubelet_root, settings.driver_name, settings.pod_uid)
        self._instance_lock = FileLock(self._paths.instance_lock)
        self._call_lock = CallLock(self._paths.call_lock, clock)
        self._kubelet_root, self._driver = settings.kubelet_root, settings.driver_name
        self._metrics = PluginMetrics(registry)
        recorded = RecordedMachine(settings.machine).read() if settings.machine else None
        self._watched = settings.watch_health and (recorded is None or bool(settings.faults))
        self._rules = health_rules(settings)
        self._release = DriverRelease(
            settings.driver_name, DriverUse(self._paths.driver_lock, self._paths.release_request)
        )
        self._tainted = settings.allocator == CONTROLLER
        self._node_name = settings.node_name
        client = KubeClient(Transport.from_kubeconfig(settings.kubeconfig or None, user_agent=USER_AGENT))
        self._node_view = node_view(settings, client)
        self._node: Reflector[Node] | None = None
        self._node_cache: Reflector[Node]
        if section is not None:
            self._release.note_labels(section.labels)
            self._node_cache = section.cache
        else:
            self._node_cache = self._node = Reflector(
                self._node_view,
                Node,
                clock=clock,
                field_selector=f"metadata.name={settings.node_name}",
                on_change=self._node_changed,
            )
        self._metrics.watch_troubles(self._node_cache.resource, self._node_cache.troubles)
        self._build_slices(settings, client, clock)
        self._troubles = NodeTroubles(self._metrics, self._tell_node)
        self._driver_version: str | None = None
        self._devices = NodeDevices(
            driver=settings.driver_name,
            name=PoolName(settings.node_name),
            tainted=self._tainted,
            publish=self._publisher.set_pages,
            waiting_for=self._waiting_for,
            metrics=self._metrics,
            watched=self._watched,
            on_troubles=partial(self._troubles.update, "devices"),
        )
        self._monitor: HealthMonitor | None = None
        self._streams = HealthStreams(settings.node_name, self._health if self._watched else None, clock)
        self._installation = installation(settings, self._release, self._troubles, sys_root)
        self._build_claims(settings, client, clock)
        self._live = None if recorded else self._follow(self._source(settings, source), clock)
        if recorded:
            self._play(recorded, settings.faults, clock)
        self._http_address = settings.http_address
        self._web_config_file = settings.web_config_file
        self._registry = registry
        self._http: HttpEndpoint | None = None
        self._probes = self._build_probes(settings.grpc_health_address)

    def start(self) -> None:
        """Start everything: what kubelet calls before what tells kubelet to call it."""
        self._take_place()
        try:
            self._start_parts()
        except DracaenaError:
            self.stop()
            raise

    def _take_place(self) -> None:
        """Take the instance lock and remove what dead instances left; under the call lock, so that no two do it."""
        with self._call_lock.hold():
            if not self._instance_lock.try_acquire():
                raise PermanentError(
                    f"this instance of the plugin runs already: another process holds {self._paths.instance_lock}. "
                    "Stop it first, or give this one its own --pod-uid"
                )
            try:
                remove_left_overs(self._paths, self._kubelet_root, self._driver, self._written)
            except DracaenaError:
                self._instance_lock.release()
                raise

    def _start_parts(self) -> None:
        if self._http_address:
            # Bound only under the instance lock: a second start shall name the first instance, not a port in use.
            self._http = HttpEndpoint(
                self._http_address,
                self.ready,
                self._registry,
                state=self._words,
                alive=self.alive,
                web_config_file=self._web_config_file,
            )
            self._http.start()
            log.info("serving health and metrics", port=self._http.port)
        if self._probes is not None:
            self._probes.start()
        self._state.enter_boot()
        self._dra_server.start()
        if self._section is not None:
            self._section.start(self._tell_node, self._metrics, self._release.note_labels)
        if self._node is not None:
            self._node.start()
        if self._live is not None:
            self._live.start()
        if self._monitor is not None:
            self._monitor.start()
        self._pods.start()
        self._slices.start()
        self._events.start()
        self._try_folders()
        self._try_driver()
        self._publisher.start()
        self._assignments.start(self._state.recover)
        self._device_watch.start()
        self._sweeper.start()
        self._registration.start()
        log.info("serving kubelet", socket=str(self._paths.dra_socket))

    def stop(self) -> None:
        """Stop in the reverse order. Slices, CDI specs and checkpoints stay: pods go on running."""
        self._registration.stop()
        self._dra_server.stop()
        if self._section is not None:
            self._section.stop()
        if self._node is not None:
            self._node.stop()
        if self._live is not None:
            self._live.stop()  # first: it lets the monitor go
        if self._monitor is not None:
            self._monitor.stop()
        if self._installation is not None:
            self._installation.stop()
        self._publisher.stop()
        self._sweeper.stop()
        self._device_watch.stop()
        self._assignments.stop()
        self._slices.stop()
        self._pods.stop()
        self._events.stop()
        if self._probes is not None:
            self._probes.stop()
        if self._http is not None:
            self._http.stop()
        self._instance_lock.release()

    def ready(self) -> str | None:
        """Return None when kubelet and scheduling can count on this node, else what is missing."""
        caches = (self._slices, self._pods, self._node_cache)  # by the Node's labels the driver is let go of
        return self._waiting_for() or self._publisher.ready() or self._hangs() or cache_trouble(caches)

    def _hangs(self) -> str | None:
        """Return what hangs in or below this process: the driver, or a call that holds the lock."""
        return (self._live.hung() if self._live is not None else None) or self._call_lock.stuck()

    def _words(self) -> str:
        """Return what /readyz says of a plugin that is ready."""
        troubles = self._troubles.words()
        return "ok" if troubles is None else f"ok, and an admin should look: {troubles}"

    def alive(self) -> str | None:
        """Return None while kubelet can call this process, else what a new start helps against: a socket that does not
        answer, or a call that hangs, but not one that hangs in the kernel.
        """
        return (
            socket_problem(self._paths.dra_socket, self._paths.registration_socket)
            or (self._live.needs_restart() if self._live is not None else None)
            or self._call_lock.needs_restart()
        )

    def _build_probes(self, address: str) -> ProbeServer | None:
        if not address:
            return None
        return ProbeServer(address, {"": self.alive, "liveness": self.alive, "readiness": self.ready})

    def _waiting_for(self) -> str | None:
        """Return what the first reading of the GPUs waits for, None when it is there."""
        return self._live.ready() if self._live is not None else None

    @property
    def http_port(self) -> int | None:
        """The port of health and metrics, None when they are off."""
        return self._http.port if self._http is not None else None

    @property
    def grpc_health_port(self) -> int | None:
        """The port of the gRPC health service, None when it is off."""
        return self._probes.port if self._probes is not None else None

    def _source(self, settings: PluginSettings, source: Callable[[DriverRelease], NodeSource] | None) -> NodeSource:
        return source(self._release) if source is not None else nvml_source(settings, self._metrics, self._release)

    def _follow(self, source: NodeSource, clock: Clock) -> LiveMachine:
        """Build what reads this node's GPUs again and again, and what watches their health."""
        live = LiveMachine(
            source,
            clock,
            on_change=self._machine_changed,
            on_troubles=partial(self._troubles.update, "reading"),
        )
        self._metrics.reading_stale.set_function(lambda: live.stale() is not None)
        if self._watched:
            self._monitor = self._watch(source, live.ask, clock)
        return live

    def _play(self, machine: Machine, faults: str, clock: Clock) -> None:
        """Take a recorded machine in place of this node's GPUs, and its faults from a file."""
        if self._watched:
            source = RecordedFaults(faults, [gpu.uuid for gpu in machine.gpus])
            self._monitor = self._watch(source, lambda _what, work, _deadline_s: work(), clock)
        self._machine_changed(machine)

    def _watch(self, source: HealthSource, ask: Ask, clock: Clock) -> HealthMonitor:
        return HealthMonitor(
            source,
            ask,
            clock,
            self._rules,
            self._metrics,
            node_faults=self._node_faults,
            on_faults=self._faults_changed,
            on_status=self._status_changed,
            on_news=self._streams.changed,
            on_troubles=partial(self._troubles.update, "health"),
        )

    def _node_changed(self, _old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._release.note_labels(new.metadata.labels)

    def _node_faults(self) -> tuple[Fault, ...]:
        """Return what is held against all devices of this node at once."""
        fault = self._release.fault()
        if fault is None and self._installation is not None:
            fault = self._installation.fault()
        return () if fault is None else (fault,)

    def _machine_changed(self, machine: Machine) -> None:
        self._devices.take(machine)
        before, self._driver_version = self._driver_version, machine.driver_version
        if before is not None and before != machine.driver_version:
            text = f"driver {before} was replaced by {machine.driver_version}: the devices are published anew"
            self._tell_node("Normal", "DriverReplaced", text)
        if self._monitor is not None:
            self._monitor.take(machine)
        self._device_watch.changed()

    def _faults_changed(self, faults: Mapping[DeviceName, Sequence[Fault]]) -> None:
        room = limits.DEVICE_TAINTS - self._tainted
        self._devices.take_taints(
            {device: taints(found, self._driver, self._rules, room=room) for device, found in faults.items()}
        )

    def _status_changed(self, health: DeviceHealth) -> None:
        kind, reason = _EVENTS[health.status]
        text = f"device {health.device} is {health.status.value}"
        text = f"{text}: {health.message}" if health.message else text
        self._tell_node(kind, reason, text if health.status is Status.HEALTHY else f"{text}; {_LOOK}")

    def _try_folders(self) -> None:
        """Tell now of folders that the first claim would find not to be writable.

        No reason to end: what was prepared before can be unprepared, and the claims say the same when they fail.
        """
        folders = {
            files.folder: (files, prefix) for files, prefix in self._written if isinstance(files, DocumentFolder)
        }
        for files, prefix in folders.values():
            try:
                files.try_to_write(prefix)
            except DracaenaError as error:
                log.error("claims cannot be prepared here", error=str(error))
                self._tell_node("Warning", "FolderNotWritable", f"claims cannot be prepared here: {error}")

    def _try_driver(self) -> None:
        """Look for the driver's files now, so that what containers go without is told before the first claim."""
        if self._installation is None:
            return
        try:
            self._installation.edits()
        except DracaenaError as error:
            log.info("the driver is not there yet", error=str(error))  # claims say it as long as it holds

    def _tell_node(self, kind: EventType, reason: str, text: str) -> None:
        """Write an Event on the node, its UID the name as kubelet has it: `kubectl describe node` looks for both."""
        node = Node(metadata=ObjectMeta(name=self._node_name, uid=self._node_name))
        self._events.record(node, kind, reason, text)

    def _tell_users(self, claim: ClaimReference, pods: Sequence[Pod], reason: str, text: str) -> None:
        meta = ObjectMeta(name=claim.name, namespace=claim.namespace, uid=claim.uid)
        for subject in (ResourceClaim(metadata=meta), *pods):
            self._events.record(subject, "Warning", reason, text)

    def _health(self) -> Sequence[DeviceHealth]:
        return self._monitor.devices() if self._monitor is not None else ()

    def _build_claims(self, settings: PluginSettings, client: KubeClient, clock: Clock) -> None:
        """Build what answers kubelet."""
        driver = settings.driver_name
        lock = self._call_lock
        checkpoint_files = DocumentFolder(self._paths.checkpoints, mode=CHECKPOINT_MODE, synced=False)
        marks = DocumentFolder(self._paths.checkpoints.parent, synced=False)
        podlist = DocumentFolder(self._paths.podlist, synced=False, in_place=settings.podlist_in_place)
        jobs = DocumentFolder(Path(settings.job_mapping_dir), synced=False) if settings.job_mapping_dir else None
        specs = DocumentFolder(Path(settings.cdi_root), mode=CDI_SPEC_MODE, synced=False)
        metadata = DocumentTree(self._paths.metadata, synced=False)
        self._written: tuple[tuple[DocumentFolder | DocumentTree, str], ...] = (
            (checkpoint_files, ""),
            (marks, BOOT_MARK),
            (metadata, ""),
            (specs, spec_prefix(driver)),
            (podlist, PODLIST),
            (specs, spec_file_name(driver, ClaimUid("")).removesuffix(".json")),  # other vendors write there too
            *([(jobs, "")] if jobs is not None else []),
        )
        checkpoints = Checkpoints(checkpoint_files, marks, read_boot_id(), lambda: lock.turn)
        self._pods: Reflector[Pod] = Reflector(
            self._node_view,
            Pod,
            clock=clock,
            field_selector=f"spec.nodeName={settings.node_name}",
            on_change=self._pod_changed,
            transform=kept_pod(driver),
        )
        self._metrics.watch_troubles(self._pods.resource, self._pods.troubles)
        statuses = DeviceStatuses(driver=driver, claims=KubeClaims(client), writer=KubeClaims(client))
        self._assignments = Assignments(
            driver=driver,
            node_name=NodeName(settings.node_name),
            pods=self._pods,
            access=KubePods(client, self._node_view, settings.node_name),
            claims=KubeClaims(client),
            checkpoints=checkpoints,
            files=podlist,
            lock=lock,
            clock=clock,
            metrics=self._metrics,
            statuses=statuses if settings.claim_status else None,
            gpu_form=GpuForm(settings.podlist_gpus),
            job_mapping=jobs,
        )
        files = ClaimFiles(
            driver=driver,
            claim_nodes=claim_nodes(settings),
            driver_edits=self._installation.edits if self._installation is not None else DriverEdits,
            specs=specs,
            metadata=MetadataFiles(
                driver=driver,
                documents=metadata,
                folder=str(self._paths.metadata),
                specs=specs,
                enabled=settings.device_metadata,
            ),
        )
        self._state = DeviceState(
            driver=driver,
            read_pool=self._devices.pool,
            read_minors=dict if settings.machine else GpuMinors().read,
            decode_config=decode_config,
            claims=KubeClaims(client),
            checkpoints=checkpoints,
            files=files,
            moved=MovedClaims(checkpoints, files),
            assignments=self._assignments,
            unprepares=Unprepares(clock, self._claim_torn_down),
            lock=lock,
        )
        self._device_watch = DeviceWatch(
            state=self._state, pods=self._pods, tell=self._tell_users, clock=clock, metrics=self._metrics
        )
        self._sweeper = Sweeper(
            driver=driver,
            state=self._state,
            checkpoints=checkpoints,
            specs=specs,
            claims=KubeClaims(client),
            pods=self._pods,
            may_be_in_use=self._assignments.may_be_in_use,
            kubelet=PodResources(
                self._paths.podlist / SOCKET, driver, partial(node_is_ready, self._node_view, settings.node_name)
            ),
            tell=partial(self._tell_node, "Warning"),
            lock=lock,
            clock=clock,
            metrics=self._metrics,
        )
        self._dra_server = plugin_server(
            self._paths.dra_socket, driver, ClaimCalls(self._state, clock, self._metrics), self._streams
        )
        self._registration = registration_server(
            self._paths.registration_socket,
            driver,
            self._paths.dra_socket,
            self._note_registration,
            health=self._watched,
        )

    def _build_slices(self, settings: PluginSettings, client: KubeClient, clock: Clock) -> None:
        """Build what publishes this node's devices."""
        node_name = NodeName(settings.node_name)
        access = KubeSlices(client, self._node_view, settings.driver_name, settings.node_name)
        self._slices: Reflector[ResourceSlice] = Reflector(
            client,
            ResourceSlice,
            clock=clock,
            field_selector=access.field_selector,
            on_change=self._slice_changed,
        )
        self._metrics.watch_troubles(self._slices.resource, self._slices.troubles)
        self._events = EventRecorder(client, "dracaena-kubelet-plugin", clock)
        self._publisher = Publisher(
            pool=PoolIdentity(settings.driver_name, PoolName(settings.node_name), node_name),
            cache=self._slices,
            access=access,
            clock=clock,
            metrics=self._metrics,
            on_refused=partial(self._devices_refused, client),
        )

    def _devices_refused(self, client: KubeClient, node: Node, reason: str) -> None:
        trouble = too_old(client)
        self._events.record(node, "Warning", "DevicesNotPublished", f"{trouble}; {reason}" if trouble else reason)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        self._assignments.pod_changed(old, new)

    def _claim_torn_down(self) -> None:
        self._device_watch.changed()  # a node that it held may be what another claim waits for

    def _slice_changed(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        self._publisher.slice_changed(old, new)

    def _note_registration(self, refusal: str | None) -> None:
        self._metrics.registered.set(refusal is None)
        if refusal is None:
            log.info("kubelet took the plugin")
            self._publisher.kubelet_registered()
        else:
            log.error("kubelet refused the plugin", error=refusal)


def run(layers: Layers[PluginSettings]) -> int:
    """Run until SIGTERM or SIGINT and return the exit code. Raises DracaenaError when it cannot start."""
    settings, section = layers.resolve(), None
    hold_end_signals()
    configure_logs(settings.log_level, settings.log_format)
    if layers.has_file:
        section = _section(layers, settings)
        settings = section.choose()
        configure_logs(settings.log_level, settings.log_format)
    program = Program(settings, section=section)
    program.start()
    _let_calls_go_first()
    log.info("stopping", signal=wait_for_end_signal().name)
    program.stop()
    return 0


def _let_calls_go_first() -> None:
    """Keep what else this process does from holding up a call of kubelet, which takes a few milliseconds."""
    sys.setswitchinterval(SWITCH_S)
    # To walk all modules and the recorded or read machine takes 0.03 s, in the middle of whatever runs: they stay.
    gc.collect()
    gc.freeze()


def _section(layers: Layers[PluginSettings], general: PluginSettings) -> NodeSection:
    clock = SystemClock()
    paths = plugin_paths(general.kubelet_root, general.driver_name, general.pod_uid)
    client = KubeClient(Transport.from_kubeconfig(general.kubeconfig or None, user_agent=USER_AGENT))
    client = node_view(general, client)
    lock, files = CallLock(paths.call_lock, clock), DocumentFolder(paths.instance_lock.parent)
    return NodeSection(layers, client, files, lock, clock, end=end_this_process)
