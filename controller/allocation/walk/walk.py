"""The walk over the nodes: best bound first, without a look at each of them.

Nodes in one state are a group with one bound, the best rank that any of them can have. For exact nodes the bound is
what they give. For all others the rules are consulted when the walk visits them, and a node that gives less than its
bound is put back. The walk ends at the first node that gives as much as the best bound that is left.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from dracaena.controller.allocation.effort import Effort, OverdueError, Work
from dracaena.controller.allocation.legal.outcome import NeedsPerson
from dracaena.controller.allocation.nodes.node_filter import Names
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import Buckets, NodeKind, NodeState
from dracaena.controller.allocation.walk.answers import (
    Census,
    NodeAnswer,
    QuestionAnswers,
    Ranking,
    Unvisited,
    of_whole_gpus,
)
from dracaena.controller.allocation.walk.family import FamilyPreference
from dracaena.controller.allocation.walk.judgements import (
    UNSCORED,
    Judged,
    Judgement,
    NodeChoice,
    worse_in,
)
from dracaena.controller.allocation.walk.node_rules import NodeRules
from dracaena.controller.allocation.walk.pod_demand import PodDemand

NO_ROOM: Final = "with too little of what the pod needs besides devices"
NOT_BETTER: Final = "that can offer nothing better, and were not examined"
BY_NAME: Final = "that come later by name, and were not examined"
NOT_IN_TIME: Final = "that were not examined in the time allowed for one pod"
TRIED_BEFORE: Final = "already examined in an earlier attempt"
"""What becomes of nodes that the walk does not visit, in words that follow a count."""

PATIENCE: Final = 64
"""Nodes that are refused one by one, 2 µs each, before the nodes with room are listed: that takes up to 0.7 ms, and
most decisions never visit a node without room."""

FEW: Final = 8
"""If selectors leave less than one node in this many, those get buckets of their own; else the others are skipped."""

LATER: Final = 1 << 5000
"""Added to the bound of a node that an earlier attempt found unable to serve the pod: it comes after all others."""

SECOND_LOOKS: Final = 2
"""Groups that the rules are asked about for a runner-up: it is only shown to people, and each look costs as much as a
small decision."""

_Gives = NodeAnswer | NodeState | Judged | NodeChoice
"""What is known about the nodes of a group: what each gives (NodeAnswer); a bound only (NodeState); how good each is,
but not which devices it gives (Judged); or what the one node gives (NodeChoice)."""

_States = Mapping[tuple[int, Hashable], Sequence[str]]
"""For one kind: what is free and the rest of the state → names of nodes (inventory.Buckets)."""

_Group = tuple[int, str, int, Sequence[str], _Gives]
"""Bound; the next node by name; its place among the names; names, ascending; what is known. A plain tuple: a decision
may make one for each bucket. No two groups have a node in common, so the first two parts decide their order."""


class Walk:
    """One decision's walk for one choice of alternatives. Reads the inventory, which must not change meanwhile."""

    def __init__(
        self,
        inventory: Inventory,
        demand: PodDemand,
        answers: QuestionAnswers,
        rules: Callable[[], NodeRules],
        effort: Effort,
        tried: set[str] | None = None,
        family: FamilyPreference | None = None,
        *,
        is_exact: bool,
    ) -> None:
        """`is_exact`: whether the answers say everything about whole GPUs; `rules` are made when they are first needed.
        `family`: what a pod of a family prefers; None: nothing. `tried` are the nodes that earlier, overdue attempts
        found unable to serve the pod; they come last, and nodes found unable now are added.
        """
        self._inventory, self._demand, self._answers, self._effort = inventory, demand, answers, effort
        self._is_exact, self._family, self._make_rules = is_exact, family, rules
        self._made_rules: NodeRules | None = None
        self._tried = set() if tried is None else tried
        self._narrowed = demand.filter.narrowed(inventory.nodes)
        """The nodes that the pod's node selectors leave; None: all."""
        self._selected: Names | None = None
        """The nodes that are meant among those of the groups; None: all."""
        self._with_room: Names | None = None
        """The nodes that may have enough CPU and the like, once it is worth knowing; None: any."""
        self._heap: list[_Group] = []
        self._ranking: Ranking[NodeAnswer] | Ranking[NodeState] | None = None  # further groups, from a place on:
        self._place = 0
        self._visited: _Group | None = None  # last
        self._end: tuple[int, str] | None = None
        """Where best() ended: after all nodes that come before this bound and name."""
        self._without: list[tuple[NodeKind, str, Sequence[str]]] = []  # nodes that have nothing to give; the reason
        self._refused: list[tuple[str, str]] = []  # nodes that were refused one by one, with the reason
        self._short: list[_Group] = []  # nodes that were left out for lack of room
        self._by_rules = False
        self.is_round_over = False
        """Whether best() tried no node, because earlier attempts together have tried every one without success."""

    @property
    def mistake(self) -> NeedsPerson | None:
        """The first mistake that kept a node from being used and that only a person can fix."""
        return None if self._made_rules is None else self._made_rules.mistake

    def best(self) -> NodeChoice | None:
        """Return what the best node gives, of equal ones the first by name; None when none gives anything.

        For a request for whole GPUs, other devices of a node are considered only when no node has enough whole ones.
        When the decision is overdue, this is the best of the nodes tried so far; if none of them gave anything,
        OverdueError goes on to the caller. Cost: a look at the filter for each visited node. The rules are asked once
        for each state, or for each visited node if nodes in one state may differ. A step for each bucket, unless there
        is a Ranking of them: if whole GPUs are all or come first, and for a pod of no family whose selectors leave a
        FEWth of the nodes.
        """
        buckets = self._buckets()
        parts = [buckets] if self._family is None else list(self._family.cut(buckets))
        if not self._is_exact:
            return self._best_by_rules(parts)
        is_ranked = self._family is None and buckets is self._inventory.node_buckets.by_free_gpus
        if is_ranked:
            self._ranking = self._answers.ranking(self._inventory.node_buckets, self._effort)
        else:
            self._begin(self._exact_groups(parts))
        found = self._next(None)
        if found is not None or self._no_node_has_room():
            return found
        self._take_from_ranking(whole=True)
        mixed = [{kind: by_state for kind, by_state in part.items() if kind.is_mixed} for part in parts]
        if not any(mixed) and not any(state.kind.is_mixed for _, state, _ in self._holding()):
            return None
        self._without = [entry for entry in self._without if not entry[0].is_mixed]
        self._refused += [(name, NO_ROOM) for _, _, _, names, _ in self._short for name in names]
        self._refused = [entry for entry in self._refused if not self._is_mixed(entry[0])]
        self._short = []
        return self._best_by_rules(mixed, is_ranked=is_ranked)

    def second(self) -> NodeChoice | None:
        """Return what the next best node gives after best(); None also if a few looks do not show it."""
        return self._next(SECOND_LOOKS if self._by_rules else None)

    def census(self, winner: NodeChoice) -> Census:
        """Return what became of all nodes but the winner's, right after best(). Each is counted once, for the first of
        these reasons that applies. It has no GPUs of ours to give; the pod's node selectors leave it out; it lacks what
        is asked for, like all nodes in its state; it comes after the winner; it has too little of what is no device; it
        is unfit for the pod for another reason; it cannot serve the claims.

        Cost: a step for each refused node and each group, or with node selectors for each node; what is left of a
        ranking is copied (Unvisited.of).
        """
        reasons = Counter(reason for _, reason in self._refused)
        for kind, reason, names in self._without:
            reasons[reason if self._by_rules else of_whole_gpus(kind, reason)] += self._count(names)
        behind = self._heap.copy()
        for rank, _, _, names, gives in self._short:
            later = [name for name in names if self._end is not None and (rank, name) > self._end]
            reasons[NO_ROOM] += len(names) - len(later)
            if later:
                behind.append((rank, later[0], 0, later, gives))
        ranks: list[tuple[int, int]] = []
        is_narrowed, end, unasked = self._narrowed is not None, self._end, 0
        for group in behind:
            rank, name, place, names, gives = group
            count = self._count(names, place) if is_narrowed else len(names) - place
            if isinstance(gives, NodeAnswer):
                ranks.append((rank, count))
            elif isinstance(gives, NodeState) and rank < LATER and (end is None or (rank, name) >= end):
                unasked += count
            else:
                reasons[self._word(winner, group)] += count
        left, ranking, place = Unvisited(), self._ranking, self._place
        if ranking is not None and self._by_rules:  # bounds are not compared with the winner's score
            unasked += sum(map(self._count if is_narrowed else len, ranking.names[place:]))
            place = len(ranking.ranks)
        if unasked:
            reasons[BY_NAME if self._rules.is_first_fit else NOT_BETTER] += unasked
        if ranking is not None:
            left = replace(Unvisited.of(ranking, place, self._selected), only_whole=not self._by_rules)
        others, outside = len(self._inventory.nodes) - 1, dict(self._inventory.outside)
        return Census(others, dict(+reasons), outside, tuple(ranks), left)

    # The walk

    def _begin(self, groups: list[_Group]) -> None:
        self._heap = groups if self._selected is None else []
        heapq.heapify(self._heap)
        for rank, _, place, names, gives in groups if self._selected is not None else ():
            self._push(rank, names, place, gives)

    def _best_by_rules(self, parts: Iterable[Buckets], *, is_ranked: bool = False) -> NodeChoice | None:
        """`is_ranked`: the parts are all buckets of mixed nodes, in the order of their bounds."""
        self._by_rules = True
        # Asking the rules costs so much more than listing the nodes with room that the list comes first.
        self._with_room = self._demand.filter.with_room()
        is_ranked = is_ranked and not self._tried
        groups = [] if is_ranked else self._groups(parts)
        if is_ranked:
            self._ranking, self._place = self._rules.ranking(), 0
        if self._tried:
            groups = self._tried_last(groups)
            if groups and all(group[0] >= LATER for group in groups):
                self._tried.clear()
                self.is_round_over = True
                return None
        self._begin(groups)
        try:
            return self._next(None)
        except OverdueError:
            return self._best_until_now()

    def _next(self, looks: int | None) -> NodeChoice | None:
        """Walk on to the next node in order that gives something; ask the rules about at most `looks` groups."""
        while (group := self._pop()) is not None:
            self._visited = group
            rank, name, place, names, gives = group
            if not isinstance(gives, NodeChoice):
                unfit = self._demand.filter.reason(self._inventory.nodes.get(name))
                if unfit is not None:
                    self._refused.append((name, unfit))
                    self._push(rank, names, place + 1, gives)
                    if len(self._refused) == PATIENCE and self._demand.filter.is_short and not self._by_rules:
                        self._with_room = self._demand.filter.with_room()
                        self._leave_out_short()
                    continue
                if isinstance(gives, NodeState):
                    if looks == 0:
                        return None
                    # Remembered answers count as looks too: the result must not depend on what was asked before.
                    looks = None if looks is None else looks - 1
            found = self._visit(group)
            if found is not None:
                self._end = self._end or (rank, name)
                return found
        return None

    def _pop(self) -> _Group | None:
        """Take out the first group by bound and name; None: none is left."""
        self._take_from_ranking(whole=False)
        return heapq.heappop(self._heap) if self._heap else None

    def _take_from_ranking(self, *, whole: bool) -> None:
        """Add the buckets of the ranking that may contain the first node to the groups; `whole`: all that are left."""
        ranking, heap, selected, with_room = self._ranking, self._heap, self._selected, self._with_room
        if ranking is None:
            return
        ranks = ranking.ranks
        while self._place < len(ranks) and (whole or not heap or ranks[self._place] <= heap[0][0]):
            place, self._place = self._place, self._place + 1
            names = ranking.names[place]
            if names and (selected is None or not selected.isdisjoint(names)):
                rank, gives = ranks[place], ranking.answers[place]
                if selected is None and (with_room is None or with_room.issuperset(names)):
                    heapq.heappush(heap, (rank, names[0], 0, names, gives))  # hundreds may have one bound
                else:
                    self._push(rank, self._roomy(rank, names, gives), 0, gives)
        if whole:
            nothing = zip(ranking.reasons, ranking.nothing, strict=True)
            self._without += [(kind, reason, names) for (kind, reason), names in nothing if names]
            self._ranking = None

    def _visit(self, group: _Group) -> NodeChoice | None:
        """Return what the next node of a group gives, if that is as good as the bound. What else is then known goes
        back among the groups."""
        rank, name, place, names, gives = group
        if isinstance(gives, NodeChoice):
            return gives
        if isinstance(gives, NodeAnswer):
            self._push(rank, names, place + 1, gives)
            pool = self._inventory.pool(name)
            assert pool is not None
            return self._with_outlook(NodeChoice(pool, gives.best, gives.second))
        if isinstance(gives, NodeState):
            known = self._rules.judgement(name, gives)
            if known is not None and (known.refusal is not None or self._rank_of(known.rank, name) > rank):
                self._put_back(group, known, place)
                return None
        found = self._rules.ask(name)
        known = self._rules.judgement(name, gives) if isinstance(gives, NodeState) else None
        if isinstance(found, str):
            self._tried.add(name)
            if known is None:
                self._refused.append((name, found))
                place += 1
            self._put_back(group, known, place)
            return None
        own = self._rank_of(self._rules.rank(found), name)
        found = self._with_outlook(found)
        if own <= rank:
            self._put_back(group, None, place + 1)
            return found
        self._push(own, (name,), 0, found)
        self._put_back(group, known, place + 1)
        return None

    def _put_back(self, group: _Group, known: Judgement | None, place: int) -> None:
        """Put the nodes of a group from a place on back among those to visit, with what is known about their state."""
        rank, _, _, names, gives = group
        if known is None:
            self._push(rank, names, place, gives)
            return
        assert isinstance(gives, NodeState)
        if known.refusal is None:
            self._push(self._rank_of(known.rank, names[0]), names, place, Judged(gives, known))
        else:
            self._without.append((gives.kind, self._rules.refusal(known), names[place:]))

    def _rank_of(self, rank: int, name: str) -> int:
        """Return the rank or the bound of a node among all, given that of its devices alone."""
        if self._family is None or not 0 <= rank < UNSCORED:
            return rank
        return self._family.rank(rank, name, self._rules.parts_behind)

    def _with_outlook(self, found: NodeChoice) -> NodeChoice:
        """Return what a node gives, scored with what the pod's family finds there."""
        family, name = self._family, found.pool.node
        if family is None:
            return found
        best, second = (None if one is None else family.choice(one, name) for one in (found.best, found.second))
        return replace(found, best=best, second=second)

    def _push(self, rank: int, names: Sequence[str], place: int, gives: _Gives) -> None:
        """Put the nodes from a place on among the groups that are still to be visited."""
        place = self._selected_from(names, place)
        if place < len(names):
            heapq.heappush(self._heap, (rank, names[place], place, names, gives))

    def _selected_from(self, names: Sequence[str], place: int) -> int:
        """Return the place of the first node that is meant, from a place on; after the last if none is."""
        selected = self._selected
        if selected is None:
            return place
        while place < len(names) and names[place] not in selected:
            place += 1
        return place

    def _leave_out_short(self) -> None:
        """Leave out the nodes that have no room."""
        self._take_from_ranking(whole=True)
        groups, self._heap = self._heap, []
        for rank, _, place, names, gives in groups if not self._no_node_has_room() else ():
            self._push(rank, self._roomy(rank, names[place:], gives), 0, gives)

    def _roomy(self, rank: int, names: Sequence[str], gives: _Gives) -> Sequence[str]:
        """Return the nodes that may have room, and note the others."""
        with_room, selected = self._with_room, self._selected
        if with_room is None or with_room.issuperset(names):
            return names
        meant = [name for name in names if selected is None or name in selected]
        short = [name for name in meant if name not in with_room]
        if short:
            self._short.append((rank, short[0], 0, short, gives))
        return [name for name in meant if name in with_room]

    def _no_node_has_room(self) -> bool:
        return self._with_room is not None and not self._with_room

    def _best_until_now(self) -> NodeChoice:
        """Return the best of the nodes that were asked in time, else raise OverdueError."""
        self._take_from_ranking(whole=True)
        best: _Group | None = min(
            (group for group in self._heap if isinstance(group[4], NodeChoice)), key=lambda one: one[:2], default=None
        )
        if best is None or not isinstance(best[4], NodeChoice):
            raise OverdueError
        self._heap = [group for group in self._heap if group is not best]
        self._heap += () if self._visited is None else (self._visited,)
        heapq.heapify(self._heap)
        self._end = best[:2]
        return replace(best[4], cut_off=True)

    # Groups

    @property
    def _rules(self) -> NodeRules:
        if self._made_rules is None:
            self._made_rules = self._make_rules()
        return self._made_rules

    def _buckets(self) -> Buckets:
        """Return the buckets to look at, without the nodes that are groups of their own."""
        nodes, holding = self._inventory.nodes, self._demand.held.keys()
        selected = self._narrowed
        if holding:
            return _gathered(self._inventory, (frozenset(nodes.names) if selected is None else selected) - holding)
        if selected is not None and len(selected) * FEW < len(nodes):
            return _gathered(self._inventory, selected)
        self._selected = selected
        return self._inventory.node_buckets.by_free_gpus if self._is_exact else self._inventory.buckets

    def _holding(self) -> Iterator[tuple[str, NodeState, int]]:
        """Yield the nodes where the pod already holds GPUs: they are part of its set there, and nowhere else."""
        for name, held in self._demand.held.items():
            state = self._inventory.state(name) if name in self._inventory.nodes else ""
            if isinstance(state, NodeState) and (self._narrowed is None or name in self._narrowed):
                yield name, state, held

    def _exact_groups(self, parts: Iterable[Buckets]) -> list[_Group]:
        """Return the groups of nodes whose answers are all there is to know."""
        groups: list[_Group] = []
        without = self._without
        for name, state, held in self._holding():
            answer = self._answers.of_kind(state.kind).with_held(state.free, held)
            if answer.best is None:
                without.append((state.kind, answer.reason, (name,)))
            else:
                groups.append((answer.rank, name, 0, (name,), answer))
        for kind, by_state in (entry for part in parts for entry in part.items()):
            self._effort.charge(len(by_state), Work.SETS)
            answers = self._answers.of_kind(kind)
            known = answers.known
            for (free, _), names in self._meant(by_state):
                answer = known.get(free) or answers.of(free)
                if answer.best is None:
                    without.append((kind, answer.reason, names))
                else:
                    groups.append((answer.rank, names[0], 0, names, answer))
        if self._family is not None:
            rank_of = self._family.rank
            return [(rank_of(rank, name), name, place, names, gives) for rank, name, place, names, gives in groups]
        return groups

    def _groups(self, parts: Iterable[Buckets]) -> list[_Group]:
        """Return the groups of nodes about which the rules have to be asked."""
        groups: list[_Group] = []
        is_second_part, rules = self._is_exact, self._rules
        for name, state, held in self._holding():
            if not is_second_part or state.kind.is_mixed:
                self._add(groups, rules.bound(state, held), state, (name,))
        for by_state in (states for part in parts for states in part.values()):
            self._effort.charge(len(by_state), Work.SETS)
            bounds: dict[int, int | str] = {}
            for (free, _), names in self._meant(by_state):
                in_state = self._inventory.state(names[0])
                assert isinstance(in_state, NodeState)
                if free not in bounds or rules.has_fractions:
                    bounds[free] = rules.bound(in_state)
                self._add(groups, bounds[free], in_state, names)
        return groups

    def _meant(self, by_state: _States) -> Iterable[tuple[tuple[int, Hashable], Sequence[str]]]:
        """Return the states with nodes that are meant: often only those of some kinds."""
        selected = self._selected
        if selected is None:
            return by_state.items()
        return [entry for entry in by_state.items() if not selected.isdisjoint(entry[1])]

    def _add(self, groups: list[_Group], bound: int | str, state: NodeState, names: Sequence[str]) -> None:
        if isinstance(bound, str):
            self._without.append((state.kind, bound, names))
            return
        bound = self._rank_of(bound, names[0])
        names = self._roomy(bound, names, state)
        groups += [(bound, names[0], 0, names, state)] if names else []

    def _tried_last(self, groups: Iterable[_Group]) -> list[_Group]:
        """Return the groups with the nodes that were tried before in groups of their own, after all others."""
        tried = frozenset(self._tried)
        parted: list[_Group] = []
        for rank, _, _, names, gives in groups:
            meant = [name for name in names if self._selected is None or name in self._selected]
            for bound, part in (
                (rank, [name for name in meant if name not in tried]),
                (rank + LATER, [name for name in meant if name in tried]),
            ):
                if part:
                    parted.append((bound, part[0], 0, part, gives))
        return parted

    # Counting

    def _is_mixed(self, name: str) -> bool:
        state = self._inventory.state(name)
        return isinstance(state, NodeState) and state.kind.is_mixed

    def _count(self, names: Sequence[str], place: int = 0) -> int:
        """Return how many nodes from a place on the pod's node selectors leave."""
        narrowed = self._narrowed
        return len(names) - place if narrowed is None else len(narrowed.intersection(names[place:]))

    def _word(self, winner: NodeChoice, group: _Group) -> str:
        """Say why the winner came before nodes that give less than it seemed, or that were tried or not reached."""
        _, _, _, _, gives = group
        if isinstance(gives, (Judged, NodeChoice)):
            return worse_in(winner, gives, None if self._family is None else partial(self._family.score, node=group[1]))
        return TRIED_BEFORE if group[0] >= LATER else NOT_IN_TIME


def _gathered(inventory: Inventory, names: Iterable[str]) -> Buckets:
    buckets: dict[NodeKind, dict[tuple[int, Hashable], list[str]]] = {}
    for name in sorted(names):
        state = inventory.state(name)
        if isinstance(state, NodeState):
            buckets.setdefault(state.kind, {}).setdefault(state.key, []).append(name)
    return buckets
