"""Claims, classes and slices that somebody sends to do harm, as kube-apiserver takes them: pure data.

`WORST` holds the worst of each kind, numbered so that no two are equal and no cache helps. `random_objects` yields
whatever comes to a seeded mind: deep, wide, long, odd Unicode, huge numbers, unknown fields. Most of it a server
accepts; what it refuses, a caller leaves out. The limits named here are those of the API (k8s.io/api/resource/v1).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


def odd_claim(number: int, *, driver: str = DRIVER) -> HostileObject:
    """Characters that programs stumble over, wherever a claim may have them."""
    text = ODD_TEXTS[number % len(ODD_TEXTS)]
    parameters = f'{{"\\u0000{number}":"\\ud800 {ESCAPES}","x":[{",".join(ODD_NUMBERS)}]}}'
    devices = {
        "requests": [exactly(f"{_cel_text(text)} != 'x{number}'")],
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


# Whatever comes to mind

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
OWN_KIND: Final = '"apiVersion":"gpu.dracaena.dev/v1alpha1","kind":"TopologyPolicy"'


def random_objects(seed: int, *, node: str = "hostile", tag: str = "") -> Iterator[HostileObject]:
    """Yield objects without end, always the same for a seed. Slices are pools of `node` or of nodes that are not there.

    `tag` is part of all names, so that two streams do not meet.
    """
    rng = random.Random(seed)
    number = 0
    while True:
        number += 1
        name = f"h{tag}-{number:05}"
        if rng.random() < 0.05:
            name += "-" + "x" * (253 - len(name) - 1)
        make = rng.choices((_random_claim, _random_class, _random_slice), (6, 2, 2))[0]
        yield make(rng, name, number, node)


def _random_claim(rng: random.Random, name: str, number: int, node: str) -> HostileObject:
    theme = rng.choice(("config", "requests", "selectors", "metadata", "constraints", "unknown fields", "worst"))
    metadata: dict[str, Any] = {}
    devices: dict[str, Any] = {"requests": [_random_request(rng, "r0")]}
    if theme == "config":
        devices["config"] = [_random_config(rng) for _ in range(rng.choice((1, 1, 2, 8, CONFIGS_MAX)))]
    elif theme == "requests":
        devices["requests"] = [_random_request(rng, f"r{one}") for one in range(rng.choice((1, 2, 8, REQUESTS_MAX)))]
    elif theme == "selectors":
        devices["requests"] = [exactly(*(_random_selector(rng) for _ in range(rng.choice((1, 2, 8)))))]
    elif theme == "metadata":
        metadata = {"annotations": _random_annotations(rng), "labels": _random_labels(rng)}
    elif theme == "constraints":
        devices["requests"] = [_random_request(rng, f"r{one}") for one in range(rng.choice((2, 4)))]
        devices["constraints"] = [
            {"matchAttribute": f"{_random_domain(rng)}/{_random_identifier(rng)}"}
            for _ in range(rng.choice((1, 4, 32)))
        ]
    elif theme == "unknown fields":
        devices |= _unknown_fields(rng)
        devices["requests"][0] |= _unknown_fields(rng)
        metadata = _unknown_fields(rng)
    else:
        worst = rng.choice([kind for name, kind in WORST.items() if name != SLOW_TO_ADMIT])(number)
        return replace(worst, metadata={**worst.metadata, "name": name})
    return claim_object(theme, name, devices, **metadata)


def _random_class(rng: random.Random, name: str, number: int, node: str) -> HostileObject:
    theme = rng.choice(("config", "selectors", "unknown fields"))
    spec: dict[str, Any] = {}
    if theme == "config":
        spec["config"] = [_random_config(rng) for _ in range(rng.choice((1, 8, CONFIGS_MAX)))]
    elif theme == "selectors":
        spec |= selectors(*(_random_selector(rng) for _ in range(rng.choice((1, 2, 8)))))
    else:
        spec |= _unknown_fields(rng)
    return class_object(f"class, {theme}", name, spec)


def _random_slice(rng: random.Random, name: str, number: int, node: str) -> HostileObject:
    theme = rng.choice(("wide", "values", "pool", "counters", "nodes", "unknown fields"))
    driver = rng.choice((DRIVER, DRIVER, OTHER_DRIVER))
    pool = node if rng.random() < 0.3 else f"{node}-{number}"
    spec: dict[str, Any] = {
        "driver": driver,
        "pool": {"name": pool, "generation": number, "resourceSliceCount": 1},
        "nodeName": pool,
    }
    count = rng.choice((1, 8, DEVICES_WITH_TAINTS_MAX)) if theme != "wide" else DEVICES_MAX
    is_tainted = count <= DEVICES_WITH_TAINTS_MAX and rng.random() < 0.7
    spec["devices"] = [_random_device(rng, place, tainted=is_tainted, wide=theme == "wide") for place in range(count)]
    if theme == "pool":
        spec["pool"] |= {"generation": rng.choice((0, 1, 2**63 - 1)), "resourceSliceCount": rng.choice((1, 7, 2**40))}
    elif theme == "counters":
        counters = {f"c{one}": {"value": _random_quantity(rng)} for one in range(rng.choice((1, 32)))}
        spec["sharedCounters"] = [{"name": "set", "counters": counters}]
        del spec["devices"]
    elif theme == "nodes":
        del spec["nodeName"]
        spec |= {"allNodes": True, "driver": OTHER_DRIVER}  # who may say so for ours decides what is a GPU
    elif theme == "unknown fields":
        spec |= _unknown_fields(rng)
        spec["devices"] = [device | _unknown_fields(rng) for device in spec["devices"]]
    return slice_object(f"slice, {theme}", name, spec)


def _random_device(rng: random.Random, place: int, *, tainted: bool, wide: bool) -> dict[str, Any]:
    count = ATTRIBUTES_MAX - 2 if wide else rng.choice((0, 1, 8))
    attributes = {f"{_random_identifier(rng)}{one}": _random_attribute(rng) for one in range(count)}
    device: dict[str, Any] = {"name": f"gpu-{place}", "attributes": attributes}
    if rng.random() < 0.5:
        device["capacity"] = {"memory": {"value": _random_quantity(rng)}}
    if tainted:
        device["taints"] = [{"key": taint_key(DRIVER), "effect": "NoSchedule", "value": rng.choice(("", "x" * 63))}]
    return device


def _random_attribute(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        (
            {"string": rng.choice(ODD_TEXTS)[:16]},
            {"string": "€" * 21},
            {"int": rng.choice((0, -1, 2**63 - 1, -(2**63)))},
            {"bool": rng.random() < 0.5},
            {"version": rng.choice(("1.0.0", f"{2**63}.0.0", "0.0.0-" + "a" * 58))},
        )
    )


def _random_quantity(rng: random.Random) -> str:
    return rng.choice(("0", "-1", "80Gi", "1e18", "9223372036854775807", "0.000000001", "9" * 60, "1n", "8Ei", "-9Ei"))


def _random_request(rng: random.Random, name: str) -> dict[str, Any]:
    if rng.random() < 0.2:
        alternatives = [
            {"name": f"a{one}", "deviceClassName": _random_class_name(rng), **selectors(_random_selector(rng))}
            for one in range(rng.choice((1, 2, ALTERNATIVES_MAX)))
        ]
        return {"name": name, "firstAvailable": alternatives}
    fields: dict[str, Any] = {}
    if rng.random() < 0.3:
        fields["count"] = rng.choice((1, 2, 16, 2**31, 2**63 - 1))
    elif rng.random() < 0.2:
        fields["allocationMode"] = "All"
    if rng.random() < 0.2:
        fields["capacity"] = {"requests": {"memory": _random_quantity(rng)}}
    if rng.random() < 0.2:
        fields["tolerations"] = [{"operator": "Exists", "tolerationSeconds": rng.choice((0, -1, 2**63 - 1))}]
    expressions = [_random_selector(rng)] if rng.random() < 0.3 else []
    return exactly(*expressions, name=name, device_class=_random_class_name(rng), **fields)


def _random_class_name(rng: random.Random) -> str:
    return rng.choice((DRIVER, DRIVER, DRIVER, "no.such.class", f"h-{rng.randrange(1, 1000):05}"))


def _random_config(rng: random.Random) -> dict[str, Any]:
    return opaque(_random_parameters(rng), driver=rng.choice((DRIVER, DRIVER, OTHER_DRIVER)))


def _random_parameters(rng: random.Random) -> str:
    shape = rng.randrange(9)
    if shape == 0:
        return nested(rng.choice((10, 250, 1_000, 1_500, DEEPEST)))
    if shape == 1:
        return nested_maps(rng.choice((10, 250, 1_000, 1_600)))
    if shape == 2:
        return many_small(rng.randrange(1_000_000), rng.choice((100, 1_000, PARAMETERS_MAX_BYTES)))
    if shape == 3:
        return '{"x":[' + ",".join(rng.choices(ODD_NUMBERS, k=2)) + "]}"
    if shape == 4:
        return f'{{"{ESCAPES}":"\\ud800{ESCAPES}","x":"{rng.choice(("é", "€", "x")) * rng.choice((1, 3_000))}"}}'
    if shape == 5:
        return "{" + ",".join(f'"k{one}":{one}' for one in range(rng.choice((3, 900)))) + "}"
    if shape == 6:
        return f"{{{OWN_KIND},{','.join(_own_field(rng) for _ in range(3))}}}"
    if shape == 7:
        return '{"x":1,"x":2,' + OWN_KIND + "," + OWN_KIND + "}"
    return f'{{{OWN_KIND},"requirement":{nested(rng.choice((5, 1_500)))}}}'


def _own_field(rng: random.Random) -> str:
    name = rng.choice(("requirement", "objective", "sharing", "kind", "apiVersion", "unknown", ""))
    value = rng.choice(('"NVLink"', '"Pack"', "null", "[]", "{}", "true", *ODD_NUMBERS, f'"{ESCAPES}"', nested(600)))
    return f'"{name}":{value}'


def _random_selector(rng: random.Random) -> str:
    number = rng.randrange(1_000_000)
    make = rng.choice(_SELECTORS)
    return make(rng, number)


_SELECTORS: Final[tuple[Callable[[random.Random, int], str], ...]] = (
    lambda rng, number: plain_selector(number),
    lambda rng, number: many_patterns(number, rng.choice((1, 10, 30))),
    lambda rng, number: pattern_of_device(number),
    lambda rng, number: growing_text(number),
    lambda rng, number: loops(number, depth=rng.choice((1, 2, 3)), turns=rng.choice((3, 40))),
    lambda rng, number: "(" * (depth := rng.choice((5, 40, 200))) + f"{number} > 0" + ")" * depth,
    lambda rng, number: " || ".join(f"device.driver == '{number + one}'" for one in range(rng.choice((2, 250)))),
    lambda rng, number: f"{_cel_text(rng.choice(ODD_TEXTS))} != '{number}'",
    lambda rng, number: f"[{','.join(['1'] * rng.choice((10, 2_000)))}].size() != {number}",
    lambda rng, number: f"device.attributes['no.such.domain'].no_such_name == {number}",
    lambda rng, number: f"quantity('{'9' * 30}') .isGreaterThan(quantity('{number}'))",
    lambda rng, number: f"{9_223_372_036_854_775_807} + {number} > 0",
    lambda rng, number: "!" * rng.choice((1, 101)) + "true",
)


def _cel_text(text: str) -> str:
    """A CEL literal: what is not plain ASCII is escaped."""
    escaped = "".join(
        character if 32 <= ord(character) < 127 and character not in "'\\" else f"\\U{ord(character):08x}"
        for character in text
    )
    return f"'{escaped}'"


def _random_annotations(rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.2:
        return {"example.com/long": rng.choice(("x", "é", "\U0001f469")) * 30_000}
    count = rng.choice((1, 20, 1_000))
    return {f"{_random_domain(rng)}/{one}": rng.choice(ODD_TEXTS) for one in range(count)}


def _random_labels(rng: random.Random) -> dict[str, str]:
    return {f"{_random_domain(rng)}/{one}": rng.choice(("", "x" * 63)) for one in range(rng.choice((1, 500)))}


def _random_domain(rng: random.Random) -> str:
    return rng.choice(("example.com", DRIVER, "resource.kubernetes.io", "a" * 60 + ".example.com"))


def _random_identifier(rng: random.Random) -> str:
    return rng.choice(("a", "uuid", "productName", "A_b_9", "x" * 28))


def _unknown_fields(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(("futureField", "x" * 300, "é", "compatibilityGroups", "skipNodeOperations"), 2)
    return {name: msgspec.Raw(_random_parameters(rng).encode()) for name in names}
