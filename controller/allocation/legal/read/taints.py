"""Which devices DeviceTaintRules taint, and slices without some of their taints."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dracaena.api.objects import Taint
from dracaena.api.resource_objects import DeviceTaintRule, ResourceSlice


def without_taint(published: ResourceSlice, key: str) -> ResourceSlice:
    """Return a slice without the taints of one key."""
    devices = [
        msgspec.structs.replace(device, taints=[taint for taint in device.taints if taint.key != key])
        for device in published.spec.devices
    ]
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))


def selects_any(rule: DeviceTaintRule, slices: Iterable[ResourceSlice]) -> bool:
    """Return whether a rule taints some device of these slices, which are of one pool. Cost: O(devices) where the rule
    names a device, else O(1)."""
    selector = rule.spec.device_selector
    if selector is None:
        return False
    for one in slices:
        if selector.driver not in (None, one.spec.driver) or selector.pool not in (None, one.spec.pool.name):
            return False
        if selector.device is None or any(device.name == selector.device for device in one.spec.devices):
            return True
    return False


def selects_all(rule: DeviceTaintRule, driver: str) -> bool:
    """Return whether a rule taints every device of a driver."""
    selector = rule.spec.device_selector
    return (
        selector is not None and selector.driver in (None, driver) and selector.pool is None and selector.device is None
    )


def timeless(taint: Taint) -> Taint:
    """Return a taint without the time at which it was added: no decision depends on that."""
    return msgspec.structs.replace(taint, time_added=None)
