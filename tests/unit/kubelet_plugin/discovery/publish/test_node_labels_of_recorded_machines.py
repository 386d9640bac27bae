"""The labels of each recorded machine, written out in a file that a person can read, beside GFD's documented table.

Names and forms of values are facts of GPU feature discovery 0.20; the code takes no part in them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.discovery.publish.node_labels import LabelFacts, node_labels

DRIVER = "gpu.dracaena.dev"
GOLDEN = Path(__file__).parents[4] / "fixtures" / "node-labels.txt"
RECORD = "DRACAENA_LABELS_RECORD"
"""Environment variable: write the golden file anew."""

GFD = "nvidia.com/"
NUMBER = r"\d+"
WORDS = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
FAMILIES = "maxwell|pascal|volta|turing|ampere|ada-lovelace|hopper|blackwell|rubin|undefined"
PART = r"(gpu|mig-(\d+c\.)?\d+g\.\d+gb(\.me)?)"

TABLE = {
    r"cuda\.driver\.(major|minor)": NUMBER,
    r"cuda\.driver\.rev": r"\d*",
    r"cuda\.driver-version\.(major|minor)": NUMBER,
    r"cuda\.driver-version\.revision": r"\d*",
    r"cuda\.driver-version\.full": r"\d+\.\d+(\.\d+)?",
    r"cuda\.runtime\.(major|minor)": NUMBER,
    r"cuda\.runtime-version\.(major|minor)": NUMBER,
    r"cuda\.runtime-version\.full": r"\d+\.\d+",
    r"gfd\.timestamp": r"\d{10}",
    r"gpu\.machine": WORDS,
    r"gpu\.mode": "compute|graphics|unknown",
    r"gpu\.family": FAMILIES,
    r"gpu\.compute\.(major|minor)": NUMBER,
    r"gpu\.clique": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.\d+",
    r"mig\.capable": "true|false",
    r"mig\.strategy": "single|mixed",
    r"mps\.capable": "true|false",
    PART + r"\.product": WORDS,
    PART + r"\.(count|replicas|memory)": NUMBER,
    PART + r"\.sharing-strategy": "none|time-slicing|mps|",
    PART + r"\.multiprocessors": NUMBER,
    PART + r"\.slices\.(gi|ci)": "[1-8]",
}
"""Pattern of a name after the prefix → pattern of its value."""

OURS = {f"{DRIVER}/topology": "single|pcie|nvlink|nvlink-partial", f"{DRIVER}/nvlink-group-size": "[1-9][0-9]?"}

ALWAYS = {"gpu.machine", "gpu.mode", "gpu.count", "gpu.replicas", "gpu.sharing-strategy", "mps.capable"}
"""Names that GPU feature discovery gives every node with GPUs, whatever the driver tells."""


def divided(machine: Machine, *profiles: tuple[str, int, int]) -> Machine:
    """Return a machine whose first GPU has MIG devices: of each the profile, the first slice, the number of slices."""
    whole = machine.gpus[0]
    known = {each.name: each for each in whole.mig_profiles}
    devices = tuple(
        MigDevice(
            whole.uuid, f"MIG-{place}", place + 1, 0, name, start, size,
            known[name].memory_bytes, known[name].multiprocessors,
        )
        for place, (name, start, size) in enumerate(profiles)
    )  # fmt: skip
    return replace(machine, gpus=(replace(whole, mig_enabled=True), *machine.gpus[1:]), mig_devices=devices)


_FIRMWARE = LabelFacts(machine_type="GB200 NVL (P3809)", mode="compute", timestamp_s=1_700_000_000)


def told(machine: Machine) -> Machine:
    """Return a machine with what only a driver tells, which recordings leave out."""
    clique = "6e1a7c5e-0a3b-4d0b-9f2e-2f6f7a1b9c11.7"
    gpus = tuple(replace(gpu, fabric_clique=clique) for gpu in machine.gpus)
    return replace(machine, gpus=gpus, driver_version="570.86.15", cuda_driver_version="12.8")


def cases() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield what the file's sections are called, and the labels that the code gives."""
    facts = LabelFacts(timestamp_s=1_700_000_000)
    for name in machine_names():
        yield name, node_labels(read_machine(name), facts, DRIVER)
    yield (
        "gb200-tray as its driver and firmware tell it",
        node_labels(told(read_machine("gb200-tray")), _FIRMWARE, DRIVER),
    )
    h100 = read_machine("h100-x1")
    seven = divided(h100, *(("1g.10gb", start, 1) for start in range(7)))
    yield (
        "h100-x1 with seven 1g.10gb, strategy single",
        node_labels(seven, replace(facts, mig_strategy="single"), DRIVER),
    )
    three = divided(h100, ("3g.40gb", 0, 4), ("1g.10gb+me", 4, 1), ("1g.10gb", 5, 1))
    mixed = node_labels(three, replace(facts, mig_strategy="mixed"), DRIVER)
    yield "h100-x1 with 3g.40gb, 1g.10gb+me and 1g.10gb, strategy mixed", mixed
    invalid = node_labels(three, replace(facts, mig_strategy="single"), DRIVER)
    yield "h100-x1 with 3g.40gb, 1g.10gb+me and 1g.10gb, strategy single", invalid


CASES = dict(cases())


def sections() -> dict[str, dict[str, str]]:
    """Return the golden file: title → labels."""
    found: dict[str, dict[str, str]] = {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            labels = found.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            name, value = line.split("=", 1)
            labels[name] = value
    return found


def text_of(labels: Mapping[str, Mapping[str, str]]) -> str:
    head = "# The labels of each recorded machine, as test_node_labels_of_recorded_machines.py compares them.\n"
    parts = (f"[{title}]\n" + "".join(f"{n}={v}\n" for n, v in each.items()) for title, each in labels.items())
    return head + "\n" + "\n".join(parts)


def test_the_labels_of_every_recorded_machine_are_those_that_are_written_out() -> None:
    if os.environ.get(RECORD):
        GOLDEN.write_text(text_of(CASES), encoding="utf-8")
    assert GOLDEN.read_text(encoding="utf-8") == text_of(CASES), f"look at the difference; {RECORD}=1 takes it"


@pytest.mark.parametrize("title", sections())
def test_what_is_written_out_has_names_and_forms_of_the_table(title: str) -> None:
    labels = sections()[title]
    for name, value in labels.items():
        if name in OURS:
            assert re.fullmatch(OURS[name], value), (name, value)
            continue
        assert name.startswith(GFD), name
        forms = [form for pattern, form in TABLE.items() if re.fullmatch(pattern, name.removeprefix(GFD))]
        assert len(forms) == 1, f"{name} is no name of the table"
        assert re.fullmatch(forms[0], value), (name, value)
        assert len(value) <= 63
    assert {name.removeprefix(GFD) for name in labels} >= ALWAYS
    assert labels.keys() >= OURS.keys()


def test_each_name_of_the_table_is_said_of_some_machine() -> None:
    """So that no row of it is only there to be fulfilled by nothing."""
    said = {name.removeprefix(GFD) for labels in sections().values() for name in labels if name.startswith(GFD)}
    silent = {pattern for pattern in TABLE if not any(re.fullmatch(pattern, name) for name in said)}
    assert silent == set()


@pytest.mark.parametrize("name", machine_names())
def test_what_is_written_out_agrees_with_the_recording(name: str) -> None:
    """The file's numbers beside the recording's, by rules that a person can check."""
    machine, labels = read_machine(name), sections()[name]
    gpu = machine.gpus[0]
    assert labels["nvidia.com/gpu.count"] == str(len(machine.gpus))
    if gpu.product_name is not None:
        assert labels["nvidia.com/gpu.product"].replace("-", " ") == gpu.product_name.replace("-", " ")
    if gpu.memory_bytes is not None:
        assert int(labels["nvidia.com/gpu.memory"]) * 1024 * 1024 == pytest.approx(gpu.memory_bytes, abs=1 << 20)
    if machine.driver_version is not None:
        assert labels["nvidia.com/cuda.driver-version.full"] == machine.driver_version
    if gpu.architecture is not None:
        family = labels["nvidia.com/gpu.family"]
        assert family.split("-")[0] == gpu.architecture.split()[0].lower()
