"""A real Prometheus scrapes controller, plugin and exporter, with the chart's alerts loaded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import yaml

from e2e import monitoring
from e2e.cluster import Cluster
from e2e.gpu_pods import delete_gpu_pod, seen_inside
from e2e.gpus import GPU_COUNT
from e2e.installation import DRIVER
from e2e.monitoring import Exporter, Prometheus
from e2e.pods import Pod, claim_spec, create_pod, create_template, wait_event
from e2e.standalone import binaries_folder, logs_folder
from e2e.waiting import NotYetError, eventually
from support.dashboards import NAMES, dashboard, queries
from support.served_metrics import asked_for, only_sometimes

SCRAPED_S: Final = 30.0
"""Scrapes and rules come each second, and a scrape that takes longer fails; the rest is for a loaded machine, on which
several in a row do."""

TOLD_S: Final = 30.0
"""A plugin that starts puts podlist.json right within seconds."""


@pytest.fixture
def exporter(installed: Cluster, tmp_path: Path) -> Iterator[Exporter]:
    with monitoring.exporting(installed, tmp_path / "proc") as serving:
        yield serving


@pytest.fixture
def server(installed: Cluster, exporter: Exporter, tmp_path: Path) -> Iterator[Prometheus]:
    with monitoring.prometheus(tmp_path, binaries_folder(), logs_folder(), installed, exporter) as running:
        yield running


@pytest.fixture
def busy(installed: Cluster, exporter: Exporter) -> Iterator[Pod]:
    """A pod that computes on a GPU, and one that waits for more than there are while the others are free."""
    templates = [
        create_template(installed.api, "one", claim_spec()),
        create_template(installed.api, "too-many", claim_spec(GPU_COUNT + 1)),
    ]
    busy, waiting = Pod("busy", templates={"gpus": "one"}), Pod("waiting", templates={"gpus": "too-many"})
    try:
        for pod in (busy, waiting):
            create_pod(installed.api, pod)
        seen_inside(installed.api, busy)
        wait_event(installed.api, waiting, "WaitingForGPUs", "")
        (uuid,) = eventually(lambda: _granted(installed, busy), "busy is annotated", within_s=TOLD_S)
        exporter.compute(uuid, installed.api.get(busy.path)["metadata"]["uid"])
        yield busy
    finally:
        for pod in (busy, waiting):
            delete_gpu_pod(installed, pod)
        for path in templates:
            installed.api.delete(path)


def _granted(cluster: Cluster, pod: Pod) -> list[str]:
    annotations = cluster.api.get(pod.path)["metadata"].get("annotations", {})
    return [each for each in annotations.get(f"{DRIVER}/uuids", "").split(",") if each]


def test_prometheus_scrapes_all_three_and_finds_what_alerts_and_dashboards_ask_for(
    server: Prometheus, exporter: Exporter, busy: Pod
) -> None:
    scraped = "count_over_time(up[1m]) > 3 and on (job) up == 1"  # what is a mean between scrapes needs two
    wanted = {"controller", "kubelet-plugin", "exporter"}
    eventually(
        lambda: {labels["job"] for labels, _ in server.query(scraped)} == wanted, "all are up", within_s=SCRAPED_S
    )

    def used() -> list[tuple[Mapping[str, str], float]]:
        exporter.go_on()
        return server.query(f'dracaena_gpu_container_sm_ratio{{pod="{busy.name}"}} > 0')

    found = eventually(used, "the pod's use is told", within_s=SCRAPED_S)
    assert [(labels["namespace"], labels["container"], value) for labels, value in found] == [("default", "main", 0.4)]
    beside = "DracaenaPodsWaitNextToFreeGpus"
    eventually(lambda: beside in server.firing(), f"{beside} fires", within_s=SCRAPED_S)
    series = asked_for([*_alerts(), *_panels()]) - only_sometimes()
    with suppress(NotYetError):  # the last of them came with the pod, and perhaps not all in one scrape
        eventually(lambda: series <= server.names(), "all that is asked for was scraped", within_s=SCRAPED_S)
    assert series - server.names() == frozenset()


def test_a_plugin_that_ends_fires_two_alerts_and_both_end_when_it_is_back(
    installed: Cluster, server: Prometheus
) -> None:
    ours = {"DracaenaPluginUnreachable", "DracaenaPodlistIsOld"}
    eventually(lambda: server.query("dracaena_plugin_registered == 1"), "the plugin was seen", within_s=SCRAPED_S)
    # Alerts wait one second here, and a scrape that takes longer than that fails: one may fire and end by itself.
    eventually(lambda: not ours & server.firing(), "neither fires while the plugin runs", within_s=SCRAPED_S)
    installed.installation.plugin.stop()
    hour_ago_s = time.time() - 3600  # as it would be found after an hour
    os.utime(installed.installation.podlist_path, (hour_ago_s, hour_ago_s))
    eventually(lambda: ours <= server.firing(), f"{sorted(ours)} fire", within_s=SCRAPED_S)
    installed.installation.plugin.start()
    installed.installation.wait_ready()
    eventually(lambda: not ours & server.firing(), f"{sorted(ours)} end", within_s=TOLD_S)


def _alerts() -> Iterator[str]:
    groups = yaml.safe_load(monitoring.RULES.read_text(encoding="utf-8"))["groups"]
    yield from (rule["expr"] for group in groups for rule in group["rules"])


def _panels() -> Iterator[str]:
    yield from (query for name in NAMES for query in queries(dashboard(name)))
