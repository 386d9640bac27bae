"""Taints of devices: those of slices, and those that DeviceTaintRules add."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from dracaena.api.objects import DeviceTaintRule, ResourceSlice
from dracaena.controller.allocation.structured.slices import Device, DeviceId, Slice


def with_rules(slices: Iterable[Slice], rules: Sequence[DeviceTaintRule]) -> tuple[Slice, ...]:
    """Return the slices with the taints of the rules added to the devices they select, rules by name.

    Where no rule selects a device of a slice, the same slice comes back. Cost: O(devices × rules).
    """
    ordered = sorted(rules, key=lambda rule: rule.metadata.name)
    return tuple(_overlaid(one, ordered) for one in slices) if ordered else tuple(slices)


def with_taint_rules(published: ResourceSlice, rules: Iterable[DeviceTaintRule]) -> ResourceSlice:
    """Return a slice as it is published with the taints of the rules on top, rules by name."""
    ordered = sorted(rules, key=lambda rule: rule.metadata.name)
    pool = (published.spec.driver, published.spec.pool.name)
    devices = []
    for device in published.spec.devices:
        added = [rule.spec.taint for rule in ordered if _selects(rule, DeviceId(*pool, device.name))]
        devices.append(msgspec.structs.replace(device, taints=[*device.taints, *added]) if added else device)
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))


def _overlaid(one: Slice, rules: Sequence[DeviceTaintRule]) -> Slice:
    devices = tuple(_tainted(device, rules) for device in one.devices)
    return (
        one if all(new is old for new, old in zip(devices, one.devices, strict=True)) else replace(one, devices=devices)
    )


def _tainted(device: Device, rules: Sequence[DeviceTaintRule]) -> Device:
    added = tuple(rule.spec.taint for rule in rules if _selects(rule, device.id))
    return replace(device, taints=device.taints + added) if added else device


def _selects(rule: DeviceTaintRule, device: DeviceId) -> bool:
    selector = rule.spec.device_selector
    if selector is None:
        return False
    wanted = (selector.driver, selector.pool, selector.device)
    return all(want in (None, have) for want, have in zip(wanted, device, strict=True))
