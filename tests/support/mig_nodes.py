"""Nodes whose GPUs are cut on demand: slices as the plugin publishes them, requests as users write them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from dracaena.api.machine import Machine
from dracaena.api.mig import mig_device_name
from dracaena.api.resource_objects import (
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceClass,
    ResourceSlice,
)
from support.allocation import DRIVER, device_class, device_name, pool_slice, request
from support.mig_tables import MigPart, Product

MIG = f"mig.{DRIVER}"
"""The class of parts."""


def mig_classes() -> list[DeviceClass]:
    """The classes of whole GPUs and of parts."""
    return [
        device_class(name, selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].type == "{kind}"'}}])
        for name, kind in ((DRIVER, "gpu"), (MIG, "mig"))
    ]


def part(name: str, profile: str, count: int = 1, **fields: Any) -> dict[str, Any]:
    """A request for parts of a profile."""
    expression = f'device.attributes["{DRIVER}"].profile == "{profile}"'
    return request(name, count, MIG, selectors=[{"cel": {"expression": expression}}], **fields)


def part_name(made: Machine, ordinal: int, one: MigPart) -> str:
    return mig_device_name(made.gpus[ordinal].uuid, one.profile, one.start)


def mig_slices(
    node: str,
    made: Machine,
    products: Sequence[Product | None],
    *,
    foreign: Mapping[int, Collection[MigPart]] | None = None,
    without_whole: Collection[int] = (),
) -> list[ResourceSlice]:
    """The slices of a node whose GPUs are cut on demand (None: not cut). `foreign`: instances that nobody of ours made,
    by ordinal. `without_whole`: ordinals of which only the parts are published."""
    base = pool_slice(node, made)
    wholes, parts, sets = [], [], []
    for ordinal, (device, product) in enumerate(zip(base.spec.devices, products, strict=True)):
        if product is None:
            wholes.append(device)
            continue
        name = device_name(made, ordinal)
        there = _counters(product)
        taken = (foreign or {}).get(ordinal, ())
        left = {key: amount - sum(_takes(one).get(key, 0) for one in taken) for key, amount in there.items()}
        sets.append(CounterSet(name, {key: Counter(str(amount)) for key, amount in left.items()}))
        if ordinal not in without_whole:
            wholes.append(msgspec.structs.replace(device, consumes_counters=[_consumption(name, there)]))
        for one in product.parts():
            takes = {key: amount for key, amount in _takes(one).items() if key in there}
            parts.append(
                Device(
                    name=part_name(made, ordinal, one),
                    attributes=_attributes(made, ordinal, one),
                    taints=device.taints,
                    consumes_counters=[_consumption(name, takes)],
                )
            )
    count = 2 if sets else 1
    pool = msgspec.structs.replace(base.spec.pool, resource_slice_count=count)
    spec = msgspec.structs.replace(base.spec, pool=pool, devices=[*wholes, *parts])
    pages = [msgspec.structs.replace(base, spec=spec)]
    if sets:
        meta = msgspec.structs.replace(base.metadata, name=f"{base.metadata.name}-counters")
        of_sets = msgspec.structs.replace(spec, devices=[], shared_counters=sets)
        pages.append(msgspec.structs.replace(base, metadata=meta, spec=of_sets))
    return pages


def _counters(product: Product) -> dict[str, int]:
    found = {f"memory-slice-{number}": 1 for number in range(product.slices)}
    found["compute-slices"] = product.compute
    if any(one.media for one in product.parts()):
        found["ofa-engines"] = 1
    return found


def _takes(one: MigPart) -> dict[str, int]:
    found = {f"memory-slice-{number}": 1 for number in range(one.start, one.start + one.size)}
    return found | {"compute-slices": one.compute} | ({"ofa-engines": one.media} if one.media else {})


def _consumption(counter_set: str, amounts: Mapping[str, int]) -> CounterConsumption:
    return CounterConsumption(counter_set, {name: Counter(str(amount)) for name, amount in amounts.items()})


def _attributes(made: Machine, ordinal: int, one: MigPart) -> dict[str, DeviceAttribute]:
    return {
        "type": DeviceAttribute(string="mig"),
        "parentUUID": DeviceAttribute(string=made.gpus[ordinal].uuid),
        "profile": DeviceAttribute(string=one.profile),
        "placementStart": DeviceAttribute(int_value=one.start),
        "placementSize": DeviceAttribute(int_value=one.size),
    }
