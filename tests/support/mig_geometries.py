"""How NVIDIA's products can be divided, by the listings of `nvidia-smi mig -lgip` and `-lgipp` that are published."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dracaena.api.machine import Machine
from dracaena.api.mig_geometry import MigPlacement, MigProfile
from support.machines import plain_machine


def _profile(
    name: str,
    number: int,
    compute_slices: int,
    mib: int,
    multiprocessors: int,
    most: int,
    places: tuple[Iterable[int], int],
    engines: tuple[int, int, int, int],
) -> MigProfile:
    """`engines`: copy engines, decoders, JPEG engines, OFA engines; none of these products has encoders."""
    starts, size = places
    copy, decoders, jpeg, ofa = engines
    return MigProfile(
        name=name,
        profile_id=number,
        compute_slices=compute_slices,
        memory_bytes=mib << 20,
        multiprocessors=multiprocessors,
        max_instances=most,
        placements=tuple(MigPlacement(start, size) for start in starts),
        copy_engines=copy,
        decoders=decoders,
        jpeg_engines=jpeg,
        ofa_engines=ofa,
    )


A100_40GB = (
    _profile("1g.5gb", 19, 1, 4864, 14, 7, (range(7), 1), (1, 0, 0, 0)),
    _profile("1g.5gb+me", 20, 1, 4864, 14, 1, (range(7), 1), (1, 1, 1, 1)),
    _profile("1g.10gb", 15, 1, 9856, 14, 4, ((0, 2, 4, 6), 2), (1, 1, 0, 0)),
    _profile("2g.10gb", 14, 2, 9856, 28, 3, ((0, 2, 4), 2), (2, 1, 0, 0)),
    _profile("3g.20gb", 9, 3, 19968, 42, 2, ((0, 4), 4), (3, 2, 0, 0)),
    _profile("4g.20gb", 5, 4, 19968, 56, 1, ((0,), 4), (4, 2, 0, 0)),
    _profile("7g.40gb", 0, 7, 40192, 98, 1, ((0,), 8), (7, 5, 1, 1)),
)
H100_80GB = (
    _profile("1g.10gb", 19, 1, 9984, 16, 7, (range(7), 1), (1, 1, 1, 0)),
    _profile("1g.10gb+me", 20, 1, 9984, 16, 1, (range(7), 1), (1, 1, 1, 1)),
    _profile("1g.20gb", 15, 1, 20096, 26, 4, ((0, 2, 4, 6), 2), (1, 1, 1, 0)),
    _profile("2g.20gb", 14, 2, 20096, 32, 3, ((0, 2, 4), 2), (2, 2, 2, 0)),
    _profile("3g.40gb", 9, 3, 40448, 60, 2, ((0, 4), 4), (3, 3, 3, 0)),
    _profile("4g.40gb", 5, 4, 40448, 64, 1, ((0,), 4), (4, 4, 4, 0)),
    _profile("7g.80gb", 0, 7, 81152, 132, 1, ((0,), 8), (8, 7, 7, 1)),
)
A30 = (
    _profile("1g.6gb", 14, 1, 5952, 14, 4, (range(4), 1), (1, 0, 0, 0)),
    _profile("1g.6gb+me", 21, 1, 5952, 14, 1, (range(4), 1), (1, 1, 1, 1)),
    _profile("2g.12gb", 5, 2, 11968, 28, 2, ((0, 2), 2), (2, 2, 0, 0)),
    _profile("2g.12gb+me", 6, 2, 11968, 28, 1, ((0, 2), 2), (2, 2, 1, 1)),
    _profile("4g.24gb", 0, 4, 24160, 56, 1, ((0,), 4), (4, 4, 1, 1)),
)
GEOMETRIES = {"A100": A100_40GB, "H100": H100_80GB, "A30": A30}


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
