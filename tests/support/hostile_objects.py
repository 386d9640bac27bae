"""Claims, classes and slices that somebody sends to do harm, as kube-apiserver takes them: pure data.

`WORST` holds the worst of each kind, numbered so that no two are equal and no cache helps; random_hostile_objects has
what comes to a seeded mind. The limits named here are those of the API (k8s.io/api/resource/v1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec

from dracaena.api.names import DEFAULT_DRIVER_NAME, taint_key

DRIVER: Final = DEFAULT_DRIVER_NAME
OTHER_DRIVER: Final = "nic.example.com"

PARAMETERS_MAX_BYTES: Final = 10 * 1024
"""Of one opaque config (OpaqueParametersMaxLength)."""

EXPRESSION_MAX_BYTES: Final = 10 * 1024
"""Of one selector (CELSelectorExpressionMaxLength)."""

CONFIGS_MAX: Final = 32
REQUESTS_MAX: Final = 32
ALTERNATIVES_MAX: Final = 8
SELECTORS_MAX: Final = 32
TOLERATIONS_MAX: Final = 16
DEVICES_MAX: Final = 128
DEVICES_WITH_TAINTS_MAX: Final = 64
"""Of a slice in which any device has taints or counters (ResourceSliceMaxDevicesWithTaintsOrConsumesCounters)."""

UUID: Final = f"device.attributes['{DRIVER}'].uuid"
"""What no two devices have in common: an answer for one of them says nothing about the others."""

ATTRIBUTES_MAX: Final = 32
"""Attributes and capacities of one device."""

DEEPEST: Final = (PARAMETERS_MAX_BYTES - len('{"x":}')) // 2
"""Lists within each other that fit into the parameters of one config."""

ESCAPES: Final = '\\u0000\\u0001\\u001f\\u2028\\ufeff\\uffff\\udbff\\udfff\\"\\\\\\/'
ODD_TEXTS: Final = (
    "plain",
    " \t\n",
    "é" * 40,
    "e\u0301" * 30,
    "\u202eright to left",
    "\u200b\u200d\ufeff",
    "\u2028\u2029",
    "\ud7ff\ue000\uffff",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\U0010ffff" * 16,
    "a\0b",
    "\x7f\x80\x9f",
    "%s%n{}{0}$(x)`x`",
    "<script>&amp;",
)
ODD_NUMBERS: Final = (
    "0",
    "-0",
    "-0.0",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "9" * 300,
    "1e308",
    "-1e308",
    "1e-400",
    "5e-324",
    "0." + "1" * 5000,
)

Resource = Literal["resourceclaims", "deviceclasses", "resourceslices"]

KINDS: Final[Mapping[Resource, str]] = MappingProxyType(
    {"resourceclaims": "ResourceClaim", "deviceclasses": "DeviceClass", "resourceslices": "ResourceSlice"}
)


@dataclass(frozen=True, slots=True)
class HostileObject:
    """One object. `theme` says in a few words what is bad about it."""

    theme: str
    resource: Resource
    metadata: Mapping[str, Any]
    spec: bytes
    """JSON, though not every reader of JSON takes it: to be sent as it is."""

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def is_claim(self) -> bool:
        """Whether pods can use it."""
        return self.resource == "resourceclaims"

    @property
    def body(self) -> bytes:
        """The whole object."""
        return b'{"apiVersion":"resource.k8s.io/v1","kind":"%s","metadata":%s,"spec":%s}' % (
            KINDS[self.resource].encode(),
            msgspec.json.encode(self.metadata),
            self.spec,
        )


def claim_object(theme: str, name: str, devices: Mapping[str, Any], **metadata: Any) -> HostileObject:
    """A ResourceClaim with this `spec.devices`; msgspec.Raw within is sent as it stands."""
    return _object(theme, "resourceclaims", name, {"devices": devices}, metadata)


def class_object(theme: str, name: str, spec: Mapping[str, Any]) -> HostileObject:
    """A DeviceClass."""
    return _object(theme, "deviceclasses", name, spec, {})


def slice_object(theme: str, name: str, spec: Mapping[str, Any]) -> HostileObject:
    """A ResourceSlice."""
    return _object(theme, "resourceslices", name, spec, {})


def _object(
    theme: str, resource: Resource, name: str, spec: Mapping[str, Any], metadata: Mapping[str, Any]
) -> HostileObject:
    return HostileObject(theme, resource, {"name": name, **metadata}, msgspec.json.encode(spec))


def opaque(parameters: str, *, driver: str = DRIVER) -> dict[str, Any]:
    """One config with parameters as this JSON text."""
    return {"opaque": {"driver": driver, "parameters": msgspec.Raw(parameters.encode())}}


def exactly(*expressions: str, name: str = "gpus", device_class: str = DRIVER, **fields: Any) -> dict[str, Any]:
    """One request for a device that all of these selectors match."""
    return {"name": name, "exactly": {"deviceClassName": device_class, **fields, **selectors(*expressions)}}


def selectors(*expressions: str) -> dict[str, Any]:
    """Selectors of a class or a request."""
    return {"selectors": [{"cel": {"expression": expression}} for expression in expressions]}


# The worst of each kind


def nested(depth: int, *, inside: str = "") -> str:
    """Parameters of lists within each other."""
    return '{"x":' + "[" * depth + inside + "]" * depth + "}"


def nested_maps(depth: int) -> str:
    """Parameters of objects within each other."""
    return '{"x":' * depth + "1" + "}" * depth


def many_small(number: int, size_bytes: int = PARAMETERS_MAX_BYTES) -> str:
    """Parameters that are hundreds of times as large once each part of them is an object of its own."""
    head, tail = f'{{"n":{number},"x":[', "{}]}"
    return head + "{}," * ((size_bytes - len(head) - len(tail)) // 3) + tail


def deep_claim(number: int, *, depth: int = DEEPEST, driver: str = DRIVER) -> HostileObject:
    """Parameters as deep as they can be."""
    theme, name = ("our", "deep") if driver == DRIVER else ("another's", "deep-other")
    devices = {"requests": [exactly()], "config": [opaque(nested(depth), driver=driver)]}
    return claim_object(f"deep parameters, {theme} driver", f"{name}-{number}", devices)


def fat_claim(number: int, *, driver: str = OTHER_DRIVER) -> HostileObject:
    """As many configs as there may be, each as large as it may be: 320 KB."""
    configs = [opaque(many_small(number * CONFIGS_MAX + place), driver=driver) for place in range(CONFIGS_MAX)]
    return claim_object("fat configs", f"fat-{number}", {"requests": [exactly()], "config": configs})


def wide_claim(number: int, *, selectors_each: int = 8) -> HostileObject:
    """Every request with all its alternatives, each with selectors of its own."""
    requests = [
        {
            "name": f"r{place}",
            "firstAvailable": [
                {
                    "name": f"a{other}",
                    "deviceClassName": DRIVER,
                    "count": 9 + other,
                    **selectors(*(plain_selector(number, place, other, one) for one in range(selectors_each))),
                }
                for other in range(ALTERNATIVES_MAX)
            ],
        }
        for place in range(REQUESTS_MAX)
    ]
    return claim_object("wide requests", f"wide-{number}", {"requests": requests})


def short_claim(number: int) -> HostileObject:
    """As many parts as a claim may have, each so short that whatever is kept beside its text outweighs it."""
    requests = [
        {
            "name": f"r{place}",
            "firstAvailable": [
                {
                    "name": f"a{other}",
                    "deviceClassName": DRIVER,
                    "count": 9 + number + other,
                    **selectors(*["true"] * SELECTORS_MAX),
                    "tolerations": [{"operator": "Exists"}] * TOLERATIONS_MAX,
                }
                for other in range(ALTERNATIVES_MAX)
            ],
        }
        for place in range(REQUESTS_MAX)
    ]
    return claim_object("short parts", f"short-{number}", {"requests": requests})


def plain_selector(*numbers: int) -> str:
    """An honest selector that no other claim has."""
    tail = " && ".join(f"{number} >= 0" for number in numbers)
    return f'device.attributes["{DRIVER}"].productName != "{"-".join(map(str, numbers))}" && {tail}'


def selector_claim(theme: str, name: str, expressions: Sequence[str]) -> HostileObject:
    """One request with these selectors."""
    return claim_object(theme, name, {"requests": [exactly(*expressions)]})


def regex_claim(number: int) -> HostileObject:
    """Three selectors of 200 patterns each, 27 KB in all."""
    return selector_claim("patterns", f"patterns-{number}", [many_patterns(3 * number + n) for n in range(3)])


def many_patterns(number: int, count: int = 200) -> str:
    """200 patterns of which each is 17,000 letters long once it is compiled, in 8.8 KB."""
    letters = "abcdefghijklmnopqrstuvwxyz"

    def pattern(place: int) -> str:
        code = [letters[(number * count + place) // 26**power % 26] for power in range(4)]
        return "".join(code) + "abcdefghijklm"

    return "||".join(f"''.matches('({pattern(place)}){{1000}}')" for place in range(count))


def built_pattern_claim(number: int) -> HostileObject:
    """A pattern that is put together when it is asked for: nobody can count its size before."""
    expression = f"!'{number}'.matches('(' + '(((a?){{10}}b?){{10}}c?){{9}}' + 'x{number}y?){{1}}')"
    return selector_claim("built patterns", f"built-{number}", [expression])


def pattern_of_device_claim(number: int) -> HostileObject:
    """A pattern that is another one for each device."""
    return selector_claim("a pattern for each device", f"each-{number}", [pattern_of_device(number)])


def pattern_of_device(number: int) -> str:
    """36,000 letters once it is compiled."""
    return f"!'{number}'.matches('(' + {UUID} + '{number}){{900}}')"


def growing_text_claim(number: int) -> HostileObject:
    """Text that replaces itself by itself: sixtyfold with each step."""
    return selector_claim("text that grows", f"text-{number}", [growing_text(number)])


def growing_text(number: int) -> str:
    """200,000 characters for each device, from one line."""
    return f"cel.bind(a, {UUID} + '{'a' * 60}', cel.bind(b, a.replace('a', a), b.replace('a', a).size() != {number}))"


def macro_claim(number: int) -> HostileObject:
    """Loops within loops."""
    return selector_claim("loops", f"loops-{number}", [loops(number)])


def loops(number: int, *, depth: int = 3, turns: int = 40) -> str:
    """`turns` to the power of `depth` steps for each device: kube-apiserver admits 40, and refuses 60."""
    values = f"[{','.join(str(number + turn) for turn in range(turns))}]"
    names = "abcdefgh"[:depth]
    inner = f"{' + '.join(names)} >= 0 && {UUID} != ''"
    for name in reversed(names):
        inner = f"{values}.all({name}, {inner})"
    return inner


def cel_text(text: str) -> str:
    """A CEL literal: what is not plain ASCII is escaped."""
    escaped = "".join(
        character if 32 <= ord(character) < 127 and character not in "'\\" else f"\\U{ord(character):08x}"
        for character in text
    )
    return f"'{escaped}'"


def odd_claim(number: int, *, driver: str = DRIVER) -> HostileObject:
    """Characters that programs stumble over, wherever a claim may have them."""
    text = ODD_TEXTS[number % len(ODD_TEXTS)]
    parameters = f'{{"\\u0000{number}":"\\ud800 {ESCAPES}","x":[{",".join(ODD_NUMBERS)}]}}'
    devices = {
        "requests": [exactly(f"{cel_text(text)} != 'x{number}'")],
        "config": [opaque(parameters, driver=driver)],
    }
    return claim_object("odd Unicode", f"odd-{number}", devices, annotations={f"example.com/{number}": text * 500})


def huge_slice(number: int, node: str, *, taints: bool) -> HostileObject:
    """A pool of as many devices as a slice may hold, each with as many attributes, as long as they may be."""
    count = DEVICES_WITH_TAINTS_MAX if taints else DEVICES_MAX
    tainted: dict[str, Any] = {"taints": [{"key": taint_key(DRIVER), "effect": "NoSchedule"}]} if taints else {}
    devices = [
        {
            "name": f"gpu-{number}-{place}",
            "attributes": {
                f"{'a' * 28}{one:02}": {"string": f"{'€' * 18}{number % 1000:03}{place:03}{one:02}"}
                for one in range(ATTRIBUTES_MAX - 1)
            },
            "capacity": {"memory": {"value": f"{2**62 - place}"}},
            **tainted,
        }
        for place in range(count)
    ]
    pool = {"name": node, "generation": number + 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return slice_object(f"huge slice of {count} devices", f"huge-{number}", spec)


WORST: Final[Mapping[str, Callable[[int], HostileObject]]] = MappingProxyType(
    {
        "deep parameters, our driver": deep_claim,
        "deep parameters, another's driver": lambda number: deep_claim(number, driver=OTHER_DRIVER),
        "fat configs": fat_claim,
        "wide requests": wide_claim,
        "short parts": short_claim,
        "patterns": regex_claim,
        "built patterns": built_pattern_claim,
        "a pattern for each device": pattern_of_device_claim,
        "text that grows": growing_text_claim,
        "loops": macro_claim,
        "odd Unicode": odd_claim,
    }
)
"""The worst claims of each kind, by number."""


SLOW_TO_ADMIT: Final = "patterns"
"""The one of these that costs kube-apiserver itself seconds of a core: not for sending by the dozen."""
