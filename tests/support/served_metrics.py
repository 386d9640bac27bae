"""Which series our programs serve, and with which labels: what alerts and dashboards may ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from dracaena.controller.metrics import ControllerMetrics
from dracaena.exporter.series.fields import DRIVER_VERSION, FIELDS
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.mps.metrics import MpsMetrics
from support.metrics_table import documented, registered

_EXPORTER_PAGE = Path(__file__).parents[2] / "docs" / "exporter.md"
"""tests/unit/docs/test_exporter.py holds its tables to the program."""

_MONITORING_PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
_ONLY_SOMETIMES = re.compile(r"(?m)^\| `dracaena_.*` \| .*\bfrom the first .+ \|$")

_OF_AN_EXPORTER: Final = frozenset({"instance", "job", "endpoint", "node"})
"""Labels that the chart's PodMonitor and Prometheus add to the exporter's series."""

_OF_A_PROGRAM: Final = _OF_AN_EXPORTER | {"namespace", "pod", "container"}
"""The same of the others."""

_OF_A_GPU: Final = frozenset(
    {"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "GPU_I_ID", "GPU_I_PROFILE", DRIVER_VERSION}
    | {"namespace", "pod", "container"}
)
"""Labels of fields under dcgm-exporter's names."""

_SERIES: Final = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
_NAME = re.compile(r"\b(?:dracaena_|DCGM_FI_)\w+")
_SELECTOR = re.compile(r"\b((?:dracaena_|DCGM_FI_)\w+)\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_GROUPING = re.compile(r"\b(?:by|on|ignoring|group_left|group_right|without)\s*\(([^)]*)\)")


def served() -> Mapping[str, frozenset[str]]:
    """Return each series that a program of ours serves → its labels, those of the target included."""
    registry = CollectorRegistry()
    for metrics in (ControllerMetrics, PluginMetrics, MpsMetrics):
        metrics(registry)
    own = {
        f"{name}{suffix}": frozenset(labels) | added | ({"le"} if suffix == "_bucket" else set())
        for rows, added in ((registered(registry), _OF_A_PROGRAM), (documented(_EXPORTER_PAGE), _OF_AN_EXPORTER))
        for name, kind, labels, _ in rows
        for suffix in _SERIES[kind]
    }
    fields = {field.name: _OF_A_GPU | _OF_AN_EXPORTER for field in FIELDS}
    return {**own, **fields, "up": _OF_A_PROGRAM}


def asked_for(expressions: Iterable[str]) -> frozenset[str]:
    """Return the names of our series in some expressions."""
    return frozenset(name for expression in expressions for name in _NAME.findall(expression))


def only_sometimes() -> frozenset[str]:
    """Return the series that docs/monitoring.md lists as absent until something happens."""
    return asked_for(_ONLY_SOMETIMES.findall(_MONITORING_PAGE.read_text(encoding="utf-8")))


def faults_of(expression: str) -> Iterator[str]:
    """Yield what an expression asks for that there is not: a series, or a label that none of its series has."""
    known = served()
    names = asked_for([expression])
    if not names:
        yield "asks for no series of ours"
    yield from (f"no series {name}" for name in sorted(names - known.keys()))
    for name, matchers in _SELECTOR.findall(expression):
        for label in _MATCHER.findall(matchers):
            if label not in known.get(name, {label}):
                yield f"{name} has no label {label}"
    labels = frozenset().union(*(known.get(name, frozenset()) for name in names))
    for grouping in _GROUPING.findall(expression):
        for label in filter(None, map(str.strip, grouping.split(","))):
            if label not in labels:
                yield f"no series of it has the label {label}"
