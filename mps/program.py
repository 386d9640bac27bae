"""Runs the supervisor: one working thread, an endpoint for health and metrics, and a lock against a second one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.api.errors import BadInputError, DracaenaError, PermanentError
from dracaena.api.mps import LOCK
from dracaena.host.adapters.files.lock import FileLock
from dracaena.host.adapters.kernel.boot_id import read_boot_id
from dracaena.host.gpu_driver.permission import permission_on_this_node
from dracaena.mps.adapters.control_program import ANSWER_S, ControlProgram
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.adapters.selinux import container_label
from dracaena.mps.adapters.share_memory import ShareMemory
from dracaena.mps.adapters.shared_folder import SharedFolder
from dracaena.mps.metrics import MpsMetrics
from dracaena.mps.planning.places import MpsPlaces, too_long
from dracaena.mps.ports import ComputeModes, MpsPorts
from dracaena.mps.settings import MpsSettings
from dracaena.mps.supervisor import Supervisor
from dracaena.process.clock import Clock, SystemClock
from dracaena.process.ending import hold_end_signals, wait_for_end_signal
from dracaena.process.http import HttpEndpoint
from dracaena.process.logs import configure_logs

STUCK_S = 60.0
"""A step ends by its own limits within some 15 s per GPU; with a driver that hangs in the kernel it does not."""

STOP_S = 5.0

LOCK_S = 1.0
"""The plugin takes the lock for a moment to see whether a supervisor runs, so a starting one retries a held lock."""

LOCK_POLL_S = 0.02

CHECK_S = 5.0
"""Between two checks of running servers. A process that dies is noticed at the next look for requests."""

POLL_S = 0.2
"""Between two looks for requests and for processes that died: a pod waits for its share that much longer."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class MpsPauses:
    """How long the supervisor waits for what."""

    answer_s: float = ANSWER_S
    """How long the driver's programs may take to answer."""
    check_s: float = CHECK_S
    poll_s: float = POLL_S


class MpsProgram:
    """One supervisor. start() once, stop() once. Raises DracaenaError if it cannot start: a bad setting, or another one
    runs already. Servers outlive it as processes; the end of its container ends them, and the next supervisor restarts
    them.
    """

    def __init__(
        self,
        settings: MpsSettings,
        *,
        clock: Clock | None = None,
        registry: CollectorRegistry = REGISTRY,
        modes: ComputeModes | None = None,
        shm: ShareMemory | None = None,
        boot_id: str | None = None,
        pauses: MpsPauses = MpsPauses(),
    ) -> None:
        """`modes` stands in for NVML, `shm` for mounts where a test may make none."""
        self._pauses = pauses
        places = MpsPlaces(settings.root)
        problem = too_long(places)
        if problem is not None:
            raise BadInputError(problem)
        self._settings, self._places, self._registry = settings, places, registry
        self._clock = clock or SystemClock()
        label = container_label()
        self._files = SharedFolder(places, label=label)
        self._shm = shm or ShareMemory(places, label)
        control = ControlProgram(settings.driver_root_mount, settings.root, self._shm.enter, answer_s=pauses.answer_s)
        table = ProcProcessTable(places.pipes)
        self._supervisor = Supervisor(
            MpsPorts(control, table, modes or _nvml_modes(settings), self._files, self._shm),
            places, self._clock, MpsMetrics(registry),
            boot_id=boot_id or read_boot_id(),
            multi_user=settings.multi_user,
        )  # fmt: skip
        self._lock = FileLock(Path(settings.root) / LOCK)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mps", daemon=True)
        self.http: HttpEndpoint | None = None
        """Health and metrics; None: off, or not started yet."""
        self._began_s: float | None = None
        self._trouble: str | None = "the first look is not done"

    def start(self) -> None:
        """Acquire the lock, take over, and begin to work."""
        until_s = self._clock.monotonic() + LOCK_S
        while not (taken := self._lock.try_acquire()) and self._clock.monotonic() < until_s:
            self._clock.sleep_until_set(self._stopping, LOCK_POLL_S)
        if not taken:
            raise PermanentError(
                f"a supervisor is already running on this node: another process holds {self._lock.path}. Stop it first"
            )
        try:
            self._files.prepare()
            self._shm.prepare()
            self._supervisor.resume()
            if self._settings.http_address:
                self.http = HttpEndpoint(
                    self._settings.http_address, self.ready, self._registry,
                    web_config_file=self._settings.web_config_file,
                )  # fmt: skip
                self.http.start()
                log.info("serving health and metrics", port=self.http.port)
        except DracaenaError:
            self._lock.release()
            raise
        self._thread.start()
        log.info("supervising MPS", root=self._places.root, multi_user=self._settings.multi_user)

    def stop(self) -> None:
        """End the thread and leave all servers to their clients."""
        self._stopping.set()
        self._thread.join(timeout=STOP_S)
        if self.http is not None:
            self.http.stop()
        self._lock.release()

    def ready(self) -> str | None:
        """Return None while requests are served, otherwise the obstacle. For /readyz."""
        began_s = self._began_s
        if began_s is not None and self._clock.monotonic() - began_s > STUCK_S:
            return f"one step has taken more than {STUCK_S:.0f} s: the GPU driver hangs"
        return self._trouble

    def _run(self) -> None:
        looked_s = float("-inf")
        while not self._stopping.is_set():
            now_s = self._clock.monotonic()
            try:
                due = now_s - looked_s >= self._pauses.check_s or now_s >= self._supervisor.due_s
                if due or self._supervisor.changed():
                    looked_s, self._began_s = now_s, now_s
                    self._supervisor.step()
                    self._trouble = None
            except DracaenaError as error:
                if self._trouble != str(error):
                    log.error("the folder of the supervisor cannot be used", error=str(error))
                self._trouble = str(error)
            except Exception as error:  # the thread's outermost loop: the shares of all pods depend on it
                log.exception("a step failed")
                self._trouble = f"a step failed: {error!r}; the log says where"
            self._began_s = None
            self._clock.sleep_until_set(self._stopping, self._pauses.poll_s)


def _nvml_modes(settings: MpsSettings) -> ComputeModes:
    from dracaena.host.adapters.nvml.library import NvmlLibrary, load_library
    from dracaena.mps.adapters.nvml_compute_modes import NvmlComputeModes

    permission = permission_on_this_node(settings.kubelet_root, settings.driver_name, obeys_labels=True)
    library = NvmlLibrary(lambda: load_library(settings.driver_root_mount), permission=permission)
    return NvmlComputeModes(library, permission)


def run(settings: MpsSettings) -> int:
    """Run until SIGTERM or SIGINT and return the exit code. Raises DracaenaError if it cannot start."""
    hold_end_signals()
    configure_logs(settings.log_level, settings.log_format)
    program = MpsProgram(settings)
    program.start()
    log.info("stopping", signal=wait_for_end_signal().name)
    program.stop()
    return 0
