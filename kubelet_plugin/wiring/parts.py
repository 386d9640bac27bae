"""What one instance of the plugin is made of, from its node to the claims on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.host.adapters.files.lock import CallLock
from dracaena.host.paths import PluginPaths
from dracaena.kube.client import KubeClient
from dracaena.kube.events import EventRecorder
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.adapters.kubelet.grpc_server import UnixServer
from dracaena.kubelet_plugin.adapters.kubelet.health_streams import HealthStreams
from dracaena.kubelet_plugin.changes.fabric_readings import FabricReadings
from dracaena.kubelet_plugin.changes.kinds.mig_instances import MigInstances
from dracaena.kubelet_plugin.changes.kinds.mig_mode import WholeGpus
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.recovery import ClaimRecovery
from dracaena.kubelet_plugin.gpu_driver.installation import GpuDriverInstallation
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.labels.follower import LabelFollower
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.node.devices import NodeDevices
from dracaena.kubelet_plugin.node.health_monitor import HealthMonitor
from dracaena.kubelet_plugin.node.label_updates import LabelUpdates
from dracaena.kubelet_plugin.node.live_machine import LiveMachine
from dracaena.kubelet_plugin.node.machine_updates import MachineUpdates
from dracaena.kubelet_plugin.node.publisher import Publisher
from dracaena.kubelet_plugin.node.section import NodeSection
from dracaena.kubelet_plugin.pods.devices_reporter import PodDevicesReporter
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.upkeep.device_watch import DeviceWatch
from dracaena.kubelet_plugin.upkeep.mps_fault_watch import MpsFaultWatch
from dracaena.kubelet_plugin.upkeep.share_renewal import ShareRenewal
from dracaena.kubelet_plugin.upkeep.sweeper import Sweeper
from dracaena.kubelet_plugin.wiring.claim_folders import ClaimFolders
from dracaena.kubelet_plugin.wiring.from_settings import NodeSource


class Service(Protocol):
    """Something that runs."""

    def start(self) -> None:
        """Begin. Raises DracaenaError."""
        ...

    def stop(self) -> None:
        """End. Also called if start() has failed."""
        ...


@dataclass(frozen=True, slots=True)
class _Between:
    """A service made of two functions."""

    start: Callable[[], None]
    stop: Callable[[], None]


@dataclass(frozen=True, slots=True)
class NodeParts(NodeContext):
    """What the plugin knows of its node and says about it: what all parts get, and what only their wiring needs."""

    settings: PluginSettings
    paths: PluginPaths
    call_lock: CallLock
    """Only `claims` holds it."""
    folders: ClaimFolders
    ledger: Ledger
    client: KubeClient
    view: KubeClient
    """Reads pods and the Node."""
    cache: Reflector[Node]
    """Holds this Node. It belongs to `section` if there is one, which then starts and stops it."""
    label_updates: LabelUpdates
    """A label may ask us to close the GPU driver, or name a layout."""
    section: NodeSection | None
    recorder: EventRecorder
    release: GpuDriverRelease
    installation: GpuDriverInstallation | None

    def labels(self) -> Mapping[str, str]:
        """Return the labels of this Node as the watch last reported them; none before it did."""
        seen = self.cache.get(self.settings.node_name)
        return {} if seen is None else seen.metadata.labels


@dataclass(frozen=True, slots=True)
class MigKinds:
    """What divides GPUs for claims and layouts, and makes them whole again."""

    hand: MigHand
    instances: MigInstances
    whole: WholeGpus


@dataclass(frozen=True, slots=True)
class GpuParts:
    """What reads this node's GPUs, watches their health and publishes them."""

    slices: Reflector[ResourceSlice]
    publisher: Publisher
    devices: NodeDevices
    updates: MachineUpdates
    live: LiveMachine | None
    """None with a recorded machine, unless MIG layouts divide it."""
    source: NodeSource | None
    """What `live` reads. None with a recorded machine."""
    fabric: FabricReadings | None
    """What reads and activates Fabric Manager's partitions. None with a recorded machine."""
    mig: MigKinds | None
    """None if nothing divides them."""
    monitor: HealthMonitor | None
    """None if health is not watched."""
    streams: HealthStreams


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """What prepares claims and keeps prepared ones right."""

    pods: Reflector[Pod]
    reporter: PodDevicesReporter
    state: DeviceState
    recovery: ClaimRecovery
    device_watch: DeviceWatch
    mps_faults: MpsFaultWatch | None
    """None where no MPS supervisor is named."""
    renewal: ShareRenewal | None
    """None with a recorded machine, which enforces no shares."""
    followers: Sequence[LabelFollower[Any, Any]]
    """One for each label that the settings ask to follow."""
    sweeper: Sweeper


@dataclass(frozen=True, slots=True)
class PluginParts:
    """All parts of one plugin, none of them started."""

    node: NodeParts
    gpus: GpuParts
    claims: ClaimParts
    dra_server: UnixServer
    registration: UnixServer

    def services(self) -> Sequence[Service]:
        """Return what runs, in the order in which it is started; it is stopped in reverse order.

        A socket that cannot be bound ends the start before anything else runs; calls on it are served last and end
        first. What may wait long for the driver, or for a look at its files, begins
        before the threads that do this, which release it when they end; what must not be cut off in a change begins
        after them.
        """
        node, gpus, claims = self.node, self.gpus, self.claims
        found = (
            _Between(self.dra_server.bind, self.dra_server.stop),
            node.recorder,
            node.cache if node.section is None else _following(node, node.section),
            claims.pods,
            gpus.slices,
            gpus.publisher,
            claims.reporter,
            claims.device_watch,
            claims.mps_faults,
            claims.sweeper,
            gpus.monitor,
            None if node.installation is None else _Between(_nothing, node.installation.stop),  # it runs from the start
            gpus.live,
            *claims.followers,
            claims.renewal,
            self.dra_server,
            self.registration,
        )
        return tuple(service for service in found if service is not None)


def _following(node: NodeParts, section: NodeSection) -> Service:
    return _Between(partial(section.start, node.events.on_node, node.metrics, node.label_updates.publish), section.stop)


def _nothing() -> None:
    """Start what has no start of its own."""
