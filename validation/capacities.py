"""Checks the capacities of a device in a ResourceSlice, and what claims can ask for of them (requestPolicy)."""

from __future__ import annotations

from collections.abc import Collection

from dracaena.api import limits
from dracaena.api.quantity import Quantity
from dracaena.validation.field import Field, Fields
from dracaena.validation.findings import Breach
from dracaena.validation.quantities import check_quantity


def check_capacity(field: Field, *, shared: bool) -> None:
    """Check one capacity; `shared` is whether several claims can hold the device at a time."""
    capacity = field.fields("value", "requestPolicy")
    if capacity is None:
        return
    value = check_quantity(capacity["value"])
    policy = capacity["requestPolicy"]
    if policy.absent:
        return
    if not shared:
        expected = "allowMultipleAllocations: true beside it"
        policy.error("a request policy of a device that is not shared", expected, breach=Breach.FORBIDDEN)
        return
    fields = policy.fields("default", "validValues", "validRange")
    if fields is not None and value is not None:
        _check_policy(policy, fields, value)


def _check_policy(field: Field, policy: Fields, most: Quantity) -> None:
    """Check what amounts of a capacity claims can ask for; `most` is the capacity."""
    options, span, default_field = policy["validValues"], policy["validRange"], policy["default"]
    values = options.items()
    bounds = span.fields("min", "max", "step")
    default = check_quantity(default_field)
    if values and not span.absent:
        field.error("both validValues and validRange", "one of them", breach=Breach.FORBIDDEN)
        return
    if (values or not span.absent) and default_field.absent:
        default_field.error("missing", "what a claim gets that asks for nothing", breach=Breach.REQUIRED)
        return
    if values and default is not None:
        _check_valid_values(options, default, most)
    elif not span.absent and bounds is not None and default is not None:
        _check_valid_range(span, bounds, default, most)


def _check_valid_values(field: Field, default: Quantity, most: Quantity) -> None:
    items = field.items(limits.CAPACITY_VALID_VALUES)
    if items is None:
        return
    amounts: list[Quantity] = []
    for item in items:
        value = check_quantity(item)
        if value is None:
            return
        if value > most:
            item.error("more than the capacity", "a value within it")
        if amounts and value < amounts[-1]:
            item.error("less than the value before it", "values in ascending order")
        if value.whole() in [amount.whole() for amount in amounts]:
            item.error("a value for the second time", "each whole value once", breach=Breach.DUPLICATE)
        amounts.append(value)
    if default not in amounts:
        field.error("the default is not among them", "the default as one of the values")


def _check_valid_range(field: Field, bounds: Fields, default: Quantity, most: Quantity) -> None:
    least, step = check_quantity(bounds["min"]), check_quantity(bounds["step"])
    upper = most if bounds["max"].absent else check_quantity(bounds["max"])
    if bounds["min"].absent:
        bounds["min"].error("missing", "the least amount", breach=Breach.REQUIRED)
        return
    if least is None or step is None or upper is None:
        return
    if upper > most:
        bounds["max"].error("more than the capacity", "a value within it")
    if least > most:
        bounds["min"].error("more than the capacity", "a value within it")
    if not bounds["max"].absent and least > upper:
        bounds["max"].error("less than the minimum", "a value above it")
    if default < least:
        bounds["min"].error("more than the default", "a range with the default in it")
    if not bounds["max"].absent and default > upper:
        bounds["max"].error("less than the default", "a range with the default in it")
    elif default > upper:
        field.never("the default is more than the capacity", "a range with the default in it")
    if not bounds["step"].absent:
        _check_step(bounds["step"], step, least, most, (default,) if bounds["max"].absent else (default, upper))


def _check_step(field: Field, step: Quantity, least: Quantity, most: Quantity, bounds: Collection[Quantity]) -> None:
    if least.nano + step.nano > most.nano:
        field.error("one step is more than the capacity", "a smaller step")
    if step.nano <= 0:
        field.error("not positive", "a step above 0")
    elif any((bound.whole() - least.whole()) % step.whole() for bound in bounds):
        field.error("default or max is not whole steps above min", "values that are")
