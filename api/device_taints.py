"""What the taints of a device mean: for decisions, for `dracaena status` and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from dracaena.api.objects import Taint
from dracaena.api.resource_objects import DeviceTaintRule, ResourceSlice

BLOCKING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods off a node, and claims off a device, that do not tolerate them. All others, such as
None, only inform."""


def keeping_off(taints: Iterable[Taint]) -> Iterator[Taint]:
    """Yield the taints that keep off pods that do not tolerate them."""
    return (taint for taint in taints if taint.effect in BLOCKING_EFFECTS)


def in_words(taint: Taint) -> str:
    """Return a taint as kubectl writes it: `key=value:effect`."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def with_taint_rules(published: ResourceSlice, rules: Iterable[DeviceTaintRule]) -> ResourceSlice:
    """Return a slice as it is published with the taints of the rules on top, rules by name. Cost: O(rules), and
    O(devices × rules) if some are about the pool."""
    driver, pool = published.spec.driver, published.spec.pool.name
    meant = [rule for rule in rules if _is_about(rule, driver, pool)]
    if not meant:
        return published
    meant.sort(key=lambda rule: rule.metadata.name)
    devices = []
    for device in published.spec.devices:
        added = [rule.spec.taint for rule in meant if _named(rule) in (None, device.name)]
        devices.append(msgspec.structs.replace(device, taints=[*device.taints, *added]) if added else device)
    return msgspec.structs.replace(published, spec=msgspec.structs.replace(published.spec, devices=devices))


def _is_about(rule: DeviceTaintRule, driver: str, pool: str) -> bool:
    selector = rule.spec.device_selector
    return selector is not None and selector.driver in (None, driver) and selector.pool in (None, pool)


def _named(rule: DeviceTaintRule) -> str | None:
    selector = rule.spec.device_selector
    return None if selector is None else selector.device
