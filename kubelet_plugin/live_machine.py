"""This node's machine as the driver tells it, read again and again; whoever needs it is told when it differs.

Before the driver is there it waits and says what for. A driver that hangs later makes the reading stale, and nothing
else: prepare works from the last one that was told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Machine
from dracaena.api.topology import TopologyError
from dracaena.kubelet_plugin.adapters.thread_state import is_uninterruptible
from dracaena.kubelet_plugin.discovery.build import Reading, reading_troubles
from dracaena.kubelet_plugin.discovery.troubles import (
    GpuDriverReleasedError,
    GpuDriverTroubleError,
    Trouble,
    TroubleKind,
    trouble,
)
from dracaena.kubelet_plugin.gpu_driver_thread import GpuDriverThread, StoppedError
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock

READ_DEADLINE_S = 120.0
"""Longest one reading may take. Without persistence mode a driver brings up one GPU after the other when NVML opens,
some seconds each, and a node has up to 16."""

RETRY_S = 5.0
"""Pause before the driver is asked again while it is not there: a driver container needs minutes, pods wait for us."""

INCOMPLETE_S = 15.0
"""Pause after a reading in which questions went unanswered that may be answered later."""

RELEASED_S = 5.0
"""Pause between two looks whether the driver may be asked again, after somebody wanted it to be let go of."""

POORER_S = 300.0
"""How long a reading that knows less must stay the same before it is taken. A GPU that is reset or busy answers again
within a minute or two; one that has not done so for 5 minutes must not hide what became of the others."""

REREAD_S = 60.0
"""Pause between readings in good times. One costs some hundred calls of microseconds each."""

RESTART_S = 300.0
"""How long a call may hang beyond its deadline, outside of the kernel, before a new process is worth it."""

_NOT_OPEN = frozenset(
    {TroubleKind.RELEASED, TroubleKind.LIBRARY_MISSING, TroubleKind.NOT_LOADED, TroubleKind.VERSION_MISMATCH}
)
"""After these the driver is opened anew, maybe another one: what was read before may be true no more."""

T = TypeVar("T")

log = structlog.get_logger()


class ReadingSource(Protocol):
    """What is read. All calls but doing() come from one thread."""

    def read_all(self) -> Reading:
        """Return the node's GPUs as they are. Raises DracaenaError; may hang."""
        ...

    def doing(self) -> str:
        """Return what a reading is at right now."""
        ...

    def close(self) -> None:
        """Let go of the driver."""
        ...


class LiveMachine:
    """Tells each machine that differs from the last one to `on_change`, in a thread of its own.

    All methods from any thread; none but ask() waits for the driver.
    """

    def __init__(
        self,
        source: ReadingSource,
        clock: Clock,
        *,
        on_change: Callable[[Machine], None],
        on_troubles: Callable[[Sequence[Trouble]], None] = lambda _found: None,
    ) -> None:
        """`on_troubles` is told after each try all that is wrong with the driver, as far as a reading shows it."""
        self._source = source
        self._clock = clock
        self._on_change = on_change
        self._on_troubles = on_troubles
        self._driver = GpuDriverThread(clock, source.doing, source.close)
        # For the thread that looks alone:
        self._missing: tuple[Trouble, ...] = ()
        self._opened_anew = False
        self._poorer: tuple[Reading, float] | None = None
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._trouble: str | None = "the NVIDIA driver has not been asked yet"
        self._worker = Worker("live-machine", self._run, clock)

    def start(self) -> None:
        """Begin to read."""
        self._driver.start()
        self._worker.start()

    def stop(self) -> None:
        """End both threads and let go of the driver. A hanging call is left behind."""
        self._driver.stop()  # first: it lets the worker go
        self._worker.stop()

    def ask(self, what: str, work: Callable[[], T], deadline_s: float) -> T:
        """Return work(), run in the driver's thread. Raises as GpuDriverThread.call does."""
        return self._driver.call(what, work, deadline_s)

    def hung(self) -> str | None:
        """Return which call into the driver hangs, None when none does."""
        return self._driver.hung()

    def needs_restart(self) -> str | None:
        """Return which call hangs where a new process would help, None when none does.

        A call that hangs in the kernel is none: its process cannot be killed, and the node would be left without a
        plugin that unprepares what ends.
        """
        hung, thread = self._driver.hung(RESTART_S), self._driver.native_id
        return None if hung is None or thread is None or is_uninterruptible(thread) else hung

    def ready(self) -> str | None:
        """Return None once there is a machine, before that what is waited for."""
        with self._lock:
            return self._trouble if self._reading is None else None

    def stale(self) -> str | None:
        """Return why the last reading is older than it should be; None when it is not."""
        with self._lock:
            return self._trouble

    def _run(self) -> None:
        pause_s = 0.0
        while self._worker.pause(pause_s):
            try:
                pause_s = self.look()
            except StoppedError:
                return

    def look(self) -> float:
        """Read once and return how long to wait for the next look. Raises StoppedError."""
        try:
            return self._take(self._driver.call("a reading", self._source.read_all, READ_DEADLINE_S))
        except StoppedError:
            raise
        except GpuDriverReleasedError as error:
            self._fail(str(error), error.reason)
            return RELEASED_S
        except GpuDriverTroubleError as error:
            return self._fail(str(error), error.reason)
        except TopologyError as error:
            return self._fail(str(error), TroubleKind.CONTRADICTION)
        except DracaenaError as error:
            return self._fail(str(error))
        except Exception as error:
            # The thread's outermost loop: an error of ours must not end the reading for the life of the process.
            log.exception("reading failed")
            return self._fail(f"internal error of the plugin ({type(error).__name__}), see its log")

    def _take(self, reading: Reading) -> float:
        """Keep a reading, unless it may only be poorer for a while; return how long to wait for the next."""
        before = self._reading  # changed by this thread alone
        kept = before if before is not None and self._may_recover(before, reading) else None
        self._missing = reading_troubles(reading, (kept or reading).machine)
        if kept is not None:
            first = next(str(left_out) for left_out in reading.left_out if left_out.may_pass)
            return self._fail(f"{reading.unanswered} questions to the NVIDIA driver went unanswered (first: {first})")
        self._on_troubles(self._missing)
        self._tell(before, reading)
        self._opened_anew, self._poorer = False, None
        with self._lock:  # only now: what could not be taken is told again, and is not ready
            self._reading = reading
            self._trouble = None
        return INCOMPLETE_S if reading.unanswered else REREAD_S

    def _may_recover(self, before: Reading, reading: Reading) -> bool:
        """Return whether a reading knows less than the last one of the same driver, and has not done so for long."""
        if reading.unanswered <= before.unanswered or self._opened_anew:
            return False
        versions = (before.machine.driver_version, reading.machine.driver_version)
        if None not in versions and versions[0] != versions[1]:
            return False
        now_s = self._clock.monotonic()
        if self._poorer is None or self._poorer[0] != reading:
            self._poorer = (reading, now_s)
        return now_s - self._poorer[1] < POORER_S

    def _tell(self, before: Reading | None, reading: Reading) -> None:
        if before is None or before.left_out != reading.left_out:
            for left_out in reading.left_out:
                (log.warning if left_out.may_pass else log.debug)("fact left out", reason=str(left_out))
        machine = reading.machine
        if before is not None and before.machine == machine:
            return
        log.info("machine read", gpus=len(machine.gpus), migs=len(machine.mig_devices), driver=machine.driver_version)
        self._on_change(machine)

    def _fail(self, why: str, reason: TroubleKind = TroubleKind.READING_FAILED) -> float:
        self._opened_anew = self._opened_anew or reason in _NOT_OPEN
        self._on_troubles((*self._missing, trouble(reason, why)))  # no reading is no proof that a GPU is there
        return self._note(why)

    def _note(self, why: str) -> float:
        """Remember what is wrong and log it once; return how long to wait before the next try."""
        with self._lock:
            news = why != self._trouble
            self._trouble = why
            first = self._reading is None
        if news:
            log.warning("no reading" if first else "reading is stale", reason=why)
        return RETRY_S if first else INCOMPLETE_S
