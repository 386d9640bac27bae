"""The Grafana dashboards of the chart, and what they ask Prometheus for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "dracaena" / "files" / "dashboards"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
"""Folder and names are what the template takes into ConfigMaps."""
LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


def dashboard(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def queries(made: Any) -> Iterator[str]:
    """Yield what panels and variables ask for; of a variable as a query that needs its label."""
    for panel in made["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in made["templating"]["list"]:
        if variable["type"] == "query":
            found = LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert found, variable
            yield f"count by ({found[2]}) ({found[1]})"
