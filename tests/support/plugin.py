"""Values and fakes for tests of the kubelet plugin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, NodeName, PodUid, PoolName, gpu_device_name
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder, DocumentTree, FileSteps
from dracaena.host.facts.troubles import Trouble
from dracaena.kube.events import EventType
from dracaena.kubelet_plugin.changes.change import AnyThingKind
from dracaena.kubelet_plugin.changes.claim_changes import ClaimChanges
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.claims.confidential_gate import ConfidentialGate
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.last_guard import LastGuard
from dracaena.kubelet_plugin.claims.reconciler import ClaimReconciler
from dracaena.kubelet_plugin.claims.recovery import ClaimRecovery
from dracaena.kubelet_plugin.device_kinds.device_kind import KindOf
from dracaena.kubelet_plugin.device_kinds.table import kind_of
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.node.events import NodeEvents
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from dracaena.kubelet_plugin.pods.device_statuses import DeviceStatuses
from dracaena.kubelet_plugin.pods.devices_reporter import PodDevicesReporter
from dracaena.kubelet_plugin.ports import (
    ClaimGoneError,
    ClaimReader,
    KubeletView,
    NodeLock,
    ReadClaimNodes,
)
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import ClaimNodes, plain_nodes
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.spec import DeviceNode
from dracaena.kubelet_plugin.prepare.guests import GuestRuntimes
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim, PreparedDevice, PublishedPool
from dracaena.kubelet_plugin.prepare.reports.gpu_names import GpuNameFormat
from dracaena.kubelet_plugin.store.claim_files import ClaimFiles
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.store.metadata_files import MetadataFiles
from dracaena.kubelet_plugin.upkeep.sweeper import Sweeper
from dracaena.process.clock import Clock
from support.clock import FakeClock

DRIVER = "gpu.dracaena.dev"
NODE = "node-1"
GPU_MEMORY_BYTES = 80 << 30


def gpu_uuid(number: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{number:012d}"


def device_name(number: int) -> DeviceName:
    return gpu_device_name(gpu_uuid(number))


def make_pool(count: int = 8, *, without_minor: Sequence[int] = ()) -> PublishedPool:
    gpus = {
        device_name(n): Gpu(
            uuid=gpu_uuid(n), index=n, minor=None if n in without_minor else n, memory_bytes=GPU_MEMORY_BYTES
        )
        for n in range(count)
    }
    return PublishedPool(DRIVER, PoolName(NODE), gpus)


def make_claim(
    name: str = "claim",
    devices: Sequence[int] = (0,),
    *,
    uid: str = "",
    request: str = "gpus",
    reserved_for: Mapping[str, str] | None = None,
    **result: Any,
) -> ResourceClaim:
    """An allocated claim. `reserved_for`: pod name → UID; `result`: further fields of each result."""
    results = [
        {"request": request, "driver": DRIVER, "pool": NODE, "device": device_name(n), **result} for n in devices
    ]
    return claim_of(name, {"results": results}, uid=uid, reserved_for=reserved_for)


def share_of(memory: str, cores: int = 0, *, share_id: str = "share") -> dict[str, Any]:
    """Fields of a result that is a share of a GPU."""
    return {"shareID": share_id, "consumedCapacity": {"memory": memory, "cores": str(cores)}}


def sharing_config(source: str = "FromClaim", requests: Sequence[str] = (), **sharing: str) -> dict[str, Any]:
    """An entry of status.allocation.devices.config with a GpuConfig."""
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "GpuConfig", "sharing": sharing}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


BEST_EFFORT = sharing_config(enforcement="BestEffort")


def make_share(
    name: str,
    gpu: int = 0,
    memory: str = "10Gi",
    cores: int = 0,
    *,
    uid: str = "",
    share_id: str = "",
    reserved_for: Mapping[str, str] | None = None,
) -> ResourceClaim:
    """A claim with a share of a GPU that need not be enforced."""
    share = share_of(memory, cores, share_id=share_id or f"share-of-{name}")
    result = {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device_name(gpu), **share}
    return claim_of(name, {"results": [result], "config": [BEST_EFFORT]}, uid=uid, reserved_for=reserved_for)


def claim_of(
    name: str,
    allocated: Mapping[str, Any] | None,
    *,
    uid: str = "",
    reserved_for: Mapping[str, str] | None = None,
) -> ResourceClaim:
    """A claim with status.allocation.devices as given, None: not allocated."""
    status: dict[str, Any] = {} if allocated is None else {"allocation": {"devices": allocated}}
    status["reservedFor"] = [{"resource": "pods", "name": n, "uid": u} for n, u in (reserved_for or {}).items()]
    metadata = {"name": name, "namespace": "default", "uid": uid or f"{name}-uid", "resourceVersion": "1"}
    return ResourceClaim.from_json(msgspec.json.encode({"metadata": metadata, "spec": {}, "status": status}))


def claim_for_devices(name: str, *devices: str, config: Any = None, **result: Any) -> ResourceClaim:
    """A claim that was allocated these devices of the node, each for a request of its own; `result`: what each has."""
    results = [
        {"request": f"r{number}", "driver": DRIVER, "pool": NODE, "device": device, **result}
        for number, device in enumerate(devices)
    ]
    return claim_of(name, {"results": results, "config": [] if config is None else [config]})


def make_pod(
    name: str = "pod",
    containers: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    *,
    claims: Mapping[str, str] | None = None,
    init: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    generated: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
    node: str = NODE,
    version: str = "1",
    runtime_class: str = "",
) -> Pod:
    """A pod. containers and init: container → (name in the pod, request); claims and generated: name → claim."""

    def container(item: tuple[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
        return {"name": item[0], "resources": {"claims": [{"name": n, "request": r} for n, r in item[1]]}}

    generated = generated or {}
    claims = {"claim": "claim"} if claims is None and not generated else (claims or {})
    containers = {"main": [("claim", "")]} if containers is None else containers
    document = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"{name}-uid",
            "resourceVersion": version,
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "nodeName": node,
            "runtimeClassName": runtime_class,
            "containers": [container(item) for item in containers.items()],
            "initContainers": [container(item) for item in (init or {}).items()],
            "resourceClaims": [
                *({"name": n, "resourceClaimName": c} for n, c in claims.items()),
                *({"name": n, "resourceClaimTemplateName": "template"} for n in generated),
            ],
        },
        "status": {
            "phase": phase,
            "resourceClaimStatuses": [{"name": n, "resourceClaimName": c} for n, c in generated.items()],
        },
    }
    return msgspec.convert(document, Pod)


def reference_to(claim: ResourceClaim) -> ClaimReference:
    return ClaimReference(claim.metadata.namespace, claim.metadata.name, ClaimUid(claim.metadata.uid))


def prepared_claim(name: str = "claim", devices: Sequence[int] = (0,), **device: Any) -> PreparedClaim:
    """A prepared claim. `device`: further fields of each device."""
    return PreparedClaim(
        ClaimReference("default", name, ClaimUid(f"{name}-uid")),
        tuple(
            PreparedDevice(
                **{
                    "request": "gpus",
                    "pool": PoolName(NODE),
                    "device": device_name(n),
                    "uuid": GpuUuid(gpu_uuid(n)),
                    "minor": n,
                    **device,
                }
            )
            for n in devices
        ),
        (PodUid("pod-uid"),),
    )


class FakeClaims:
    """The claims of the API, by namespace and name. `unavailable`: every read fails."""

    def __init__(self, *claims: ResourceClaim) -> None:
        self.by_key = {claim.key: claim for claim in claims}
        self.reads = 0
        self.unavailable = False
        self.status_writes: list[str] = []
        self.refusals: list[DracaenaError] = []
        """Raised by the next writes of a status, in this order."""

    def put(self, claim: ResourceClaim) -> None:
        self.by_key[claim.key] = claim

    def read_claim(self, reference: ClaimReference) -> ResourceClaim:
        self.reads += 1
        if self.unavailable:
            raise TemporaryError("GET resourceclaims: no answer")
        claim = self.by_key.get(str(reference))
        if claim is None or claim.metadata.uid != reference.uid:
            raise ClaimGoneError(f"claim {reference} is gone")
        return claim

    def find_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        self.reads += 1
        if self.unavailable:
            raise TemporaryError("GET resourceclaims: no answer")
        return self.by_key.get(f"{namespace}/{name}")

    def set_devices(self, claim: ResourceClaim, devices: Sequence[msgspec.Raw | Mapping[str, Any]]) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.status_writes.append(claim.key)
        status = msgspec.structs.replace(
            claim.status, devices=[msgspec.Raw(msgspec.json.encode(device)) for device in devices]
        )
        self.put(msgspec.structs.replace(claim, status=status))


class FakePods:
    """The pods of the API and of the watch at once. `shown`: what the watch shows, `stored`: what the API has."""

    def __init__(self, *pods: Pod, synced: bool = True) -> None:
        self.stored = {pod.key: pod for pod in pods}
        self.shown = dict(self.stored)
        self.synced = synced
        self.patches: list[tuple[str, Mapping[str, str | None]]] = []
        self.failures = 0
        """So many of the next calls to the API fail."""

    def add(self, pod: Pod, *, shown: bool = True) -> None:
        self.stored[pod.key] = pod
        if shown:
            self.shown[pod.key] = pod

    def delete(self, pod: Pod) -> None:
        self.stored.pop(pod.key)
        self.shown.pop(pod.key, None)

    def get(self, key: str) -> Pod | None:
        return self.shown.get(key)

    def values(self) -> tuple[Pod, ...]:
        return tuple(self.shown[key] for key in sorted(self.shown))

    def read_pod(self, namespace: str, name: str) -> Pod | None:
        self._fail()
        return self.stored.get(f"{namespace}/{name}")

    def annotate_pod(self, pod: Pod, annotations: Mapping[str, str | None]) -> None:
        self._fail()
        self.patches.append((pod.key, dict(annotations)))
        merged = {**self.stored[pod.key].metadata.annotations, **annotations}
        kept = {key: value for key, value in merged.items() if value is not None}
        metadata = msgspec.structs.replace(pod.metadata, annotations=kept)
        self.add(msgspec.structs.replace(pod, metadata=metadata))

    def annotations(self, name: str) -> Mapping[str, str]:
        return self.stored[f"default/{name}"].metadata.annotations

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise TemporaryError("pods: no answer")


class FakeKubelet:
    """What kubelet says of itself. `silent`: why it says nothing."""

    def __init__(self) -> None:
        self.run = 1
        self.claims: set[ClaimUid] = set()
        self.silent: str | None = None

    def look(self) -> KubeletView:
        if self.silent is not None:
            raise TemporaryError(self.silent)
        return KubeletView(str(self.run), frozenset(self.claims))


class ThreadLock:
    """A NodeLock within one process, that says when it is taken twice by one thread instead of hanging."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None

    @contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        assert self._owner != threading.get_ident(), "the node's lock is not re-entrant"
        if not self._lock.acquire(timeout=-1 if within_s is None else within_s):
            raise TemporaryError("another call has the lock")
        try:
            self._owner = threading.get_ident()
            yield
        finally:
            self._owner = None
            self._lock.release()


def node_claims(
    folder: Path, boot_id: str = "boot-1", *, lock: NodeLock | None = None, steps: FileSteps | None = None
) -> NodeClaims:
    """What a PluginNode in a folder has; with a lock of its own unless it is given one."""
    return NodeClaims(
        driver=DRIVER,
        boot_id=boot_id,
        lock=lock or ThreadLock(),
        checkpoints=DocumentFolder(folder / "claims", steps=steps, synced=False, in_place_if_full=True),
        specs=DocumentFolder(folder / "cdi", steps=steps, synced=False),
        marks=DocumentFolder(folder, steps=steps, synced=False),
    )


class HeardEvents(NodeEvents):
    """Events that no server gets: what is written on the node, each as reason and text."""

    def __init__(self, on_node: list[tuple[str, str]] | None = None) -> None:
        self.heard = [] if on_node is None else on_node
        self.users: list[tuple[str, list[str], str, str]] = []
        """What users were told: names of the claim and its pods, reason, text."""

    def on_node(self, kind: EventType, reason: str, text: str) -> None:
        self.heard.append((reason, text))

    def warn_users(self, claim: ClaimReference, pods: Sequence[Pod], reason: str, text: str) -> None:
        self.users.append((claim.name, [pod.metadata.name for pod in pods], reason, text))


class HeardTroubles(NodeTroubles):
    """Troubles of which every update is kept."""

    def __init__(self, metrics: PluginMetrics) -> None:
        super().__init__(metrics, lambda *_: None)
        self.updates: list[Sequence[Trouble]] = []

    def update(self, source: str, found: Iterable[Trouble], unseen: Iterable[Trouble] = ()) -> None:
        self.updates.append(tuple(found))


def node_context(
    claims: NodeClaims,
    *,
    api: ClaimReader | None = None,
    clock: Clock | None = None,
    metrics: PluginMetrics | None = None,
    gpu_lock: Callable[[DeviceName], NodeLock] = lambda _gpu: ThreadLock(),
    events: NodeEvents | None = None,
    troubles: NodeTroubles | None = None,
) -> NodeContext:
    """What the parts of a plugin share."""
    events = events or HeardEvents()
    metrics = metrics or PluginMetrics(CollectorRegistry())
    return NodeContext(
        driver=DRIVER,
        node_name=NodeName(NODE),
        clock=clock or FakeClock(),
        metrics=metrics,
        api=api or FakeClaims(),
        claims=claims,
        gpu_lock=gpu_lock,
        events=events,
        troubles=troubles or NodeTroubles(metrics, events.on_node),
    )


@dataclass
class PluginNode:
    """The part of a plugin that prepares claims, on real files below a folder. A new value is a restart."""

    folder: Path
    claims: FakeClaims = field(default_factory=FakeClaims)
    pods: FakePods = field(default_factory=FakePods)
    pool: PublishedPool = field(default_factory=make_pool)
    read_pool: Callable[[], PublishedPool] | None = None
    """In place of `pool`, where it changes or is not known."""
    minors: Mapping[str, int] | None = None
    """What the driver says beside the pool: PCI address → minor."""
    boot_id: str = "boot-1"
    steps: FileSteps = field(default_factory=FileSteps)
    control_nodes: Callable[[], tuple[DeviceNode, ...]] = lambda: (DeviceNode("/dev/nvidiactl"),)
    """Called for each spec that is written."""
    claim_nodes: ReadClaimNodes | None = None
    """In place of these."""
    gpu_driver_edits: Callable[[], GpuDriverEdits] = GpuDriverEdits
    gpu_name_format: GpuNameFormat = GpuNameFormat.UUID
    claim_status: bool = False
    job_mapping: bool = False
    podlist_in_place: bool = False
    device_metadata: bool = False
    kinds: Sequence[AnyThingKind] = ()
    """Of things that the engine settles."""
    gpu_locks: dict[DeviceName, ThreadLock] = field(default_factory=dict)
    """Shared by two instances that run side by side."""
    kind_of: KindOf = kind_of
    """In place of the kinds that there are."""
    kubelet: FakeKubelet = field(default_factory=FakeKubelet)
    changing: set[str] = field(default_factory=set)
    """GPUs that are being divided into another layout."""
    refusal: str | None = None
    """Why nobody is given a GPU of the node."""
    confidential: ConfidentialState = field(default_factory=ConfidentialState)
    """What the driver says of confidential computing."""
    told: list[tuple[str, str]] = field(default_factory=list)
    """Warnings of the sweeper on the node: reason, text."""
    unclaimed: Mapping[str, Callable[[], int]] = field(default_factory=dict)
    """What the sweeper calls besides, by kind."""
    troubles: list[Trouble] = field(default_factory=list)
    """What the last sweep of the ledger told of the node."""
    clock: FakeClock = field(default_factory=FakeClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.metrics = PluginMetrics(self.registry)
        self.specs = DocumentFolder(self.folder / "cdi", steps=self.steps, synced=False)
        self.podlist = DocumentFolder(
            self.folder / "pod-resources", steps=self.steps, synced=False, in_place=self.podlist_in_place
        )
        self.checkpoint_files = DocumentFolder(
            self.folder / "claims", steps=self.steps, synced=False, in_place_if_full=True
        )
        self.documents = DocumentTree(self.folder / "metadata", steps=self.steps, synced=False)
        self.jobs = DocumentFolder(self.folder / "jobs", steps=self.steps, synced=False)
        statuses = DeviceStatuses(driver=DRIVER, claims=self.claims, writer=self.claims)
        self.node_claims = claims = node_claims(self.folder, self.boot_id, steps=self.steps)
        self.events = HeardEvents(self.told)
        self.context = node_context(
            claims,
            api=self.claims,
            clock=self.clock,
            metrics=self.metrics,
            gpu_lock=self.gpu_lock,
            events=self.events,
        )
        self.reporter = PodDevicesReporter(
            self.context,
            pods=self.pods,
            access=self.pods,
            files=self.podlist,
            statuses=statuses if self.claim_status else None,
            gpu_name_format=self.gpu_name_format,
            job_mapping=self.jobs if self.job_mapping else None,
        )
        self.claim_files = files = ClaimFiles(
            driver=DRIVER,
            claims=claims,
            claim_nodes=self.claim_nodes
            or (lambda devices: ClaimNodes(self.control_nodes(), plain_nodes(devices, "/"))),
            gpu_driver_edits=self.gpu_driver_edits,
            metadata=MetadataFiles(
                driver=DRIVER,
                documents=self.documents,
                folder="/host/metadata",
                specs=self.specs,
                enabled=self.device_metadata,
            ),
            kind_of=self.kind_of,
        )
        reconciler = ClaimReconciler(claims, files)
        self.ledger_files = DocumentFolder(
            self.folder / "ledger", steps=self.steps, synced=False, in_place_if_full=True
        )
        self.ledger = Ledger(self.ledger_files, claims, self.boot_id)
        self.engine = ChangeEngine(ledger=self.ledger, kinds=self.kinds, claims=claims, gpu_lock=self.gpu_lock)
        self.changes = ClaimChanges(
            claims=claims,
            engine=self.engine,
            gpu_lock=self.gpu_lock,
        )
        self.state = DeviceState(
            self.context,
            read_pool=self.read_pool or (lambda: self.pool),
            files=files,
            claim_reconciler=reconciler,
            guard=LastGuard(
                claims=claims,
                claim_reconciler=reconciler,
                read_minors=lambda: self.minors,
                changing=lambda: self.changing,
                refusal=lambda: self.refusal,
                guest_runtimes=GuestRuntimes.parse("kata,kata-*"),
                gate=ConfidentialGate(lambda: self.confidential),
            ),
            reporter=self.reporter,
            changes=self.changes,
            kind_of=self.kind_of,
        )
        self.recovery = ClaimRecovery(
            self.context,
            state=self.state,
            read_pool=self.read_pool or (lambda: self.pool),
            ledger=self.ledger,
            metadata=files.metadata,
            claim_reconciler=reconciler,
            reporter=self.reporter,
        )
        self.sweeper = Sweeper(
            self.context,
            state=self.state,
            recovery=self.recovery,
            pods=self.pods,
            may_be_in_use=self.reporter.may_be_in_use,
            kubelet=self.kubelet,
            unclaimed={
                **self.unclaimed,
                **{kind: partial(self.engine.sweep, kind, self._told_of) for kind in self.engine.kinds},
            },
        )

    def gpu_lock(self, gpu: DeviceName) -> ThreadLock:
        return self.gpu_locks.setdefault(gpu, ThreadLock())

    def _told_of(self, troubles: Sequence[Trouble], _unseen: Sequence[Trouble]) -> None:
        self.troubles = list(troubles)

    def files(self) -> dict[str, bytes]:
        """All files with their content, half-written ones too."""
        return files_below(self.folder)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
