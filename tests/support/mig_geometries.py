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
GEOMETRIES = {"A100": A100_40GB, "H100": H100_80GB, "H200": H200_141GB, "A30": A30}


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
