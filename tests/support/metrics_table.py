"""Metrics as a page of the documentation lists them, and as a registry has them: a test compares the two."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

_ROW = re.compile(r"\| `(?P<name>[a-z_]+)` \| (?P<type>[a-z]+) \|(?P<labels>[^|]*)\|(?P<help>[^|]+)\|")

Row = tuple[str, str, tuple[str, ...], str]
"""Name as it is exposed, type, labels, what it says."""


def documented(page: Path) -> list[Row]:
    """Return the rows `| name | type | labels | meaning |` of all tables of a page, in its order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = [match for line in lines if (match := _ROW.match(line)) is not None]
    return [(m["name"], m["type"], tuple(re.findall(r"`([A-Za-z_]+)`", m["labels"])), m["help"].strip()) for m in found]


def registered(registry: CollectorRegistry) -> list[Row]:
    """Return the same of a registry, in the order of registration."""
    collectors: list[Any] = list(registry._collector_to_names)
    return [
        (
            f"{c._name}_total" if c._type == "counter" else c._name,
            c._type,
            tuple(c._labelnames),
            c._documentation,
        )
        for c in collectors
    ]
