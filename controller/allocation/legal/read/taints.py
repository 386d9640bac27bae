"""Taints of devices: those of slices, and those that DeviceTaintRules add."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import DeviceTaintRule, ResourceSlice


def with_taint_rules(published: ResourceSlice, rules: Iterable[DeviceTaintRule]) -> ResourceSlice:
    """Return a slice as it is published with the taints of the rules on top, rules by name."""
    ordered = sorted(rules, key=lambda rule: rule.metadata.name)
    pool = (published.spec.driver, published.spec.pool.name)
    devices = []
    for device in published.spec.devices:
        added = [rule.spec.taint for rule in ordered if _selects(rule, DeviceId(*pool, device.name))]
        devices.append(msgspec.structs.replace(device, taints=[*device.taints, *added]) if added else device)
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


def _selects(rule: DeviceTaintRule, device: DeviceId) -> bool:
    selector = rule.spec.device_selector
    if selector is None:
        return False
    wanted = (selector.driver, selector.pool, selector.device)
    return all(want in (None, have) for want, have in zip(wanted, device, strict=True))
