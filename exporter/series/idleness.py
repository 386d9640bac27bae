"""Whether the owner of a device uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dracaena.exporter.series.device_series import ServedDevice
from dracaena.exporter.series.owners import Owner
from dracaena.exporter.series.readings import GpuQuantity
from dracaena.exporter.series.usage import ContainerUse

SIGNS_OF_USE: Final = frozenset({GpuQuantity.GPU_UTILIZATION_PERCENT, GpuQuantity.GRAPHICS_ACTIVE_PERCENT})
"""Always read, so that whether a GPU is idle does not depend on which fields an admin chose."""


def busy_owners(device: ServedDevice) -> Mapping[Owner, bool]:
    """Return for each owner of a device whether it uses it, without owners about whom that is not known.

    Computing counts, merely holding memory does not. If the driver does not report who computes, as on MIG devices, a
    process counts as use: better not to report waste than to report it wrongly.
    """
    if len(device.owners) == 1:
        signs = [device.use.values[sign] for sign in SIGNS_OF_USE if sign in device.use.values]
        if signs:
            sm = _sm_percents(device)
            return {device.owners[0]: any(sign > 0 for sign in (*signs, *sm))}
    if device.shared_out is None:
        return {}
    return {owner: _is_used(use) for owner, use in device.shared_out.by_owner.items()}


def _sm_percents(device: ServedDevice) -> list[float]:
    uses = device.shared_out.by_owner.values() if device.shared_out is not None else ()
    return [use.sm_percent for use in uses if use.sm_percent is not None]


def _is_used(use: ContainerUse) -> bool:
    return use.processes > 0 if use.sm_percent is None else use.sm_percent > 0
