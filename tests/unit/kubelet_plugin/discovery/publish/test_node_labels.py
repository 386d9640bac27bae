"""Labels of each recorded machine and of machines with MIG devices, beside the table of GPU feature discovery."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import MigDevice
from dracaena.host.facts.machine import LeftOut
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.discovery.publish.node_labels import (
    LabelFacts,
    feature_file,
    label_value,
    node_labels,
    open_questions,
)
from support.recorded import recorded_machines
from support.topologies import topology_from_matrix

DRIVER = "gpu.dracaena.dev"
OWN = {f"{DRIVER}/topology", f"{DRIVER}/nvlink-group-size"}
NAMES = re.compile(
    r"nvidia\.com/("
    r"cuda\.driver\.(major|minor|rev)|cuda\.runtime\.(major|minor)|cuda\.driver-version\.(major|minor|revision|full)|"
    r"cuda\.runtime-version\.(major|minor|full)|gfd\.timestamp|mig\.(capable|strategy)|mps\.capable|"
    r"gpu\.(machine|count|product|replicas|sharing-strategy|memory|family|compute\.(major|minor)|mode|clique|"
    r"multiprocessors|slices\.(gi|ci)|engines\.(copy|decoder|encoder|jpeg|ofa))|"
    r"mig-[\w.]+\.(product|count|replicas|sharing-strategy|memory|multiprocessors|slices\.(gi|ci)|"
    r"engines\.(copy|decoder|encoder|jpeg|ofa)))"
)
"""Of GPU feature discovery 0.20, without vgpu, which is not read."""
VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

RECORDED = {
    "dgx-1v": ("Tesla-V100-SXM2-16GB", "8", "16384", "volta", "nvlink-partial", "8"),
    "gb200-tray": ("NVIDIA-GB200", "4", "189471", "blackwell", "nvlink", "4"),
    "hgx-h100": ("NVIDIA-H100-80GB-HBM3", "8", "81559", "hopper", "nvlink", "8"),
    "rtx4090-all-sys": ("NVIDIA-GeForce-RTX-4090", "8", "24564", "ada-lovelace", "pcie", "1"),
}


@pytest.mark.parametrize("machine", recorded_machines(), ids=lambda machine: machine.name)
def test_every_label_of_a_recorded_machine_is_one_of_the_table_and_valid(machine: Machine) -> None:
    labels = node_labels(machine, LabelFacts(timestamp_s=1), DRIVER)
    for name, value in labels.items():
        assert name in OWN or NAMES.fullmatch(name), name
        assert VALUE.fullmatch(value), (name, value)
        assert len(value) <= 63
    gpu = machine.gpus[0]
    assert labels["nvidia.com/gpu.count"] == str(len(machine.gpus))
    assert ("nvidia.com/gpu.product" in labels) == any(each.product_name for each in machine.gpus)
    if gpu.cuda_compute_capability:
        version = f"{labels['nvidia.com/gpu.compute.major']}.{labels['nvidia.com/gpu.compute.minor']}"
        assert version in {each.cuda_compute_capability for each in machine.gpus}


def left_out(call: str, reason: str = "UNKNOWN") -> LeftOut:
    return LeftOut("GPU 0", call, reason)


@pytest.mark.parametrize("machine", recorded_machines(), ids=lambda machine: machine.name)
def test_what_is_no_open_question_of_labels_changes_none(machine: Machine) -> None:
    gpus = tuple(
        replace(gpu, architecture=None, brand=None, pcie_generation=None, pcie_width=None, minor=None)
        for gpu in machine.gpus
    )
    pairs = tuple(replace(link, level=None) for link in machine.topology.pairs)
    unknown = replace(machine, gpus=gpus, topology=replace(machine.topology, pairs=pairs))
    assert node_labels(unknown, LabelFacts(), DRIVER) == node_labels(machine, LabelFacts(), DRIVER)
    calls = (
        "Architecture",
        "Brand",
        "MaxPcieLinkGeneration",
        "MaxPcieLinkWidth",
        "MinorNumber",
        "TopologyCommonAncestor",
    )
    assert open_questions([left_out(f"nvmlDeviceGet{call}") for call in calls]) == ()


def test_open_questions_are_those_that_may_be_answered_and_that_labels_follow_from() -> None:
    lost, memory = left_out("nvmlDeviceGetUUID", "GPU_IS_LOST"), left_out("nvmlDeviceGetMemoryInfo")
    never = left_out("nvmlDeviceGetMigMode", "NOT_SUPPORTED")
    assert open_questions([memory, never, left_out("nvmlDeviceGetBrand"), lost]) == (memory, lost)


@pytest.mark.parametrize(("name", "expected"), RECORDED.items())
def test_values_of_well_known_machines(name: str, expected: tuple[str, ...]) -> None:
    labels = node_labels(read_machine(name), LabelFacts(), DRIVER)
    keys = ("gpu.product", "gpu.count", "gpu.memory", "gpu.family")
    own = ("topology", "nvlink-group-size")
    assert (
        tuple(labels[f"nvidia.com/{key}"] for key in keys) + tuple(labels[f"{DRIVER}/{key}"] for key in own) == expected
    )


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ("5.2", "maxwell"), ("6.1", "pascal"), ("7.0", "volta"), ("7.2", "volta"), ("7.5", "turing"),
        ("8.0", "ampere"), ("8.6", "ampere"), ("8.7", "ampere"), ("8.9", "ada-lovelace"), ("9.0", "hopper"),
        ("10.0", "blackwell"), ("10.3", "blackwell"), ("12.0", "blackwell"), ("13.0", "rubin"),
        ("3.5", "undefined"), ("11.0", "undefined"), ("14.0", "undefined"),
    ],
)  # fmt: skip
def test_families_are_those_of_the_table(capability: str, family: str) -> None:
    labels = node_labels(machine_of(gpu(0, cuda_compute_capability=capability)), LabelFacts(), DRIVER)
    assert labels["nvidia.com/gpu.family"] == family


def gpu(number: int, **changes: object) -> Gpu:
    made = Gpu(
        uuid=f"GPU-{number}",
        index=number,
        product_name="NVIDIA A100-SXM4-40GB",
        memory_bytes=40 << 30,
        cuda_compute_capability="8.0",
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def machine_of(*gpus: Gpu, migs: tuple[MigDevice, ...] = ()) -> Machine:
    matrix = [["X" if a == b else "NV12" for b in range(len(gpus))] for a in range(len(gpus))]
    return Machine(
        "m",
        gpus,
        topology_from_matrix(matrix),
        driver_version="535.104.05",
        cuda_driver_version="12.2",
        mig_devices=migs,
    )


def mig(parent: int, number: int, profile: str) -> MigDevice:
    return MigDevice(f"GPU-{parent}", f"MIG-{parent}-{number}", number, 0, profile, number, 1, 5 << 30, 14)


def of_gpu(labels: dict[str, str] | object, prefix: str) -> dict[str, str]:
    assert isinstance(labels, dict)
    start = f"nvidia.com/{prefix}."
    return {name.removeprefix(start): value for name, value in labels.items() if name.startswith(start)}


def test_versions_are_told_whole_and_in_parts() -> None:
    labels = node_labels(machine_of(gpu(0)), LabelFacts(), DRIVER)
    assert of_gpu(labels, "cuda") == {
        "driver.major": "535", "driver.minor": "104", "driver.rev": "05",
        "driver-version.major": "535", "driver-version.minor": "104", "driver-version.revision": "05",
        "driver-version.full": "535.104.05",
        "runtime.major": "12", "runtime.minor": "2",
        "runtime-version.major": "12", "runtime-version.minor": "2", "runtime-version.full": "12.2",
    }  # fmt: skip


def test_mig_devices_stand_for_gpus_in_strategy_single() -> None:
    divided = [gpu(n, mig_enabled=True) for n in range(2)]
    migs = tuple(mig(n // 2, n, "1g.5gb+me") for n in range(4))
    labels = node_labels(machine_of(*divided, migs=migs), LabelFacts(mig_strategy="single"), DRIVER)
    expected = {
        "product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me", "count": "4", "replicas": "1", "memory": "5120",
        "multiprocessors": "14", "slices.gi": "1", "slices.ci": "1", "sharing-strategy": "none", "family": "ampere",
    }  # fmt: skip
    assert expected.items() <= of_gpu(labels, "gpu").items()
    assert (labels["nvidia.com/mig.strategy"], labels["nvidia.com/mig.capable"]) == ("single", "true")


@pytest.mark.parametrize(
    "machine",
    [
        machine_of(gpu(0, mig_enabled=True), gpu(1, mig_enabled=False), migs=(mig(0, 0, "1g.5gb"),)),
        machine_of(gpu(0, mig_enabled=True), migs=(mig(0, 0, "1g.5gb"), mig(0, 1, "2g.10gb"))),
        machine_of(gpu(0, mig_enabled=True)),
    ],
)
def test_a_layout_that_is_not_of_one_kind_is_invalid_in_strategy_single(machine: Machine) -> None:
    labels = of_gpu(node_labels(machine, LabelFacts(mig_strategy="single"), DRIVER), "gpu")
    assert labels["product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert (labels["count"], labels["replicas"], labels["memory"], labels["sharing-strategy"]) == ("0", "0", "0", "")


def test_mig_devices_stand_beside_gpus_in_strategy_mixed() -> None:
    migs = (mig(0, 0, "1c.3g.20gb"), mig(0, 1, "1g.5gb"), mig(0, 2, "1g.5gb"))
    machine = machine_of(gpu(0, mig_enabled=True), gpu(1, mig_enabled=False), migs=migs)
    labels = node_labels(machine, LabelFacts(mig_strategy="mixed"), DRIVER)
    whole = of_gpu(labels, "gpu")
    assert (whole["count"], whole["replicas"]) == ("2", "1"), "GPUs of the model, divided or not"
    assert of_gpu(labels, "mig-1g.5gb")["count"] == "2"
    part = of_gpu(labels, "mig-1c.3g.20gb")
    assert (part["slices.gi"], part["slices.ci"]) == ("3", "1")
    assert part["product"] == "NVIDIA-A100-SXM4-40GB-MIG-1c.3g.20gb"


def test_of_several_models_the_one_that_there_is_most_of_is_named() -> None:
    other = gpu(0, product_name="NVIDIA L40S", cuda_compute_capability="8.9")
    labels = node_labels(machine_of(other, gpu(1), gpu(2)), LabelFacts(), DRIVER)
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB"
    assert labels["nvidia.com/gpu.count"] == "2", "of that model"


def test_a_node_without_gpus_has_no_labels_so_that_the_old_ones_go() -> None:
    empty = Machine("none", (), topology_from_matrix([]))
    assert node_labels(empty, LabelFacts(timestamp_s=1), DRIVER) == {}
    assert feature_file({}) == b""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("  Quadro  RTX™ (6000) / 8000 ", "Quadro-RTX-6000-8000"),
        ('a"b\nc<script>', "abcscript"),
        ("-._", ""),
        ("x" * 62 + "--y", "x" * 62),
    ],
)
def test_texts_become_values_of_labels(text: str, value: str) -> None:
    assert label_value(text) == value


def test_the_names_in_the_list_of_recorded_machines_are_there() -> None:
    assert set(RECORDED) <= set(machine_names())


def test_gpus_of_the_vgpu_manager_are_no_gpus_for_containers() -> None:
    machine = read_machine("dgx-1v")
    gpus = tuple(replace(gpu, pci_bus_id=f"0000:{place + 1:02x}:00.0") for place, gpu in enumerate(machine.gpus))
    divided = replace(machine, gpus=gpus, vgpu_parents=frozenset(str(gpu.pci_bus_id) for gpu in gpus[2:]))
    labels = node_labels(divided, LabelFacts(), DRIVER)
    assert labels["nvidia.com/gpu.count"] == "2"
    assert (labels[f"{DRIVER}/topology"], labels[f"{DRIVER}/nvlink-group-size"]) == ("nvlink", "2"), "of these two"
    assert not any("vgpu" in name for name in labels), "which are said in guests alone"
    of_all = replace(divided, vgpu_parents=frozenset(str(gpu.pci_bus_id) for gpu in gpus))
    assert node_labels(of_all, LabelFacts(), DRIVER) == {}
