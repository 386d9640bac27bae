"""Selectors in CEL, over devices as CEL sees them."""

from __future__ import annotations

from typing import Final

from dracaena import cel
from dracaena.api.resource_objects import DeviceAttribute
from dracaena.controller.allocation.effort import CHARACTER_STEPS, DEVICE_STEPS, UNITS_A_STEP, Effort, Work
from dracaena.controller.allocation.legal.read.features import Features
from dracaena.controller.allocation.legal.read.slices import PublishedDevice
from dracaena.controller.allocation.legal.selectors import SelectorFailure

MOST_DEVICES: Final = 40_000
"""Devices kept in CEL's form, about 2 KiB each: as many as are kept in memory (state.pool.MOST_DEVICES). A device that
is read again is another device here, and an entry keeps the earlier one alive."""


class CelSelectors:
    """CEL as Kubernetes evaluates it. Compiled expressions and answers are remembered, in bounded memory."""

    __slots__ = ("_devices", "_effort", "_memo")

    def __init__(self, features: Features, effort: Effort | None = None) -> None:
        """Compiling and evaluating is charged to `effort`, whose OverdueError every method may raise."""
        self._effort = effort or Effort()
        self._memo = cel.SelectorMemo(
            cel.LanguageFeatures(
                consumable_capacity=features.consumable_capacity,
                list_type_attributes=features.list_attributes,
                stored_lists=features.stored_lists,
                strict_optionals=features.strict_optionals,
            ),
            compiled=self._compiled,
        )
        # By identity: a device is a value that is made once per version of its slice.
        self._devices: dict[int, tuple[PublishedDevice, cel.DeviceView]] = {}

    def evaluate(self, expression: str, device: PublishedDevice) -> bool | SelectorFailure:
        """Return whether the device matches, or why there is no answer."""
        try:
            selector = self._memo.compile(expression)
        except cel.CompileError as error:
            return _no_selector(error)
        self._effort.charge(1, Work.SELECTOR, expression)
        outcome = self._memo.evaluate(selector, self._device(device), lambda units: self._charge(units, expression))
        return SelectorFailure(outcome.reason) if isinstance(outcome, cel.Failed) else outcome is cel.MATCH

    def evaluate_once(self, expression: str, device: PublishedDevice) -> bool | SelectorFailure:
        """Answer as evaluate() does, but remember nothing: for expressions that are not asked again."""
        try:
            selector = self._memo.compile(expression)
        except cel.CompileError as error:
            return _no_selector(error)
        self._effort.charge(DEVICE_STEPS, Work.SELECTOR, expression)
        outcome, untold = selector.evaluate_charged(cel_device(device), lambda units: self._charge(units, expression))
        self._charge(untold, expression)
        return SelectorFailure(outcome.reason) if isinstance(outcome, cel.Failed) else outcome is cel.MATCH

    def derive(self, expression: str, device: PublishedDevice) -> DeviceAttribute | SelectorFailure:
        """Return the value of a derived attribute for the device, or why there is none. Remembers no values."""
        try:
            selector = self._memo.compile(expression, derived=True)
        except cel.CompileError as error:
            return _no_selector(error)
        self._effort.charge(1, Work.SELECTOR, expression)
        value, untold = selector.value_charged(self._device(device), lambda units: self._charge(units, expression))
        self._charge(untold, expression)
        return SelectorFailure(value.reason) if isinstance(value, cel.Failed) else _attribute(value)

    def footprint(self, expression: str, *, derived: bool = False) -> cel.Footprint | SelectorFailure:
        """Return what the expression can read of a device, or why it is no selector (or no derived attribute)."""
        self._effort.charge(1, Work.SELECTOR, expression)
        try:
            return self._memo.compile(expression, derived=derived).footprint
        except cel.CompileError as error:
            return _no_selector(error)

    def _charge(self, units: int, expression: str) -> None:
        self._effort.charge(units // UNITS_A_STEP, Work.SELECTOR, expression)

    def _compiled(self, expression: str) -> None:
        self._effort.charge(CHARACTER_STEPS * len(expression), Work.SELECTOR, expression)

    def _device(self, device: PublishedDevice) -> cel.DeviceView:
        known = self._devices.get(id(device))
        if known is None:
            if len(self._devices) >= MOST_DEVICES:
                self._devices.clear()
            known = self._devices[id(device)] = (device, cel_device(device))
        return known[1]


def _no_selector(error: cel.CompileError) -> SelectorFailure:
    """Return the error in one line: reasons appear in Events, where a caret would point nowhere."""
    return SelectorFailure(f"{error.message} (line {error.line}, column {error.column})")


def cel_device(device: PublishedDevice) -> cel.DeviceView:
    """Return the device as CEL sees it."""
    return cel.DeviceView.of_names(
        device.id.driver,
        {name: _value(attribute) for name, attribute in device.attributes.items()},
        {capacity.name: str(capacity.value) for capacity in device.capacities},
        allow_multiple_allocations=device.allow_multiple_allocations,
    )


def _value(attribute: DeviceAttribute) -> cel.AttributeValue | None:
    """Return the attribute's value; None for a type that this version does not know."""
    scalars = (attribute.int_value, attribute.bool_value, attribute.string)
    for scalar in scalars:
        if scalar is not None:
            return scalar
    if attribute.version is not None:
        return cel.Version(attribute.version)
    for values in (attribute.ints, attribute.bools, attribute.strings):
        if values:
            return tuple(values)
    return tuple(map(cel.Version, attribute.versions)) if attribute.versions else None


def _attribute(value: cel.AttributeValue) -> DeviceAttribute:
    """Return a CEL value as an attribute; that of an empty list has no value at all."""
    if isinstance(value, tuple):
        return DeviceAttribute(
            bools=[one for one in value if isinstance(one, bool)] or None,
            ints=[one for one in value if isinstance(one, int) and not isinstance(one, bool)] or None,
            strings=[one for one in value if isinstance(one, str)] or None,
            versions=[one.text for one in value if isinstance(one, cel.Version)] or None,
        )
    if isinstance(value, bool):
        return DeviceAttribute(bool_value=value)
    if isinstance(value, int):
        return DeviceAttribute(int_value=value)
    return DeviceAttribute(version=value.text) if isinstance(value, cel.Version) else DeviceAttribute(string=value)
