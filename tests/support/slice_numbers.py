"""Every number of a ResourceSlice, each with values that no real node publishes, as kube-apiserver takes them.

`SAMPLES` are the slices of made-up nodes with each kind of device and each attribute of the table; a test compares them
with the types of the wire and with the table, so that no number is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import digits
from types import MappingProxyType
from typing import Any, Final

import msgspec

from dracaena.api.fabric import HGX_FABRIC
from dracaena.api.machine import Machine
from dracaena.api.names import DEFAULT_DRIVER_NAME, taint_key
from dracaena.api.resource_objects import Device, DeviceCapacity, ResourceSlice
from dracaena.api.resourceslice import encode_devices, encode_mig_places, mig_counter_set, with_whole_consumption
from dracaena.api.topology import Nic
from support.machines import divided_machine, plain_machine
from support.mig_geometries import H100_80GB
from support.passthrough import passthrough_gpu, with_passthrough
from support.vgpus import mediated

DRIVER: Final = DEFAULT_DRIVER_NAME
NODE: Final = "n"

QUANTITIES: Final = frozenset({"value", "default", "min", "max", "step"})
"""Fields that are texts and say an amount; those of validValues do, too."""

INTEGERS: Final = (0, 33, 128, 1 << 14, 1 << 22, 1 << 31, 2**63 - 1, -1, -(2**63))
"""The largest ordinal is 127 and a GPU has 32 slices at most; a loop over 2^14 is a second's work where it is squared,
and no list has 2^63 entries."""
AMOUNTS: Final = ("0", "-1", "4194304", "9223372036854775807", "1e60", "9" * 60, "1" + "0" * 2_000, "1n", "1Ei", "x")

Path = tuple[str | int, ...]


def whole_gpus() -> Machine:
    """GPUs with each number that one can have but those of partitions, in front of which some give way."""
    base = plain_machine(2, minor=3, pcie_generation=5, pcie_width=16, nvlink_count=18, nvlink_generation=4)
    gpus = tuple(replace(gpu, minor=place, memory_bytes=80 << 30) for place, gpu in enumerate(base.gpus))
    topology = replace(base.topology, numa_nodes=(0, 1), nics=(Nic("mlx5_0", (None, None)),))
    return replace(base, gpus=gpus, topology=topology)


def partitioned_gpus() -> Machine:
    """GPUs whose links depend on Fabric Manager, one of them for virtual machines, and a vGPU."""
    base = plain_machine(2, memory_bytes=80 << 30)
    gpus = tuple(replace(gpu, module_id=place + 1) for place, gpu in enumerate(base.gpus))
    made = with_passthrough(replace(base, gpus=gpus), (passthrough_gpu(0, module_id=3),))
    return replace(made, fabric=HGX_FABRIC, vgpus=(mediated(0),))


def without_rows(device: Device) -> Device:
    """Without links: then the largest ordinal says how many GPUs there are."""
    rows = ("pcieLevels", "nvlinks", "nicLevels")
    return msgspec.structs.replace(
        device, attributes={name: one for name, one in device.attributes.items() if name not in rows}
    )


def _shared(device: Device) -> Device:
    amount = {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "1Mi", "max": "80Gi"}}}
    amount["requestPolicy"]["validRange"]["step"] = "1Mi"  # type: ignore[index]
    listed = {"value": "100", "requestPolicy": {"default": "100", "validValues": ["0", "100"]}}
    capacity = {"memory": msgspec.convert(amount, DeviceCapacity), "cores": msgspec.convert(listed, DeviceCapacity)}
    return msgspec.structs.replace(device, allow_multiple_allocations=True, capacity=capacity)


def _cut_on_demand() -> tuple[list[Device], list[Any]]:
    machine = plain_machine(1, mig_profiles=H100_80GB[:2], memory_bytes=80 << 30)
    (gpu,), (device,) = machine.gpus, encode_devices(machine)
    return [with_whole_consumption(device, gpu), *encode_mig_places(machine, gpu)], [mig_counter_set(gpu, {})]


def _slices(devices: Sequence[Device], counter_sets: Sequence[Any] = ()) -> list[dict[str, Any]]:
    taint = {"key": taint_key(DRIVER), "value": "true", "effect": "NoSchedule"}
    listed = [{**msgspec.to_builtins(device), "taints": [taint]} for device in devices]
    parts = [{"devices": listed}, *([{"sharedCounters": msgspec.to_builtins(counter_sets)}] if counter_sets else [])]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": len(parts)}
    return [
        {
            "apiVersion": ResourceSlice.API_VERSION,
            "kind": ResourceSlice.KIND,
            "metadata": {"name": f"{NODE}-{number}", "uid": f"slice-{number}"},
            "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, **part},
        }
        for number, part in enumerate(parts)
    ]


SAMPLES: Final[Mapping[str, Sequence[dict[str, Any]]]] = MappingProxyType(
    {
        "without links": _slices([without_rows(device) for device in encode_devices(whole_gpus())]),
        "whole": _slices(encode_devices(whole_gpus())),
        "shared": _slices([_shared(device) for device in encode_devices(whole_gpus())]),
        "divided": _slices(encode_devices(divided_machine())),
        "cut on demand": _slices(*_cut_on_demand()),
        "partitioned": _slices(encode_devices(partitioned_gpus())),
    }
)


def number_paths(slices: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Path]]:
    """Yield each number of the slices with a name, the first of each name: a part has what all parts have, and so has
    a counter of memory slices."""
    seen: set[str] = set()
    for number, page in enumerate(slices):
        for path in _numbers(page["spec"], (number, "spec")):
            name = ".".join(str(step).rstrip(digits) for step in path[2:] if not isinstance(step, int))
            if name not in seen:
                seen.add(name)
                yield name, path


def _numbers(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, item in value.items():
            is_amount = isinstance(item, str) and key in QUANTITIES and "taints" not in path
            if is_amount or (isinstance(item, int) and not isinstance(item, bool)):
                yield (*path, key)
            else:
                yield from _numbers(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            if path[-1] == "validValues":
                yield (*path, place)
            else:
                yield from _numbers(item, (*path, place))


def values_for(slices: Sequence[dict[str, Any]], path: Path) -> Sequence[int | str]:
    """Return what to put there: integers for one, texts for an amount."""
    return AMOUNTS if isinstance(_at(slices, path), str) else INTEGERS


def _at(slices: Any, path: Path) -> Any:
    for step in path:
        slices = slices[step]
    return slices


def changed(slices: Sequence[dict[str, Any]], path: Path, value: int | str) -> list[ResourceSlice]:
    """Return the slices with one number changed, as they come over the wire. The pool's are changed in each slice."""
    made = json.loads(json.dumps(slices))
    for page in range(len(made)) if path[2] == "pool" else (path[0],):
        _at(made, (page, *path[1:-1]))[path[-1]] = value
    return [ResourceSlice.from_json(json.dumps(page).encode()) for page in made]
