"""One controller process: the real Controller, its threads as strands, its connection in the hands of the schedule."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from prometheus_client import CollectorRegistry

from dracaena.api.objects import KubeObject, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller import program, reconciler, watches, wiring, workers
from dracaena.controller.allocation.state import inventory
from dracaena.controller.allocation.state.pool import PoolContents, read_pool
from dracaena.controller.events import collision_reports
from dracaena.controller.leader.election import NotLeadingError
from dracaena.controller.lifecycle.claim_record import ClaimRecord
from dracaena.controller.lifecycle.phases import NotAllowedError, Phase
from dracaena.controller.lifecycle.pod_record import Growth
from dracaena.controller.lifecycle.proof import Bounds
from dracaena.controller.lifecycle.prospects import Patience
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.state import cluster, group_turns, intake
from dracaena.controller.state.upkeep import UpkeepRules
from dracaena.controller.write import claim_tender, claim_writer, gatekeeper, nomination
from dracaena.kube.client import Listing
from dracaena.kube.errors import KubeError, NotFoundError
from support.interleaver.server import AROUND
from support.interleaver.strands import Strand
from support.interleaver.watching import SteppedReflector, reflector
from support.queues import take_ready
from support.reasons.recording import untrue_reasons

if TYPE_CHECKING:
    from support.interleaver.world import World

SETTLE_S: Final = 2.0
LONGEST_BIND_S: Final = 40.0
GIVE_UP_S: Final = 75.0

GATE: Final = "gate"
"""The strand that removes gates."""

SETTINGS: Final = ControllerSettings(
    longest_bind_s=LONGEST_BIND_S,
    starvation_wait_s=0,
    gate_wait_s=8.0,
    workers=2,
)
"""Real rules with shorter times, so that a schedule lives through all of them."""

RULES: Final = UpkeepRules(
    Bounds(longest_bind_s=LONGEST_BIND_S, late_write_s=wiring.DOUBT_S, settle_s=SETTLE_S),
    Patience(refused_s=10.0, passed_over_s=20.0),
    Growth(first_s=15.0, longest_s=30.0),
)

NEW_OBJECTS: Final = 50_000
"""Between two looks for garbage: what a few schedules leave."""

MOST_POOLS: Final = 200
"""That are kept as they were read. More than those that come again and again."""

_REGISTRY: Final = CollectorRegistry(auto_describe=False)

START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class ProcessClock:
    """Implements Clock. The steady time is the server's and an offset; the time of day may be set."""

    def __init__(self, world: World, offset_s: float) -> None:
        self._world = world
        self._offset_s = offset_s
        self.jumped_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self._world.server.now_s + self.jumped_s)

    def monotonic(self) -> float:
        return self._world.server.now_s + self._offset_s

    def worked(self) -> float:
        return 0.0

    def wait(self, condition: object, timeout_s: float | None) -> bool:
        raise AssertionError("a strand never waits by itself")

    def sleep_until_set(self, event: object, timeout_s: float) -> bool:
        raise AssertionError("a strand never sleeps")


@dataclass(slots=True)
class Call:
    """A request of a strand's. Unsent as long as there is no outcome; then the answer is under way."""

    text: str
    run: Callable[[], Any]
    """Does it on the server."""
    is_write: bool
    claim_key: str = ""
    guard: str = ""
    devices: frozenset[tuple[str, str]] = frozenset()
    """(pool, device) that it allocates."""
    is_sent: bool = False
    outcome: Any = None
    error: KubeError | None = None


class Client:
    """Implements what the controller needs of KubeClient: every call is a pause of the strand that makes it."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.reflectors: dict[type[KubeObject], SteppedReflector] = {}
        self._writing: Callable[[], AbstractContextManager[None]] | None = None

    def guarded(self, writing: Callable[[], AbstractContextManager[None]]) -> Client:
        self._writing = writing
        return self

    def get(self, kind: type[Any], name: str, *, namespace: str = "") -> Any:
        key = f"{namespace}/{name}"

        def read() -> Any:
            found = self.world.server.objects(kind).get(key)
            if found is None:
                raise NotFoundError(f"GET {key}", 404, "NotFound", "not found")
            return found

        return self._call(Call(f"read of {kind.KIND} {name}", read, is_write=False))

    def merge_patch(
        self, kind: type[Any], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Any:
        key = f"{namespace}/{name}"
        allocation = patch.get("status", {}).get("allocation")
        results = allocation["devices"]["results"] if allocation is not None else ()
        call = Call(
            f"{_verb(patch)} of {kind.KIND} {name}",
            lambda: self.world.server.patch(kind, key, patch),
            is_write=True,
            claim_key=key if kind is ResourceClaim else "",
            guard=patch["metadata"].get("resourceVersion", ""),
            devices=frozenset((result["pool"], result["device"]) for result in results),
        )
        known, stored = self.process.known_when_free.get(key), self.world.server.claims.get(key)
        if allocation is not None and known is not None and stored is not None:
            self.world.known_to_writer[stored.metadata.uid, allocation["allocationTimestamp"]] = known
        assert self._writing is not None
        with self._writing():
            return self._call(call)

    def list(self, kind: type[Any], **selectors: Any) -> Listing[Any]:
        cache = self.reflectors[kind]
        cache.caught_up()
        items = tuple(cache.kept(item) for item in self.world.server.objects(kind).values())
        return Listing(items, str(self.world.server.version))

    def _call(self, call: Call) -> Any:
        assert not self.process.lock_is_held(), f"{call.text} is sent with the cluster's lock held"
        Strand.pause(call)
        if call.error is not None:
            raise call.error
        return call.outcome


class SteppedController(program.Controller):
    """The real one, whose threads are the schedule's."""

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        """Threads are strands of the process."""


class Process:
    """A controller process: it stands by, leads, or is no more."""

    def __init__(self, world: World, name: str, controller_type: type[SteppedController], *, offset_s: float) -> None:
        self.world = world
        self.name = name
        self.leads = False
        self.has_led = False
        """It leads once: a process that lost its lease ends."""
        self.problems: list[str] = []
        self.clock = ProcessClock(world, offset_s)
        self.client = Client(world, self)
        self.strands: dict[str, Strand] = {}
        self.checked: dict[str, ClaimRecord] = {}
        """The records as they were when they were last found right (checks)."""
        self.right: tuple[bool, Sequence[ClaimRecord]] | None = None
        """What was found right by the last check: whether no worker works, and all records."""
        self.known_when_free: dict[str, frozenset[str]] = {}
        """Claim → UIDs of the pods that were known when it was shown that it lost its allocation, or from which on this
        process leads."""
        settings = world.scenario.settings
        self.controller = controller_type(
            settings,
            self.client,  # type: ignore[arg-type]
            clock=self.clock,
            registry=_REGISTRY,
            rng=random.Random(1),
            rules=RULES,
        )
        queue = self.controller.parts.queue
        parts = self.controller.parts
        for one in (queue, parts.gatekeeper._queue):
            one.get = partial(take_ready, one)  # type: ignore[method-assign]
        self.around = tuple(self.client.reflectors[kind] for kind in AROUND if kind in self.client.reflectors)
        for cache in self.around:
            cache.list_now()
        for node, pool in () if world.scenario.changes else world.scenario.nodes:
            parts.intake.node_changed(None, node)
            for page in pool:
                parts.intake.slice_changed(None, page)
        if not world.scenario.changes:
            parts.intake.class_changed(None, world.scenario.device_class)
        for device_class in world.scenario.other_classes:
            parts.intake.class_changed(None, device_class)
        for namespace in world.scenario.namespaces:
            parts.intake.namespace_changed(None, namespace)
        records = parts.cluster._state.records
        self._changed, records._changed = records._changed, self._record_changed
        records._fault = self._fault
        self.pods = self.client.reflectors[Pod]
        self.claims = self.client.reflectors[ResourceClaim]
        for cache in (self.claims, self.pods):
            cache.list_now()
        self.caches: Mapping[str, SteppedReflector] = {
            cache.resource: cache for cache in (self.claims, self.pods, *self.around)
        }
        """By resource."""

    def _record_changed(self, before: ClaimRecord | None, after: ClaimRecord | None) -> None:
        if before is not None and after is not None and after.shown.status.allocation is None:
            is_freed = before.shown.status.allocation is not None
            if is_freed or (before.phase is Phase.WRITING and before.shown is not after.shown):
                self._note_pods(after.key)
        self._changed(before, after)

    def _fault(self, record: ClaimRecord, error: NotAllowedError) -> None:
        self.problems.append(f"record of {record.key}: {error}")

    def _note_pods(self, claim_key: str) -> None:
        pods = self.controller.parts.cluster._state.records._unbound.values()
        self.known_when_free[claim_key] = frozenset(pod.uid for pod in pods)

    def lock_is_held(self) -> bool:
        return self.controller.parts.cluster._lock.locked()

    # Implements Leadership: what leader/election.py promises holds by the order of steps (World.may_begin)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wait_to_begin(self, timeout_s: float) -> bool:
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        if not self.leads:
            raise NotLeadingError("write", None, "", "another process leads")
        yield

    def trouble(self) -> str | None:
        return None

    def __str__(self) -> str:
        return self.name

    # What the schedule can have it do

    def begin(self) -> None:
        """Run what the controller does from here to its first decision, as a strand."""
        self.leads = self.has_led = True
        for record in self.controller.parts.cluster._state.records._claims.values():
            self._note_pods(record.key)
        self.strands["start"] = self._strand("start", self.controller._start_workers)

    def relist(self, cache: SteppedReflector, name: str) -> None:
        self.strands[name] = self._strand(name, cache.list_now)

    def has_ready_work(self) -> bool:
        return self._is_ready(self.controller.parts.queue)

    def has_gates_to_remove(self) -> bool:
        return self._is_ready(self.controller.parts.gatekeeper._queue)

    def _is_ready(self, queue: WorkQueue) -> bool:
        later = queue._later
        return bool(queue._ready) or bool(later and later[0][0] <= self.clock.monotonic())

    def writes(self) -> bool:
        """Whether a write of it is under way that the server has not carried out."""
        calls = (strand.waits_for for strand in self.strands.values())
        return any(isinstance(call, Call) and call.is_write and not call.is_sent for call in calls)

    def is_done(self) -> bool:
        """Whether it leads, has seen everything, and has nothing to do now."""
        if (
            not self.leads
            or self.strands
            or not self.controller.parts.work.is_open
            or any(cache.is_behind for cache in self.caches.values())
        ):
            return False
        return not (self.has_ready_work() or self.has_gates_to_remove())

    def take_work(self, worker: str) -> None:
        """Have a worker take the next key, and decide if it is a pod's: then it pauses before it carries that out."""
        self.strands[worker] = self._strand(worker, self._work if worker != GATE else self._remove_gate)

    def crash(self) -> None:
        for strand in self.strands.values():
            strand.kill()
        self.strands.clear()

    def _work(self) -> None:
        taken = self.controller.parts.workers.take()
        if taken is None:
            return
        key, step = taken
        Strand.pause(f"takes {key}: {_named(step)}")
        self.controller.parts.workers.carry_out(key, step)
        self.controller.parts.queue.done(key)

    def _remove_gate(self) -> None:
        gates = self.controller.parts.gatekeeper
        key = gates._queue.get()
        if key is None:
            return
        gates._remove(key)
        gates._queue.done(key)
        gates.forget_passed()

    def _strand(self, name: str, work: Callable[[], None]) -> Strand:
        return Strand(f"{self.name} {name}", work)


class _Quiet:
    """Takes the place of Events: what is told to users changes nothing here."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class _Curious(_Quiet):
    """Takes the place of waiting pods: works out each reason at once, for tests judge what comes out
    (support.reasons)."""

    def waited_s(self, _: object) -> float:
        """Return how long a pod has waited for what is missing: it was always just created."""
        return 0.0

    def report(self, pod: Pod, reason: str, why: str | Callable[[], str | None], **_: object) -> None:
        """Take note of why a pod waits. Raises AssertionError where that is untrue."""
        if callable(why):
            with untrue_reasons() as untrue:
                why()
            assert not untrue, f"{pod.key} is told what is untrue: {untrue[0]}"


class _Log:
    """Takes the place of program.log: an exception that the outermost loops swallow is a fault."""

    def exception(self, event: str, **_: object) -> None:
        raise  # noqa: PLE0704 - called while it is handled

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


@lru_cache
def _metrics(_: CollectorRegistry) -> ControllerMetrics:
    """Return metrics that all processes share: nobody reads them here, and making them costs more than a schedule."""
    return ControllerMetrics(CollectorRegistry(auto_describe=False))


_pools: dict[tuple[object, ...], tuple[Sequence[ResourceSlice], PoolContents]] = {}


def _read_pool(driver: str, slices: Iterable[ResourceSlice]) -> PoolContents:
    """Read a pool, once as long as its slices are the same: each process has those of the scenario to begin with."""
    pages = list(slices)
    key = (driver, *map(id, pages))
    if key not in _pools:
        if len(_pools) > MOST_POOLS:
            _pools.clear()
        _pools[key] = pages, read_pool(driver, pages)
    return _pools[key][1]


_PATCHES: Final[Sequence[tuple[ModuleType, str, object]]] = (
    (wiring, "ControllerMetrics", _metrics),
    (wiring, "_measure", lambda *_: None),
    (inventory, "read_pool", _read_pool),
    (watches, "Reflector", reflector),
    (wiring, "EventRecorder", _Quiet),
    (wiring, "WaitingPods", _Curious),
    (wiring, "build_leadership", lambda settings, given, **_: given.client.process),
    (program, "freeze_what_stays", lambda: None),
    (group_turns, "GIVE_UP_S", GIVE_UP_S),
    (program, "server_version", lambda client: None),
)

_LOGS: Final = (
    program,
    workers,
    claim_tender,
    claim_writer,
    cluster,
    collision_reports,
    gatekeeper,
    group_turns,
    intake,
    nomination,
    reconciler,
)


@contextmanager
def stepping() -> Iterator[None]:
    """Let controllers be made that only move by steps, without logs; and no exception is swallowed with a log line."""
    thresholds = gc.get_threshold()
    gc.freeze()  # as the program does: of all tests together it is much that would be looked at again and again
    gc.set_threshold(NEW_OBJECTS)
    with ExitStack() as patches:
        patches.callback(gc.unfreeze)
        patches.callback(gc.collect)  # it only looks at what this search has left, which the next would freeze
        patches.callback(_metrics.cache_clear)  # gauges keep the last controller that was made
        patches.callback(gc.set_threshold, *thresholds)
        patches.callback(_pools.clear)  # a fault that is put back next may read them differently
        for module, attribute, value in _PATCHES:
            patches.enter_context(mock.patch.object(module, attribute, value))
        for module in _LOGS:
            patches.enter_context(mock.patch.object(module, "log", _Log()))
        yield


def _verb(patch: Mapping[str, Any]) -> str:
    status = patch.get("status")
    if status is None:
        return "ungating" if "spec" in patch else "mark"
    if "nominatedNodeName" in status:
        return "nomination"
    if "conditions" in status:
        return "probe"
    if "allocation" in status:
        return "clearing" if status["allocation"] is None else "allocation"
    return "reservation" if status["reservedFor"] else "drop of the reservation"


def _named(step: object) -> str:
    decision = getattr(step, "decision", None)
    return type(decision if decision is not None else step).__name__
