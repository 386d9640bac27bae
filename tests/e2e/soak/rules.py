"""What a claim may get, read from plain JSON and without code of the product: the soak's second opinion.

It knows the classes and selectors that the soak uses and raises on any other: what it cannot judge must not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

DRIVER: Final = "gpu.dracaena.dev"
Device = Mapping[str, Any]

LONELY: Final = {"soak": "lonely"}
"""Label of pods of which a node takes one (required podAntiAffinity by host name)."""

NEEDY: Final = {"soak": "needy"}
FRIEND: Final = {"soak": "friend"}
"""Labels of pods that are bound only while one of the others is there, on whatever node (required podAffinity)."""

SHARE: Final = {"memory": "30Gi"}
"""What one share takes of a shared device."""


def attribute(device: Device, name: str) -> Any:
    """Return the value of an attribute by its full name; None where the device has none."""
    domain, _, short = name.rpartition("/")
    values = device.get("attributes", {})
    found = values.get(name) or (values.get(short) if domain == DRIVER else None)
    return next(iter(found.values())) if found else None


def _is(name: str, value: object) -> Callable[[Device], bool]:
    return lambda device: attribute(device, f"{DRIVER}/{name}") == value


HOPPER: Final = f'device.attributes["{DRIVER}"].architecture == "Hopper"'
NOT_HOPPER: Final = f'device.attributes["{DRIVER}"].architecture != "Hopper"'
SELECTORS: Final[Mapping[str, Callable[[Device], bool]]] = {
    HOPPER: _is("architecture", "Hopper"),
    NOT_HOPPER: lambda device: not _is("architecture", "Hopper")(device),
}
CLASSES: Final[Mapping[str, Callable[[Device], bool]]] = {
    "gpu.dracaena.dev": _is("type", "gpu"),
    "shared.dracaena.dev": _is("type", "mig"),
}


def suits(device: Device, request: Mapping[str, Any]) -> bool:
    """Whether a device is of the request's class and its selectors take it. Raises KeyError for an unknown one."""
    exactly = request["exactly"]
    expressions = [selector["cel"]["expression"] for selector in exactly.get("selectors", ())]
    return CLASSES[exactly["deviceClassName"]](device) and all(SELECTORS[text](device) for text in expressions)


def wrong_results(
    claim: Mapping[str, Any], results: Sequence[Mapping[str, Any]], devices: Sequence[Device]
) -> Iterator[str]:
    """Yield what is wrong with the results of a claim; `devices` are those that they name, in the same order."""
    spec = claim["spec"]["devices"]
    requests = {request["name"]: request for request in spec["requests"]}
    for name, request in requests.items():
        given = sum(result["request"] == name for result in results)
        wanted = request["exactly"].get("count", 1)
        if given != wanted:
            yield f"request {name} wants {wanted} devices and got {given}"
    for result, device in zip(results, devices, strict=True):
        if result["request"] not in requests:
            yield f"there is no request {result['request']}"
        elif not suits(device, requests[result["request"]]):
            yield f"device {result['device']} does not suit request {result['request']}"
    for constraint in spec.get("constraints", ()):
        name = constraint["matchAttribute"]
        of = constraint.get("requests") or list(requests)
        values = [
            attribute(device, name) for result, device in zip(results, devices, strict=True) if result["request"] in of
        ]
        if None in values or len(set(values)) > 1:
            yield f"matchAttribute {name} does not hold: {values}"


def taken_amounts(result: Mapping[str, Any], device: Device) -> dict[str, int]:
    """Return how much of each capacity a share takes, in units of 1: what it says, else all of it."""
    consumed = result.get("consumedCapacity") or {}
    return {
        name: amount(consumed[name]) if name in consumed else amount(value["value"])
        for name, value in device.get("capacity", {}).items()
    }


def shares_left(results: Iterable[Mapping[str, Any]], device: Device) -> int:
    """Return how many shares of SHARE still fit into a device beside these results."""
    room = taken_amounts({}, device)
    for result in results:
        for name, value in taken_amounts(result, device).items():
            room[name] -= value
    return min(room[name] // amount(text) for name, text in SHARE.items())


_UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}


def amount(quantity: str) -> int:
    """Return the value of a Quantity, as far as slices and claims of the soak have them."""
    for unit, size in _UNITS.items():
        if quantity.endswith(unit):
            return int(quantity.removesuffix(unit)) * size
    return int(quantity)


def choose(claim: Mapping[str, Any], free: Mapping[str, Device]) -> list[str] | None:
    """Return devices of one node that a claim could get, None where this simple search finds none. May miss some."""
    spec = claim["spec"]["devices"]
    names = [constraint["matchAttribute"] for constraint in spec.get("constraints", ())]
    groups: dict[tuple[Any, ...], dict[str, Device]] = {}
    for name, device in free.items():
        values = tuple(attribute(device, constrained) for constrained in names)
        if None not in values:
            groups.setdefault(values, {})[name] = device
    for group in groups.values():
        chosen = _choose_all(spec["requests"], group)
        if chosen is not None:
            return chosen
    return None


def _choose_all(requests: Sequence[Mapping[str, Any]], free: Mapping[str, Device]) -> list[str] | None:
    chosen: list[str] = []
    for request in requests:
        fitting = [name for name, device in free.items() if name not in chosen and suits(device, request)]
        count = request["exactly"].get("count", 1)
        if len(fitting) < count:
            return None
        chosen += fitting[:count]
    return chosen
