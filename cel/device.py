"""The device that a selector is evaluated for, and the values that CEL sees in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dracaena.cel.errors import DeviceDataError, EvaluationError
from dracaena.cel.value import INT_MAX, INT_MIN, Map
from dracaena.cel.values.quantity import QuantityValue
from dracaena.cel.values.semver import Semver


@dataclass(frozen=True, slots=True)
class LanguageFeatures:
    """Feature gates of the API server that change the language. The defaults are those of Kubernetes 1.36."""

    consumable_capacity: bool = True  # DRAConsumableCapacity: device.allowMultipleAllocations
    list_type_attributes: bool = False  # DRAListTypeAttributes: attributes that are lists, and includes()
    stored_lists: bool = False  # Kubernetes 1.37: stored lists are values even with that gate off
    strict_optionals: bool = False  # Kubernetes 1.37: or() and orValue() on a value that is no optional are an error

    @property
    def has_lists(self) -> bool:
        """Whether a list is a value."""
        return self.list_type_attributes or self.stored_lists


@dataclass(frozen=True, slots=True)
class Version:
    """An attribute of type version: the text of a semantic version, checked when a selector reads the device."""

    text: str


# What an attribute may be: one of bool, int, str, Version, or a tuple of one of them.
AttributeValue = bool | int | str | Version | tuple[bool | int | str | Version, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceView:
    """What a selector sees of one device of a ResourceSlice.

    `attributes` and `capacity` are grouped by domain; attributes without a prefix belong to the driver's domain. An
    attribute value that is None or of another type is data that Kubernetes does not know either: every selector fails
    on such a device. Capacities are quantities as the API writes them ("40Gi").
    """

    driver: str
    attributes: Mapping[str, Mapping[str, AttributeValue | None]] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    allow_multiple_allocations: bool = False
    _values: dict[bool, DeviceValues | DeviceDataError] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of_names(
        cls,
        driver: str,
        attributes: Mapping[str, AttributeValue | None] | None = None,
        capacity: Mapping[str, str] | None = None,
        *,
        allow_multiple_allocations: bool = False,
    ) -> DeviceView:
        """A device from qualified names, as a ResourceSlice has them: "model" or "example.com/model"."""
        return cls(driver, _by_domain(driver, attributes), _by_domain(driver, capacity), allow_multiple_allocations)

    def values(self, features: LanguageFeatures) -> DeviceValues:
        """What CEL sees, created once and kept. DeviceDataError names the attribute or capacity that has no value."""
        found = self._values.get(features.has_lists)
        if found is None:
            try:
                found = _values_of(self, features)
            except DeviceDataError as error:
                found = error
            self._values[features.has_lists] = found
        if isinstance(found, DeviceDataError):
            raise DeviceDataError(str(found))
        return found


EMPTY: Final = Map()


@dataclass(frozen=True, slots=True, eq=False)
class DeviceValues:
    """A device as values of CEL. Domains and names are in alphabetical order, so macros always walk them in it."""

    driver: str
    attributes: dict[str, dict[str, Any]]
    capacity: dict[str, dict[str, Any]]
    allow_multiple_allocations: bool
    _map: list[Map] = field(default_factory=list, init=False, repr=False)

    def as_map(self) -> Map:
        """The value of `device` itself, created once."""
        if not self._map:
            entries = (
                ("allowMultipleAllocations", self.allow_multiple_allocations),
                ("attributes", _domains_as_map(self.attributes)),
                ("capacity", _domains_as_map(self.capacity)),
                ("driver", self.driver),
            )
            self._map.append(Map(entries))
        return self._map[0]


def _domains_as_map(domains: dict[str, dict[str, Any]]) -> Map:
    """The value of `device.attributes` or `device.capacity`: an unknown domain is found as an empty map."""
    return Map(((domain, Map(names.items())) for domain, names in domains.items()), default=EMPTY)


def _by_domain(driver: str, names: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for name, value in (names or {}).items():
        domain, separator, rest = name.partition("/")
        owner, identifier = (domain, rest) if separator else (driver, name)
        domains.setdefault(owner, {})[identifier] = value
    return domains


def _values_of(device: DeviceView, features: LanguageFeatures) -> DeviceValues:
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, dict[str, Any]] = {}
    for domain in sorted(device.attributes):
        named = device.attributes[domain]
        attributes[domain] = {
            name: _attribute(_shown(device, domain, name), named[name], features) for name in sorted(named)
        }
    for domain in sorted(device.capacity):
        named_capacity = device.capacity[domain]
        capacity[domain] = {
            name: _quantity(_shown(device, domain, name), named_capacity[name]) for name in sorted(named_capacity)
        }
    return DeviceValues(_text(device.driver), attributes, capacity, device.allow_multiple_allocations)


def _shown(device: DeviceView, domain: str, name: str) -> str:
    return name if domain == device.driver else f"{domain}/{name}"


def _attribute(name: str, value: AttributeValue | None, features: LanguageFeatures) -> Any:
    if isinstance(value, tuple) and features.has_lists:
        return tuple(_scalar(name, element) for element in value)
    return _scalar(name, value)


def _scalar(name: str, value: object) -> Any:
    if type(value) is bool:
        return value
    if type(value) is str:
        return _text(value)
    if type(value) is int and INT_MIN <= value <= INT_MAX:
        return value
    if isinstance(value, Version):
        try:
            return Semver.parse(value.text)
        except EvaluationError as error:
            raise DeviceDataError(f"attribute {name}: parse semantic version: {error.message}") from error
    raise DeviceDataError(f"attribute {name}: unsupported attribute value")


def _text(value: str) -> str:
    """Text without lone surrogates: they become U+FFFD, as in the API server."""
    return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _quantity(name: str, text: str) -> QuantityValue:
    try:
        return QuantityValue.parse(text)
    except EvaluationError as error:
        raise DeviceDataError(f"capacity {name}: {error.message}") from error
