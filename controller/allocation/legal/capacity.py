"""Consumable capacity: how much of each capacity of a device a request takes.

Source: KEP-5075 and resource.k8s.io/v1, CapacityRequestPolicy.
"""

from __future__ import annotations

from collections.abc import Mapping

from dracaena.api.quantity import NANO, Quantity
from dracaena.controller.allocation.legal.read.slices import Capacity, PublishedDevice, RequestPolicy


def amounts(device: PublishedDevice, wanted: Mapping[str, Quantity] | None) -> Mapping[str, Quantity] | None:
    """Return what a request takes of every capacity of the device, by name; None when it cannot be served.

    It cannot when it wants a capacity that the device does not have, or when a policy refuses the amount. Whether the
    amounts are still there is another question. Capacities that are not wanted are taken by their default, or whole.
    """
    wanted = wanted or {}
    if not wanted.keys() <= {capacity.name for capacity in device.capacities}:
        return None
    taken = {}
    for capacity in device.capacities:
        amount = _amount(capacity, wanted.get(capacity.name))
        if amount is None or not _is_valid(amount, capacity.policy):
            return None
        taken[capacity.name] = amount
    return taken


def _amount(capacity: Capacity, wanted: Quantity | None) -> Quantity | None:
    """Return the amount after rounding, None when the policy cannot be applied."""
    policy = capacity.policy
    if wanted is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return wanted
    if policy.ranged:
        return _rounded_into_range(wanted, policy)
    # Where none is large enough, the amount stays as it is, and is refused as not valid.
    return next((value for value in policy.valid_values if value >= wanted), wanted)


def _rounded_into_range(wanted: Quantity, policy: RequestPolicy) -> Quantity | None:
    if policy.minimum is None:
        return wanted if policy.step is None else None
    if wanted < policy.minimum:
        return policy.minimum
    if policy.step is None:
        return wanted
    # Kubernetes 1.36 counts steps in whole ones: fractions are rounded up first.
    step, start = policy.step.whole(), policy.minimum.whole()
    if step <= 0:
        return None
    steps = -(-(wanted.whole() - start) // step)
    return Quantity((start + steps * step) * NANO, "binary")


def _is_valid(amount: Quantity, policy: RequestPolicy | None) -> bool:
    if policy is None or amount == policy.default:
        return True
    if policy.ranged:
        return _is_in_range(amount, policy)
    return not policy.valid_values or amount in policy.valid_values


def _is_in_range(amount: Quantity, policy: RequestPolicy) -> bool:
    if policy.maximum is not None and amount > policy.maximum:
        return False
    if policy.step is None:
        return True
    step = policy.step.whole()
    return policy.minimum is not None and step > 0 and (amount.whole() - policy.minimum.whole()) % step == 0
