"""NVIDIA's published placements (`nvidia-smi mig -lgip`, `-lgipp`), and a slow, obvious version of what they allow.

Nothing here knows states, tables or counters: layouts are written down one after the other, as sets of parts, and each
question is answered by trying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from dracaena.api.partitions import PartitionGeometry, PartitionPlace


@dataclass(frozen=True, slots=True)
class MigPart:
    """A GPU instance at a place."""

    profile: str
    start: int
    size: int
    compute: int
    media: int = 0
    """Media extensions (`+me`); a GPU has one."""


@dataclass(frozen=True, slots=True)
class Product:
    """A GPU that can be divided."""

    name: str
    slices: int
    compute: int
    profiles: tuple[tuple[str, tuple[int, ...], int, int, int], ...]
    """Name, starts, memory slices, compute slices, media extensions."""

    @cache  # noqa: B019  a handful of products
    def parts(self) -> tuple[MigPart, ...]:
        return tuple(
            MigPart(profile, start, size, compute, media)
            for profile, starts, size, compute, media in self.profiles
            for start in starts
        )


A100 = Product(
    "A100 80GB, H100 80GB",
    slices=8,
    compute=7,
    profiles=(
        ("1g.10gb", (0, 1, 2, 3, 4, 5, 6), 1, 1, 0),
        ("1g.20gb", (0, 2, 4, 6), 2, 1, 0),
        ("2g.20gb", (0, 2, 4), 2, 2, 0),
        ("3g.40gb", (0, 4), 4, 3, 0),
        ("4g.40gb", (0,), 4, 4, 0),
        ("7g.80gb", (0,), 8, 7, 0),
    ),
)
A100_WITH_MEDIA = Product(
    "A100 80GB, H100 80GB with +me",
    A100.slices,
    A100.compute,
    (A100.profiles[0], ("1g.10gb+me", (0, 1, 2, 3, 4, 5, 6), 1, 1, 1), *A100.profiles[1:]),
)
A30 = Product(
    "A30",
    slices=4,
    compute=4,
    profiles=(("1g.6gb", (0, 1, 2, 3), 1, 1, 0), ("2g.12gb", (0, 2), 2, 2, 0), ("4g.24gb", (0,), 4, 4, 0)),
)
PRODUCTS = (A100, A100_WITH_MEDIA, A30)


@cache
def geometry(product: Product) -> PartitionGeometry:
    """Return what the allocator reads from the counters that our plugin publishes for such a GPU."""
    there = (*(1 for _ in range(product.slices)), product.compute, 1)
    return PartitionGeometry(
        product.slices,
        there,
        tuple(
            PartitionPlace(part.profile, part.start, part.size, part.compute, _takes(product, part))
            for part in product.parts()
        ),
    )


def _takes(product: Product, part: MigPart) -> tuple[int, ...]:
    within = (int(part.start <= number < part.start + part.size) for number in range(product.slices))
    return (*within, part.compute, part.media)


Layout = frozenset[MigPart]


def is_legal(product: Product, layout: Sequence[MigPart] | Layout) -> bool:
    """Return whether GPU instances can lie beside each other."""
    overlap = any(
        one.start < other.start + other.size and other.start < one.start + one.size
        for one, other in combinations(layout, 2)
    )
    return (
        not overlap
        and sum(part.compute for part in layout) <= product.compute
        and sum(part.media for part in layout) <= 1
    )


@cache
def layouts(product: Product) -> tuple[Layout, ...]:
    """Return every set of GPU instances that can lie beside each other, the empty one first."""
    found: dict[Layout, None] = {frozenset(): None}
    todo = [frozenset[MigPart]()]
    while todo:
        layout = todo.pop()
        for part in product.parts():
            more = layout | {part}
            if part not in layout and more not in found and is_legal(product, more):
                found[more] = None
                todo.append(more)
    return tuple(found)


@cache
def possible(product: Product, layout: Layout) -> tuple[MigPart, ...]:
    """Return every part that can still be made."""
    return tuple(part for part in product.parts() if part not in layout and is_legal(product, layout | {part}))


@cache
def counts(product: Product, layout: Layout) -> tuple[int, ...]:
    """Return how many places of each profile are still possible, those of the largest profile first: by slices of
    memory, then of compute. Profiles that differ in their media extensions alone count as one."""
    still = {(part.size, part.compute, part.start) for part in possible(product, layout)}
    sizes = sorted({(part.size, part.compute) for part in product.parts()}, reverse=True)
    return tuple(sum((size, compute) == one[:2] for one in still) for size, compute in sizes)


def most_possible(product: Product, gpus: Sequence[Layout], profile: str) -> set[tuple[int, MigPart]]:
    """Return the GPU and place for a part of a profile after which the most places of the largest profile are still
    possible over all GPUs, of these the most of the next, and so on: all that are equally good."""
    ways = [
        (gpu, part) for gpu, layout in enumerate(gpus) for part in possible(product, layout) if part.profile == profile
    ]

    def left(way: tuple[int, MigPart]) -> tuple[int, ...]:
        gpu, part = way
        after = [layout | {part} if number == gpu else layout for number, layout in enumerate(gpus)]
        return tuple(map(sum, zip(*(counts(product, layout) for layout in after), strict=True)))

    best = max(map(left, ways), default=())
    return {way for way in ways if left(way) == best}
