"""The controller as a program: starts and stops the parts in order, and reports how they are."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.api.topology_levels import DEFAULT_LEVELS
from dracaena.controller import wiring
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.garbage import freeze_what_stays
from dracaena.controller.leader.election import LEASE_TIMEOUT_S
from dracaena.controller.leader.takeover import begin, wait_to_lead
from dracaena.controller.page.wiring import build_page
from dracaena.controller.queue.time_budgets import DECISION_S, Deadline
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.state.upkeep import UpkeepRules
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.kube.server_version import ServerVersion, server_version, too_old
from dracaena.kube.transport import Transport
from dracaena.process.clock import Clock, SystemClock, rfc3339
from dracaena.process.ending import end_this_process, hold_end_signals, wait_for_end_signal
from dracaena.process.http import HttpEndpoint
from dracaena.process.logs import configure_logs

TICK_S: Final = 1.0
"""How often held-back Events, starving pods and garbage are looked at: fine enough for waits of 10 s and more."""

SERVER_VERSION_S: Final = 60.0
"""How often the server is asked for its version. A control plane is updated in minutes and the rules of two versions
differ little, so a minute late is early enough."""

GATE_WRITES: Final = 8
"""Scheduling gates that are removed at the same time: half as many as allocations, which take two writes and more each.
Together with the allocations and the caches they fill the 32 connections."""

EXIT_LEADERSHIP_LOST: Final = 1
"""kubelet restarts a container that exits with this; the new process knows nothing and stands by."""

STUCK_S: Final = 60.0
"""A decision that takes longer is stuck: it may take 0.15 s. No pod is served any more; only a new process helps."""

log = structlog.get_logger()


class Controller:
    """One controller over one API server. start() once, then stop() once.

    Every replica keeps its caches; only the leader decides, and all its writes go through the leadership.
    `lease_client` is used only for the Lease. `on_lost` is called with the reason when this process must end.
    `rules` have other patience than those of the settings (wiring.upkeep_rules).
    """

    def __init__(
        self,
        settings: ControllerSettings,
        client: KubeClient,
        *,
        clock: Clock,
        registry: CollectorRegistry = REGISTRY,
        rng: random.Random | None = None,
        lease_client: KubeClient | None = None,
        on_lost: Callable[[str], None] = lambda why: None,
        rules: UpkeepRules | None = None,
    ) -> None:
        rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        given = wiring.Dependencies(client, lease_client or client, clock, rng, registry, on_lost, rules)
        self.parts = wiring.build(settings, given)
        self._settings = settings
        self._clock = clock
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to watch; decisions begin once everything was seen and this process leads. Returns at once."""
        self.parts.events.start()
        self.parts.leadership.start()
        self.parts.watches.start()
        self._spawn("ticker", self._tick)
        self._spawn("starter", self._start_workers)

    def stop(self) -> None:
        """End all threads. A write in progress is finished; what was decided and not written is forgotten.

        The leadership is given up last, when nothing can be written any more.
        """
        self._stopping.set()
        self.parts.queue.close()
        self.parts.gatekeeper.close()
        self.parts.watches.stop()
        for thread in self._threads:
            thread.join()
        self.parts.events.stop()
        self.parts.leadership.stop()

    def not_ready(self) -> str | None:
        """Return what keeps this process from leading, or from leading well; None when nothing does, even on a
        stand-by."""
        return self.parts.watches.trouble() or self.parts.leadership.trouble()

    def not_alive(self) -> str | None:
        """Return why only a new process would help: no decision was made for long. None when that is not so."""
        stuck_s = self.parts.workers.deciding_for_s()
        return None if stuck_s < STUCK_S else f"a decision has been under way for {stuck_s:.0f} s"

    def state(self) -> str:
        """Say whether this process leads or stands by."""
        return f"ok: synced, {self.parts.leadership}"

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception:
                # Without this thread no decision would be made, or nothing stuck would be found: a new process is
                # better.
                log.exception("fault in the controller, the process ends", thread=name)
                self._on_lost(f"fault in thread {name}")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _start_workers(self) -> None:
        """Wait until everything was seen once and this process leads; then begin."""
        parts = self.parts
        leadership = parts.leadership if self._settings.leader_elect else None
        if not wait_to_lead(
            parts.watches.all,
            leadership,
            parts.watches.claims,
            stopping=self._stopping.is_set,
            seen_once=self._everything_was_seen,
        ):
            return
        self._look_at_what_waits()
        begin(parts.cluster, parts.work)
        for claim in parts.watches.claims.values():
            parts.reports.unreadable(claim)
        for claim, collisions in parts.cluster.all_collisions():
            parts.reports.collided(claim, collisions)
        parts.slice_reports.begin()
        for pod in parts.watches.pods.values():
            parts.gatekeeper.see(pod)
        unused = parts.cluster.unused_levels()
        if unused and self._settings.topology_levels != DEFAULT_LEVELS:
            log.warning("no node has these labels of topology-levels", labels=unused)
        log.info("decisions begin", workers=self._settings.workers)
        self._spawn("templates", self._collect_templates)
        for number in range(GATE_WRITES):
            self._spawn(f"gatekeeper-{number}", parts.gatekeeper.serve)
        for number in range(self._settings.workers):
            self._spawn(f"worker-{number}", parts.workers.serve)

    def _everything_was_seen(self) -> None:
        freeze_what_stays()
        log.info("everything seen once", state=str(self.parts.leadership))
        server = self._serve_as_the_server()
        if trouble := too_old(server):
            log.error("API server too old", reason=trouble)
        self._spawn("server-version", self._follow_the_server)

    def _follow_the_server(self) -> None:
        """Decide by the rules of the new version after the control plane was updated."""
        while not self._clock.sleep_until_set(self._stopping, SERVER_VERSION_S):
            self._serve_as_the_server()

    def _serve_as_the_server(self) -> ServerVersion | None:
        """Decide by the rules of the version that the server reports; if it reports none, as before."""
        server = server_version(self.parts.client)
        if server is not None:
            self.parts.cluster.serve(Features.of(server.version))
        return server

    def _look_at_what_waits(self) -> None:
        self.parts.cluster.reprice(self._clock.monotonic())
        self.parts.cluster.review_groups(self._clock.monotonic())
        wait = timedelta(seconds=self._settings.starvation_wait_s)
        created_before = rfc3339(self._clock.now() - wait) if wait else ""
        deadline = Deadline(self._clock, DECISION_S)
        self.parts.cluster.keep_for_starving(created_before, now_s=self._clock.monotonic(), deadline=deadline)

    def _collect_templates(self) -> None:
        while not self._clock.sleep_until_set(self._stopping, self.parts.templates.look_every_s):
            try:
                self.parts.templates.collect()
            except KubeError as error:
                log.warning("unused templates not looked for", error=str(error))
            except Exception:  # leftover templates must not end the process that decides
                log.exception("fault in the controller, will try again")

    def _tick(self) -> None:
        while not self._clock.sleep_until_set(self._stopping, TICK_S):
            try:
                self._look_at_what_waits()
                self.parts.waiting.report_due()
                self.parts.quota_reports.look()
                self.parts.gatekeeper.forget_passed()
                self.parts.workers.collect_garbage()
            except Exception:  # the thread's outermost loop: reports about waiting pods go on whatever happens
                log.exception("fault in the controller, will try again")


def run(settings: ControllerSettings, rules: UpkeepRules | None = None) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Call it in the main thread. `rules` as for Controller."""
    hold_end_signals()
    configure_logs(settings.log_level, settings.log_format)
    kubeconfig = settings.kubeconfig or None
    client = KubeClient(Transport.from_kubeconfig(kubeconfig, user_agent=wiring.COMPONENT))
    # A connection of its own: a renewal waits for no other request, and is given up sooner.
    for_lease = Transport.from_kubeconfig(kubeconfig, user_agent=wiring.COMPONENT, read_timeout_s=LEASE_TIMEOUT_S)
    log.info("settings", **dataclasses.asdict(settings))
    lost = threading.Event()

    def end(_why: str) -> None:
        lost.set()
        end_this_process()

    controller = Controller(
        settings, client, clock=SystemClock(), lease_client=KubeClient(for_lease), on_lost=end, rules=rules
    )
    endpoint = _endpoint(settings, controller) if settings.http_address else None
    parts = controller.parts
    page = build_page(
        settings,
        client,
        parts.watches,
        parts.latest,
        SystemClock(),
        state=lambda: str(parts.leadership),
    )
    served = [each for each in (endpoint, page) if each is not None]
    for each in served:
        each.start()
    controller.start()
    log.info("started", driver=settings.driver_name, http_port=endpoint.port if endpoint is not None else None)
    if page is not None:
        log.info("serving the page", port=page.port)
    log.info("stopping", signal=wait_for_end_signal().name)
    controller.stop()
    for each in served:
        each.stop()
    return EXIT_LEADERSHIP_LOST if lost.is_set() else 0


def _endpoint(settings: ControllerSettings, controller: Controller) -> HttpEndpoint:
    return HttpEndpoint(
        settings.http_address,
        controller.not_ready,
        state=controller.state,
        alive=controller.not_alive,
        web_config_file=settings.web_config_file,
    )
