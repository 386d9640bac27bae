"""This node's machine as the driver describes it, reread periodically; subscribers are told when it changes.

Until the driver is there, it waits and says what for. If the driver hangs later, the reading only becomes stale:
prepare works from the last one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Machine
from dracaena.api.topology import TopologyError
from dracaena.host.adapters.kernel.thread_state import is_uninterruptible
from dracaena.host.facts.troubles import (
    GpuDriverReleasedError,
    GpuDriverTroubleError,
    Trouble,
    TroubleKind,
    trouble,
)
from dracaena.host.gpu_driver.thread import GpuDriverThread, StoppedError
from dracaena.kubelet_plugin.discovery.build import Reading, reading_troubles
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock

READ_DEADLINE_S = 120.0
"""Longest that one reading may take. Without persistence mode, opening NVML makes the driver bring up the GPUs one by
one, some seconds each, and a node has up to 16."""

RETRY_S = 5.0
"""Pause before asking again for a driver that is not there: a driver container needs minutes, and pods wait for us."""

INCOMPLETE_S = 15.0
"""Pause after a reading with unanswered questions that may be answered later."""

RELEASED_S = 5.0
"""Pause between two checks whether the driver may be used again, after somebody asked us to release it."""

POORER_S = 300.0
"""How long a poorer reading must stay the same before it is accepted. A GPU that is reset or busy answers again within
a minute or two; one that has not answered for 5 minutes must not hide what became of the others."""

REREAD_S = 60.0
"""Pause between readings when all is well. One costs some hundred calls of microseconds each."""

FABRIC_S = 15.0
"""Pause between readings if Fabric Manager has partitions: after a restart it exits within 60 s unless it is told which
are active."""

RESTART_S = 300.0
"""How long a call may hang beyond its deadline, outside the kernel, before a restart is worth it."""

_NOT_OPEN = frozenset(
    {TroubleKind.RELEASED, TroubleKind.LIBRARY_MISSING, TroubleKind.NOT_LOADED, TroubleKind.VERSION_MISMATCH}
)
"""After these the driver is opened again and may be another one: earlier readings may no longer hold."""

T = TypeVar("T")

log = structlog.get_logger()


def as_read(reading: Reading) -> Reading:
    """Return a reading to which nothing is added."""
    return reading


class ReadingSource(Protocol):
    """The source of readings. All calls except doing() come from one thread."""

    def read_all(self) -> Reading:
        """Return the node's GPUs as they are. Raises DracaenaError; may hang."""
        ...

    def doing(self) -> str:
        """Return the step that the current reading is at."""
        ...

    def close(self) -> None:
        """Close the driver."""
        ...


class LiveMachine:
    """Passes each machine that differs from the last one to `on_change`, in a thread of its own.

    Methods may be called from any thread; only ask() waits for the driver.
    """

    def __init__(
        self,
        source: ReadingSource,
        clock: Clock,
        *,
        on_change: Callable[[Machine], None],
        on_same: Callable[[], None] = lambda: None,
        on_troubles: Callable[[Sequence[Trouble]], None] = lambda _found: None,
        complete: Callable[[Reading], Reading] = as_read,
    ) -> None:
        """`on_same` is called for each reading whose machine equals the last one. After each attempt `on_troubles` gets
        everything that a reading shows to be wrong with the driver. `complete` adds to a reading what the driver does
        not know; it may wait, and raises DracaenaError if the reading is useless without that.
        """
        self._source = source
        self._complete = complete
        self._clock = clock
        self._on_change = on_change
        self._on_same = on_same
        self._on_troubles = on_troubles
        self._gpu_driver = GpuDriverThread(clock, source.doing, source.close)
        # Only for the thread that looks:
        self._missing: tuple[Trouble, ...] = ()
        self._opened_anew = False
        self._poorer: tuple[Reading, float] | None = None
        self._lock = threading.Lock()
        self._reading: Reading | None = None
        self._trouble: str | None = "the NVIDIA driver has not been asked yet"
        self._worker = Worker("live-machine", self._run, clock)

    def start(self) -> None:
        """Begin to read."""
        self._gpu_driver.start()
        self._worker.start()

    def stop(self) -> None:
        """End both threads and close the driver. A hanging call is left behind."""
        self._gpu_driver.stop()  # first: it releases the worker
        self._worker.stop()

    def ask(self, what: str, work: Callable[[], T], deadline_s: float) -> T:
        """Return work(), run in the driver's thread. Raises as GpuDriverThread.call does."""
        return self._gpu_driver.call(what, work, deadline_s)

    def hung(self) -> str | None:
        """Return which call into the driver hangs, None if none does."""
        return self._gpu_driver.hung()

    def needs_restart(self) -> str | None:
        """Return which call hangs in a way that a restart would fix, None if none does.

        A call that hangs in the kernel does not count: its process cannot be killed, and the node would be left without
        a plugin to unprepare claims that end.
        """
        hung, thread = self._gpu_driver.hung(RESTART_S), self._gpu_driver.native_id
        return None if hung is None or thread is None or is_uninterruptible(thread) else hung

    def ready(self) -> str | None:
        """Return what is being waited for; None once there is a machine."""
        with self._lock:
            return self._trouble if self._reading is None else None

    def stale(self) -> str | None:
        """Return why the last reading is out of date; None if it is not."""
        with self._lock:
            return self._trouble

    def read_soon(self) -> None:
        """Read at once instead of after the pause, because something was changed. Never blocks."""
        self._worker.notice()

    def _run(self) -> None:
        pause_s = 0.0
        while self._worker.wait(within_s=pause_s):
            try:
                pause_s = self.look()
            except StoppedError:
                return

    def look(self) -> float:
        """Read once and return how long to wait before the next look. Raises StoppedError."""
        try:
            reading = self._gpu_driver.call("a reading", self._source.read_all, READ_DEADLINE_S)
            return self._take(self._complete(reading))  # in this thread: others wait for the driver's thread
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
            # The thread's outermost loop: a bug must not end the reading for the life of the process.
            log.exception("reading failed")
            return self._fail(f"internal error of the plugin ({type(error).__name__}), see its log")

    def _take(self, reading: Reading) -> float:
        """Keep a reading unless its gaps may be temporary; return how long to wait before the next one."""
        before = self._reading  # only this thread changes it
        kept = before if before is not None and self._may_recover(before, reading) else None
        self._missing = reading_troubles(reading, (kept or reading).machine)
        if kept is not None:
            first = next(str(left_out) for left_out in reading.left_out if left_out.may_pass)
            return self._fail(f"{reading.unanswered} questions to the NVIDIA driver went unanswered (first: {first})")
        self._on_troubles(self._missing)
        self._tell(before, reading)
        self._opened_anew, self._poorer = False, None
        with self._lock:  # only now: if passing it on fails, it is passed on again, and we are not ready
            self._reading = reading
            self._trouble = None
        if reading.unanswered:
            return INCOMPLETE_S
        return REREAD_S if reading.machine.fabric is None else FABRIC_S

    def _may_recover(self, before: Reading, reading: Reading) -> bool:
        """Return whether a reading knows less than the last one of the same driver, and only since recently."""
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
            self._on_same()
            return
        log.info("machine read", gpus=len(machine.gpus), migs=len(machine.mig_devices), driver=machine.driver_version)
        self._on_change(machine)

    def _fail(self, why: str, reason: TroubleKind = TroubleKind.READING_FAILED) -> float:
        self._opened_anew = self._opened_anew or reason in _NOT_OPEN
        self._on_troubles((*self._missing, trouble(reason, why)))  # no new reading shows that missing GPUs are back
        return self._note(why)

    def _note(self, why: str) -> float:
        """Remember what is wrong and log it once; return how long to wait before the next attempt."""
        with self._lock:
            news = why != self._trouble
            self._trouble = why
            first = self._reading is None
        if news:
            log.warning("no reading" if first else "reading is stale", reason=why)
        return RETRY_S if first else INCOMPLETE_S
