"""Consumable capacity: how much of each capacity of a device a request takes.

Source: KEP-5075, resource.k8s.io/v1 (CapacityRequestPolicy), and consumable_capacity.go of
k8s.io/dynamic-resource-allocation 0.37 for the units in which the steps of a range are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dracaena.api.quantity import INT64_MAX, NANO, Quantity
from dracaena.api.sharing import in_words
from dracaena.controller.allocation.legal.read.slices import Capacity, PublishedDevice, RequestPolicy


@dataclass(frozen=True, slots=True)
class AmountDemand:
    """A request for amounts of a GPU's capacities."""

    place: int
    """Its place among the requests whose GPUs are chosen."""
    count: int
    """Number of GPUs, which is that of its shares: no two are of one GPU."""
    capacity: Mapping[str, Quantity]
    mode: str
    """How it wants its GPUs to be shared (api.sharing)."""

    def __str__(self) -> str:
        return " and ".join(in_words(name, self.capacity[name].nano) for name in sorted(self.capacity, reverse=True))


_MILLI: Final = NANO // 1000


def amounts(
    device: PublishedDevice, wanted: Mapping[str, Quantity] | None, *, fractional: bool = True
) -> Mapping[str, Quantity] | None:
    """Return what a request takes of every capacity of the device, by name; None when it cannot be served.

    It cannot when it wants a capacity that the device does not have, when a policy refuses the amount, or when an
    amount that has to be rounded to a step does not fit into int64. Whether the amounts are still free is another
    question. Capacities that are not wanted are taken by their default, or whole.

    `fractional`: whether the steps of a range are counted in thousandths if the whole range is in whole thousandths
    (DRAFractionalCapacityRange). Otherwise they are counted in ones, and fractions are rounded up first.
    """
    wanted = wanted or {}
    if not wanted.keys() <= {capacity.name for capacity in device.capacities}:
        return None
    taken = {}
    for capacity in device.capacities:
        amount = _amount(capacity, wanted.get(capacity.name), fractional=fractional)
        if amount is None or not _is_valid(amount, capacity.policy, fractional=fractional):
            return None
        taken[capacity.name] = amount
    return taken


def is_whole_by_default(device: PublishedDevice) -> bool:
    """Return whether a device that several claims can share is given whole to a request without amounts: it takes one
    of the capacities whole then, and no share can do without some of that capacity."""
    return device.allow_multiple_allocations and bool(whole_capacities(device)) and amounts(device, None) is not None


def whole_capacities(device: PublishedDevice) -> tuple[str, ...]:
    """Return the capacities of which the default leaves less than any share takes: part of a step may be left."""
    return tuple(
        one.name
        for one in device.capacities
        if one.policy is not None
        and one.policy.default is not None
        and 0 <= one.value.nano - one.policy.default.nano < one.least_nano
    )


def _amount(capacity: Capacity, wanted: Quantity | None, *, fractional: bool) -> Quantity | None:
    """Return the amount after rounding; None when the policy cannot be applied."""
    policy = capacity.policy
    if wanted is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return wanted
    if policy.ranged:
        return _rounded_into_range(wanted, policy, fractional=fractional)
    # If none is large enough, the amount stays as it is, and is refused as not valid.
    return next((value for value in policy.valid_values if value >= wanted), wanted)


def _rounded_into_range(wanted: Quantity, policy: RequestPolicy, *, fractional: bool) -> Quantity | None:
    if policy.minimum is None:
        return wanted if policy.step is None else None
    if wanted < policy.minimum:
        return policy.minimum
    if policy.step is None:
        return wanted
    unit = _unit_nano(policy, fractional=fractional)
    amount, start, step = (_in_units(quantity, unit) for quantity in (wanted, policy.minimum, policy.step))
    if amount is None or start is None or not step:
        return None
    steps = -(-(amount - start) // step)
    # If the result does not fit into int64, the amount is refused as not valid.
    return Quantity((start + steps * step) * unit, policy.step.notation if fractional else "binary")


def _unit_nano(policy: RequestPolicy, *, fractional: bool) -> int:
    """Return the unit of the range's steps: thousandths if the whole range is in whole thousandths, else ones."""
    bounds = [bound for bound in (policy.minimum, policy.maximum, policy.step) if bound is not None]
    return _MILLI if fractional and all(_in_units(bound, _MILLI) is not None for bound in bounds) else NANO


def _in_units(quantity: Quantity, unit_nano: int) -> int | None:
    """Return the amount in ones (fractions rounded up) or in thousandths (exact); None if int64 has no such number.

    As in Kubernetes: an amount finer than a thousandth cannot be compared with a range that is counted in them.
    """
    if unit_nano == _MILLI and quantity.nano % _MILLI:
        return None
    number = quantity.whole() if unit_nano == NANO else quantity.nano // _MILLI
    return number if number <= INT64_MAX else None


def _is_valid(amount: Quantity, policy: RequestPolicy | None, *, fractional: bool) -> bool:
    if policy is None or amount == policy.default:
        return True
    if policy.ranged:
        return _is_in_range(amount, policy, fractional=fractional)
    return not policy.valid_values or amount in policy.valid_values


def _is_in_range(amount: Quantity, policy: RequestPolicy, *, fractional: bool) -> bool:
    if policy.maximum is not None and amount > policy.maximum:
        return False
    if policy.step is None:
        return True
    if policy.minimum is None:
        return False
    unit = _unit_nano(policy, fractional=fractional)
    taken, start, step = (_in_units(quantity, unit) for quantity in (amount, policy.minimum, policy.step))
    if taken is None or start is None or not step:
        return False
    return (taken - start) % step == 0
