"""What the chart says about its values, and what follows from other files. No helm is needed."""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "dracaena"
SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("chart_generator", CHART.parent / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


OF_A_PARENT = {"global", "enabled"}
"""Keys that helm, or a parent chart with a condition, puts among the values."""

WRONG = {
    "no plugin is ever updated": ("kubeletPlugin.maxSurge", "0%"),
    "no percentage": ("kubeletPlugin.maxSurge", "200%"),
    "kubelet's folder is not the root": ("kubeletPlugin.hostPaths.kubelet", "/"),
    "hostPath takes no parent folder": ("kubeletPlugin.hostPaths.cdi", "/var/run/../cdi"),
    "mountPath takes no colon": ("kubeletPlugin.hostPaths.devRoot", "/run:/driver"),
    "sockets below it would not fit": ("mps.hostPath", "/run/" + "a" * 30),
    "the program takes no slash at the end": ("mps.hostPath", "/run/mps/"),
    "tag beside tag": ("image.repository", "registry.example.com:5000/dracaena:v1"),
    "digest has a value of its own": ("image.repository", "dracaena@sha256:0"),
    "no tag": ("image.tag", "v1 final"),
    "label by which the Deployment finds its pods": ("controller.pod.labels", {"app.kubernetes.io/name": "mine"}),
    "label by which the DaemonSet finds its pods": ("kubeletPlugin.pod.labels", {"app.kubernetes.io/instance": "mine"}),
    "annotation that rolls the pods": ("controller.pod.annotations", {"checksum/settings": "0"}),
    "label of every object": ("monitoring.dashboard.labels", {"helm.sh/chart": "mine"}),
    "no name of a class": ("admissionPolicies.otherDeviceClasses", ["nic'example"]),
    "field that no policy has": ("deviceClasses.policy", {"objectiv": "Pack"}),
    "no name of a class that pods may name": ("rewrite.podClasses", ["gold example"]),
    "MIG devices of no profile": ("rewrite.resourceNames", ["nvidia.com/mig-all"]),
    "profile as NVML writes it": ("rewrite.resourceNames", ["nvidia.com/mig-1g.10gb+me"]),
    "resource without a domain": ("rewrite.resourceNames", ["gpu"]),
    "resource that is Kubernetes' own": ("deviceClasses.extendedResourceName", "x.kubernetes.io/gpu"),
    "resource of MIG devices, for whole GPUs": ("deviceClasses.extendedResourceName", "nvidia.com/mig-1g.10gb"),
    "gate that there is not": ("schedulingGate", "Sometimes"),
    "requirement that there is not": ("deviceClasses.policy", {"requirement": "NVSwitch"}),
    "the template's own field": ("deviceClasses.policy", {"kind": "GpuConfig"}),
    "condition of a parent, and no parent": ("enabled", False),
}

RIGHT = {
    "registry with a port": ("image.repository", "registry.example.com:5000/gpu/dracaena"),
    "Prometheus takes such a time": ("monitoring.podMonitor.interval", "1m30s"),
    "folder with a slash at its end": ("kubeletPlugin.hostPaths.driverRoot", "/run/nvidia/driver/"),
    "labels of one's own": ("kubeletPlugin.pod.labels", {"team": "gpu", "app.kubernetes.io/part-of": "platform"}),
    "resources of two vendors' names": ("rewrite.resourceNames", ["nvidia.com/gpu", "example.com/gpu.shared"]),
    "classes that pods may name": ("rewrite.podClasses", ["nvlink", "gold.example.com"]),
    "MIG devices by profile": ("rewrite.resourceNames", ["nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-1c.2g.20gb"]),
    "nothing is rewritten": ("rewrite.resourceNames", []),
    "quota goes on counting": ("deviceClasses.extendedResourceName", "nvidia.com/gpu"),
    "longest folder for sockets": ("mps.hostPath", "/run/" + "a" * 29),
    "policy": ("deviceClasses.policy", {"requirement": "NVLink", "objective": "Pack", "minBandwidth": 100}),
    "condition of a parent": ("enabled", True),
}


def replaced(path: str, value: Any) -> Any:
    """Return the default values with another one at a path."""
    values = copy.deepcopy(VALUES)
    *parents, last = path.split(".")
    place = values
    for name in parents:
        place = place[name]
    place[last] = value
    return values


def required(schema: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of the keys that must be there."""
    for key in schema.get("required", ()):
        yield f"{path}.{key}".lstrip(".")
    for key, below in schema.get("properties", {}).items():
        yield from required(below, f"{path}.{key}")


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of a schema's fixed keys that hold no further fixed keys."""
    fixed = (
        value.get("properties", {})
        if path not in {"controller.settings", "kubeletPlugin.settings", "mps.settings", "exporter.settings"}
        else {}
    )
    if not fixed or path.endswith(("resources", ".nodeSettings", ".policy", ".pod")):
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
    assert sorted(documented) == sorted(set(leaves(SCHEMA)) - OF_A_PARENT)


def test_defaults_pass_the_schema() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


@pytest.mark.parametrize(("path", "value"), WRONG.values(), ids=WRONG)
def test_schema_refuses_what_the_cluster_would_refuse_later(path: str, value: Any) -> None:
    errors = list(jsonschema.Draft7Validator(SCHEMA).iter_errors(replaced(path, value)))
    assert errors
    assert all(".".join(map(str, error.absolute_path)).startswith(path) for error in errors)


@pytest.mark.parametrize(("path", "value"), RIGHT.values(), ids=RIGHT)
def test_schema_takes_what_the_cluster_takes(path: str, value: Any) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(replaced(path, value))


def test_values_beside_the_gpu_operator_pass_the_schema() -> None:
    given = yaml.safe_load((CHART.parent / "gpu-operator.values.yaml").read_text(encoding="utf-8"))
    values = copy.deepcopy(VALUES)
    for name, value in given["kubeletPlugin"].items():
        values["kubeletPlugin"][name] = {**values["kubeletPlugin"][name], **value}
    assert given.keys() == {"kubeletPlugin"}
    jsonschema.Draft7Validator(SCHEMA).validate(values)


def test_every_map_of_values_must_be_there() -> None:
    """`null` takes a key away; templates look into the maps."""
    maps = {path for path in required(SCHEMA) if isinstance(at(VALUES, path), dict)}
    assert maps >= {name for name, value in VALUES.items() if isinstance(value, dict)}


def test_schema_refuses_unknown_keys_at_every_level() -> None:
    def open_maps(schema: Any, path: str) -> Iterator[str]:
        if "properties" in schema:
            if schema.get("additionalProperties") is not False:
                yield path
            for key, below in schema["properties"].items():
                yield from open_maps(below, f"{path}.{key}")

    assert list(open_maps(SCHEMA, "")) == []


@pytest.mark.parametrize("part", ["controller", "kubeletPlugin", "mps", "exporter"])
def test_settings_of_the_chart_are_settings_of_the_program(part: str) -> None:
    made = generator()
    settings = {
        "controller": made.ControllerSettings,
        "kubeletPlugin": made.PluginSettings,
        "mps": made.MpsSettings,
        "exporter": made.ExporterSettings,
    }[part]
    known = {field.name.replace("_", "-") for field in dataclasses.fields(settings)}
    listed = set(SCHEMA["properties"][part]["properties"]["settings"]["properties"])
    assert made.OF_THE_CHART[part] <= known
    assert listed | made.OF_THE_CHART[part] == known
    assert not listed & made.OF_THE_CHART[part]


def test_chart_has_the_version_of_the_programs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["appVersion"] == chart["version"] == project["version"]
    assert f"dracaena:{project['version']}" in (ROOT / "Makefile").read_text(encoding="utf-8")
