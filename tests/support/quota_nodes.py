"""Nodes with GPUs of each kind, what pods want of them, and a slow count of what claims hold.

Nothing here knows how the controller counts: amounts come from the names and texts in the results of claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.resource_objects import DeviceResult, ResourceSlice
from support.allocation import blocks, device_name, machine, pool_slice, request
from support.mig_nodes import mig_slices, part, part_name
from support.mig_tables import A100, MigPart, is_legal
from support.shares import in_shares, share

PRODUCTS: Final = ("NVIDIA A100", "NVIDIA H100")
GPUS_EACH: Final = 3
GIB_EACH: Final = 80

WHOLE: Final = {
    f"n{number}": machine(
        f"machine{number}",
        blocks(GPUS_EACH, inside="NV12", outside="NV12"),
        product_name=PRODUCTS[number % 2],
        memory_bytes=GIB_EACH << 30,
    )
    for number in range(4)
}
SHARED: Final = machine(
    "shared",
    blocks(2, inside="NV12", outside="NV12"),
    product_name=PRODUCTS[1],
    memory_bytes=GIB_EACH << 30,
)
CUT: Final = machine(
    "cut", blocks(2, inside="NV12", outside="NV12"), product_name=PRODUCTS[0], memory_bytes=GIB_EACH << 30
)
PARTS: Final = {part_name(CUT, ordinal, one): (ordinal, one) for ordinal in range(2) for one in A100.parts()}
"""Name of a MIG device → ordinal of its GPU, and what it is."""

MACHINES: Final = {**WHOLE, "s0": SHARED, "m0": CUT}
PRODUCT_OF: Final = {
    device_name(made, place): str(gpu.product_name) for made in MACHINES.values() for place, gpu in enumerate(made.gpus)
}

Held = Counter[tuple[str, str]]
"""Key of the quota and the name below it ("" where there is none) → how much."""


def slices() -> dict[str, Sequence[ResourceSlice]]:
    """Return what each node publishes."""
    whole = {name: [pool_slice(name, made)] for name, made in WHOLE.items()}
    return {**whole, "s0": [in_shares(pool_slice("s0", SHARED), GIB_EACH)], "m0": mig_slices("m0", CUT, [A100, A100])}


@dataclass(frozen=True)
class Wish:
    """What the claim of a pod asks for: whole GPUs, one share, or MIG devices of one profile."""

    count: int = 1
    gib: int = 0
    """Memory of the share; 0: it is none."""
    cores: int = 0
    profile: str = ""

    def request(self) -> dict[str, Any]:
        if self.profile:
            return part("gpus", self.profile, self.count)
        return share("gpus", f"{self.gib}Gi", self.cores) if self.gib else request(count=self.count)

    def amounts(self, product: str) -> Held:
        """What it will hold on a node with this product."""
        if self.profile:
            slices_of_all = int(self.profile.partition("g")[0]) * self.count
            return Counter({("migSlices", ""): slices_of_all, ("migDevicesByProfile", self.profile): self.count})
        if self.gib:
            return Counter({("shareMemory", ""): self.gib << 30, ("shareCores", ""): self.cores})
        return Counter({("gpus", ""): self.count, ("gpusByProduct", product): self.count})

    def has_room(self, node: str, busy: Sequence[DeviceResult]) -> bool:
        """Whether a node has room for it beside what is held."""
        gpus = [device_name(MACHINES[node], place) for place in range(len(MACHINES[node].gpus))]
        if self.profile:
            return node == "m0" and _fit_parts(self.profile, self.count, busy)
        if self.gib:
            return node == "s0" and any(self._fits_beside(gpu, busy) for gpu in gpus)
        taken = {result.device for result in busy}
        taken |= {device_name(CUT, PARTS[name][0]) for name in taken & PARTS.keys()}
        return sum(gpu not in taken for gpu in gpus) >= self.count

    def _fits_beside(self, gpu: str, busy: Iterable[DeviceResult]) -> bool:
        shares = [result.consumed_capacity for result in busy if result.device == gpu]
        memory = sum(in_bytes(one["memory"]) for one in shares) + (self.gib << 30)
        return memory <= GIB_EACH << 30 and sum(int(one["cores"]) for one in shares) + self.cores <= 100


def count(results: Iterable[DeviceResult]) -> Held:
    """Count what is held, one device after the other."""
    held: Held = Counter()
    for result in results:
        if result.device in PARTS:
            profile = PARTS[result.device][1].profile
            held["migSlices", ""] += int(profile.partition("g")[0])
            held["migDevicesByProfile", profile] += 1
        elif in_bytes(result.consumed_capacity.get("memory", f"{GIB_EACH}Gi")) < GIB_EACH << 30:
            held["shareMemory", ""] += in_bytes(result.consumed_capacity["memory"])
            held["shareCores", ""] += int(result.consumed_capacity["cores"])
        else:
            held["gpus", ""] += 1
            held["gpusByProduct", PRODUCT_OF[result.device]] += 1
    return held


def given_twice(results: Iterable[DeviceResult]) -> list[str]:
    """Return the GPUs of which more is held than there is."""
    by_gpu: dict[str, list[DeviceResult]] = {}
    for result in results:
        place = PARTS.get(result.device)
        by_gpu.setdefault(device_name(CUT, place[0]) if place else result.device, []).append(result)
    return [gpu for gpu, held in by_gpu.items() if not _may_stand_together(held)]


def limits_of(quota: Mapping[str, Any]) -> Held:
    """Return what a quota limits, as it is written."""
    limits: Held = Counter()
    for key, value in quota.items():
        if isinstance(value, dict):
            limits.update({(key, name): most for name, most in value.items()})
        else:
            limits[key, ""] = in_bytes(value) if key == "shareMemory" else value
    return limits


def in_bytes(text: str) -> int:
    return int(text.removesuffix("Gi")) << 30 if text.endswith("Gi") else int(text)


def _may_stand_together(held: Sequence[DeviceResult]) -> bool:
    if all(result.device in PARTS for result in held):
        return _is_layout([PARTS[result.device][1] for result in held])
    if all(result.share_id for result in held):
        memory = sum(in_bytes(result.consumed_capacity["memory"]) for result in held)
        return memory <= GIB_EACH << 30 and sum(int(one.consumed_capacity["cores"]) for one in held) <= 100
    return len(held) == 1


def _is_layout(parts: Sequence[MigPart]) -> bool:
    return len(set(parts)) == len(parts) and is_legal(A100, parts)


def _fit_parts(profile: str, wanted: int, busy: Iterable[DeviceResult]) -> bool:
    """Whether so many more parts can be made, on any GPUs. Those of one profile are made one by one where they fit
    first: no profile here gets fewer that way."""
    taken = {result.device for result in busy}
    layouts: list[list[MigPart]] = [[], []]
    for name in taken & PARTS.keys():
        ordinal, one = PARTS[name]
        layouts[ordinal].append(one)
    made = 0
    for ordinal, layout in enumerate(layouts):
        if device_name(CUT, ordinal) in taken:
            continue
        for one in A100.parts():
            if one.profile == profile and _is_layout([*layout, one]):
                layout.append(one)
                made += 1
    return made >= wanted
