"""Compatibility groups: which devices may draw on one counter set at the same time (KEP-5963)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dracaena.controller.allocation.legal.books import Books
from dracaena.controller.allocation.legal.read.slices import Pool, PublishedDevice

_UNGROUPED: Final = frozenset({""})
"""Stands for no groups: devices without groups go together, but with no others. No group of the API has this name."""


@dataclass(frozen=True, slots=True)
class CommonGroups:
    """What one pool's devices in use have in common, by counter set; a set that no device draws on is absent."""

    by_set: Mapping[str, frozenset[str]]

    def admit(self, device: PublishedDevice, others: Sequence[PublishedDevice] = ()) -> bool:
        """Return whether in each of its counter sets the device shares a group with all devices in use and all
        `others`.

        Cost: O(other devices).
        """
        common = dict(self.by_set)
        _join(common, others)
        return all(common.get(name, groups) & groups for name, groups in _groups_of(device))


def groups_in_use(pool: Pool, books: Books) -> CommonGroups | None:
    """Return what all held devices of a pool have in common; None if no device has groups. Cost: O(devices).

    The groups are those published now: an allocation in the API has none (k8s.io/api 0.37.1).
    """
    devices = (*(reachable.device for reachable in pool.devices), *pool.elsewhere)
    if not any(device.compatibility_groups for device in devices):
        return None
    common: dict[str, frozenset[str]] = {}
    _join(common, (device for device in devices if books.is_held(device.id) or books.is_shared(device.id)))
    return CommonGroups(common)


def _join(common: dict[str, frozenset[str]], devices: Iterable[PublishedDevice]) -> None:
    for device in devices:
        for name, groups in _groups_of(device):
            common[name] = common.get(name, groups) & groups


def _groups_of(device: PublishedDevice) -> Iterator[tuple[str, frozenset[str]]]:
    return ((name, device.compatibility_groups.get(name, _UNGROUPED)) for name in device.counter_sets)
