"""matchAttribute and distinctAttribute, tracked while devices are tried and taken back.

Both are monotonic: once a set of devices breaks one, every larger set does.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from dracaena.api.resource_objects import DeviceAttribute
from dracaena.controller.allocation.legal.read.claims import Constraint, Request
from dracaena.controller.allocation.legal.read.slices import PublishedDevice


class Values(NamedTuple):
    """The values of an attribute; those of different types never agree."""

    type: str
    values: frozenset[Hashable]


def find_attribute(device: PublishedDevice, name: str) -> DeviceAttribute | None:
    """Return the attribute with a fully qualified name; a driver leaves its own name out."""
    found = device.attributes.get(name)
    if found is None:
        domain, slash, identifier = name.partition("/")
        if slash and domain == device.id.driver:
            found = device.attributes.get(identifier)
    return found


def scalar(attribute: DeviceAttribute) -> Values | None:
    """Return the one value of an attribute; None for a list or an unknown type."""
    for kind, value in (
        ("string", attribute.string),
        ("int", attribute.int_value),
        ("bool", attribute.bool_value),
        # SemVer has one text for one version.
        ("version", attribute.version),
    ):
        if value is not None:
            return Values(kind, frozenset((value,)))
    return None


def as_set(attribute: DeviceAttribute) -> Values | None:
    """Return all values of an attribute; None for an unknown type or an empty list."""
    for kind, values in (
        ("int", attribute.ints),
        ("bool", attribute.bools),
        ("string", attribute.strings),
        ("version", attribute.versions),
    ):
        if values:
            return Values(kind, frozenset(values))
    return scalar(attribute)


class ConstraintState:
    """One constraint of one claim over the devices that are chosen for it at this moment.

    With `lists` every attribute is a set of values, a scalar being a set of one: devices match when they all have one
    element in common, and are distinct when no two of them have one in common.
    """

    __slots__ = ("_chosen", "_lists", "constraint")

    def __init__(self, constraint: Constraint, *, lists: bool) -> None:
        self.constraint = constraint
        self._lists = lists
        # For matchAttribute what all devices up to this one have in common, for distinctAttribute the device's own.
        self._chosen: list[Values | None] = []

    @property
    def is_fixed(self) -> bool:
        """Whether the devices chosen so far determine what every further one must have in common with them."""
        return bool(self._chosen) and not self.constraint.distinct

    @property
    def common(self) -> Values | None:
        """What all chosen devices have in common, when the constraint is fixed; None: nothing can match it."""
        return self._chosen[-1]

    def add(self, request: Request, attribute: DeviceAttribute | None) -> bool:
        """Add a device with this attribute and return True, if the constraint allows it together with the chosen
        ones."""
        if not self.constraint.applies_to(request):
            return True
        if attribute is None:
            return False
        values = as_set(attribute) if self._lists else scalar(attribute)
        if not self._chosen:
            # Kubernetes accepts a value of an unknown type from the first device; nothing ever matches it.
            if values is None and self._lists and not self.constraint.distinct:
                return False
            self._chosen.append(values)
            return True
        if values is None:
            return False
        joined = self._distinct(values) if self.constraint.distinct else self._matching(values)
        if joined is None:
            return False
        self._chosen.append(joined)
        return True

    def remove(self, request: Request) -> None:
        """Take back the last device that was added, which was for this request."""
        if self.constraint.applies_to(request):
            self._chosen.pop()

    def _matching(self, values: Values) -> Values | None:
        known = self._chosen[-1]
        if known is None or known.type != values.type:
            return None
        common = known.values & values.values
        return Values(values.type, common) if common else None

    def _distinct(self, values: Values) -> Values | None:
        for other in self._chosen:
            if other is not None and other.type == values.type and other.values & values.values:
                return None
        return values
