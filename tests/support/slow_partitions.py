"""Where parts of GPUs go, by the letter of docs/design/mig.md: every way to serve a pod is written down,
those that break a rule are struck out, and the rest is sorted. It knows neither states nor tables nor counters.

A pod is a list of requests: at most one for whole GPUs, and some for parts of a profile. Only the worth of a set of
whole GPUs is asked of the engine, which has slow versions of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

from dracaena.controller.allocation.score.box import Box, mask_of
from dracaena.controller.allocation.score.choices import Engine
from support.mig_tables import Layout, MigPart, Product, is_legal, possible
from support.slow_node_rank import no_demands, node_rank

EITHER = "either"
"""Asked for as a profile: a whole GPU or any part. Which is better is not defined, only what is legal."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: whole GPUs where no profile is told."""

    count: int = 1
    profile: str | None = None


@dataclass(slots=True)
class CutGpuThere:
    """A GPU of a node."""

    cut: Product | None = None
    """None: it is never cut."""
    parts: set[MigPart] = field(default_factory=set)
    """That somebody has."""
    is_held: bool = False
    """Whether somebody has it whole."""
    can_be_whole: bool = True
    """Whether the whole GPU is published."""

    @property
    def is_free(self) -> bool:
        return self.can_be_whole and not self.parts and not self.is_held


@dataclass(slots=True)
class CutNode:
    name: str
    box: Box
    gpus: list[CutGpuThere]


Ways = tuple[tuple[tuple[int, MigPart | None], ...], ...]
"""Of each request its GPUs: whole (None), or the part."""


def best_place(
    engine: Engine,
    nodes: Sequence[CutNode],
    pod: Sequence[Asked],
    *,
    agree: bool = False,
    differ: bool = False,
    agree_each: bool = False,
) -> tuple[str, Ways] | None:
    """The node and what each request gets; None where there is no place. `agree`: all parts out of one GPU; `differ`:
    no two; `agree_each`: those of each request."""
    found = []
    for node in nodes:
        every = [
            way
            for way in ways_on(node, pod)
            if _keeps(way, agree=agree, differ=differ)
            and (not agree_each or all(_keeps((given,), agree=True, differ=False) for given in way))
        ]
        if every:
            way = min(every, key=lambda way: key_on_node(engine, node, pod, way, as_one=not agree_each))
            found.append((key_among_nodes(engine, node, pod, way), node.name, way))
    return min(found, key=lambda one: one[:2])[1:] if found else None


def _keeps(way: Ways, *, agree: bool, differ: bool) -> bool:
    gpus = [gpu for given in way for gpu, part in given if part is not None]
    return (not agree or len(set(gpus)) <= 1) and (not differ or len(set(gpus)) == len(gpus))


def ways_on(node: CutNode, pod: Sequence[Asked]) -> Iterator[Ways]:
    """Every way to serve the pod that breaks no rule."""
    every = [list(combinations(_offers(node, asked), asked.count)) for asked in pod]
    for way in product(*every):
        if all(_is_legal(gpu, number, way) for number, gpu in enumerate(node.gpus)):
            yield way


def _offers(node: CutNode, asked: Asked) -> list[tuple[int, MigPart | None]]:
    whole: list[tuple[int, MigPart | None]] = [(number, None) for number, gpu in enumerate(node.gpus) if gpu.is_free]
    if asked.profile is None:
        return whole
    return [
        *(whole if asked.profile == EITHER else ()),
        *_parts_offered(node, asked.profile),
    ]


def _parts_offered(node: CutNode, profile: str) -> list[tuple[int, MigPart | None]]:
    return [
        (number, part)
        for number, gpu in enumerate(node.gpus)
        if gpu.cut is not None and not gpu.is_held
        for part in gpu.cut.parts()
        if profile in (part.profile, EITHER) and part not in gpu.parts
    ]


def _is_legal(gpu: CutGpuThere, number: int, way: Ways) -> bool:
    given = [part for of_request in way for one, part in of_request if one == number]
    if None in given:
        return len(given) == 1
    parts = [part for part in given if part is not None]
    return not parts or (gpu.cut is not None and is_legal(gpu.cut, [*gpu.parts, *parts]))


def _worth(gpu: CutGpuThere, more: Sequence[MigPart]) -> tuple[int, int]:
    """What can still be cut: memory slices of all that differs in its slices, and of all."""
    assert gpu.cut is not None
    layout: Layout = frozenset({*gpu.parts, *more})
    still = possible(gpu.cut, layout)
    return sum(size for _, size, _ in {(one.start, one.size, one.compute) for one in still}), sum(
        one.size for one in still
    )


def _told(node: CutNode, way: Ways) -> tuple[int, int, int, tuple[int, int], int]:
    """Masks of what is free, of the whole GPUs, of the fresh ones that are cut; the loss; slices left there."""
    free = mask_of(number for number, gpu in enumerate(node.gpus) if gpu.is_free)
    whole = mask_of(number for given in way for number, part in given if part is None)
    cut: dict[int, list[MigPart]] = {}
    for given in way:
        for number, part in given:
            if part is not None:
                cut.setdefault(number, []).append(part)
    loss, left = [0, 0], 0
    for number, parts in cut.items():
        gpu = node.gpus[number]
        assert gpu.cut is not None
        before, after = _worth(gpu, ()), _worth(gpu, parts)
        loss = [loss[0] + before[0] - after[0], loss[1] + before[1] - after[1]]
        left += gpu.cut.slices - sum(one.size for one in (*gpu.parts, *parts))
    return free, whole, mask_of(cut) & free, (loss[0], loss[1]), left


def key_on_node(
    engine: Engine, node: CutNode, pod: Sequence[Asked], way: Ways, *, as_one: bool = True
) -> tuple[object, ...]:
    """What sorts the ways on one node, best first. `as_one`: whether requests for the same profile may have the same
    places, whatever they agree in."""
    free, whole, fresh, loss, left = _told(node, way)
    nothing = no_demands(len(pod))
    of_whole = engine.score(node.box, free, whole, nothing).rank() if whole else ()
    of_fresh = engine.score(node.box, free & ~whole, fresh, nothing).rank() if fresh else ()
    picks = _picks(node, pod, way, as_one=as_one), _picks(node, pod, way, as_one=False)
    return of_whole, fresh.bit_count(), of_fresh, loss, left, *picks, tuple(way_ordinals(way))


def way_ordinals(way: Ways) -> list[int]:
    return sorted(number for given in way for number, part in given if part is None)


def _picks(node: CutNode, pod: Sequence[Asked], way: Ways, *, as_one: bool) -> tuple[tuple[int, int, int], ...]:
    """GPU, request and place of each part. `as_one`: the first request for the same profile stands for all of them."""
    profiles = [asked.profile for asked in pod]
    requests = [place for place, asked in enumerate(pod) if asked.profile is not None]
    found = []
    for place in requests:
        for number, part in way[place]:
            cut = node.gpus[number].cut
            assert cut is not None
            assert part is not None
            found.append((number, profiles.index(pod[place].profile) if as_one else place, cut.parts().index(part)))
    return tuple(sorted(found))


def key_among_nodes(engine: Engine, node: CutNode, pod: Sequence[Asked], way: Ways) -> tuple[object, ...]:
    """What sorts the nodes, best first."""
    free, whole, fresh, loss, left = _told(node, way)
    whole_wanted = sum(asked.count for asked in pod if asked.profile is None)
    told = node_rank(engine, node.box, free, whole, fresh, len(pod), whole_wanted)
    return *told, loss, left, free.bit_count()
