"""Where the parts that a pod asks for are cut out of the GPUs of a node: where most stays possible
(docs/design/mig.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from dracaena.api.partitions import Left, PartitionGeometry, lefts
from dracaena.controller.allocation.effort import Effort
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.legal.read.claims import MAX_DEVICES
from dracaena.controller.allocation.legal.selectors import Selectors
from dracaena.controller.allocation.score.box import mask_of, ordinals_of, refined, representatives
from dracaena.controller.allocation.score.choices import Choice, Engine
from dracaena.controller.allocation.score.cuts import NOTHING, Cut, CutGpu, Cuts
from dracaena.controller.allocation.score.partitions import PartitionTable
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool, NodeState
from dracaena.controller.allocation.walk.answers import QuestionAnswers
from dracaena.controller.allocation.walk.fractions import Deal, FractionMasks, Option
from dracaena.controller.allocation.walk.node_choice import NodeGpus, NodeQuestion, chosen_by_links
from dracaena.controller.allocation.walk.partitions.question import PartQuestion
from dracaena.controller.allocation.walk.places import NodePlaces, Places
from dracaena.controller.allocation.walk.pod_demand import ChosenRequest

MOST_GEOMETRIES: Final = 10_000
"""Geometries known by identity, some 10 KiB each: each kind of node has 8."""

MOST_TABLES: Final = 1_000
"""Tables that are kept, some 100 KiB each if all states were asked about. A product has one geometry, and another for
each set of instances that others made on such a GPU; made-up slices can have any number."""

MAX_FRESH_SETS: Final = 1_820
"""Sets of fresh GPUs that are compared by the damage of breaking them: all of 4 among 16."""

MAX_PROPOSALS: Final = 8
"""Places that the rules are asked about, best first. A place meets all rules but the rarest (a value in which several
parts of one GPU have to differ), so the first one is nearly always taken."""


class PartTables:
    """One table for each geometry, and the known cuts. One thread at a time."""

    def __init__(self, effort: Effort) -> None:
        self._tables: dict[PartitionGeometry, PartitionTable] = {}
        # By identity: comparing two equal geometries takes longer than everything else that is done for a GPU.
        self._by_id: dict[int, tuple[PartitionGeometry, PartitionTable]] = {}
        self._effort = effort
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


class PartPlaces(Places[PartQuestion]):
    """Answers for one pod that asks for parts."""

    worse = "where less could be cut from the GPUs afterwards"
    most_proposals = MAX_PROPOSALS

    def __init__(
        self,
        inventory: Inventory,
        answers: QuestionAnswers,
        engine: Engine,
        requests: Sequence[ChosenRequest],
        tables: PartTables,
    ) -> None:
        kinds = (kind for kind in inventory.buckets if kind.partitions.gpus)
        elsewhere = frozenset(place for kind in kinds for place in answers.of_kind(kind).parts.fractions)
        super().__init__(inventory, answers, engine, elsewhere)
        self._chosen, self.tables = requests, tables

    def question(self, kind: NodeKind) -> PartQuestion:
        """See Places."""
        return self.answers.of_kind(kind).parts

    def narrowed(
        self, asked: PartQuestion, problem: Problem, pool: NodePool, gpus: NodeGpus, node_question: NodeQuestion
    ) -> PartQuestion:
        """See Fractions."""
        alternatives, masks = tuple(chosen_by_links(problem, node_question)), []
        for place in asked.fractions:
            able = {device.device for device in problem.eligible(alternatives[place])}
            numbers = (one.numbers for one in asked.kind.partitions.gpus)
            masks.append(
                tuple(mask_of(at for at, number in enumerate(of) if pool.order[number] in able) for of in numbers)
            )
        options = (
            Option(
                option.whole,
                tuple(tuple(map(int.__and__, of, mask)) for of, mask in zip(option.fractions, masks, strict=True)),
            )
            for option in asked.options
        )
        return replace(asked, options=tuple(options))

    def is_exact(self, asked: PartQuestion, state: NodeState) -> bool:
        """See Places: for pods that need no more than counters, selectors and taints of places."""
        if not asked.is_exact or sum(self.requests.counts) > MAX_DEVICES:
            return False
        # The rules give nothing of a pool that is overdrawn anywhere.
        return all(amount >= 0 for left in lefts(state.kind.partitions.gpus, state.rest) for amount in left)

    def on(self, asked: PartQuestion, state: NodeState, held: int) -> NodeParts:
        """See Places."""
        return NodeParts(self, asked, state, held)

    def _may_give_more(self, asked: PartQuestion) -> bool:
        """Whether a request may get a device that is neither a whole GPU nor a part that is cut on demand, or a part
        where places give it a whole GPU."""
        return (
            asked.has_either
            or asked.kind.partitions.has_more
            or len(asked.fractions) + len(asked.whole) < len(self.requests.counts)
        )

    def never(self, selectors: Selectors) -> str:
        """Say why no GPU of the cluster can ever be cut into what the pod asks for; "" if one can, or if no request
        visibly asks for parts. Cost: O(kinds of nodes × places)."""
        kinds = [kind for kind in self._inventory.buckets if kind.partitions.gpus]
        for place, chosen in enumerate(self._chosen):
            of_class = chosen.demand.device_class.selectors
            if place in self.elsewhere or not of_class:
                continue
            if any(self.answers.of_kind(kind).of_request[place] for kind in self._inventory.buckets):
                continue
            profiles = {
                cut.profile
                for kind in kinds
                for one in kind.partitions.gpus
                for cut, device in zip(one.geometry.places, one.devices, strict=True)
                if all(selectors.evaluate(each, device) is True for each in of_class)
            }
            if profiles:
                name = chosen.demand.request.name
                return f"no GPU can be cut into what request {name} selects, but into {', '.join(sorted(profiles))}"
        if self.elsewhere and not any(self._could_serve(kind) for kind in kinds):
            parts = sum(self.requests.counts[place] for place in self.elsewhere)
            what = "the requested part" if parts == 1 else f"the {parts} requested parts"
            return f"no node has room for {what}, even with all of its GPUs free"
        return ""

    def _could_serve(self, kind: NodeKind) -> bool:
        """Whether a node of a kind could serve the pod with all of its GPUs free, unless the contrary is proved."""
        question = self.question(kind)
        if not question.fractions:
            return set(range(len(self.requests.counts))) != self.elsewhere
        state = NodeState(kind, self.answers.of_kind(kind).present)
        return self._may_give_more(question) or not isinstance(self.bound(state, 0), str)


class NodeParts(NodePlaces[PartQuestion]):
    """The parts on a node in one state."""

    def __init__(self, of_pod: PartPlaces, asked: PartQuestion, state: NodeState, held: int) -> None:
        super().__init__(of_pod, asked, state, held)
        counts, self._tables = self._requests.counts, of_pod.tables
        self._wanted = tuple(sum(counts[asked.fractions[at]] for at in alike) for alike in asked.demands)
        partitions = asked.kind.partitions.gpus
        self._gpus = tuple(
            (0 if one.ordinal is None else 1 << one.ordinal, self._tables.table(one.geometry), left)
            for one, left in zip(partitions, lefts(partitions, state.rest), strict=True)
        )

    def may_have_place(self, option: Option) -> bool:
        """See NodePlaces: parts without a place while no whole GPU is taken have none beside any."""
        return self._best(0, option, self._free) is not None

    def deals(self, option: Option, whole: Choice | None) -> Iterator[Deal]:
        """See NodePlaces: the best cut, whatever it damages."""
        cut = self._best(0 if whole is None else whole.mask, option, self._free)
        if cut is not None:
            yield self._deal(option, whole, cut)

    def _deal(self, option: Option, whole: Choice | None, cut: Cut) -> Deal:
        free = self._free & ~(0 if whole is None else whole.mask)
        partitions = self._asked.kind.partitions.gpus
        ordinals = (partitions[gpu].ordinal for gpu, _, _ in cut.picks)
        fresh = mask_of({one for one in ordinals if one is not None and free >> one & 1})
        return Deal(whole, option, cut.picks, fresh, (cut.key.loss, cut.key.left))

    def settled(self, deal: Deal) -> Deal:
        """See NodePlaces."""
        count = deal.fresh.bit_count()
        found = self._cut_with_least_damage(deal.taken, deal.option, count) if count else None
        return deal if found is None else self._deal(deal.option, deal.whole, found)

    def names(self, pool: NodePool, deal: Deal) -> Iterator[tuple[int, str]]:
        """See NodePlaces: the parts of each demand are divided among its requests, in order."""
        places, counts = self._asked.fractions, self._requests.counts
        turns = [iter([at for at in alike for _ in range(counts[places[at]])]) for alike in self._asked.demands]
        for gpu, at, place in sorted((gpu, next(turns[demand]), place) for gpu, demand, place in deal.picks):
            yield places[at], pool.order[self._asked.kind.partitions.gpus[gpu].numbers[place]]

    def no_room(self) -> str:
        """See NodePlaces."""
        count = sum(self._requests.counts[place] for place in self._asked.fractions)
        if count == 1:
            return f"without room on {'an' if self._which else 'a'} {self._which}GPU for the requested part"
        return f"without room on their {self._which}GPUs for the {count} requested parts"

    def _best(self, taken: int, option: Option, fresh: int) -> Cut | None:
        """Return the best cut beside the taken whole GPUs that breaks no fresh GPUs but these."""
        if not self._asked.demands:
            return NOTHING
        masks = zip(*[option.fractions[alike[0]] for alike in self._asked.demands], strict=True)
        closed = taken | (self._free & ~fresh)
        gpus = tuple(
            [
                CutGpu(table, left, allowed, bool(bit & self._free)) if any(allowed) and not bit & closed else None
                for (bit, table, left), allowed in zip(self._gpus, masks, strict=True)
            ]
        )
        found = self._tables.cuts.best(gpus, self._wanted, apart=self._asked.apart)
        self.cut_off |= found.cut_off
        return found.cut

    def _cut_with_least_damage(self, taken: int, option: Option, count: int) -> Cut | None:
        """Return the best cut that breaks `count` fresh GPUs, those whose loss does least damage to the rest."""
        free = self._free & ~taken
        alike: dict[tuple[PartitionTable, Left, FractionMasks], int] = {}
        for number, (bit, table, left) in enumerate(self._gpus):
            allowed = tuple([masks[number] for masks in option.fractions])
            if bit & free and any(allowed):
                look = table, left, allowed
                alike[look] = alike.get(look, 0) | bit
        damage_of = self._damages(free)
        # Sets of GPUs that are alike give the same, and of equal cuts the first GPUs are taken.
        kinds = refined(self._engine.table(self._box, self._nothing).twins, list(alike.values()))
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
