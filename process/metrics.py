"""Metrics as a table: what each is called, what kind it has, which labels, and what it says.

The metrics of a subject are class variables of a MetricTable, made by counter(), gauge() and histogram(). The programs
serve them, and the tables of the pages are made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric."""

    kind: type[Counter | Gauge | Histogram]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Of a histogram."""

    @property
    def series(self) -> str:
        """The name by which it is queried: that of a counter ends in _total."""
        is_counter = self.kind is Counter and not self.name.endswith("_total")
        return f"{self.name}_total" if is_counter else self.name

    def made(self, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
        """Return the metric itself, registered."""
        options: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        return self.kind(self.name, self.help, self.labels, registry=registry, **options)


class MetricTable:
    """The metrics of one subject. Each instance has its own in its registry; there can be one in each."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        for attribute, row in _rows(type(self)):
            setattr(self, attribute, row.made(registry))


def rows(tables: Sequence[type[MetricTable]]) -> dict[str, MetricRow]:
    """Return the metrics of these tables, by series, in order."""
    return {row.series: row for table in tables for _, row in _rows(table)}


def counter(name: str, help: str, *labels: str) -> Counter:  # noqa: A002 - Prometheus' word
    """Declare a counter. An instance of the table has it."""
    return cast("Counter", MetricRow(Counter, name, help, labels))


def gauge(name: str, help: str, *labels: str) -> Gauge:  # noqa: A002 - Prometheus' word
    """Declare a gauge. An instance of the table has it."""
    return cast("Gauge", MetricRow(Gauge, name, help, labels))


def histogram(name: str, help: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:  # noqa: A002 - Prometheus' word
    """Declare a histogram with the upper limits of its buckets. An instance of the table has it."""
    return cast("Histogram", MetricRow(Histogram, name, help, labels, buckets))


def _rows(table: type[MetricTable]) -> Iterator[tuple[str, MetricRow]]:
    return ((name, row) for name, row in vars(table).items() if isinstance(row, MetricRow))
