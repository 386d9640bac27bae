"""Which attributes and capacities GPUs have: no device has anything else that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final
from weakref import WeakKeyDictionary

from dracaena.api.reasons import ReadName, more_unknown_names, unknown_name
from dracaena.controller.allocation.state.device_kind import IDENTITY
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind

MAX_READ: Final = 50
"""Kinds of nodes that are read in one call, which may be part of a decision: 8 ms if each has 56 devices. Nodes of one
product are usually of one kind; other kinds are read in later calls, and until then nothing is reported."""

MOST_NAMED: Final = 10
"""Names that are reported, some 80 characters each: an Event has room for 1,024, and a selector for hundreds of names.
Finding what each name was meant to be takes a millisecond."""

_Names = Mapping[str, frozenset[str]]
"""Group (ReadName.group) → names."""


class PublishedNames:
    """Names by kind of node, remembered as long as there is such a node. One thread at a time."""

    def __init__(self) -> None:
        self._of_kind: WeakKeyDictionary[NodeKind, _Names] = WeakKeyDictionary()

    def unknown(self, inventory: Inventory, read: tuple[ReadName, ...]) -> tuple[str, ...]:
        """Say which of these names no device of ours has; nothing if no device is published, or not all kinds are read.

        The first MOST_NAMED are named, the others only counted.

        Cost: a step for each kind of node; if the first kind has every name, one look.
        """
        attributes: set[str] = set()
        capacity: set[str] = set()
        requests: set[str] = set()
        known = {"attributes": attributes, "capacity": capacity, "requests": requests}
        left, may_read = dict.fromkeys(read), MAX_READ
        for kind in inventory.buckets:
            if not left:
                return ()
            names = self._of_kind.get(kind)
            if names is None:
                if may_read == 0:
                    return ()
                may_read -= 1
                names = self._of_kind[kind] = _names(inventory, kind)
            attributes |= names["attributes"]
            capacity |= names["capacity"]
            requests |= names["requests"]
            left = {one: None for one in left if not one.is_among(known[one.group])}
        if not attributes:
            return ()
        named = tuple(unknown_name(one, known[one.group]) for one in islice(left, MOST_NAMED))
        return named if len(left) <= MOST_NAMED else (*named, more_unknown_names(len(left) - MOST_NAMED))


def _names(inventory: Inventory, kind: NodeKind) -> _Names:
    attributes, capacity = set(IDENTITY), set()
    for device in inventory.devices_of(kind):
        attributes |= device.attributes.keys()
        capacity |= {one.name for one in device.capacities}

    def qualified(name: str) -> str:
        return name if "/" in name else f"{inventory.driver}/{name}"

    return {
        "attributes": frozenset(map(qualified, attributes)),
        "capacity": frozenset(map(qualified, capacity)),
        "requests": frozenset(capacity),
    }
