"""How NVIDIA's products can be divided, as the recorded machines have it."""

from __future__ import annotations

from dataclasses import replace

from dracaena.api.machine import Machine
from dracaena.api.mig_geometry import MigProfile
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.machines import plain_machine

A100_40GB, H100_80GB, H200_141GB, A30 = (
    read_machine(name).gpus[0].mig_profiles for name in ("a100-sxm4-x4", "h100-x1", "h200-nic10", "a30-x2")
)
RTX_PRO_6000 = read_machine("rtx-pro-6000-x2").gpus[0].mig_profiles


def _seven_slices(names: tuple[str, ...], engines: tuple[tuple[int, int, int, int], ...]) -> tuple[MigProfile, ...]:
    """GPUs of seven slices beside the H100: its profiles in the same order, with placements like there, under their own
    names, and with copy engines, decoders, JPEG engines and OFA engines.

    Multiprocessors and memory are not published by NVIDIA for each profile: they are 0.
    """
    return tuple(
        replace(
            profile, name=name, memory_bytes=0, multiprocessors=0, copy_engines=copy, decoders=decoders,
            jpeg_engines=jpeg, ofa_engines=ofa,
        )
        for profile, name, (copy, decoders, jpeg, ofa) in zip(H100_80GB, names, engines, strict=True)
    )  # fmt: skip


B200 = _seven_slices(
    ("1g.23gb", "1g.23gb+me", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
    ((2, 1, 1, 0), (2, 1, 1, 1), (2, 1, 1, 0), (3, 1, 1, 0), (6, 1, 1, 0), (8, 1, 1, 0), (16, 1, 1, 1)),
)
"""NVIDIA's MIG User Guide, table of the B200 180 GB, except for the placements."""

_UNKNOWN_ENGINES = ((0, 0, 0, 0),) * 7
GB200 = _seven_slices(
    ("1g.23gb", "1g.23gb+me", "1g.47gb", "2g.47gb", "3g.93gb", "4g.93gb", "7g.186gb"), _UNKNOWN_ENGINES
)
"""Names as in NVIDIA's mock of NVML (k8s-test-infra). Its engines are not published."""

GB300 = _seven_slices(
    ("1g.35gb", "1g.35gb+me", "1g.70gb", "2g.70gb", "3g.139gb", "4g.139gb", "7g.278gb"), _UNKNOWN_ENGINES
)
"""Names as NVIDIA's guide for DGX Station has them. Its engines are not published."""

GEOMETRIES = {
    "A100": A100_40GB,
    "H100": H100_80GB,
    "H200": H200_141GB,
    "A30": A30,
    "B200": B200,
    "GB200": GB200,
    "GB300": GB300,
    "RTX PRO 6000": RTX_PRO_6000,
}


def divisible_machine(
    count: int = 2, architecture: str = "Hopper", profiles: tuple[MigProfile, ...] | None = None
) -> Machine:
    """GPUs that are not divided; Ampere's are in MIG mode already."""
    ampere = architecture == "Ampere"
    machine = plain_machine(
        count, architecture=architecture, memory_bytes=(40 if ampere else 80) << 30, product_name="NVIDIA GPU",
        mig_enabled=ampere, mig_profiles=profiles or (A100_40GB if ampere else H100_80GB),
    )  # fmt: skip
    return replace(machine, gpus=tuple(replace(gpu, minor=gpu.index) for gpu in machine.gpus))
