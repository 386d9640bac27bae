"""Metric families, and their text in version 0.0.4 of Prometheus's format.

prometheus_client appends `_total` to the name of each counter, as OpenMetrics demands. Names of dcgm-exporter have no
such suffix, and dashboards query them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

MetricType = Literal["gauge", "counter"]
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sample:
    """One series and its value."""

    labels: Labels
    value: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """All series of one name."""

    name: str
    type: MetricType
    help: str
    samples: tuple[Sample, ...]


def render(families: Iterable[MetricFamily]) -> bytes:
    """Return the text. A family without samples is left out: it would suggest that there is data."""
    lines = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_help(family.help)}")
            lines.append(f"# TYPE {family.name} {family.type}")
            lines += [f"{family.name}{_labels(sample.labels)} {_number(sample.value)}" for sample in family.samples]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_value(value)}"' for name, value in labels.items()) + "}" if labels else ""


def _value(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
