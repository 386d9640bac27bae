"""Write what follows from other files: the table of values in README.md; settings and policy in values.schema.json; and
what the pages about metrics say of each.

`make chart` runs it; `--check` changes nothing and exits 1 where something would change.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from dracaena.controller import metrics
from dracaena.controller.settings import ControllerSettings
from dracaena.exporter.settings import ExporterSettings
from dracaena.kubelet_plugin import metrics as plugin_metrics
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.mps.settings import MpsSettings
from dracaena.process.metrics import MetricTable, rows

CHART = Path(__file__).parent / "dracaena"
DOCS = CHART.parents[2] / "docs"
METRICS = {"metrics.md": metrics.TABLES, "metrics-node.md": plugin_metrics.TABLES}
POLICY_SCHEMA = files("dracaena.api.config.v1alpha1") / "topologypolicy.schema.json"
BEGIN, END = "<!-- values: made by `make chart` -->", "<!-- end of values -->"

_OF_EACH = frozenset({"kubeconfig", "driver-name", "http-address", "web-config-file", "log-level", "log-format"})
OF_THE_CHART = {
    "controller": _OF_EACH
    | {"leader-elect", "lease-namespace", "lease-identity"}
    | {"page-address", "page-open", "page-exporters"},
    "kubeletPlugin": _OF_EACH
    | {"node-name", "pod-uid", "read-as-node", "kubelet-root", "cdi-root", "dev-root"}
    | {"driver-root", "driver-root-mount", "host-root-mount", "job-mapping-dir", "mps-root"},
    "mps": _OF_EACH - {"kubeconfig"} | {"root", "kubelet-root", "driver-root-mount"},
    "exporter": _OF_EACH - {"kubeconfig"} | {"node-name", "kubelet-root", "driver-root-mount", "collectors"},
}
"""Settings that the templates set themselves, from other values or from the pod."""

_ASCII_LABEL = "^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"
"""A label's value that is not empty."""

_TYPES = {"str": "string", "bool": "boolean", "int": "integer", "float": "number"}


@dataclass(frozen=True, slots=True)
class Value:
    """One documented value."""

    path: str
    default: Any
    meaning: str


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    stale = [path for path, text in generated().items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        if check:
            sys.stderr.write(f"{path} is not what `make chart` writes\n")
        else:
            path.write_text(generated()[path], encoding="utf-8")
    return 1 if check and stale else 0


def generated() -> dict[Path, str]:
    """Return each file that is made, whole or in part, with the text that it must have."""
    readme, schema = CHART / "README.md", CHART / "values.schema.json"
    pages = {DOCS / page: _with_metrics(DOCS / page, tables) for page, tables in METRICS.items()}
    return {readme: _with_table(readme.read_text(encoding="utf-8")), schema: _with_settings(schema), **pages}


def documented(text: str) -> Iterator[Value]:
    """Yield what values.yaml documents: each key below a comment that begins with `# -- `."""
    defaults = yaml.safe_load(text)
    parents: list[tuple[int, str]] = []
    meaning = ""
    for line in text.splitlines():
        if comment := re.match(r" *# -- (.+)", line):
            meaning = comment[1]
        elif key := re.match(r"( *)([A-Za-z]\w*):", line):
            depth = len(key[1])
            parents = [*((d, name) for d, name in parents if d < depth), (depth, key[2])]
            if meaning:
                path = [name for _, name in parents]
                yield Value(".".join(path), _at(defaults, path), meaning)
            meaning = ""


def _at(values: Any, path: list[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def _with_table(readme: str) -> str:
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for value in documented((CHART / "values.yaml").read_text(encoding="utf-8")):
        default = json.dumps(value.default, ensure_ascii=False)
        shown = "see values.yaml" if len(default) > 80 else f"`{default}`"
        rows.append(f"| `{value.path}` | {shown} | {value.meaning.replace('|', chr(92) + '|')} |")
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n" + "\n".join(rows) + f"\n{END}{after}"


def _with_metrics(path: Path, tables: Sequence[type[MetricTable]]) -> str:
    """Return a page whose rows about metrics say what the program says. Which rows there are, the page says."""
    known = rows(tables)

    def row(found: re.Match[str]) -> str:
        metric = known.get(found[1])
        if metric is None:
            return found[0]
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        kind = metric.kind.__name__.lower()
        return f"| `{metric.series}` | {kind} | {labels}{' ' * bool(labels)}| {metric.help} |"

    return re.sub(r"^\| `(\w+)` \|.*$", row, path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def _with_settings(path: Path) -> str:
    schema = json.loads(path.read_text(encoding="utf-8"))
    for part, settings in (
        ("controller", ControllerSettings),
        ("kubeletPlugin", PluginSettings),
        ("mps", MpsSettings),
        ("exporter", ExporterSettings),
    ):
        schema["properties"][part]["properties"]["settings"] = {
            "type": "object",
            "additionalProperties": False,
            "properties": dict(_settings(settings, OF_THE_CHART[part])),
        }
    plugin = schema["properties"]["kubeletPlugin"]["properties"]
    plugin["nodeSettings"] = {
        "type": "object",
        "propertyNames": {"pattern": _ASCII_LABEL},
        "additionalProperties": plugin["settings"],
    }
    schema["properties"]["deviceClasses"]["properties"]["policy"] = _policy()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _policy() -> dict[str, Any]:
    """Return what the controller takes as a TopologyPolicy, without what the template adds."""
    schema = json.loads(POLICY_SCHEMA.read_text(encoding="utf-8"))
    added = {"apiVersion", "kind"}
    fields = {name: rule for name, rule in schema["properties"].items() if name not in added}
    return {"type": "object", "additionalProperties": False, "properties": fields}


def _settings(settings: type[Any], left_out: frozenset[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for field in dataclasses.fields(settings):
        name = field.name.replace("_", "-")
        if name in left_out:
            continue
        structure = field.metadata["structure"]
        kind = {"type": _TYPES[str(field.type)]} if structure is None else structure.schema
        rule: dict[str, Any] = {**kind, "description": field.metadata["help"]}
        if choices := field.metadata["choices"]:
            rule["enum"] = list(choices)
        if (least := field.metadata["least"]) is not None:
            rule["minimum"] = least
        yield name, rule


if __name__ == "__main__":
    sys.exit(main())
