"""What each state of a GPU that docs/gpu-health.md lists looks like: in `dracaena status`, its JSON, on the page, in
the metrics and in Events. From what the driver answers on; each row is one test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.gpu_states import STATES
from dracaena.api.node_status import node_document, node_statuses, tree_lines
from dracaena.controller.page.gpu_counts import GpuCounts
from dracaena.controller.page.snapshots import LatestSnapshot
from dracaena.controller.views.details import node_view
from dracaena.controller.views.fleet import Changes, changes, fleet
from dracaena.controller.views.snapshot import ClusterSnapshot, SnapshotMaker, Watched
from dracaena.controller.views.summary import summary
from dracaena.host.facts.health import GpuEvent, GpuState, Poll
from dracaena.host.facts.troubles import GpuDriverReleasedError
from dracaena.kube.events import EventRecorder
from dracaena.kubelet_plugin.discovery.health.gpu_health import LASTS_POLLS, Fault, HealthClass, Rules, taints
from dracaena.kubelet_plugin.discovery.nvml_words import (
    FABRIC_COMPLETED,
    FABRIC_HEALTH,
    FABRIC_IN_PROGRESS,
    FABRIC_NOT_STARTED,
)
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.events import NodeEvents
from dracaena.kubelet_plugin.node.health_monitor import POLL_S, HealthListeners, HealthMonitor
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, node, pool_slice
from support.clock import FakeClock

TWO = machine("two", blocks(2, inside="NV12", outside="SYS"), product_name="NVIDIA H100")
SICK = TWO.gpus[1].uuid
PAGE = Path(__file__).parents[4] / "docs" / "gpu-health.md"

DEGRADED_FABRIC = next(next(iter(bad)) << shift for shift, _width, bad in FABRIC_HEALTH.values())


class Plugin:
    """What the plugin makes of the health of two GPUs, of which the second one gets into trouble."""

    def __init__(self) -> None:
        well = {"recovery_action": 0, "uncorrected_ecc": 0, "nvlink_replays": 0, "nvlink_recoveries": 0}
        self.states = {gpu.uuid: GpuState(gpu.uuid, **well) for gpu in TWO.gpus}  # type: ignore[arg-type]
        self.happened: list[GpuEvent] = []
        self.node_faults: tuple[Fault, ...] = ()
        self.released = ""
        self.faults: Mapping[str, Any] = {}
        self.told: list[str] = []
        self.clock, self.metrics = FakeClock(), PluginMetrics(CollectorRegistry())
        events = NodeEvents(cast("EventRecorder", self), "n")
        troubles = NodeTroubles(self.metrics, events.on_node)
        listeners = HealthListeners(
            faults=lambda faults: setattr(self, "faults", faults),
            status=events.health_changed,
            news=lambda: None,
            troubles=lambda found: troubles.update("health", found),
        )
        self.monitor = HealthMonitor(
            self,
            self._ask,
            self.clock,
            Rules(),
            self.metrics,
            node_faults=lambda: self.node_faults,
            listeners=listeners,
        )
        self.monitor.take(TWO)
        self.look(1)

    def record(self, _subject: object, _kind: str, reason: str, _text: str) -> None:
        """As the recorder of Events does."""
        self.told.append(reason)

    def events(self) -> tuple[GpuEvent, ...]:
        happened, self.happened = tuple(self.happened), []
        return happened

    def poll(self) -> Poll:
        return Poll(tuple(self.states.values()))

    def _ask(self, _what: str, work: Callable[[], object], _deadline_s: float) -> object:
        if self.released:
            raise GpuDriverReleasedError(self.released)
        return work()

    def look(self, polls: int) -> None:
        for _ in range(polls):
            self.monitor.look()
            self.clock.advance(POLL_S)

    def becomes(self, **changed: Any) -> None:
        """The driver says this of the second GPU from now on."""
        self.states[SICK] = replace(self.states[SICK], **changed)
        self.look(LASTS_POLLS)

    def counts(self, counter: str) -> None:
        errors: dict[str, Any] = {counter: 3}
        self.states[SICK] = replace(self.states[SICK], **errors)
        self.look(1)

    def reports(self, xid: int) -> None:
        self.happened.append(GpuEvent(SICK, xid))
        self.look(1)

    def release(self, why: str) -> None:
        self.released, self.node_faults = why, (Fault(HealthClass.UNREADY, "driver-released", message=why),)
        self.look(1)

    def mismatch(self, why: str) -> None:
        self.node_faults = (Fault(HealthClass.UNREADY, "driver-mismatch", message=why),)
        self.look(1)


@dataclass(frozen=True)
class Row:
    """A state, and what is said of it."""

    taint: str
    cause: Callable[[Plugin], None]
    effect: str
    state: str
    """In JSON and metrics."""
    cell: str
    kubelet: str
    event: str | None
    """None: that of another source than the health of GPUs."""
    of_node: bool = False
    """Whether all GPUs of the node have it."""


def _becomes(**changed: Any) -> Callable[[Plugin], None]:
    return lambda plugin: plugin.becomes(**changed)


def informs(taint: str, cause: Callable[[Plugin], None], event: str | None = None) -> Row:
    """A row of a GPU that pods still get."""
    return Row(taint, cause, "None", "free", ".", "healthy", event)


def failed(taint: str, cause: Callable[[Plugin], None], kubelet: str, event: str) -> Row:
    return Row(taint, cause, "NoSchedule", "failed", "!", kubelet, event)


def closed(taint: str, cause: Callable[[Plugin], None], event: str, *, of_node: bool = False) -> Row:
    """A row of a GPU that is not broken, and that no pod gets."""
    return Row(taint, cause, "NoSchedule", "closed", "-", "unknown", event, of_node)


ROWS = (
    informs("slowdown=thermal", _becomes(clock_reasons=0x40)),
    informs("unmonitored", _becomes(unwatched="no events")),
    informs("unmonitored=partly", _becomes(unanswered={"ecc": "TIMEOUT"})),
    informs("nvlink=down", _becomes(nvlinks_down=2), "NvLinksDown"),
    informs("nvlink-errors=replay", lambda plugin: plugin.counts("nvlink_replays")),
    informs("nvlink-errors=recovery", lambda plugin: plugin.counts("nvlink_recoveries")),
    informs("xid=13", lambda plugin: plugin.reports(13)),
    informs("xid=94", lambda plugin: plugin.reports(94)),
    informs("ecc=uncorrected", lambda plugin: plugin.counts("uncorrected_ecc")),
    informs("sram=threshold-exceeded", _becomes(sram_exceeded=True), "GpuSramErrors"),
    informs("fabric=degraded", _becomes(fabric_state=FABRIC_COMPLETED, fabric_health=DEGRADED_FABRIC)),
    closed("fabric=in-progress", _becomes(fabric_state=FABRIC_IN_PROGRESS), "FabricNotReady"),
    closed("confidential=not-ready", _becomes(cc_ready=False), "ConfidentialNotReady"),
    closed("driver-released", lambda plugin: plugin.release("released by an admin"), "DriverReleased", of_node=True),
    Row(
        "driver-mismatch",
        lambda plugin: plugin.mismatch("580 and 570"),
        "NoSchedule",
        "failed",
        "!",
        "unknown",
        None,
        True,
    ),
    failed("silent", _becomes(silent="TIMEOUT"), "unknown", "GpuHealthUnknown"),
    failed("xid=79", lambda plugin: plugin.reports(79), "unhealthy", "GpuUnhealthy"),
    failed("recovery-action=gpu-reset", _becomes(recovery_action=1), "unhealthy", "GpuUnhealthy"),
    failed("row-remap=pending", _becomes(remap_pending=True), "unhealthy", "GpuUnhealthy"),
    failed("row-remap=failed", _becomes(remap_failed=True), "unhealthy", "GpuUnhealthy"),
    failed("page-retirement=pending", _becomes(retirement_pending=True), "unhealthy", "GpuUnhealthy"),
    failed("fabric=not-started", _becomes(fabric_state=FABRIC_NOT_STARTED), "unhealthy", "FabricNotReady"),
    failed("fabric=failed", _becomes(fabric_state=FABRIC_COMPLETED, fabric_status=9), "unhealthy", "FabricNotReady"),
    failed("gpu-lost", _becomes(lost="GPU_IS_LOST"), "unhealthy", "GpuUnhealthy"),
)


@pytest.mark.parametrize("is_held", [False, True], ids=["unused", "held"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.taint)
def test_a_state_looks_the_same_wherever_it_is_shown(row: Row, is_held: bool) -> None:
    plugin = Plugin()
    row.cause(plugin)
    assert plugin.told == ([] if row.event is None else [row.event])
    health = {str(one.device): one.status.value for one in plugin.monitor.devices()}
    assert health[device_name(TWO, 1)] == row.kubelet
    assert _plugin_metric(plugin, row.kubelet) == (2 if row.of_node or row.kubelet == "healthy" else 1)
    foreign = {ordinal: taints(plugin.faults[device_name(TWO, ordinal)], DRIVER, Rules()) for ordinal in range(2)}
    slices = [pool_slice("n", TWO, foreign=foreign)]
    claims = [holding(claim("c"), "n", device_name(TWO, 1))] if is_held else []
    _check_command(row, Watched([node("n")], slices, claims))
    _check_page(row, Watched([node("n")], slices, claims))
    state = _state(row, is_held=is_held)
    counts = GpuCounts(LatestSnapshot(DRIVER, lambda: Watched([node("n")], slices, claims), FakeClock()), FakeClock())
    other = row.state if row.of_node else "free"
    expected = {name: (name == state) + (name == other) for name in STATES}
    assert {name: counts.of(name) for name in STATES} == expected


def _plugin_metric(plugin: Plugin, health: str) -> float:
    return float(plugin.metrics.devices.by_health.labels(health)._value.get())


def _state(row: Row, *, is_held: bool) -> str:
    return "used" if is_held and row.state != "failed" else row.state


def _check_command(row: Row, watched: Watched) -> None:
    (shown,) = node_statuses(DRIVER, watched.nodes, watched.slices, watched.claims)
    taint = f"{DRIVER}/{row.taint}:{row.effect}"
    own = {"free": f"reported: {taint}", "failed": f"failed: taint {taint}", "closed": f"closed to pods: taint {taint}"}
    words = own[row.state]
    if watched.claims:
        words = f"default/c, no pod; {words.replace('closed to pods', 'no other pod gets it')}"
    elif row.state == "free":
        words = f"free; {words}"
    (line,) = [line for line in tree_lines(shown) if "GPU1  NVIDIA" in line]
    assert line.endswith(f"[{words}]")
    gpu = node_document(shown)["gpus"][1]
    key, _, value = row.taint.partition("=")
    assert gpu["state"] == _state(row, is_held=bool(watched.claims))
    assert gpu["taints"] == [{"key": f"{DRIVER}/{key}", "value": value, "effect": row.effect}]
    assert gpu.get("fault") == (row.taint if row.state == "failed" else None)
    assert gpu.get("reported") == (row.taint if row.state == "free" else None)
    assert gpu.get("why") == (None if row.state == "free" else f"taint {taint}")


def _check_page(row: Row, watched: Watched) -> None:
    snapshot: ClusterSnapshot | None
    *_, snapshot = SnapshotMaker(DRIVER).turns(watched)
    assert snapshot is not None
    (line,), shown = snapshot.lines, snapshot.node("n")
    assert shown is not None
    held = {".": "#", "-": "#", "!": "%"}
    cell = held[row.cell] if watched.claims else row.cell
    other = row.cell if row.of_node else "."
    assert line.cells == other + cell
    assert line.sick.get(1) == (row.taint if row.state == "failed" else None)
    assert line.told.get(1) == (row.taint if row.state == "free" else None)
    state, others = _state(row, is_held=bool(watched.claims)), row.state if row.of_node else "free"
    assert summary(snapshot, 0.0)["gpus"][state] == 1 + (state == others)
    rows = json.loads(fleet(snapshot, _all, changes(None, Changes(), snapshot, 1), {}))
    more = rows["nodes"][0][5] or {}
    assert more.get("sick", {}).get("1") == line.sick.get(1)
    assert more.get("informs", {}).get("1") == line.told.get(1)
    gpu = node_view(shown, line, _all)["gpus"][1]
    assert gpu["taints"] == [{"what": row.taint, "effect": row.effect}]
    assert (gpu["state"], gpu["sign"]) == (state, cell)


def _all(_namespace: str) -> bool:
    return True


def test_the_table_has_each_taint_of_the_page_and_no_other() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    documented = {
        (re.sub(r"=[N…]$", "", name), effect)
        for line in lines
        for names, effect in re.findall(r"((?:`[a-z=…N-]+`(?:, )?)+): (None|NoSchedule)", line.split("|")[3])
        for name in re.findall(r"`([^`]+)`", names)
    }
    anything = {name for name, _ in documented if "=" not in name}
    known = {(row.taint, row.effect) for row in ROWS}
    short = {(taint if (taint, effect) in documented else taint.partition("=")[0], effect) for taint, effect in known}
    assert short == documented
    assert {"xid", "recovery-action", "gpu-lost"} <= anything
