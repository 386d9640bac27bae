"""The controller as a program: joins the parts, starts and stops them in order."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.api.objects import DeviceClass, Node, Pod, ResourceClaim, ResourceSlice
from dracaena.controller.adapters.kube import KubeClaims
from dracaena.controller.claim_writer import ClaimWriter
from dracaena.controller.cluster import Cluster
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.reconciler import DOUBT_S, Reconciler
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.shared_values import with_shared_values
from dracaena.controller.take_back import TakeBack
from dracaena.controller.waiting import WaitingPods
from dracaena.controller.workqueue import WorkQueue
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.kube.events import EventRecorder
from dracaena.kube.reflector import Reflector
from dracaena.kube.transport import Transport
from dracaena.process.clock import Clock, SystemClock
from dracaena.process.ending import hold_end_signals, wait_for_end_signal
from dracaena.process.http import HttpEndpoint
from dracaena.process.logs import configure_logs

COMPONENT: Final = "dracaena-controller"
"""Name in Events, and user agent."""

TICK_S: Final = 1.0
"""How often held-back Events and overdue writes are looked at: fine enough for waits of 10 s and more."""

log = structlog.get_logger()


class Controller:
    """All parts of one controller over one API server. start() once, then stop() once."""

    def __init__(
        self,
        settings: ControllerSettings,
        client: KubeClient,
        *,
        clock: Clock,
        registry: CollectorRegistry = REGISTRY,
        rng: random.Random | None = None,
    ) -> None:
        driver = settings.driver_name
        self._settings = settings
        self._clock = clock
        self._stopping = threading.Event()
        self._metrics = ControllerMetrics(registry)
        self._queue = WorkQueue(clock, rng or random.Random())  # noqa: S311 - jitter, no secret
        self._events = EventRecorder(client, COMPONENT, clock)
        self._waiting = WaitingPods(self._events, clock, self._metrics)
        self._cluster = Cluster(
            driver,
            wake=self._queue.add,
            waiting=self._waiting.keys,
            problems_changed=self._metrics.problems_changed,
        )
        claims = KubeClaims(client)
        self._reconciler = Reconciler(
            driver,
            cluster=self._cluster,
            claims=claims,
            writer=ClaimWriter(driver, claims, clock, self._metrics),
            take_back=TakeBack(
                claims, claims, self._cluster.forget, clock, self._metrics, unbound_wait_s=settings.unbound_wait_s
            ),
            waiting=self._waiting,
            queue=self._queue,
            events=self._events,
            clock=clock,
            metrics=self._metrics,
        )
        self._reflectors = (
            Reflector(client, Node, clock=clock, on_change=self._cluster.node_changed),
            Reflector(client, DeviceClass, clock=clock, on_change=self._cluster.class_changed),
            Reflector(
                client,
                ResourceSlice,
                clock=clock,
                field_selector=f"spec.driver={driver}",
                on_change=self._cluster.slice_changed,
                transform=with_shared_values,
            ),
            Reflector(client, ResourceClaim, clock=clock, on_change=self._cluster.claim_changed),
            Reflector(client, Pod, clock=clock, on_change=self._cluster.pod_changed),
        )
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to watch; decisions begin when everything was seen once. Returns at once."""
        self._events.start()
        for reflector in self._reflectors:
            reflector.start()
        self._spawn("ticker", self._tick)
        self._spawn("starter", self._start_workers)

    def stop(self) -> None:
        """End all threads. A write in progress is finished; what was decided and not written is forgotten."""
        self._stopping.set()
        self._queue.close()
        for reflector in self._reflectors:
            reflector.stop()
        for thread in self._threads:
            thread.join()
        self._events.stop()

    def not_ready(self) -> str | None:
        """Return what is still missing before decisions are made, None when nothing is."""
        synced = all(reflector.synced for reflector in self._reflectors)
        return None if synced else "the first lists from the API server are not complete"

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start_workers(self) -> None:
        """Wait for the whole truth: a device is only free when every claim was seen."""
        for reflector in self._reflectors:
            while not reflector.wait_synced(TICK_S):
                if self._stopping.is_set():
                    return
        freeze_what_stays()
        log.info("everything seen once, decisions begin", workers=self._settings.workers)
        for number in range(self._settings.workers):
            self._spawn(f"worker-{number}", self._work)

    def _work(self) -> None:
        while (key := self._queue.get()) is not None:
            with structlog.contextvars.bound_contextvars(pod=key):
                self._reconcile(key)
            self._queue.done(key)

    def _reconcile(self, key: str) -> None:
        try:
            if self._reconciler.reconcile(key):
                self._queue.forget(key)
                return
            log.info("will decide again", in_s=round(self._queue.retry(key), 2))
        except KubeError as error:
            log.warning("will try again", in_s=round(self._queue.retry(key), 2), error=str(error))
        except Exception:  # one pod's trouble must not end the worker for all others
            log.exception("fault in the controller, will try again")
            self._queue.retry(key)

    def _tick(self) -> None:
        while not self._clock.sleep_until_set(self._stopping, TICK_S):
            self._waiting.tell_due()
            for key in sorted(self._cluster.assumed_before(self._clock.monotonic() - DOUBT_S)):
                self._queue.add(key)


def freeze_what_stays() -> None:
    """Let the cyclic garbage collector look no more at what is in memory now.

    It would stop everything for 0.15 s now and then, to walk the nodes, slices and claims of 5,000 nodes, which hold no
    cycles: they go when nobody names them any more.
    """
    gc.collect()
    gc.freeze()


def run(settings: ControllerSettings) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Call it in the main thread."""
    hold_end_signals()
    configure_logs(settings.log_level, settings.log_format)
    clock = SystemClock()
    client = KubeClient(Transport.from_kubeconfig(settings.kubeconfig or None, user_agent=COMPONENT))
    controller = Controller(settings, client, clock=clock)
    endpoint = HttpEndpoint(settings.http_address, controller.not_ready) if settings.http_address else None
    if endpoint is not None:
        endpoint.start()
    controller.start()
    log.info("started", driver=settings.driver_name, http_port=endpoint.port if endpoint is not None else None)
    log.info("stopping", signal=wait_for_end_signal().name)
    controller.stop()
    if endpoint is not None:
        endpoint.stop()
    return 0
