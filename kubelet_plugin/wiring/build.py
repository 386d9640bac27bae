"""Builds the parts of the plugin from its settings and connects them. Nothing is started here; Program does that.

The parts come in the order of their dependence: the node, its GPUs, and the claims on them. If two parts call each
other, the earlier one gets an inner function that names the later one and is called only after both exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import structlog
from prometheus_client import CollectorRegistry

from dracaena.api.machine import Machine
from dracaena.api.names import DeviceName, NodeName, PoolName
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.host.adapters.files.lock import CallLock, GpuLocks
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.gpu_driver.use import GpuDriverUse
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.host.paths import plugin_paths
from dracaena.kube.client import KubeClient
from dracaena.kube.events import EventRecorder
from dracaena.kube.reflector import Kept, Reflector
from dracaena.kube.server_version import server_version, too_old
from dracaena.kube.transport import Transport
from dracaena.kubelet_plugin.adapters.files.writer_lock import WriterLock
from dracaena.kubelet_plugin.adapters.kernel.gpu_minors import GpuMinors
from dracaena.kubelet_plugin.adapters.kube import KubeClaims, KubePods, KubeSlices
from dracaena.kubelet_plugin.adapters.kubelet.grpc_server import plugin_server
from dracaena.kubelet_plugin.adapters.kubelet.health_streams import HealthStreams
from dracaena.kubelet_plugin.adapters.kubelet.registration import registration_server
from dracaena.kubelet_plugin.adapters.recorded.faults import RecordedFaults
from dracaena.kubelet_plugin.adapters.recorded.node import RecordedNode
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.fabric_readings import FabricReadings
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.claims.calls import ClaimCalls
from dracaena.kubelet_plugin.claims.confidential_gate import ASK_DEADLINE_S, confidential_gate
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.last_guard import LastGuard
from dracaena.kubelet_plugin.claims.reconciler import ClaimReconciler
from dracaena.kubelet_plugin.claims.recovery import ClaimRecovery
from dracaena.kubelet_plugin.device_kinds.mig_place import made_devices
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice
from dracaena.kubelet_plugin.discovery.publish.pool import PoolIdentity
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.cache import node_cache
from dracaena.kubelet_plugin.node.devices import NodeDevices, PublishingRules
from dracaena.kubelet_plugin.node.events import NodeEvents
from dracaena.kubelet_plugin.node.health_monitor import HealthSource, ask_at_once
from dracaena.kubelet_plugin.node.label_readings import LabelReadings
from dracaena.kubelet_plugin.node.label_updates import LabelUpdates
from dracaena.kubelet_plugin.node.live_machine import LiveMachine, ReadingSource, as_read
from dracaena.kubelet_plugin.node.machine_updates import MachineUpdates
from dracaena.kubelet_plugin.node.publisher import Publisher
from dracaena.kubelet_plugin.node.section import NodeSection
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from dracaena.kubelet_plugin.pods.device_statuses import DeviceStatuses
from dracaena.kubelet_plugin.pods.devices_reporter import PodDevicesReporter
from dracaena.kubelet_plugin.pods.transform import kept_pod
from dracaena.kubelet_plugin.ports import PodCgroups
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.guests import GuestRuntimes
from dracaena.kubelet_plugin.prepare.prepared_claim import PublishedPool
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.kubelet_plugin.settings import CONTROLLER, PluginSettings
from dracaena.kubelet_plugin.store.claim_files import ClaimFiles
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.store.metadata_files import MetadataFiles
from dracaena.kubelet_plugin.upkeep.device_watch import DeviceWatch
from dracaena.kubelet_plugin.upkeep.late_pods import LatePods
from dracaena.kubelet_plugin.upkeep.share_renewal import ShareRenewal
from dracaena.kubelet_plugin.wiring.cc_mode_parts import cc_mode_notes
from dracaena.kubelet_plugin.wiring.claim_folders import claim_folders
from dracaena.kubelet_plugin.wiring.fabric_means import fabric_readings, with_fabric
from dracaena.kubelet_plugin.wiring.from_settings import (
    USER_AGENT,
    NodeSource,
    claim_nodes,
    installation,
    node_view,
    nvml_source,
    recorded_machine,
)
from dracaena.kubelet_plugin.wiring.gpu_means import gpu_kinds
from dracaena.kubelet_plugin.wiring.health_parts import health_parts
from dracaena.kubelet_plugin.wiring.label_parts import LabelParts, label_keys
from dracaena.kubelet_plugin.wiring.mig_means import mig_kinds
from dracaena.kubelet_plugin.wiring.parts import ClaimParts, GpuParts, NodeParts, PluginParts
from dracaena.kubelet_plugin.wiring.share_means import (
    mps_fault_watch,
    share_means,
)
from dracaena.kubelet_plugin.wiring.sweeping import build_sweeper
from dracaena.process.clock import Clock

Source = Callable[[GpuDriverRelease], NodeSource]
"""Builds what reads the node's GPUs, given the permission to open the GPU driver."""

log = structlog.get_logger()


def build_parts(
    settings: PluginSettings,
    clock: Clock,
    registry: CollectorRegistry,
    source: Source | None,
    section: NodeSection | None,
    sys_root: str,
) -> PluginParts:
    """Return the parts; Program documents the arguments. Raises DracaenaError for settings that name something wrong.

    A recorded machine is read and taken here, so that its devices are known from the start, unless layouts divide it.
    """
    settings.refuse_combinations()
    recorded = recorded_machine(settings)
    node = _node(settings, clock, PluginMetrics(registry), section, sys_root)
    gpus = _gpus(node, recorded, source)
    claims = _claims(node, gpus)
    for take in (claims.device_watch.take, claims.reporter.take, claims.sweeper.take):
        gpus.updates.subscribe(take)
    for part in (claims.device_watch, claims.renewal, claims.mps_faults):
        if part is not None:
            claims.reporter.when_users_known(part.changed)
    if recorded is not None and gpus.live is None:
        gpus.updates.publish(recorded)
    driver, paths = settings.driver_name, node.paths
    calls = ClaimCalls(node, claims.state)
    return PluginParts(
        node,
        gpus,
        claims,
        plugin_server(paths.dra_socket, driver, calls, gpus.streams),
        registration_server(
            paths.registration_socket,
            driver,
            paths.dra_socket,
            partial(_note_registration, node.metrics, gpus.publisher),
            health=gpus.monitor is not None,
        ),
    )


def _node(
    settings: PluginSettings, clock: Clock, metrics: PluginMetrics, section: NodeSection | None, sys_root: str
) -> NodeParts:
    paths = plugin_paths(settings.kubelet_root, settings.driver_name, settings.pod_uid)
    client = KubeClient(Transport.from_kubeconfig(settings.kubeconfig or None, user_agent=USER_AGENT))
    view = node_view(settings, client)
    recorder = EventRecorder(client, "dracaena-kubelet-plugin", clock)
    events = NodeEvents(recorder, settings.node_name)
    release = GpuDriverRelease(
        settings.driver_name, partial(GpuDriverUse, paths.gpu_driver_lock, paths.release_request)
    )
    label_updates = LabelUpdates()
    label_updates.subscribe(release.note_labels)
    if section is not None:
        release.note_labels(section.labels)  # as read before the watch: the driver may be opened before that begins
    troubles = NodeTroubles(metrics, events.on_node)
    call_lock, folders = CallLock(paths.call_lock, clock), claim_folders(settings, paths)
    claims = NodeClaims(
        driver=settings.driver_name,
        boot_id=read_boot_id(),
        lock=call_lock,
        checkpoints=folders.checkpoints,
        specs=folders.specs,
        marks=folders.marks,
    )
    return NodeParts(
        driver=settings.driver_name,
        node_name=NodeName(settings.node_name),
        clock=clock,
        metrics=metrics,
        api=KubeClaims(client),
        claims=claims,
        gpu_lock=GpuLocks(paths.gpu_locks, clock).of,
        events=events,
        troubles=troubles,
        settings=settings,
        paths=paths,
        call_lock=call_lock,
        folders=folders,
        ledger=Ledger(folders.ledger, claims, claims.boot_id),
        client=client,
        view=view,
        cache=node_cache(settings.node_name, clock, metrics, view, label_updates, section),
        label_updates=label_updates,
        section=section,
        recorder=recorder,
        release=release,
        installation=installation(settings, release, troubles, sys_root),
    )


def _gpus(node: NodeParts, recorded: Machine | None, source: Source | None) -> GpuParts:
    settings = node.settings
    watched = settings.watch_health and (recorded is None or bool(settings.faults))
    slices, publisher = _publishing(node)
    updates = MachineUpdates(node.events)
    health: HealthSource
    live: LiveMachine | None = None
    node_source: NodeSource | None = None
    fabric: FabricReadings | None = None
    if recorded is not None:
        health = RecordedFaults(settings.faults, [gpu.uuid for gpu in recorded.gpus])
        if settings.gpus.has(GpuRole.LAYOUT):
            files = DocumentFolder(node.paths.recorded_mig, synced=False)
            live = _live_machine(node, RecordedNode(recorded, files, read_boot_id()), updates)
    else:
        node_source = source(node.release) if source is not None else nvml_source(settings, node.metrics, node.release)
        fabric = fabric_readings(node)
        live = _live_machine(node, node_source, updates, with_fabric(fabric, settings))
        health = node_source
    if live is not None:
        at_start = {} if node.section is None else node.section.labels
        node.label_updates.subscribe(LabelReadings(settings.driver_name, at_start, live.read_soon).take)
    cc_modes = cc_mode_notes(node)
    devices: NodeDevices

    def read_pool() -> PublishedPool:
        return devices.pool()

    mig = mig_kinds(node, node_source, live, read_pool)

    def made() -> Mapping[DeviceName, MadeDevice]:
        """Return the MIG devices of claims that a reading must show; none is read of a recorded machine."""
        if mig is None or node_source is None:
            return {}
        return made_devices(node.claims.current(), mig.instances.settling())

    devices = NodeDevices(
        node,
        PublishingRules(
            tainted=settings.allocator == CONTROLLER,
            watched=watched,
            laid_out=frozenset(label_keys(node)),
            gpu_list=settings.gpus,
        ),
        publish=publisher.set_pages,
        waiting_for=live.ready if live is not None else lambda: None,
        own_places=tuple if mig is None else mig.instances.places,
        made_devices=made,
        labels=node.labels,
        guest_modes=None if cc_modes is None else cc_modes.modes,
    )
    updates.subscribe(devices.take, same=devices.look_again)
    if not watched:
        streams = HealthStreams(settings.node_name, None, node.clock)
        return GpuParts(slices, publisher, devices, updates, live, node_source, fabric, mig, None, streams)
    monitor, streams = health_parts(node, health, live.ask if live is not None else ask_at_once, devices)
    updates.subscribe(monitor.take)
    return GpuParts(slices, publisher, devices, updates, live, node_source, fabric, mig, monitor, streams)


def _publishing(node: NodeParts) -> tuple[Reflector[ResourceSlice], Publisher]:
    settings = node.settings
    access = KubeSlices(node.client, node.view, settings.driver_name, settings.node_name)
    publisher: Publisher

    def slice_changed(old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        publisher.slice_changed(old, new)

    slices: Reflector[ResourceSlice] = Reflector(
        node.client,
        ResourceSlice,
        clock=node.clock,
        on_change=slice_changed,
        kept=Kept(field_selector=access.field_selector),
    )
    node.metrics.node.watch_troubles(slices.resource, slices.troubles)

    def devices_refused(subject: Node, reason: str) -> None:
        trouble = too_old(server_version(node.client))
        node.events.devices_not_published(subject, f"{trouble}; {reason}" if trouble else reason)

    publisher = Publisher(
        pool=PoolIdentity(settings.driver_name, PoolName(settings.node_name), NodeName(settings.node_name)),
        cache=slices,
        access=access,
        writers=WriterLock(node.paths.writer_lock, node.paths.instance_lock, read_boot_id(), node.clock),
        clock=node.clock,
        metrics=node.metrics,
        on_refused=devices_refused,
    )
    return slices, publisher


def _live_machine(
    node: NodeParts, source: ReadingSource, updates: MachineUpdates, complete: Callable[[Reading], Reading] = as_read
) -> LiveMachine:
    """Return what polls a source."""
    told = partial(node.troubles.update, "reading")
    live = LiveMachine(
        source,
        node.clock,
        on_change=updates.publish,
        on_same=updates.same,
        on_troubles=told,
        complete=complete,
    )
    node.metrics.devices.reading_stale.set_function(lambda: live.stale() is not None)
    return live


def _claims(node: NodeParts, gpus: GpuParts) -> ClaimParts:
    pods, reporter = _pods(node)
    guests = GuestRuntimes.parse(node.settings.guest_runtime_classes)
    files = _claim_files(node)
    reconciler = ClaimReconciler(node.claims, files)
    shares = share_means(node, gpus)
    late_pods = LatePods(guests, pods, node.events.warn_users, mps_folders=shares.client_folders)
    reporter.subscribe(late_pods.follow)
    kinds = [*shares.kinds, *gpu_kinds(node, gpus)]
    engine = ChangeEngine(ledger=node.ledger, kinds=kinds, claims=node.claims, gpu_lock=node.gpu_lock)
    if gpus.fabric is not None and node.settings.fabric_partitions:
        renew = partial(gpus.fabric.renew, engine, partial(node.troubles.update, "fabric-partitions"))
        gpus.updates.subscribe(lambda _machine: renew(), same=renew)
    changes = ClaimChanges(
        claims=node.claims,
        engine=engine,
        gpu_lock=node.gpu_lock,
    )
    labels = LabelParts(node, gpus, pods, engine)
    state = DeviceState(
        node,
        read_pool=gpus.devices.pool,
        files=files,
        claim_reconciler=reconciler,
        guard=LastGuard(
            claims=node.claims,
            claim_reconciler=reconciler,
            read_minors=(lambda: None) if node.settings.machine else GpuMinors().read,
            changing=labels.changing,
            guest_runtimes=guests,
            refusal=labels.refusal,
            mps_folders=shares.client_folders,
            gate=confidential_gate(_asked_for_modes(gpus), gpus.devices.pool, node.labels, labels.modes),
        ),
        reporter=reporter,
        changes=changes,
        kind_of=shares.kind_of,
    )
    recovery = ClaimRecovery(
        node,
        state=state,
        read_pool=gpus.devices.pool,
        ledger=node.ledger,
        metadata=files.metadata,
        claim_reconciler=reconciler,
        reporter=reporter,
    )
    reporter.recover_first(recovery.recover)
    device_watch = DeviceWatch(node, recovery, pods)
    state.unprepares.subscribe(device_watch.changed)  # a claim may be waiting for a device node that another one held
    unclaimed: dict[str, Callable[[], int]] = {}
    for kind in engine.kinds:
        unclaimed[kind] = partial(engine.sweep, kind, partial(node.troubles.update, f"unclaimed-{kind}"))
    sweeper = build_sweeper(node, pods, reporter, state, recovery, unclaimed)
    supervisor = shares.supervisor
    mps_faults = None if supervisor is None else mps_fault_watch(node, supervisor, reporter)
    renewal = _renewal(node, gpus, changes, pods, reporter, shares.cgroups)
    return ClaimParts(
        pods,
        reporter,
        state,
        recovery,
        device_watch,
        mps_faults,
        renewal,
        labels.followers,
        sweeper,
    )


def _asked_for_modes(gpus: GpuParts) -> Callable[[], ConfidentialState] | None:
    """Return what asks the driver whether its GPUs compute confidentially; None with a recorded machine."""
    if gpus.source is None or gpus.live is None:
        return None
    return partial(gpus.live.ask, "the state of confidential computing", gpus.source.confidential, ASK_DEADLINE_S)


def _renewal(
    node: NodeParts,
    gpus: GpuParts,
    changes: ClaimChanges,
    pods: Reflector[Pod],
    reporter: PodDevicesReporter,
    cgroups: PodCgroups,
) -> ShareRenewal | None:
    """Return what keeps shares as they are wanted; None if there is no GPU driver."""
    if gpus.source is None:
        return None
    renewal = ShareRenewal(
        opened=gpus.source.opened,
        claims=node.claims,
        changes=changes,
        pods=pods,
        users=reporter,
        cgroups=cgroups,
        tell=node.events.warn_users,
        clock=node.clock,
    )
    gpus.updates.subscribe(lambda _machine: renewal.changed(), same=renewal.changed)
    reporter.subscribe(renewal.follow)
    return renewal


def _pods(node: NodeParts) -> tuple[Reflector[Pod], PodDevicesReporter]:
    settings, api = node.settings, KubeClaims(node.client)
    reporter: PodDevicesReporter

    def pod_changed(old: Pod | None, new: Pod | None) -> None:
        reporter.pod_changed(old, new)

    pods: Reflector[Pod] = Reflector(
        node.view,
        Pod,
        clock=node.clock,
        on_change=pod_changed,
        kept=Kept(field_selector=f"spec.nodeName={settings.node_name}", transform=kept_pod(settings.driver_name)),
    )
    node.metrics.node.watch_troubles(pods.resource, pods.troubles)
    statuses = DeviceStatuses(driver=settings.driver_name, claims=api, writer=api)
    reporter = PodDevicesReporter(
        node,
        pods=pods,
        access=KubePods(node.client, node.view, settings.node_name),
        files=node.folders.podlist,
        statuses=statuses if settings.claim_status else None,
        gpu_name_format=GpuNameFormat(settings.podlist_gpus),
        job_mapping=node.folders.jobs,
    )
    return pods, reporter


def _claim_files(node: NodeParts) -> ClaimFiles:
    settings = node.settings
    return ClaimFiles(
        driver=settings.driver_name,
        claims=node.claims,
        claim_nodes=claim_nodes(settings),
        gpu_driver_edits=node.installation.edits if node.installation is not None else GpuDriverEdits,
        metadata=MetadataFiles(
            driver=settings.driver_name,
            documents=node.folders.metadata,
            folder=str(node.paths.metadata),
            specs=node.folders.specs,
            enabled=settings.device_metadata,
        ),
    )


def _note_registration(metrics: PluginMetrics, publisher: Publisher, refusal: str | None) -> None:
    metrics.publishing.registered.set(refusal is None)
    if refusal is None:
        log.info("kubelet took the plugin")
        publisher.kubelet_registered()
    else:
        log.error("kubelet refused the plugin", error=refusal)
