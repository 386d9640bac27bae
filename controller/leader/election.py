"""Which replica of the controller may write: the one that holds a Lease, and only while the Lease certainly lasts.

The promise: when a new leader reads the state that it starts from, no write of an older leader can still land, and none
begins from then on. This holds whatever fails, as long as the steady clocks of the machines run at about one speed:

* A holder counts its lease from the moment before it sent the renewal that succeeded, so the lease ends for the holder
  before it can end for any other process. Others wait for the lease's whole duration from the moment after they last
  saw it change. Times of different machines are never compared: renewTime is only checked for change.
* A write begins only while the lease lasts longer than the server's time-out for it (WRITE_TIMEOUT_S), so it has landed
  or been dropped when the lease ends. A new leader waits for that time once more before it begins: this covers a
  request that took long to reach the server, and a process that was paused between its check and its write.
* A holder that can no longer renew has nothing to do: its permission expires by itself, whether the API is gone, slow
  or hanging. It keeps trying. If it is still the holder when the API is back, no other process led meanwhile, and it
  goes on; a restart of the API server alone changes no leader. If another process is the holder, or the Lease was
  deleted, it has lost for good and the process ends: a new process starts without any assumption, which is simpler to
  get right than clearing every table of a running one.
* A leader whose caches stay broken decides on stale state. It steps down: it writes nothing any more, and its process
  ends. A process takes the Lease only while its own caches are fresh, so that the next leader is better off.
* A leader that ends releases the Lease with no write under way, and the next one begins at once. A Lease that does not
  exist, or that another client has emptied, does not show who led a moment ago: the process that takes it waits for a
  whole duration as well.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import structlog

from dracaena.controller.ports import LeaseApi
from dracaena.kube.client import WRITE_TIMEOUT_S
from dracaena.kube.errors import AlreadyExistsError, ApiUnavailableError, ConflictError, KubeError, NotFoundError
from dracaena.kube.lease import Lease, LeaseSpec, microtime
from dracaena.process.clock import Clock

RETRY_S: Final = 2.0
"""Time between two renewals, and between two reads by a stand-by. Several fit into the time in which a renewal must
succeed (duration less WRITE_TIMEOUT_S, 10 s by default), and two replicas send one small request per second."""

RETRY_AFTER_FAILURE_S: Final = 0.5
"""Time until a failed renewal is tried again: if a request hangs for LEASE_TIMEOUT_S, two attempts still fit."""

LEASE_TIMEOUT_S: Final = 3.0
"""Read time-out of a request for the Lease: a server answers in milliseconds, and a server in trouble within a
second."""

LET_GO_S: Final = 90.0
"""How long a leader that can renew goes on although its caches are not fresh (counted after kube.freshness.STALE_S):
longer than the longest back-off of a reflector (45 s), and longer than a watch that was reopened after a silence may
take to show that it works (its first bookmark, 75 s)."""

log = structlog.get_logger()


class NotLeadingError(ApiUnavailableError):
    """A write was not sent, because this process may not write now."""

    @property
    def is_refusal(self) -> bool:
        """See KubeError: nothing was sent."""
        return True


class Leadership(Protocol):
    """Says whether this process may write, and until when."""

    def start(self) -> None:
        """Begin to compete for the leadership."""
        ...

    def stop(self) -> None:
        """Give the leadership up. Nothing may be written any more."""
        ...

    def wait_to_begin(self, timeout_s: float) -> bool:
        """Wait until this process leads and may read its starting state; False after timeout_s."""
        ...

    def writing(self) -> AbstractContextManager[None]:
        """Return the context in which each single write is sent. Entering it raises NotLeadingError when no write may
        begin now."""
        ...

    def leads(self) -> bool:
        """Whether this process is the leader and its lease has not run out."""
        ...

    def trouble(self) -> str | None:
        """Return why this process could not take over if the leader ended now; None when it could, or leads."""
        ...

    def __str__(self) -> str:
        """Describe the state for people: leading, standing by, or why not."""
        ...


class NoElection:
    """Leadership of a process that is the only one."""

    def start(self) -> None:
        """See Leadership."""

    def stop(self) -> None:
        """See Leadership."""

    def wait_to_begin(self, timeout_s: float) -> bool:
        """See Leadership."""
        return True

    def writing(self) -> AbstractContextManager[None]:
        """See Leadership."""
        return nullcontext()

    def leads(self) -> bool:
        """See Leadership."""
        return True

    def trouble(self) -> str | None:
        """See Leadership."""
        return None

    def __str__(self) -> str:
        return "leading, without an election"


@dataclass(frozen=True, slots=True)
class _Sent:
    """The moment before a request was sent."""

    monotonic_s: float
    time_of_day: datetime


@dataclass(frozen=True, slots=True)
class _Held:
    """The Lease in our hands."""

    lease: Lease
    sent: _Sent
    begin_s: float
    """Steady time from which the starting state may be read."""


class Election:
    """Leadership by a Lease, from a thread of its own. One lock of its own, never held during a request.

    No other process may have the same `identity`. `on_lost` is called once with the reason, from that thread, when
    another process may or should lead from now on: this process must end. It never leads again.
    """

    def __init__(
        self,
        lease: LeaseApi,
        clock: Clock,
        rng: random.Random,
        *,
        identity: str,
        duration_s: int,
        on_lost: Callable[[str], None],
        unfit_to_take: Callable[[], str | None] = lambda: None,
        unfit_to_lead: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`unfit_to_take` returns why this process should not become the leader now, `unfit_to_lead` why it should not
        remain the leader if that lasts for LET_GO_S; None when there is no such reason. Neither function may block.
        """
        self._unfit_to_take, self._unfit_to_lead = unfit_to_take, unfit_to_lead
        self._unfit_since_s: float | None = None  # only the election's thread touches it
        self._api = lease
        self._clock = clock
        self._rng = rng
        self._identity = identity
        self._duration_s = duration_s
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._held: _Held | None = None
        self._lost: str | None = None
        self._in_doubt_until_s = float("-inf")
        self._seen: LeaseSpec | None = None  # only the election's thread touches these two
        self._seen_s = 0.0
        self._trouble: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self.run, name="election", daemon=True)

    def start(self) -> None:
        """See Leadership."""
        self._thread.start()

    def stop(self) -> None:
        """See Leadership. The Lease is released if no write of ours can land any more."""
        self.end()
        if self._thread.is_alive():
            self._thread.join()
        self._give_back()

    def end(self) -> None:
        """Have run() return after its step."""
        self._stopping.set()

    def wait_to_begin(self, timeout_s: float) -> bool:
        """See Leadership."""
        if self._may_write():
            return True
        with self._lock:
            begins_in_s = self._held.begin_s - self._clock.monotonic() if self._held is not None else timeout_s
        wait_s = min(begins_in_s, timeout_s) if begins_in_s > 0 else timeout_s
        self._clock.sleep_until_set(self._stopping, wait_s)
        return self._may_write()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See Leadership."""
        with self._lock:
            why_not = self._why_not()
        if why_not is not None:
            raise NotLeadingError("write", None, "", why_not)
        try:
            yield
        except KubeError as error:
            if error.status is None or error.status >= 500:
                with self._lock:  # the server may have received it just now; then its whole time-out is left
                    self._in_doubt_until_s = self._clock.monotonic() + WRITE_TIMEOUT_S
            raise

    def leads(self) -> bool:
        """See Leadership."""
        with self._lock:
            return self._held is not None and self._lost is None and self._lasts_s(self._held) > 0

    def trouble(self) -> str | None:
        """See Leadership."""
        with self._lock:
            if self._lost is not None:
                return f"this process ends: {self._lost}"
            if self._held is not None or self._trouble is None:
                return None
            return f"the Lease cannot be read or taken: {self._trouble}"

    def __str__(self) -> str:
        with self._lock:
            if self._lost is not None:
                return f"ending: {self._lost}"
            if self._held is None:
                holder = self._seen.holder_identity if self._seen is not None else None
                return f"standing by, {holder or 'no instance'} leads"
            why_not = self._why_not()
            return "leading" if why_not is None else f"leading, but not writing: {why_not}"

    def run(self) -> None:
        """Compete for the Lease until stop(), or until it is lost."""
        while not self._stopping.is_set() and self._lost is None:
            self._clock.sleep_until_set(self._stopping, self.step())

    def step(self) -> float:
        """Take or renew the Lease, or look at it; return the seconds until the next step."""
        try:
            if self._held is None:
                self._look()
                self._trouble = None
                # Between 3/4 and 5/4, so that stand-bys do not read at the same moment.
                return RETRY_S * self._rng.uniform(0.75, 1.25)
            return RETRY_S if self._renew(self._held) else RETRY_AFTER_FAILURE_S
        except KubeError as error:
            self._trouble = " ".join(str(error).split())
            log.warning("lease not taken or renewed", error=self._trouble, leading=self._held is not None)
        except Exception as error:  # whatever it was, it was no renewal
            self._trouble = type(error).__name__
            log.exception("lease not taken or renewed", leading=self._held is not None)
        return RETRY_AFTER_FAILURE_S

    def _look(self) -> None:
        """Read the Lease; take it when no process can hold it any more."""
        seen = self._api.read()
        now_s = self._clock.monotonic()
        if seen is None:
            self._make()
            return
        spec = seen.spec
        if is_given_back(spec):
            self._take(seen, wait_s=0.0, why="it was given back")
        elif not spec.holder_identity:
            self._take(seen, wait_s=self._duration_s + WRITE_TIMEOUT_S, why="it names no holder")
        elif spec.holder_identity == self._identity:
            # Our request landed after we had given up on it. We no longer know who led before.
            self._take(
                seen, wait_s=self._duration_s + WRITE_TIMEOUT_S, why="it was taken by a request that got no answer"
            )
        elif spec != self._seen:
            self._seen, self._seen_s = spec, now_s
        elif now_s - self._seen_s >= max(self._duration_s, spec.lease_duration_seconds or 0):
            self._take(seen, wait_s=WRITE_TIMEOUT_S, why=f"{spec.holder_identity} let it expire")

    def _make(self) -> None:
        if self._is_unfit_to_take():
            return
        sent = self._now()
        try:
            lease = self._api.create(self._spec(None))
        except AlreadyExistsError:
            return
        self._won(lease, sent, self._duration_s + WRITE_TIMEOUT_S, "there was none")

    def _take(self, seen: Lease, *, wait_s: float, why: str) -> None:
        if self._is_unfit_to_take():
            return
        sent = self._now()
        try:
            lease = self._api.write(seen, self._spec(seen.spec))
        except (ConflictError, NotFoundError):
            return  # another process was faster: the next look shows which
        self._won(lease, sent, wait_s, why)

    def _is_unfit_to_take(self) -> bool:
        why = self._unfit_to_take()
        if why is not None:
            log.info("lease is free and not taken", identity=self._identity, why=why)
        return why is not None

    def _won(self, lease: Lease, sent: _Sent, wait_s: float, why: str) -> None:
        with self._lock:
            self._held = _Held(lease, sent, self._clock.monotonic() + wait_s)
        log.info("lease taken", identity=self._identity, why=why, begins_in_s=wait_s)

    def _renew(self, held: _Held) -> bool:
        """Renew the Lease; return False when it has to be tried again, or is lost."""
        sent = self._now()
        try:
            lease = self._api.write(held.lease, self._spec(held.lease.spec))
        except (ConflictError, NotFoundError):
            self._look_who_holds(held)
            return False
        with self._lock:
            self._held = _Held(lease, sent, held.begin_s)
            self._trouble = None
        self._judge(sent.monotonic_s, sent.monotonic_s - held.sent.monotonic_s)
        return True

    def _judge(self, now_s: float, since_last_s: float) -> None:
        """After a renewal: step down if this process has been unfit to lead for long.

        Time counts only while renewals succeed often enough to allow writes. When they do not, the API server is away,
        for the caches and for all other processes too: that is no reason to end.
        """
        why = self._unfit_to_lead()
        if why is None:
            self._unfit_since_s = None
        elif self._unfit_since_s is None or since_last_s > self._duration_s - WRITE_TIMEOUT_S:
            self._unfit_since_s = now_s
        elif now_s - self._unfit_since_s >= LET_GO_S:
            self._let_go(why)

    def _let_go(self, why: str) -> None:
        """Write nothing from now on, and end. stop() releases the Lease once the writes under way are done; until then
        it is not renewed."""
        with self._lock:
            self._lost = why
        log.error("leadership given up", identity=self._identity, why=why)
        self._on_lost(why)

    def _look_who_holds(self, held: _Held) -> None:
        """Read the Lease after it changed: by our request whose answer was lost, by a third party, or because it is
        lost."""
        fresh = self._api.read()
        if fresh is None or fresh.metadata.uid != held.lease.metadata.uid:
            self._lose("the Lease was deleted")
        elif fresh.spec.holder_identity != self._identity:
            self._lose(f"the Lease is held by {fresh.spec.holder_identity or 'no instance'}")
        else:
            with self._lock:
                self._held = _Held(fresh, held.sent, held.begin_s)

    def _lose(self, why: str) -> None:
        with self._lock:
            self._held, self._lost = None, why
        log.error("leadership lost", identity=self._identity, why=why)
        self._on_lost(why)

    def _give_back(self) -> None:
        with self._lock:
            held = self._held
            self._held = None
            now_s = self._clock.monotonic()
        if held is None:
            return
        if max(self._in_doubt_until_s, held.begin_s) > now_s:
            log.info("lease not given back: a write of ours or of an earlier leader may land", identity=self._identity)
            return
        try:
            self._api.write(held.lease, given_back(held.lease.spec, microtime(self._clock.now())))
        except KubeError as error:  # it runs out by itself
            log.info("lease not given back", identity=self._identity, error=str(error))
        else:
            log.info("lease given back", identity=self._identity)

    def _may_write(self) -> bool:
        with self._lock:
            return self._why_not() is None

    def _why_not(self) -> str | None:
        """Return why no write may begin now, None when one may. Under the lock."""
        if self._held is None or self._lost is not None:
            return self._lost or "another process leads"
        begins_in_s = self._held.begin_s - self._clock.monotonic()
        if begins_in_s > 0:
            return f"writes of an earlier leader may land for {begins_in_s:.1f} s more"
        lasts_s = self._lasts_s(self._held)
        if lasts_s <= WRITE_TIMEOUT_S:
            return (
                f"the lease lasts {max(lasts_s, 0.0):.1f} s, a write takes up to {WRITE_TIMEOUT_S} s, "
                f"and it cannot be renewed: {self._trouble or 'no answer yet'}"
            )
        return None

    def _lasts_s(self, held: _Held) -> float:
        """Return how long the Lease is certainly ours.

        While a machine is suspended the steady clock may stop, and the time of day jumps afterwards: the clock that
        advanced further counts. So a jump can end our lease early but never extend it. (Only a time of day that is set
        back during a suspension would hide the pause.)
        """
        steady_s = self._clock.monotonic() - held.sent.monotonic_s
        of_day_s = (self._clock.now() - held.sent.time_of_day).total_seconds()
        return self._duration_s - max(steady_s, of_day_s)

    def _now(self) -> _Sent:
        return _Sent(self._clock.monotonic(), self._clock.now())

    def _spec(self, before: LeaseSpec | None) -> LeaseSpec:
        """Return the spec that names us as the holder, following `before`."""
        now = microtime(self._clock.now())
        transitions = (before.lease_transitions or 0) if before is not None else 0
        if before is not None and before.holder_identity == self._identity:
            acquired = before.acquire_time or now
        else:
            acquired = now
            transitions += before is not None
        return LeaseSpec(self._identity, self._duration_s, acquired, now, transitions)


def given_back(spec: LeaseSpec, now: str) -> LeaseSpec:
    """Return the spec of a released Lease: no holder since `now`. Only a release has a renewTime without an
    acquireTime."""
    return LeaseSpec(renew_time=now, lease_transitions=spec.lease_transitions)


def is_given_back(spec: LeaseSpec) -> bool:
    """Whether a holder released the Lease (given_back)."""
    return not spec.holder_identity and spec.renew_time is not None and spec.acquire_time is None
