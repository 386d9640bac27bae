"""Builds the page of one controller from its parts, and the metrics that count what it shows. It starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dracaena.api.gpu_states import STATES
from dracaena.controller.adapters.exporter_pods import ExporterPods
from dracaena.controller.adapters.exporters import ExporterAccessFiles, ExportersUrl, HttpExporters
from dracaena.controller.adapters.reviews import KubeReviews
from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.events.waiting_pods import WaitingPods
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.page.endpoint import PageEndpoint, PageSource
from dracaena.controller.page.gpu_counts import GpuCounts
from dracaena.controller.page.node_use import NodeUse
from dracaena.controller.page.snapshots import LatestSnapshot
from dracaena.controller.settings import ControllerSettings
from dracaena.controller.views.snapshot import WaitingPod, Watched
from dracaena.controller.watches import Watches
from dracaena.kube.client import KubeClient
from dracaena.process.clock import Clock


def latest_snapshot(
    settings: ControllerSettings, watches: Watches, waiting: WaitingPods, clock: Clock, *, leads: Callable[[], bool]
) -> LatestSnapshot:
    """Return what reads the cluster for the page and the metrics, from the caches: no part of it takes the lock that
    decisions hold. `leads`: whether this replica leads; others do not know which pods wait."""

    def waiting_pods() -> tuple[WaitingPod, ...] | None:
        if not leads():
            return None
        pods = (_waiting_pod(*one) for one in waiting.waiting())
        return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name)))

    def watched() -> Watched:
        return Watched(
            watches.nodes.snapshot(),
            watches.slices.snapshot(),
            watches.claims.snapshot(),
            waiting_pods(),
            watches.taint_rules.snapshot(),
            watches.namespaces.snapshot(),
            watches.topologies.levels,
        )

    return LatestSnapshot(settings.driver_name, watched, clock)


def build_page(
    settings: ControllerSettings,
    client: KubeClient,
    watches: Watches,
    latest: LatestSnapshot,
    clock: Clock,
    *,
    state: Callable[[], str],
) -> PageEndpoint | None:
    """Return the page; None if no address is set. `client` is for reviews: its writes need no leadership. Raises
    BadInputError for settings that cannot be used."""
    if not settings.page_address:
        return None
    source = PageSource(
        settings.driver_name,
        latest,
        watches.pods.get,
        watches.claims.get,
        state,
        watches.trouble,
        _node_use(settings, client, clock),
    )
    return PageEndpoint(
        settings.page_address,
        source,
        KubeReviews(client),
        clock,
        web_config_file=settings.web_config_file,
        is_open=settings.page_open,
    )


def measure_gpus(latest: LatestSnapshot, metrics: ControllerMetrics, clock: Clock) -> None:
    """Let the metrics say how many GPUs are in each state, counted at each scrape."""
    counts = GpuCounts(latest, clock)
    for state in STATES:
        metrics.queue.gpus.labels(state).set_function(partial(counts.of, state))
    metrics.queue.most_free_gpus.set_function(counts.most_free_on_a_node)


def _node_use(settings: ControllerSettings, client: KubeClient, clock: Clock) -> NodeUse | None:
    if not settings.page_exporters:
        return None
    url = ExportersUrl.parse(settings.page_exporters)
    access = ExporterAccessFiles(url, settings.page_exporters_client_file)
    pods = ExporterPods(client, url.namespace, url.selector)
    return NodeUse(pods.address, HttpExporters(access.now, clock).usage, clock)


def _waiting_pod(key: str, reason: str, why: Reasons | None, since_s: float) -> WaitingPod:
    namespace, _, name = key.partition("/")
    return WaitingPod(namespace, name, reason, why, since_s)
