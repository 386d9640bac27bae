"""GPUs of a box that can change places: most boxes are built of a few kinds of them.

Two GPUs are interchangeable when every third GPU, and all else that counts, is the same to both. So only how many of
each kind a set holds tells its worth, and of all sets that are equal in this the one with the lowest ordinals stands
for the others. That makes switched boxes and PCIe trees of any size cheap, exactly and without a case of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from dracaena.controller.allocation.score.box import Box, mask_of, ordinals_of


def interchangeable(box: Box) -> tuple[int, ...]:
    """Return the kinds of GPUs as masks, in the order of their lowest ordinals. Cost: O(GPUs³).

    Being interchangeable is transitive: a swaps with b and b with c, so a with c by three swaps.
    """
    kinds: list[list[int]] = []
    for ordinal in range(box.gpu_count):
        for kind in kinds:
            if _can_swap(box, kind[0], ordinal):
                kind.append(ordinal)
                break
        else:
            kinds.append([ordinal])
    return tuple(map(mask_of, kinds))


def _can_swap(box: Box, a: int, b: int) -> bool:
    link = box.topology.link
    return (
        box.gpus[a] == box.gpus[b]
        and box.topology.numa_nodes[a] == box.topology.numa_nodes[b]
        and box.nic_levels[a] == box.nic_levels[b]
        and all(link(a, other) == link(b, other) for other in range(box.gpu_count) if other not in (a, b))
    )


def refined(kinds: Sequence[int], masks: Sequence[int]) -> tuple[int, ...]:
    """Return kinds that are also alike in being inside or outside of each mask."""
    parts = tuple(kinds)
    for mask in masks:
        parts = tuple(part for kind in parts for part in (kind & mask, kind & ~mask) if part)
    return parts


def canonical_mask(kinds: Sequence[int], mask: int) -> int:
    """Return the set that stands for all sets with as many GPUs of each kind: the lowest of each."""
    for kind in kinds:
        inside = mask & kind
        if inside and inside != kind:
            mask = mask & ~kind | lowest_of(kind, inside.bit_count())
    return mask


def lowest_of(mask: int, count: int) -> int:
    """Return the `count` lowest members of a set."""
    lowest = 0
    for _ in range(count):
        bit = mask & -mask
        lowest |= bit
        mask ^= bit
    return lowest


def representatives(kinds: Sequence[int], free: int, count: int) -> Iterator[int]:
    """Yield one set of `count` free GPUs for each way to take so many of each kind: the lowest of each."""
    inside = [kind & free for kind in kinds if kind & free]
    singles = [kind for kind in inside if not kind & (kind - 1)]
    shared = [kind for kind in inside if kind & (kind - 1)]
    for taken, mask in _shares(shared, count):
        # A set of different bits sums up to its mask; map and combinations do that without running our code.
        yield from (mask | rest for rest in map(sum, combinations(singles, count - taken)))


def _shares(kinds: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yield (GPUs taken, their mask) for each way to take up to `count` of the kinds, the lowest of each."""
    if not kinds:
        yield 0, 0
        return
    first, rest = kinds[0], kinds[1:]
    for number in range(min(count, first.bit_count()) + 1):
        mask = lowest_of(first, number)
        for taken, others in _shares(rest, count - number):
            yield number + taken, mask | others


def equals(kinds: Sequence[int], free: int, representative: int) -> Iterator[tuple[int, ...]]:
    """Yield the ordinals of every set that a representative stands for, itself first, in the order of the ordinals."""
    if not any(kind & free & representative and kind & free & ~representative for kind in kinds):
        # Of each kind it has all or nothing.
        yield ordinals_of(representative)
        return
    kind_of = {ordinal: place for place, kind in enumerate(kinds) for ordinal in ordinals_of(kind & free)}
    wanted = [(kind & representative).bit_count() for kind in kinds]
    left = [(kind & free).bit_count() for kind in kinds]
    ordinals = sorted(kind_of)

    def walk(place: int, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(taken) == representative.bit_count():
            yield taken
            return
        ordinal = ordinals[place]
        kind = kind_of[ordinal]
        left[kind] -= 1
        if wanted[kind]:
            wanted[kind] -= 1
            yield from walk(place + 1, (*taken, ordinal))
            wanted[kind] += 1
        if left[kind] >= wanted[kind]:
            yield from walk(place + 1, taken)
        left[kind] += 1

    yield from walk(0, ())
