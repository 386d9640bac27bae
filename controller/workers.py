"""Takes keys from the work queue, makes one decision at a time, and carries out many at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.controller.garbage import collect_between_decisions
from dracaena.controller.leader.election import NotLeadingError
from dracaena.controller.queue.retry import retry_later
from dracaena.controller.queue.work import claim_of_work
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.controller.reconciler import Reconciler, Step
from dracaena.controller.write.claim_tender import ClaimTender
from dracaena.kube.errors import KubeError
from dracaena.process.clock import Clock

NOT_LEADING_S: Final = 1.0
"""Pause before retrying a write that was not sent because this process does not lead at the moment."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Tend:
    """A claim may need a next step, apart from decisions."""

    claim_key: str


class Workers:
    """What each worker thread runs. Only one worker at a time decides, so that decisions are made in the order of the
    queue however many workers write."""

    def __init__(self, queue: WorkQueue, reconciler: Reconciler, tender: ClaimTender, clock: Clock) -> None:
        self._queue = queue
        self._reconciler = reconciler
        self._tender = tender
        self._clock = clock
        self._turnstile = threading.Lock()
        self._deciding_since_s: float | None = None

    def serve(self) -> None:
        """Work until the queue is closed."""
        while (taken := self.take()) is not None:
            key, step = taken
            with structlog.contextvars.bound_contextvars(pod=key):
                self.carry_out(key, step)
            self._queue.done(key)

    def take(self) -> tuple[str, Step | Tend] | None:
        """Take the next key, and decide if it is a pod's; return what to carry out, None at the end."""
        while True:
            with self._turnstile:
                collect_between_decisions()
                key = self._queue.get()
                if key is None:
                    return None
                claim_key = claim_of_work(key)
                if claim_key is not None:
                    return key, Tend(claim_key)
                self._deciding_since_s = self._clock.monotonic()
                with structlog.contextvars.bound_contextvars(pod=key):
                    try:
                        return key, self._reconciler.plan(key)
                    except Exception:  # one pod's trouble must not end the worker for all others
                        log.exception("fault in the controller, will try again")
                    finally:
                        self._deciding_since_s = None
            self._queue.retry(key)
            self._queue.done(key)

    def carry_out(self, key: str, step: Step | Tend) -> None:
        """Write what was decided, or do the next step for a claim. What fails is tried again later."""
        try:
            if isinstance(step, Tend):
                again_s = self._tender.tend(step.claim_key)
                self._queue.forget(key)
                if again_s is not None:
                    self._queue.add_after(key, again_s)
                return
            if self._reconciler.carry_out(key, step):
                self._queue.forget(key)
                return
            log.info("will decide again", in_s=round(retry_later(self._queue, key), 2))
        except NotLeadingError as error:
            # Nothing is wrong with the pod: no growing wait.
            self._queue.add_after(key, NOT_LEADING_S)
            log.info("not written", error=str(error))
        except KubeError as error:
            log.warning("will try again", in_s=round(retry_later(self._queue, key, error), 2), error=str(error))
        except Exception:  # one pod's trouble must not end the worker for all others
            log.exception("fault in the controller, will try again")
            self._queue.retry(key)

    def collect_garbage(self) -> None:
        """Look for garbage that the watches left, unless a decision is under way. Call it now and then, because there
        may be no decisions for long."""
        if self._deciding_since_s is None:
            collect_between_decisions()

    def deciding_for_s(self) -> float:
        """Return for how many seconds the current decision has been under way; 0 when there is none."""
        since_s = self._deciding_since_s
        return 0.0 if since_s is None else self._clock.monotonic() - since_s
