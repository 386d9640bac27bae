"""What the chart says about its values, and what follows from other files. No helm is needed."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from prometheus_client import CollectorRegistry

from dracaena.controller.metrics import ControllerMetrics
from dracaena.kubelet_plugin.metrics import PluginMetrics

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "dracaena"
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("chart_generator", CHART.parent / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of a schema's fixed keys that hold no further fixed keys."""
    fixed = value.get("properties", {}) if path not in {"controller.settings", "kubeletPlugin.settings"} else {}
    if not fixed or path.endswith(("resources", ".nodeSettings")):
        yield path
        return
    for key, below in fixed.items():
        yield from leaves(below, f"{path}.{key}".lstrip("."))


def test_table_and_schema_are_what_make_chart_writes() -> None:
    stale = [path.name for path, text in generator().generated().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `make chart`"


def test_every_value_is_documented_and_in_the_schema() -> None:
    documented = [value.path for value in generator().documented((CHART / "values.yaml").read_text(encoding="utf-8"))]
    assert len(documented) == len(set(documented))
    assert sorted(documented) == sorted(set(leaves(SCHEMA)) - {"global"})


def test_defaults_pass_the_schema() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


def test_schema_refuses_unknown_keys_at_every_level() -> None:
    def open_maps(schema: Any, path: str) -> Iterator[str]:
        if "properties" in schema:
            if schema.get("additionalProperties") is not False:
                yield path
            for key, below in schema["properties"].items():
                yield from open_maps(below, f"{path}.{key}")

    assert list(open_maps(SCHEMA, "")) == []


@pytest.mark.parametrize("part", ["controller", "kubeletPlugin"])
def test_settings_of_the_chart_are_settings_of_the_program(part: str) -> None:
    made = generator()
    settings = {"controller": made.ControllerSettings, "kubeletPlugin": made.PluginSettings}[part]
    known = {name.replace("_", "-") for name in settings.__dataclass_fields__}
    listed = set(SCHEMA["properties"][part]["properties"]["settings"]["properties"])
    assert made.OF_THE_CHART[part] <= known
    assert listed | made.OF_THE_CHART[part] == known
    assert not listed & made.OF_THE_CHART[part]


def test_chart_has_the_version_of_the_programs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == project["version"]
    assert f"dracaena:{project['version']}" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_dashboard_asks_for_metrics_that_exist() -> None:
    registry = CollectorRegistry()
    ControllerMetrics(registry)
    PluginMetrics(registry)
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    exist = {f"{metric.name}{suffix}" for metric in registry.collect() for suffix in suffixes[metric.type]}
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert asked
    for expression in asked:
        names = re.findall(r"dracaena_\w+", expression)
        assert names, expression
        assert set(names) <= exist, expression
