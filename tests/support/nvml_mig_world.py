"""A node of Hopper GPUs that can be divided, under the whole plugin on a fake driver."""

from __future__ import annotations

from dataclasses import replace

from dracaena.api.machine import Machine
from support.gpu_driver_root import put
from support.mig_geometries import H100_80GB
from support.mig_node import access_minors
from support.nvml_world import RECORDED
from support.plugin_world import World

HOPPER: Machine = replace(
    RECORDED,
    gpus=tuple(replace(gpu, architecture="Hopper", mig_profiles=H100_80GB, mig_enabled=False) for gpu in RECORDED.gpus),
)


def put_capabilities(world: World) -> None:
    """What the driver says of its capabilities: the same numbers whether instances exist or not."""
    lines = []
    for minor in {gpu.minor or 0 for gpu in HOPPER.gpus}:
        for instance in range(1, 8):
            found = access_minors(minor, instance, 0)
            assert found is not None
            lines += [f"gpu{minor}/gi{instance}/access {found[0]}", f"gpu{minor}/gi{instance}/ci0/access {found[1]}"]
            for number in found:
                put(world.folder, f"host/dev/nvidia-caps/nvidia-cap{number}", f"234:{number}".encode())
    put(world.folder, "proc/driver/nvidia-caps/mig-minors", "\n".join(lines).encode())
