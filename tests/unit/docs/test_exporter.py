"""The tables of docs/exporter.md, beside what the exporter serves."""

from __future__ import annotations

import re
from pathlib import Path

from dracaena.api.device_share import DeviceShare
from dracaena.exporter.series.fields import FIELDS, LEFT_OUT
from support.exporting_node import entry, exporting_node, gpu_uuid, pod_uid
from support.exporting_nvml import FakeProcess
from support.metrics_table import documented
from support.sockets import short_folder

PAGE = Path(__file__).parents[3] / "docs" / "exporter.md"
FIELD = re.compile(r"\| `(DCGM_\w+)` \| (gauge|counter) \| (yes|no) \| (.+) \|")


def test_the_fields_are_those_that_are_served() -> None:
    rows = [match.groups() for line in PAGE.read_text().splitlines() if (match := FIELD.match(line))]
    served = [(field.name, field.type, "yes" if field.by_default else "no", field.help) for field in FIELDS]
    assert rows == served


def test_the_fields_that_are_left_out_stand_there_with_the_reason() -> None:
    text = " ".join(PAGE.read_text().split())
    for name, reason in LEFT_OUT.items():
        assert f"| `{name}` | {reason} |" in text


def test_the_series_of_our_own_are_those_that_are_served() -> None:
    with short_folder() as folder, exporting_node(folder) as node:
        shares = (DeviceShare(gpu_uuid(0), "s", "1Gi", 30),)
        node.list(entry("a", gpu_uuid(0), number=1, shares=shares))
        node.nvml.activity[0].processes = [FakeProcess(1, 5)]
        node.run(1, pod_uid(1))
        node.nvml.refuse("nvmlDeviceGetPowerUsage", 999, 1)
        node.scrape()
        node.podlist.rename(node.podlist.with_suffix(".away"))
        without = node.program._collector.collect()
        node.podlist.with_suffix(".away").rename(node.podlist)
        served = {
            family.name: (
                family.type,
                tuple(family.samples[0].labels if family.samples else _labels_of(without, family.name)),
                family.help,
            )
            for family in node.program._collector.collect()
            if family.name.startswith("dracaena_")
        }
    assert {name: (kind, labels, said) for name, kind, labels, said in documented(PAGE)} == served


def _labels_of(families: tuple, name: str) -> tuple[str, ...]:  # type: ignore[type-arg]
    (family,) = (each for each in families if each.name == name)
    return tuple(family.samples[0].labels)
