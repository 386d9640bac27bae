"""Takes pods off our scheduling gate: those that have their GPUs, and those that the gate can do nothing more for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import structlog

from dracaena.api.gates import is_at_our_gate
from dracaena.api.names import allocation_gate
from dracaena.api.objects import Pod
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.ports import EventSink, PodApi
from dracaena.controller.queue.retry import retry_later
from dracaena.controller.queue.workqueue import WorkQueue
from dracaena.kube.errors import ForbiddenError, InvalidError, KubeError, NotFoundError
from dracaena.process.clock import Clock

EVENT_REASON: Final = "GateNotRemoved"

log = structlog.get_logger()


class Ungated(Enum):
    """Why a pod passes the gate; values are metric labels."""

    ALLOCATED = "allocated"
    NOT_OURS = "not-ours"
    """It asks for nothing that we allocate."""
    FITS_NOWHERE = "fits-nowhere"
    """It has waited at the gate for long enough: autoscalers ignore gated pods, and people look for Unschedulable."""


@dataclass(frozen=True, slots=True)
class _GatedPod:
    """What was last found about a pod at the gate."""

    uid: str
    since_s: float
    """When we first found that it fits nowhere, or were asked to ungate it."""
    reason: Ungated | None = None
    """Why it is ungated; None: it waits. Kept until the watch shows the pod past the gate, so as to ungate it only
    once."""


class Gatekeeper:
    """Removes gates with a queue and threads of its own: each is one more write for its pod, and the workers that write
    allocations must not wait for it. Safe to use from many threads. What it knows is lost with the process: a new
    leader finds each pod at the gate again when it decides for all.
    """

    def __init__(
        self,
        driver: str,
        pods: PodApi,
        pod_of: Callable[[str], Pod | None],
        queue: WorkQueue,
        *,
        events: EventSink,
        clock: Clock,
        metrics: ControllerMetrics,
        wait_s: float,
    ) -> None:
        """`pod_of` returns a pod as the watch shows it. `queue` is used by the gatekeeper alone. `wait_s`: how long a
        pod that fits nowhere stays at the gate."""
        self._driver = driver
        self._pods = pods
        self._pod_of = pod_of
        self._queue = queue
        self._events = events
        self._clock = clock
        self._metrics = metrics
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._known: dict[str, _GatedPod] = {}

    def ungate(self, pod: Pod, reason: Ungated) -> None:
        """Have our gate removed if it is the pod's only one. Returns at once; a write that fails is tried again."""
        if not is_at_our_gate(pod, self._driver):
            return
        with self._lock:
            known = self._known.get(pod.key)
            if known is not None and known.uid == pod.metadata.uid and known.reason is not None:
                return
            self._known[pod.key] = _GatedPod(pod.metadata.uid, self._clock.monotonic(), reason)
        self._queue.add(pod.key)

    def wait(self, pod: Pod) -> float | None:
        """Note that a pod fits nowhere now; return in how many seconds to look at it again. None: it is not at our
        gate, or passes it now because it has waited for long enough."""
        if not is_at_our_gate(pod, self._driver):
            return None
        now_s = self._clock.monotonic()
        with self._lock:
            known = self._known.get(pod.key)
            if known is None or known.uid != pod.metadata.uid:
                known = self._known[pod.key] = _GatedPod(pod.metadata.uid, now_s)
        left_s = known.since_s + self._wait_s - now_s
        if left_s > 0:
            return left_s
        self.ungate(pod, Ungated.FITS_NOWHERE)
        return None

    def see(self, pod: Pod) -> None:
        """Take in a pod that the watch shows. No decision is made about one without claims, so it is ungated here."""
        if pod.spec.scheduling_gates and not pod.spec.resource_claims:
            self.ungate(pod, Ungated.NOT_OURS)

    def forget_passed(self) -> None:
        """Forget the pods that are past the gate or gone, as the watch shows them. Cost: a step per pod there."""
        with self._lock:
            known = list(self._known.items())
        passed = [(key, one) for key, one in known if not self._is_there(key, one.uid)]
        with self._lock:
            for key, one in passed:
                if self._known.get(key) is one:
                    del self._known[key]

    def serve(self) -> None:
        """Remove gates until close(). Run it in as many threads as there should be concurrent writes."""
        while (key := self._queue.get()) is not None:
            with structlog.contextvars.bound_contextvars(pod=key):
                self._remove(key)
            self._queue.done(key)

    def close(self) -> None:
        """End serve() in all threads; a write under way is finished."""
        self._queue.close()

    def _is_there(self, key: str, uid: str) -> bool:
        return self._at_gate(key, uid) is not None

    def _at_gate(self, key: str, uid: str) -> Pod | None:
        """Return a pod that the watch shows at the gate; None: it is past the gate, or another pod has its name."""
        pod = self._pod_of(key)
        is_it = pod is not None and pod.metadata.uid == uid and is_at_our_gate(pod, self._driver)
        return pod if is_it else None

    def _remove(self, key: str) -> None:
        with self._lock:
            known = self._known.get(key)
        pod = None if known is None else self._at_gate(key, known.uid)
        if known is None or known.reason is None or pod is None:
            self._queue.forget(key)
            return
        try:
            self._pods.ungate(pod)
        except NotFoundError:
            self._queue.forget(key)  # the watch will show it
        except KubeError as error:
            # A conflict, too: the server gives up a patch after some attempts when others write the pod all the time.
            # If another pod has that name now, the watch will have shown it by the next attempt.
            self._report(pod, error)
            log.warning("gate not removed", error=str(error), in_s=round(retry_later(self._queue, key, error), 2))
        except Exception:  # a fault caused by one pod must not end the process, and with it all other decisions
            log.exception("fault in the controller, will try again")
            self._queue.retry(key)
        else:
            self._passed(key, known, known.reason)

    def _passed(self, key: str, known: _GatedPod, reason: Ungated) -> None:
        self._queue.forget(key)
        self._metrics.writes.ungated.labels(reason.value).inc()
        log.info("gate removed", reason=reason.value, after_s=round(self._clock.monotonic() - known.since_s, 3))

    def _report(self, pod: Pod, error: KubeError) -> None:
        if isinstance(error, ForbiddenError | InvalidError):
            text = (
                f"the controller may not remove its scheduling gate {allocation_gate(self._driver)}: an admin has to "
                f"give it the right to patch pods, or to fix the policy that denies it. The API server says: {error}"
            )
            self._events.record(pod, "Warning", EVENT_REASON, text, latest=True)
