"""The whole plugin as the product wires it, in this process and without threads: only what is outside is played.

One WholePlugin is one process: a new one on the same PlayedNode is a restart, two at once are an update. Each adapter
that reaches outside is replaced wherever a module of the product names it, while the parts are built. What threads of
the plugin would do by themselves, the test has them do: read(), rounds() and sweep.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Machine
from dracaena.api.names import ClaimUid
from dracaena.api.objects import Node, ObjectMeta, Pod
from dracaena.api.resource_objects import ResourceSlice
from dracaena.host import paths
from dracaena.host.adapters.files.whole_files import FileSteps
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.host.gpu_driver.thread import GpuDriverThread
from dracaena.kube.reflector import Reflector
from dracaena.kube.transport import Transport
from dracaena.kubelet_plugin.adapters.files.mps_supervisor import supervisor_runs
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import DeviceNodes
from dracaena.kubelet_plugin.adapters.kernel.gpu_minors import GpuMinors
from dracaena.kubelet_plugin.adapters.kernel.pci_holders import PciHolders
from dracaena.kubelet_plugin.adapters.kube import KubeClaims, KubePods, KubeSlices
from dracaena.kubelet_plugin.adapters.kubelet.grpc_server import plugin_server
from dracaena.kubelet_plugin.adapters.kubelet.pod_resources import PodResourcesWitness
from dracaena.kubelet_plugin.adapters.kubelet.registration import registration_server
from dracaena.kubelet_plugin.adapters.programs.cc_mode_tool import CcModeTool
from dracaena.kubelet_plugin.adapters.programs.fabric_manager import FabricManagerLibrary
from dracaena.kubelet_plugin.adapters.programs.nvidia_smi import NvidiaSmi
from dracaena.kubelet_plugin.adapters.programs.persistence_mode import PersistenceMode
from dracaena.kubelet_plugin.adapters.sysfs.confidential_host import runs_confidential_guests
from dracaena.kubelet_plugin.adapters.sysfs.driver_files import PciDriverFiles
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.gpu_driver.installation import GpuDriverInstallation
from dracaena.kubelet_plugin.ports import ClaimFailure
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import ClaimNodes, plain_nodes
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.spec import DeviceNode
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.upkeep.stale_files import remove_stale_files
from dracaena.kubelet_plugin.wiring.build import build_parts
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock
from support.gpu_lists import gpu_list
from support.plugin import DRIVER, NODE, FakeClaims, FakeKubelet, FakePods, files_below

INTERNAL = "internal error of the plugin"
"""What kubelet is told where the plugin has a bug."""


class PluginBugError(AssertionError):
    """The plugin answered that it has a bug."""


@dataclass
class PlayedNode:
    """What a node has beside its plugins: it stays when they are killed."""

    folder: Path
    claims: FakeClaims
    pods: FakePods
    clock: Clock
    machine: Callable[[], Machine]
    """What NVML says."""
    intervals: Any
    """nvidia-smi: ports.TimeSliceSetter."""
    limiter: Any
    """The driver's limits of memory: ports.LimitMemory."""
    cgroups: Path
    kubelet: FakeKubelet = field(default_factory=FakeKubelet)
    minors: Callable[[], Mapping[str, int] | None] = lambda: None
    """What the kernel module says of PCI addresses."""
    edits: Callable[[], GpuDriverEdits] = GpuDriverEdits
    """The driver's files for containers."""
    boot: str = "boot-1"
    loads: int = 1
    """How often the GPU driver was loaded."""
    labels: dict[str, str] = field(default_factory=dict)
    """Of the Node."""
    mig: Any = None
    """NVML's calls that divide GPUs: MigControl. None: there are none, as for the next three."""
    access_minors: Callable[[int, int, int], tuple[int, int] | None] = lambda *_: None
    """Of a MIG device."""
    drivers: Any = None
    """The PCI bus: ports.PciDrivers, who has a GPU open, and persistence mode."""
    fabric: Any = None
    """Fabric Manager: ports.FabricManager."""
    modes: Any = None
    """NVIDIA's program that switches modes of confidential computing: ports.CcModeProgram."""
    confidential: Callable[[], ConfidentialState] = ConfidentialState
    """What NVML says of them."""
    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    """What the API server has of this node."""
    call: Callable[[str, Callable[[], Any]], Any] = lambda _what, work: work()
    """How the driver answers a call that has a name; it may raise what the thread of the driver raises."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def paths(self) -> paths.PluginPaths:
        with _long_sockets():
            return paths.plugin_paths(str(self.folder / "kubelet"), DRIVER, "")

    def own(self) -> Node:
        return Node(metadata=ObjectMeta(name=NODE, uid="node-uid", labels=dict(self.labels)))

    @property
    def checkpoints(self) -> Path:
        return self.paths.checkpoints

    def checkpoint(self, uid: ClaimUid) -> Mapping[str, Any] | None:
        """What the checkpoint of a claim says, None if there is none, nothing if it cannot be read."""
        path = self.checkpoints / f"{uid}.json"
        try:
            found: Mapping[str, Any] = json.loads(path.read_bytes())["checkpoint"]
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return found

    def files(self) -> dict[str, bytes]:
        """What is there of claims: all files but locks and the mark of the boot."""
        found = files_below(self.folder / "kubelet") | {
            f"cdi/{n}": d for n, d in files_below(self.folder / "cdi").items()
        }
        return {
            name.removeprefix(f"plugins/{DRIVER}/"): data
            for name, data in found.items()
            if not name.endswith((".lock", "/boot-id"))
        }


@contextlib.contextmanager
def _long_sockets() -> Iterator[None]:
    """Nobody listens on sockets here, so that their paths may be as long as those of pytest's folders."""
    most, paths.MAX_SOCKET_PATH_BYTES = paths.MAX_SOCKET_PATH_BYTES, 4096
    try:
        yield
    finally:
        paths.MAX_SOCKET_PATH_BYTES = most


class WholePlugin:
    """One process of the plugin. A kill is whatever `steps` raises out of it; nothing of it may be used after that."""

    def __init__(self, node: PlayedNode, steps: FileSteps | None = None) -> None:
        self._node = node
        self.gpus = PlayedGpus(node)
        settings = PluginSettings(
            **{
                "node_name": NODE,
                "kubelet_root": str(node.folder / "kubelet"),
                "cdi_root": str(node.folder / "cdi"),
                "cgroup_root": str(node.cgroups),
                "gpus": gpu_list(shared="all"),
                "watch_health": False,
                "claim_status": False,
                **node.settings,
            }
        )
        served: list[Any] = []
        with _replaced(_outside(node, steps or FileSteps(), served)), _long_sockets():
            self._parts = build_parts(
                settings, node.clock, CollectorRegistry(), lambda _release: self.gpus, None, str(node.folder / "sys")
            )
        self._calls, registered = served
        registered(None)
        claims = self._parts.claims
        self.recovery, self.sweeper, self.reporter = claims.recovery, claims.sweeper, claims.reporter
        self.state = self
        """prepare() and unprepare(), where the plugin without its program has them too (support.plugin)."""

    def start(self) -> None:
        """What the program does before it serves kubelet, and the first reading."""
        node, claims = self._parts.node, self._parts.claims
        with node.call_lock.hold():
            written = node.folders.written(DRIVER)
            remove_stale_files(node.paths, node.settings.kubelet_root, DRIVER, written)
        claims.recovery.enter_boot()
        self.read()

    def read(self) -> None:
        """Read the GPUs once."""
        live = self._parts.gpus.live
        assert live is not None
        live.look()

    def rounds(self) -> list[Callable[[], object]]:
        """What the threads of a plugin do again and again, but for readings and sweeps: each goes its round once."""
        claims = self._parts.claims
        assert claims.renewal is not None
        publishing = [self._parts.gpus.publisher.sync] if claims.followers else []
        followers = [follower.look for follower in claims.followers]
        return [claims.device_watch.look, claims.renewal.look, claims.reporter.reconcile, *followers, *publishing]

    def prepare(self, claim: ClaimReference) -> PreparedClaim:
        """As kubelet asks. Raises TemporaryError with what it was told of a failure."""
        found = self._calls.prepare_claims([claim])[claim.uid]
        if isinstance(found, ClaimFailure):
            raise _told(found.error)
        prepared: PreparedClaim = found
        return prepared

    def unprepare(self, claim: ClaimReference) -> None:
        failure = self._calls.unprepare_claims([claim])[claim.uid]
        if failure is not None:
            raise _told(failure.error)

    def files(self) -> dict[str, bytes]:
        return self._node.files()

    def checkpoint(self, uid: ClaimUid) -> Mapping[str, Any] | None:
        """What the checkpoint of a claim says, None if there is none, nothing if it cannot be read."""
        return self._node.checkpoint(uid)


def _told(error: str) -> DracaenaError:
    if INTERNAL in error:
        raise PluginBugError(error)
    return TemporaryError(error)


class PlayedGpus:
    """Implements NodeSource: NVML as one process has it open."""

    def __init__(self, node: PlayedNode) -> None:
        self._node = node
        self._loads = 0
        self._opened = 0

    def read_all(self) -> Reading:
        self._open()
        return Reading(self._node.machine())

    def doing(self) -> str:
        return ""

    def close(self) -> None:
        self._loads = 0

    def opened(self) -> int:
        return self._opened

    def confidential(self) -> ConfidentialState:
        return self._node.confidential()

    def limit_memory(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        self._open()
        self._node.limiter.limit(gpu, cgroup, limit_bytes)

    def mig_control(self) -> Any:
        return self._node.mig

    def vgpu_types(self) -> Mapping[Any, Any]:
        return {}

    def access_minors(self, gpu: int, gpu_instance: int, compute_instance: int) -> tuple[int, int] | None:
        return self._node.access_minors(gpu, gpu_instance, compute_instance)

    def events(self) -> Sequence[Any]:
        return ()

    def poll(self) -> Any:
        raise TemporaryError("health is not played here")

    def _open(self) -> None:
        if self._loads != self._node.loads:
            self._loads, self._opened = self._node.loads, self._opened + 1


class _Cache:
    """What a Reflector of one kind shows."""

    def __init__(self, resource: str, objects: Callable[[], Mapping[str, Any]], synced: Callable[[], bool]) -> None:
        self.resource, self._objects, self._synced = resource, objects, synced

    @property
    def synced(self) -> bool:
        return self._synced()

    def troubles(self) -> Mapping[str, str]:
        return {}

    def get(self, key: str) -> Any:
        return self._objects().get(key)

    def values(self) -> tuple[Any, ...]:
        found = self._objects()
        return tuple(found[key] for key in sorted(found))


def _cache_of(node: PlayedNode, kind: type[Any]) -> _Cache:
    objects: Mapping[type[Any], Callable[[], Mapping[str, Any]]] = {
        Pod: lambda: node.pods.shown,
        Node: lambda: {NODE: node.own()},
        ResourceSlice: lambda: node.slices,
    }
    return _Cache(kind.RESOURCE, objects[kind], lambda: node.pods.synced)


class _PlayedSlices:
    """Implements SliceAccess."""

    field_selector = ""

    def __init__(self, node: PlayedNode) -> None:
        self._node = node

    def read_node(self) -> Node:
        return self._node.own()

    def list_slices(self) -> tuple[ResourceSlice, ...]:
        return tuple(self._node.slices.values())

    def create_slice(self, document: Mapping[str, Any]) -> ResourceSlice:
        name = f"{document['metadata']['generateName']}{next(_NUMBERS)}"
        return self._store(name, document["spec"])

    def update_slice(self, published: ResourceSlice, spec: Mapping[str, Any]) -> ResourceSlice:
        before = json.loads(msgspec.json.encode(published.spec))
        return self._store(published.metadata.name, {**before, **spec})

    def delete_slice(self, published: ResourceSlice) -> None:
        self._node.slices.pop(published.metadata.name, None)

    def _store(self, name: str, spec: Mapping[str, Any]) -> ResourceSlice:
        metadata = {"name": name, "uid": f"{name}-uid", "resourceVersion": str(next(_NUMBERS))}
        stored = ResourceSlice.from_json(msgspec.json.encode({"metadata": metadata, "spec": spec}))
        self._node.slices[name] = stored
        return stored


_NUMBERS = itertools.count(1)


class _NoTransport:
    """Nothing goes over HTTP: what would is played one step before."""

    @staticmethod
    def from_kubeconfig(*_given: Any, **_more: Any) -> _NoTransport:
        return _NoTransport()


class _NoThread:
    """Worker: its loop is the test's."""

    def __init__(self, *_given: Any) -> None:
        pass

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def notice(self) -> None: ...

    def hurry(self) -> None: ...


class _SameThread:
    """GpuDriverThread: calls are made in the caller's."""

    native_id = None

    def __init__(self, call: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._call = call

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def hung(self, _beyond_s: float = 0.0) -> None:
        return None

    def call(self, what: str, work: Callable[[], Any], _deadline_s: float) -> Any:
        return self._call(what, work)


class _PlayedInstallation:
    def __init__(self, edits: Callable[[], GpuDriverEdits]) -> None:
        self.edits = edits

    def fault(self) -> None:
        return None


class _PlayedSmi:
    """NvidiaSmi: the node's, which is there."""

    def __init__(self, intervals: Any) -> None:
        self.read, self.set = intervals.read, intervals.set

    def missing(self) -> None:
        return None


class _PlayedNodes:
    """DeviceNodes of a host that has each of them."""

    @staticmethod
    def of_claim(devices: Any) -> ClaimNodes:
        return ClaimNodes((DeviceNode("/dev/nvidiactl"),), plain_nodes(devices, "/"))


class _PlayedMinors:
    def __init__(self, node: PlayedNode) -> None:
        self.read = node.minors


_OF_BUS = (PciDriverFiles, PciHolders, PersistenceMode)


def _outside(node: PlayedNode, steps: FileSteps, served: list[Any]) -> list[tuple[object, object]]:
    """What is replaced, with what takes its place. `served` gets what answers kubelet's calls, and what kubelet tells
    when it has taken the plugin.
    """

    def serve(_path: Path, _driver: str, calls: Any, _streams: Any = None) -> None:
        served.append(calls)

    def register(_path: Path, _driver: str, _endpoint: Path, tell: Any, **_more: Any) -> None:
        served.append(tell)

    return [
        (Reflector, lambda _client, kind, **_more: _cache_of(node, kind)),
        (Transport, _NoTransport),
        (KubeClaims, lambda *_: node.claims),
        (KubePods, lambda *_: node.pods),
        (KubeSlices, lambda *_: _PlayedSlices(node)),
        (PodResourcesWitness, lambda *_: node.kubelet),
        (plugin_server, serve),
        (registration_server, register),
        (Worker, _NoThread),
        (GpuDriverThread, lambda *_, **__: _SameThread(node.call)),
        (GpuDriverInstallation, lambda *_, **__: _PlayedInstallation(node.edits)),
        (DeviceNodes, lambda *_, **__: _PlayedNodes()),
        (GpuMinors, lambda *_: _PlayedMinors(node)),
        (NvidiaSmi, lambda *_, **__: _PlayedSmi(node.intervals)),
        (FileSteps, lambda: steps),
        (read_boot_id, lambda *_: node.boot),
        (supervisor_runs, lambda _root: True),
        *(
            []
            if node.modes is None
            else [(CcModeTool, lambda *_: node.modes), (runs_confidential_guests, lambda: True)]
        ),
        *([] if node.fabric is None else [(FabricManagerLibrary, lambda *_, **__: node.fabric)]),
        *([] if node.drivers is None else [(real, lambda *_, **__: node.drivers) for real in _OF_BUS]),
    ]


_NAMES: dict[int, list[tuple[Any, str]]] = {}
"""Where modules of the product name what is replaced, by its identity."""


@contextlib.contextmanager
def _replaced(fakes: Sequence[tuple[object, object]]) -> Iterator[None]:
    """Put what is played in the places of what reaches outside, for a block."""
    wanted = {id(real) for real, _ in fakes} - _NAMES.keys()
    if wanted:
        for name, module in sorted(sys.modules.items()):
            for attribute, value in list(vars(module).items()) if name.startswith("dracaena.") else ():
                if id(value) in wanted:
                    _NAMES.setdefault(id(value), []).append((module, attribute))
    for real, fake in fakes:
        for module, attribute in _NAMES[id(real)]:
            setattr(module, attribute, fake)
    try:
        yield
    finally:
        for real, _ in fakes:
            for module, attribute in _NAMES[id(real)]:
                setattr(module, attribute, real)
