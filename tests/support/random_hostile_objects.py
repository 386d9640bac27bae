"""Claims, classes and slices that somebody sends to do harm, as they come to a seeded mind: deep, wide, long, odd
Unicode, huge numbers, unknown fields. Most of it a server accepts; what it refuses, a caller leaves out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from dracaena.api.names import taint_key
from support.hostile_objects import (
    ALTERNATIVES_MAX,
    ATTRIBUTES_MAX,
    CONFIGS_MAX,
    DEEPEST,
    DEVICES_MAX,
    DEVICES_WITH_TAINTS_MAX,
    DRIVER,
    ESCAPES,
    ODD_NUMBERS,
    ODD_TEXTS,
    OTHER_DRIVER,
    PARAMETERS_MAX_BYTES,
    REQUESTS_MAX,
    SLOW_TO_ADMIT,
    WORST,
    HostileObject,
    cel_text,
    claim_object,
    class_object,
    exactly,
    growing_text,
    loops,
    many_patterns,
    many_small,
    nested,
    nested_maps,
    opaque,
    pattern_of_device,
    plain_selector,
    selectors,
    slice_object,
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
    lambda rng, number: f"{cel_text(rng.choice(ODD_TEXTS))} != '{number}'",
    lambda rng, number: f"[{','.join(['1'] * rng.choice((10, 2_000)))}].size() != {number}",
    lambda rng, number: f"device.attributes['no.such.domain'].no_such_name == {number}",
    lambda rng, number: f"quantity('{'9' * 30}') .isGreaterThan(quantity('{number}'))",
    lambda rng, number: f"{9_223_372_036_854_775_807} + {number} > 0",
    lambda rng, number: "!" * rng.choice((1, 101)) + "true",
)


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
