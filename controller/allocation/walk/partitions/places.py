"""Where the parts that a pod asks for go on one node, and its whole GPUs beside them
(docs/design/0034-mig-placement.md).

Whole GPUs are chosen first, by their links, as if the parts took nothing, but so that the parts find a place. Parts go
where they break the fewest fresh GPUs, then where the rest of the node is damaged least, and then where most stays
possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

from dracaena.api.partitions import Left, PartitionGeometry
from dracaena.controller.allocation.effort import SET_STEPS, Effort, Work
from dracaena.controller.allocation.request import Question
from dracaena.controller.allocation.score.box import Box, canonical_mask, mask_of, ordinals_of, refined, representatives
from dracaena.controller.allocation.score.choices import Choice, Demand, Engine
from dracaena.controller.allocation.score.cuts import NOTHING, Cut, CutGpu, CutKey, Cuts
from dracaena.controller.allocation.score.order import one_number
from dracaena.controller.allocation.score.partitions import PartitionTable
from dracaena.controller.allocation.walk.partitions.question import PartOption, PartQuestion, PlaceMasks

T = TypeVar("T")

Damage = tuple[int, ...]
"""Sorts sets of GPUs by what the rest of the node loses without them, least first."""

MAX_SETS: Final = 256
"""Sets of whole GPUs that are tried beside the parts: more than 8 GPUs have. If there is no place beside any of them,
only the rules judge the node."""

MAX_EQUAL_SETS: Final = 70
"""Sets of whole GPUs of equal worth that are compared by what the parts lose beside them: all 70 of 4 among 8 GPUs."""

MOST_GEOMETRIES: Final = 10_000
"""Geometries known by identity, some 10 KiB each: each kind of node has 8."""

MOST_TABLES: Final = 1_000
"""Tables that are kept, some 100 KiB each if all states were asked about. A product has one geometry, and another for
each set of instances that others made on such a GPU; made-up slices can have any number."""

MAX_FRESH_SETS: Final = 1_820
"""Sets of fresh GPUs that are compared by the damage of breaking them: all of 4 among 16."""

DAMAGE_STEPS: Final = 4 * SET_STEPS
"""A set of fresh GPUs that is scored alone: on 16 GPUs some 45 microseconds."""

MOST_DAMAGES: Final = 50_000
"""Damages of breaking a set of fresh GPUs that are kept, some 400 bytes each: more than one decision needs for 70 sets
of two whole GPUs beside each of which two of 14 others are broken."""


class PartTables:
    """One table for each geometry, and the known cuts and damages. One thread at a time."""

    def __init__(self, effort: Effort) -> None:
        self._tables: dict[PartitionGeometry, PartitionTable] = {}
        # By identity: comparing two equal geometries takes longer than everything else that is done for a GPU.
        self._by_id: dict[int, tuple[PartitionGeometry, PartitionTable]] = {}
        self._effort = effort
        self._damages: dict[tuple[Box, tuple[Demand, ...], int], dict[int, Damage]] = {}
        self._damage_count = 0
        self.cuts = Cuts(effort)

    def table(self, geometry: PartitionGeometry) -> PartitionTable:
        """Return the table of a geometry; equal ones share it."""
        known = self._by_id.get(id(geometry))
        if known is None:
            if len(self._by_id) >= MOST_GEOMETRIES:
                self._by_id.clear()
            if len(self._tables) >= MOST_TABLES:
                self._tables, self._by_id, self.cuts = {}, {}, Cuts(self._effort)
            table = self._tables.setdefault(geometry, PartitionTable(geometry, self._effort))
            known = self._by_id[id(geometry)] = geometry, table
        return known[1]

    def damages(self, engine: Engine, box: Box, demands: tuple[Demand, ...], free: int) -> Callable[[int], Damage]:
        """Return a function that returns for a set of free GPUs the damage to the rest without them, least first. Sets
        whose GPUs are twins share one answer: behind NVSwitches all sets of a size do."""
        if self._damage_count >= MOST_DAMAGES:
            self._damages.clear()
            self._damage_count = 0
        known = self._damages.setdefault((box, demands, free), {})
        twins = [kind & free for kind in engine.table(box, demands).twins]

        def of(fresh: int) -> Damage:
            alike = canonical_mask(twins, fresh)
            if alike not in known:
                known[alike] = engine.score(box, free, alike, demands).rank()
                self._damage_count += 1
                self._effort.charge(DAMAGE_STEPS, Work.SETS)
            return known[alike]

        return of


@dataclass(frozen=True, slots=True)
class PartPlacement:
    """One way to serve the pod on a node."""

    whole: Choice | None
    """The whole GPUs; None if the pod gets none here."""
    cut: Cut
    """The parts; their demands are the places in PartQuestion.parts."""
    rank: int
    """Sorts the nodes of one decision, best first."""


class _Division(NamedTuple):
    """GPUs and parts for the pod, before it is known what damage they do."""

    whole: Choice | None
    option: PartOption
    cut: Cut

    @property
    def taken(self) -> int:
        """Mask of the whole GPUs."""
        return 0 if self.whole is None else self.whole.mask


class PartPlaces:
    """The places on a node in one state, for one question. Remembers nothing beyond itself."""

    def __init__(
        self,
        question: PartQuestion,
        pod_question: Question,
        engine: Engine,
        tables: PartTables,
        *,
        free: int,
        lefts: Sequence[Left],
        held: int = 0,
    ) -> None:
        """`free`: whole GPUs that count for the pod and can be given; `lefts`: what is left of each GPU that is cut on
        demand; `held`: whole GPUs there that the pod already has."""
        self._question, self._pod_question, self._engine, self._tables = question, pod_question, engine, tables
        self._free, self._held = free, held
        self._nothing = tuple(Demand(0, policy) for policy in pod_question.policies)
        self.cut_off = False
        """Whether something was left out because there is too much of it: finding no place then proves nothing."""
        self._demands = question.demands
        self._wanted = tuple(sum(pod_question.counts[question.parts[at]] for at in alike) for alike in self._demands)
        self._gpus = tuple(
            (0 if one.ordinal is None else 1 << one.ordinal, tables.table(one.geometry), left)
            for one, left in zip(question.kind.partitions.gpus, lefts, strict=True)
        )

    def all(self) -> Iterator[PartPlacement]:
        """Yield the places, best first: by the whole GPUs, as if no part were asked for; then the fewest fresh GPUs,
        then those whose loss does least damage, then the least loss of what can be cut, then the fuller GPUs. For each
        set of whole GPUs, and each way to choose the values to agree on, only the best place is yielded."""
        for _, equal in groupby(self._most(MAX_SETS, self._sets()), key=_rank_of_whole):
            every = [self._divide(*one) for one in self._most(MAX_EQUAL_SETS, equal)]
            divisions = sorted((one for one in every if one is not None), key=_fresh_count)
            # Most callers ask for one place only, so no damage is worked out for divisions that break more.
            for _, alike in groupby(divisions, key=_fresh_count):
                yield from map(self._placement, sorted(map(self._least_damage, alike), key=self._order))

    def _most(self, count: int, every: Iterable[T]) -> Iterator[T]:
        """Yield at most `count`, and note whether there are more."""
        for number, one in enumerate(every):
            if number == count:
                self.cut_off = True
                return
            yield one

    def _sets(self) -> Iterator[tuple[Choice | None, PartOption]]:
        """Yield the whole GPUs that the pod may get, best first, with what the parts may have beside them."""
        if not self._question.whole:
            yield from ((None, option) for option in self._question.options)
            return
        # If the parts have no place while no whole GPU is taken, they have none beside any set.
        options = [one for one in self._question.options if self._best(0, one, self._free) is not None]
        every = [(choice, option) for option in options for choice in self._most(MAX_SETS, self._choices(option))]
        yield from sorted(every, key=_rank_of_whole)

    def _choices(self, option: PartOption) -> Iterator[Choice]:
        demands = tuple(
            Demand(
                self._pod_question.counts[place],
                self._pod_question.policies[place],
                None if mask & self._free == self._free else mask & self._free,
            )
            for place, mask in zip(self._question.whole, option.whole, strict=True)
        )
        return self._engine.choices(self._question.kind.box, self._free, demands, self._held)

    def _divide(self, choice: Choice | None, option: PartOption) -> _Division | None:
        """Return the best cut beside these whole GPUs, ignoring the damage."""
        cut = self._best(0 if choice is None else choice.mask, option, self._free)
        return None if cut is None else _Division(choice, option, cut)

    def _order(self, division: _Division) -> tuple[object, ...]:
        """Return a key that sorts divisions, best first; their whole GPUs have one rank, and they break as many."""
        fresh = self._fresh_of(division.cut, division.taken)
        damage = self._damages(self._free & ~division.taken)(fresh) if fresh else ()
        return (
            damage,
            division.cut.key,
            division.cut.picks,
            () if division.whole is None else ordinals_of(division.whole.mask),
        )

    def _placement(self, division: _Division) -> PartPlacement:
        fresh = self._fresh_of(division.cut, division.taken)
        rank = self.rank(self._node_rank(division.whole, fresh), fresh.bit_count(), division.cut.key)
        return PartPlacement(division.whole, self._dealt(division.cut), rank)

    def _best(self, taken: int, option: PartOption, fresh: int) -> Cut | None:
        """Return the best cut beside the taken whole GPUs that breaks no fresh GPUs but these."""
        if not self._demands:
            return NOTHING
        masks = zip(*[option.parts[alike[0]] for alike in self._demands], strict=True)
        closed = taken | (self._free & ~fresh)
        gpus = tuple(
            [
                CutGpu(table, left, allowed, bool(bit & self._free)) if any(allowed) and not bit & closed else None
                for (bit, table, left), allowed in zip(self._gpus, masks, strict=True)
            ]
        )
        found = self._tables.cuts.best(gpus, self._wanted, apart=self._question.apart)
        self.cut_off |= found.cut_off
        return found.cut

    def _fresh_of(self, cut: Cut, taken: int) -> int:
        partitions = self._question.kind.partitions.gpus
        ordinals = (partitions[gpu].ordinal for gpu, _, _ in cut.picks)
        return mask_of({one for one in ordinals if one is not None and (self._free & ~taken) >> one & 1})

    def _least_damage(self, division: _Division) -> _Division:
        """Return the best division that breaks as many fresh GPUs: those whose loss does least damage to the rest."""
        count = _fresh_count(division)
        found = self._cut_with_least_damage(division.taken, division.option, count) if count else None
        return division if found is None else division._replace(cut=found)

    def _cut_with_least_damage(self, taken: int, option: PartOption, count: int) -> Cut | None:
        """Return the best cut that breaks `count` fresh GPUs, those whose loss does least damage to the rest."""
        free = self._free & ~taken
        alike: dict[tuple[PartitionTable, Left, PlaceMasks], int] = {}
        for number, (bit, table, left) in enumerate(self._gpus):
            allowed = tuple([masks[number] for masks in option.parts])
            if bit & free and any(allowed):
                look = table, left, allowed
                alike[look] = alike.get(look, 0) | bit
        damage_of = self._damages(free)
        # Sets of GPUs that are alike give the same, and of equal cuts the first GPUs are taken.
        kinds = refined(self._engine.table(self._question.kind.box, self._nothing).twins, list(alike.values()))
        sets = islice(representatives(kinds, sum(alike.values()), count), MAX_FRESH_SETS)
        sorted_sets = sorted((damage_of(chosen), ordinals_of(chosen), chosen) for chosen in sets)
        seen: set[tuple[int, ...]] = set()
        for _, equal in groupby(sorted_sets, key=itemgetter(0)):
            found = []
            for _, _, chosen in equal:
                looks = tuple([(chosen & mask).bit_count() for mask in alike.values()])
                if looks not in seen:
                    seen.add(looks)
                    cut = self._best(taken, option, chosen)
                    found += [] if cut is None else [cut]
            if found:
                return min(found)
        return None

    def _damages(self, free: int) -> Callable[[int], Damage]:
        return self._tables.damages(self._engine, self._question.kind.box, self._nothing, free)

    def _dealt(self, cut: Cut) -> Cut:
        """Return a cut with the parts of each demand divided among its requests, in order."""
        if len(self._demands) == len(self._question.parts):
            return cut
        counts, parts = self._pod_question.counts, self._question.parts
        turns = [iter([at for at in alike for _ in range(counts[parts[at]])]) for alike in self._demands]
        return Cut(cut.key, tuple(sorted((gpu, next(turns[demand]), place) for gpu, demand, place in cut.picks)))

    def rank(self, nodes: tuple[int, ...], fresh: int = 0, key: CutKey | None = None) -> int:
        """Return the rank of a node, given the rank of its whole GPUs: GPUs that are lost to sets count before the
        position of the pod's one whole GPU, and after the links of several."""
        is_linked = sum(self._pod_question.counts[place] for place in self._question.whole) > 1
        told = (*nodes, fresh) if is_linked else (fresh, *nodes)
        loss, left = (0, 0) if key is None else key[1:]
        return one_number((*told, loss, left, self._free.bit_count()))

    def _node_rank(self, choice: Choice | None, fresh: int) -> tuple[int, ...]:
        """Return the part of a node's rank that its whole GPUs decide, including those that the parts break."""
        box = self._question.kind.box
        if choice is None and not fresh:
            return (0,) * len(self._engine.order(self._nothing).node_names)
        if choice is None:
            return self._engine.score(box, self._free, fresh, self._nothing, self._held).node_rank()
        score = choice.score
        if fresh:
            lost = self._engine.score(box, self._free, choice.mask | fresh, self._nothing, self._held)
            score = replace(
                score,
                damage_gb_s=lost.damage_gb_s,
                damage_ring_gb_s=lost.damage_ring_gb_s,
                damage_levels=lost.damage_levels,
                taken_gpus=lost.taken_gpus,
            )
        return score.node_rank()


def _fresh_count(division: _Division) -> int:
    return division.cut.key.fresh


def _rank_of_whole(one: tuple[Choice | None, PartOption]) -> tuple[int, ...]:
    return () if one[0] is None else one[0].score.rank()
