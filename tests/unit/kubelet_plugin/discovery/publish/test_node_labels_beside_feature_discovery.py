"""Each case that GPU feature discovery 0.20 tests of its own labels, with the labels that it expects there.

Its cases with replicas are left out: we have none. Source: k8s-device-plugin, internal/lm/*_test.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest

from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import MigAttributes, MigDevice
from dracaena.kubelet_plugin.discovery.publish.node_labels import LabelFacts, MigStrategy, gpu_mode, node_labels
from support.topologies import topology_from_matrix

PREFIX: Final = "nvidia.com/"
JUDGED: Final = ("gpu.", "mig.strategy", "mig-")
"""What these cases are about. The machine type and mode have tests of their own there and here."""
APART: Final = ("gpu.machine", "gpu.mode")

UNDIVIDED: Final = "undivided"
"""A GPU without MIG mode; a tuple stands for a divided one, with its MIG devices: slices of the GPU and for computing,
memory in MiB, then what NVML counts of it: multiprocessors and engines."""
Part = tuple[int, ...]
Row = str | tuple[Part, ...]

ARCHITECTURE: Final = {"gpu.compute.major": "8", "gpu.compute.minor": "0", "gpu.family": "ampere"}
"""Their divided GPU has no compute capability, so these stand for an undivided one."""
NO_ENGINES: Final = (0, 0, 0, 0, 0, 0)
INVALID: Final = {
    "gpu.count": "0",
    "gpu.replicas": "0",
    "gpu.sharing-strategy": "",
    "gpu.memory": "0",
    "gpu.product": "MOCKMODEL-MIG-INVALID",
    "mig.strategy": "single",
}


def whole(count: int, replicas: int = 1) -> dict[str, str]:
    return {
        "gpu.count": str(count),
        "gpu.replicas": str(replicas),
        "gpu.sharing-strategy": "none",
        "gpu.memory": "300",
        "gpu.product": "MOCKMODEL",
    }


def parts(prefix: str, count: int, amounts: tuple[int, ...]) -> dict[str, str]:
    names = ("multiprocessors", *(f"engines.{name}" for name in ("copy", "decoder", "encoder", "jpeg", "ofa")))
    return {
        f"{prefix}.count": str(count),
        f"{prefix}.replicas": "1",
        f"{prefix}.sharing-strategy": "none",
        f"{prefix}.memory": "100",
        f"{prefix}.product": "MOCKMODEL-MIG-1g.100gb",
        f"{prefix}.slices.gi": "1",
        f"{prefix}.slices.ci": "2",
        **{f"{prefix}.{name}": str(amount) for name, amount in zip(names, amounts, strict=True)},
    }


SINGLE: Final = {"mig.strategy": "single"}
MIXED: Final = {"mig.strategy": "mixed"}
ENGINES: Final = (12, 13, 14, 15, 16, 17)

CASES: Final[Mapping[str, tuple[MigStrategy, tuple[Row, ...], Mapping[str, str]]]] = {
    "none, no GPU": ("none", (), {}),
    "none, one GPU": ("none", (UNDIVIDED,), {**ARCHITECTURE, **whole(1)}),
    "none, one divided": ("none", ((),), whole(1, 0)),
    "none, two divided": ("none", ((), ()), whole(2, 0)),
    "none, one divided and one not": ("none", ((), UNDIVIDED), {**ARCHITECTURE, **whole(2)}),
    "single, no GPU": ("single", (), {}),
    "single, one GPU": ("single", (UNDIVIDED,), {**ARCHITECTURE, **whole(1), **SINGLE}),
    "single, two GPUs": ("single", (UNDIVIDED, UNDIVIDED), {**ARCHITECTURE, **whole(2), **SINGLE}),
    "single, one part": ("single", (((1, 2, 100, *NO_ENGINES),),), {**parts("gpu", 1, NO_ENGINES), **SINGLE}),
    "single, two parts": (
        "single",
        (((1, 2, 100, *ENGINES),), ((1, 2, 100, *ENGINES),)),
        {**parts("gpu", 2, ENGINES), **SINGLE},
    ),
    "single, empty": ("single", ((),), INVALID),
    "single, two profiles": ("single", (((1, 2, 100, *NO_ENGINES), (3, 4, 100, *NO_ENGINES)),), INVALID),
    "single, one divided and one not": (
        "single",
        (((1, 2, 100, *NO_ENGINES),), UNDIVIDED),
        {**ARCHITECTURE, **INVALID},
    ),
    "single, divided, empty and whole": (
        "single",
        (((1, 2, 100, *NO_ENGINES),), UNDIVIDED, ()),
        {**ARCHITECTURE, **INVALID},
    ),
    # No case of theirs, but what their code answers: nobody had it right before.
    "single, one of two is empty": ("single", (((1, 2, 100, *NO_ENGINES),), ()), INVALID),
    "mixed, one divided and one not": (
        "mixed",
        (((1, 2, 100, *NO_ENGINES),), UNDIVIDED),
        {**ARCHITECTURE, **whole(2), **parts("mig-1g.100gb", 1, NO_ENGINES), **MIXED},
    ),
    "mixed, all divided": (
        "mixed",
        (((1, 2, 100, *NO_ENGINES),), ()),
        {**whole(2, 0), **parts("mig-1g.100gb", 1, NO_ENGINES), **MIXED},
    ),
}


def machine_of(rows: tuple[Row, ...]) -> Machine:
    gpus, migs = [], []
    for number, row in enumerate(rows):
        divided = not isinstance(row, str)
        gpu = Gpu(
            f"GPU-{number}",
            number,
            product_name="MOCKMODEL",
            memory_bytes=300 << 20,
            cuda_compute_capability=None if divided else "8.0",
            mig_enabled=divided or None,
        )
        gpus.append(gpu)
        for place, (gi, ci, mib, multiprocessors, *engines) in enumerate(() if isinstance(row, str) else row):
            migs.append(
                MigDevice(
                    gpu.uuid,
                    f"MIG-{number}-{place}",
                    place,
                    0,
                    f"{gi}g.{mib}gb",
                    place,
                    1,
                    mib << 20,
                    multiprocessors,
                    attributes=MigAttributes(gi, ci, *engines),
                )
            )
    matrix = [["X" if a == b else "SYS" for b in range(len(rows))] for a in range(len(rows))]
    return Machine("m", tuple(gpus), topology_from_matrix(matrix), mig_devices=tuple(migs))


@pytest.mark.parametrize("case", CASES)
def test_labels_are_those_of_gpu_feature_discovery(case: str) -> None:
    strategy, rows, expected = CASES[case]
    found = node_labels(machine_of(rows), LabelFacts(mig_strategy=strategy, is_from_driver=True), "gpu.dracaena.dev")
    names = {name.removeprefix(PREFIX): value for name, value in found.items() if name.startswith(PREFIX)}
    judged = {name: value for name, value in names.items() if name.startswith(JUDGED) and name not in APART}
    assert judged == expected


@pytest.mark.parametrize(
    ("rows", "capable"),
    [
        ((UNDIVIDED,), "false"),
        ((UNDIVIDED, UNDIVIDED), "false"),
        (((),), "true"),
        ((UNDIVIDED, ()), "true"),
    ],
)
def test_a_node_can_be_divided_if_one_gpu_can(rows: tuple[Row, ...], capable: str) -> None:
    found = node_labels(machine_of(rows), LabelFacts(is_from_driver=True), "gpu.dracaena.dev")
    assert found["nvidia.com/mig.capable"] == capable
    assert "nvidia.com/mig.capable" in node_labels(machine_of(rows), LabelFacts(), "d.example") or capable == "false"


@pytest.mark.parametrize(
    ("classes", "mode"),
    [
        (("0x030000",), "graphics"),
        (("0x030200",), "compute"),
        (("0x068000",), "unknown"),
        (("0x030200",) * 3, "compute"),
        (("0x030000",) * 3, "graphics"),
        (("0x030000", "0x030200", "0x030000"), "unknown"),
        (("0x030200", ""), "unknown"),
        ((), "unknown"),
    ],
)
def test_the_mode_is_that_of_all_gpus(classes: tuple[str, ...], mode: str) -> None:
    assert gpu_mode(classes) == mode


def test_of_two_models_the_gpus_of_the_one_that_is_named_are_counted() -> None:
    models = ("Tesla V100",) * 4 + ("Tesla P40",) * 2
    gpus = tuple(Gpu(f"GPU-{number}", number, product_name=model) for number, model in enumerate(models))
    matrix = [["X" if a == b else "SYS" for b in range(6)] for a in range(6)]
    found = node_labels(Machine("m", gpus, topology_from_matrix(matrix)), LabelFacts(), "gpu.dracaena.dev")
    assert (found["nvidia.com/gpu.product"], found["nvidia.com/gpu.count"]) == ("Tesla-V100", "4")
