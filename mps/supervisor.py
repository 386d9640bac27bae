"""Reconciles the node with the requests, and reports its state.

One thread does everything: it looks, plans, executes the steps, and looks again. Nothing that it needs after a crash is
only in its memory: requests, statuses and the journal are files, and everything else is read from the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.mps import MpsNodeStatus, MpsPhase, MpsShareStatus
from dracaena.mps.execution import Executor
from dracaena.mps.fault_log import FaultLog
from dracaena.mps.metrics import MpsMetrics
from dracaena.mps.observation import NodeLook, Observer
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.plan import plan_gpu, plan_node
from dracaena.mps.planning.report import GpuLook, held_gpus, share_status
from dracaena.mps.planning.state import NOTHING, V2, V3, MpsProcess, MpsStep, PipesState, Role, SeenGpu, StepKind
from dracaena.mps.planning.wants import MpsWants, ReadRequest, wants
from dracaena.mps.ports import (
    ControlSilentError,
    MissingProgram,
    MpsPorts,
)
from dracaena.mps.protocol.v3 import ask_help, knows_protocol_3
from dracaena.process.clock import Clock

MOST_ROUNDS = 12
"""Most looks in one pass: from nothing to a share takes four, a restart of a dead daemon five."""

MOST_SILENT = 3
"""Looks in a row without an answer after which a daemon counts as dead: with 3 s each, and the pauses between them, a
restart still fits into kubelet's 45 s."""

MOST_STOPS = 3
"""Stops in a row that a daemon may refuse or not answer, although it answers everything else, before its processes are
killed."""

STOPS = frozenset({StepKind.STOP_DAEMON, StepKind.STOP_SERVER})

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Pause before a GPU is retried after a failure, doubled each time."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Tries:
    """Failures in a row on one GPU."""

    trouble: str = ""
    count: int = 0
    silent: int = 0
    stops: int = 0
    """Stops that failed."""
    unanswered: bool = False
    """Whether the last look at it failed: it is not asked again before `not_before_s`."""
    not_before_s: float = 0.0


class Supervisor:
    """Used by one thread: resume() once, then step() repeatedly."""

    def __init__(
        self, ports: MpsPorts, places: MpsPlaces, clock: Clock, metrics: MpsMetrics, *, boot_id: str,
        multi_user: bool = True,
    ) -> None:  # fmt: skip
        self._ports, self._places, self._clock, self._metrics = ports, places, clock, metrics
        self._boot_id, self._multi_user = boot_id, multi_user
        self._observer = Observer(ports.control, ports.modes, ports.files, ports.shm, places)
        self._executor = Executor(
            ports, places, clock, boot_id=boot_id, multi_user=multi_user,
        )  # fmt: skip
        self._faults = FaultLog(ports.processes, clock, metrics)
        self._tries: dict[str, _Tries] = {}
        self._known: tuple[MpsProcess, ...] = ()
        self._protocol = 0
        self._probe_trouble = ""
        self._statuses: dict[str, MpsShareStatus] = {}
        self._asked_s: dict[str, float] = {}
        self._requests: Mapping[str, ReadRequest] = {}
        self.due_s = float("-inf")
        """When step() must be called again at the latest; in the clock's monotonic time."""

    def resume(self) -> None:
        """Take over from an earlier supervisor. Ignores what it wrote in an earlier boot: the driver resets compute
        modes to their default when it is loaded. Raises DracaenaError.
        """
        files = self._ports.files
        node = files.read_node()
        self._statuses = dict(files.statuses())
        if node is not None and node.boot_id != self._boot_id:
            for share in self._statuses:
                files.remove_status(share)
            self._statuses = {}
        for gpu, entry in files.journal().items():
            if entry.boot_id != self._boot_id:
                files.remove_journal(gpu)
        self._faults.resume(self._statuses)
        for share in self._statuses:
            self._hold_back(share, "the supervisor has been restarted and is looking at what is there")

    def _hold_back(self, share: str, why: str) -> None:
        """Report that a ready share is not ready for now. Keeps which server it had for a later supervisor."""
        status = self._statuses[share]
        if status.phase is MpsPhase.READY:
            self._statuses[share] = msgspec.structs.replace(
                status, phase=MpsPhase.PENDING, message=why, environment={}, mounts=()
            )
            self._ports.files.write_status(share, self._statuses[share])

    def changed(self) -> bool:
        """Whether something happened that step() should see now. Costs one look at a folder and one at each process."""
        return self._ports.files.requests_changed() or not all(map(self._ports.processes.is_alive, self._known))

    def step(self) -> None:
        """Look and execute steps until nothing is left to do, or something must be waited for. Raises DracaenaError if
        our own folder cannot be read or written.
        """
        self._requests = self._ports.files.requests()
        served = {share for share, status in self._statuses.items() if status.phase is not MpsPhase.REFUSED}
        wanted = wants(self._requests, boot_id=self._boot_id, multi_user=self._multi_user, admitted=frozenset(served))
        for share in self._requests:
            self._asked_s.setdefault(share, self._clock.monotonic())
        for share in sorted(self._statuses.keys() - self._requests.keys()):
            self._hold_back(share, "it is being taken back")
        look, pending = self._look(wanted), False
        for _ in range(MOST_ROUNDS):
            done, pending = self._do_steps(wanted, look)
            if not done:
                break
            look = self._look(wanted)
        self._tell(wanted, look)
        phases = {self._statuses[share].phase for share in self._requests}
        self.due_s = self._next_try_s(look) if pending else float("inf")
        if MpsPhase.PENDING in phases:
            self.due_s = self._clock.monotonic()

    def _next_try_s(self, look: NodeLook) -> float:
        """Return when the first failed GPU is retried; at once if steps are left without a failed GPU."""
        tries = [self._tries[gpu] for gpu in ("", *look.gpus) if gpu in self._tries]
        return min((each.not_before_s for each in tries if each.trouble), default=self._clock.monotonic())

    def _look(self, wanted: MpsWants) -> NodeLook:
        """Look at the node, and record what has happened to clients."""
        self._known = self._ports.processes.find()
        self._protocol = self._choose_protocol(wanted)
        now_s = self._clock.monotonic()
        paused = {gpu for gpu, tries in self._tries.items() if tries.unanswered and tries.not_before_s > now_s}
        look = self._observer.look(wanted.gpus, self._known, self._protocol, paused)
        for gpu, seen in look.gpus.items():
            gpu_wanted = wanted.gpus.get(gpu)
            if gpu_wanted is None:
                self._faults.forget_gpu(gpu)
            elif gpu not in look.troubles and seen.pipes is not PipesState.CHANGED:
                self._faults.note(gpu, seen, tuple(gpu_wanted.shares))
        self._faults.forget_pods_but(frozenset(each.pid for seen in look.gpus.values() for each in seen.clients))
        return look

    def _choose_protocol(self, wanted: MpsWants) -> int:
        """Return the protocol of the running daemons; if none runs and one is wanted, the best available one."""
        self._probe_trouble = ""
        controls = [process for process in self._known if process.role is Role.CONTROL]
        if controls:
            return V3 if any(not process.folder for process in controls) else V2
        if self._ports.control.missing() is not None:
            return 0
        if not wanted.gpus and self._protocol:
            return self._protocol  # checked again with the first share: the driver may have been updated
        released = self._ports.modes.refusal()
        if released is not None:
            self._probe_trouble = released
            return 0
        try:
            usage = self._ports.control.run(ask_help(), self._places.pipes)
        except ControlSilentError as error:
            self._metrics.failures.inc()
            self._probe_trouble = str(error)
            return 0
        except DracaenaError:
            return V2  # a driver before protocol 3 refuses the flag
        return V3 if knows_protocol_3(usage) else V2

    def _do_steps(self, wanted: MpsWants, look: NodeLook) -> tuple[bool, bool]:
        """Do the next steps of the node and of each GPU. Returns whether any was done, and whether any was deferred."""
        done = pending = False
        now_s = self._clock.monotonic()
        for gpu in ("", *look.gpus):
            tries = self._tries.setdefault(gpu, _Tries())
            if gpu in look.troubles:
                pending = True
                if tries.not_before_s > now_s or gpu in look.unasked:
                    continue
                self._note_trouble(gpu, look.troubles[gpu], silent=gpu in look.silent)
                tries.unanswered = True
                if self._tries[gpu].silent < MOST_SILENT:
                    continue
                steps = self._ended(gpu, look)
            elif look.troubles and not gpu:
                continue
            else:
                tries.silent, tries.unanswered = 0, False
                steps = self._plan(gpu, wanted, look)
                if steps and steps[0].kind in STOPS and tries.stops >= MOST_STOPS:
                    steps = self._ended(gpu, look, steps[0].kind) or steps
            if not steps:
                self._tries[gpu] = _Tries()
                continue
            pending = True
            if tries.not_before_s > now_s and gpu not in look.troubles:
                continue
            done |= self._do(gpu, steps)
        return done, pending

    def _plan(self, gpu: str, wanted: MpsWants, look: NodeLook) -> tuple[MpsStep, ...]:
        if not gpu:
            if self._protocol != V3:
                return ()
            return plan_node(wanted.gpus, look.gpus, look.node_processes, answers=look.answers)
        if not self._protocol and gpu in wanted.gpus:
            return ()
        return plan_gpu(gpu, wanted.gpus.get(gpu, NOTHING), look.gpus[gpu], self._protocol or V3)

    def _ended(self, gpu: str, look: NodeLook, instead_of: StepKind = StepKind.STOP_DAEMON) -> tuple[MpsStep, ...]:
        """Return the steps that kill a daemon, or only one server: servers first. Their clients are lost."""
        processes = look.node_processes if self._protocol == V3 else look.gpus[gpu].processes
        if instead_of is StepKind.STOP_SERVER:
            server = look.gpus[gpu].server
            servers = [each for each in self._known if each.role is Role.SERVER]
            processes = tuple(each for each in servers if server is not None and each.pid == server.pid)
        ordered = sorted(processes, key=lambda each: (each.role is Role.CONTROL, each.pid))
        return tuple(MpsStep(StepKind.KILL, gpu, process=each, number=each.pid) for each in ordered)

    def _do(self, gpu: str, steps: tuple[MpsStep, ...]) -> bool:
        """Do the steps of one GPU until one fails; return whether any succeeded."""
        done = False
        for step in steps:
            try:
                self._executor.do(step, self._protocol or V3)
            except DracaenaError as error:
                self._observer.forget(gpu)
                self._note_trouble(gpu, f"cannot {step.kind.value}: {error}", silent=False)
                self._tries[gpu].stops += step.kind in STOPS
                return done
            done = True
            note = log.warning if step.kind is StepKind.RESTORE_PIPES else log.info
            note("did", step=str(step))
            if step.kind in STOPS | {StepKind.KILL}:
                self._tries[gpu].stops = 0
            if step.kind is StepKind.START_DAEMON:
                self._metrics.starts.inc()
        self._observer.forget(gpu)
        return done

    def _note_trouble(self, gpu: str, trouble: str, *, silent: bool) -> None:
        tries = self._tries.setdefault(gpu, _Tries())
        self._metrics.failures.inc()
        if tries.trouble != trouble:
            log.warning("failed, and is retried", gpu=gpu or "node", why=trouble)
        pause_s = min(FIRST_PAUSE_S * 2**tries.count, LONGEST_PAUSE_S)
        tries.trouble, tries.count = trouble, min(tries.count + 1, 10)
        tries.silent = tries.silent + 1 if silent else 0
        tries.not_before_s = self._clock.monotonic() + pause_s

    def _tell(self, wanted: MpsWants, look: NodeLook) -> None:
        """Write the statuses, and remove those of shares that are completely gone."""
        missing = self._ports.control.missing() if not self._protocol else None
        now: dict[str, MpsShareStatus] = {}
        for share, read in self._requests.items():
            now[share] = self._status(share, read, wanted, look, missing)
            before = self._statuses.get(share)
            if now[share].phase is MpsPhase.READY and (before is None or not before.server_pid):
                self._metrics.ready_seconds.observe(self._clock.monotonic() - self._asked_s[share])
            self._ports.files.write_status(share, now[share])
        for share, status in self._statuses.items():
            if share in now:
                continue
            if self._is_gone(share, status.gpu, wanted, look):
                self._ports.files.remove_status(share)
                self._faults.forget_share(share)
                self._asked_s.pop(share, None)
            else:
                now[share] = status
        self._statuses = now
        held = held_gpus(look.gpus)
        self._ports.files.write_node(
            MpsNodeStatus(
                boot_id=self._boot_id, protocol=self._protocol,
                message="" if self._protocol else missing.message if missing is not None else self._probe_trouble,
                multi_user=self._multi_user, gpus=held,
            )
        )  # fmt: skip
        self._metrics.gpus.set(len(held))
        self._metrics.protocol.set(self._protocol)
        for phase in MpsPhase:
            self._metrics.shares.labels(phase.value).set(sum(each.phase is phase for each in now.values()))

    def _status(
        self, share: str, read: ReadRequest, wanted: MpsWants, look: NodeLook, missing: MissingProgram | None
    ) -> MpsShareStatus:
        refusal = wanted.refusals.get(share)
        request = read.request
        if refusal or request is None or missing is not None:
            passes = missing is not None and missing.passes and not refusal
            return MpsShareStatus(
                request=read.digest, phase=MpsPhase.FAILED if passes else MpsPhase.REFUSED,
                message=refusal or (missing.message if missing is not None else ""),
                gpu=request.gpu if request else "", claim_uid=request.claim_uid if request else "",
                share_id=request.share_id if request else "",
            )  # fmt: skip
        gpu = request.gpu
        trouble = self._trouble_of(gpu) or self._trouble_of("") or self._probe_trouble
        seen = look.gpus.get(gpu, SeenGpu(None, "it was not looked at"))
        return share_status(
            share, read.digest, request, GpuLook(wanted.gpus[gpu], seen, trouble),
            protocol=self._protocol, places=self._places, fault=self._faults.of(share),
        )  # fmt: skip

    def _trouble_of(self, gpu: str) -> str:
        tries = self._tries.get(gpu)
        return tries.trouble if tries is not None else ""

    def _is_gone(self, share: str, gpu: str, wanted: MpsWants, look: NodeLook) -> bool:
        """Whether nothing is left that a share's containers could use. The compute mode of a GPU that does not answer
        may be restored later.
        """
        seen = look.gpus.get(gpu)
        if seen is None:
            return True
        if gpu in look.troubles or share in seen.namespaces:
            return False
        if gpu in wanted.gpus:
            return True  # what is left belongs to others
        return not (seen if seen.mode is not None else replace(seen, journal=None)).holds_anything
