"""Names by which manifests for other GPU systems ask for GPUs, and what to write instead: one table for `validate`,
Events and `explain`. Names that come in many forms (nvidia.com/mig-<profile>) are in `extended_resources`.

The amounts are those of the table of shares in docs/migrate.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SHARE: Final = "a claim of class share.{driver} with capacity.requests"

_CLASSES: Final[Mapping[str, str]] = {
    "gpu.nvidia.com": "for a device of Dracaena write {driver}",
    "mig.nvidia.com": "for a device of Dracaena write mig.{driver}",
    "vfio.gpu.nvidia.com": "for a device of Dracaena write vfio.{driver}",
    "compute-domain-default-channel.nvidia.com": "Dracaena has no ComputeDomains, NVIDIA's driver for them has to run",
}
_SHARES: Final[Mapping[str, str]] = {
    "nvidia.com/gpumem": f"{_SHARE}, where gpumem: 3000 is memory: 3000Mi",
    "nvidia.com/gpumem-percentage": f"{_SHARE}, where memory is an amount: half of a GPU of 80 GiB is memory: 40Gi",
    "nvidia.com/gpucores": f'{_SHARE}, where gpucores: 30 is cores: "30"',
    "nvidia.com/gpu.shared": f"{_SHARE}, where one of 4 replicas of a GPU of 80 GiB is memory: 20Gi",
    "tencent.com/vcuda-memory": f"{_SHARE}, where vcuda-memory: 16 is memory: 4Gi",
    "tencent.com/vcuda-core": f'{_SHARE}, where vcuda-core: 30 is cores: "30"; 100 and more are whole GPUs, a count',
}
"""Resources of HAMi, NVIDIA's device plugin and gpu-manager."""


def instead_of_class(name: str, driver: str) -> str | None:
    """Say what to write instead of a DeviceClass of NVIDIA's DRA driver; None for any other name."""
    text = _CLASSES.get(name)
    return text and f"it belongs to NVIDIA's DRA driver: {text.format(driver=driver)}"


def instead_of_share(name: str, driver: str) -> str | None:
    """Say what to write instead of an extended resource that means a part of a GPU; None for any other name."""
    text = _SHARES.get(name)
    return text and text.format(driver=driver)
