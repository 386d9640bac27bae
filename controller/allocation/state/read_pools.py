"""Pools of our driver in the form that the rules read, kept until they change: reading one takes milliseconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from dracaena.controller.allocation.legal.read.pools import SliceIndex
from dracaena.controller.allocation.legal.read.slices import Slice

MOST_DEVICES: Final = 40_000
"""Devices that are kept read, about 3 KiB each with their form for CEL: 700 nodes of 56 MIG devices. Nodes of which
whole GPUs are all that there is to give are never read like this."""


class ReadPools:
    """Remembers pools by name; the one not asked for longest goes first. One thread at a time."""

    def __init__(self, most_devices: int = MOST_DEVICES) -> None:
        self._most_devices = most_devices
        self._known: OrderedDict[str, tuple[SliceIndex, int]] = OrderedDict()
        self._devices = 0

    def get(self, name: str, read: Callable[[], tuple[Slice, ...]]) -> SliceIndex:
        """Return the slices of a pool, read at the first call and after forget()."""
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known[0]
        slices = read()
        index, count = SliceIndex(slices), sum(len(one.devices) for one in slices)
        self._known[name] = index, count
        self._devices += count
        while self._devices > self._most_devices and len(self._known) > 1:
            self._devices -= self._known.popitem(last=False)[1][1]
        return index

    def forget(self, name: str) -> None:
        """The pool has changed."""
        known = self._known.pop(name, None)
        self._devices -= 0 if known is None else known[1]
