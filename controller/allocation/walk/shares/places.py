"""Where the shares of a pod go on one node (docs/design/shares.md).

A request for an amount of a GPU's capacities gets a share if the GPU is given in shares. It joins the GPU in use that
it fills best, else it takes the free one whose loss hurts the rest least. legal judges what the API allows beyond
amounts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dracaena.api.attributes import MEMORY_CAPACITY
from dracaena.api.config.v1alpha1 import NO_POLICY
from dracaena.api.reasons import too_small_gpus
from dracaena.api.sharing import size_in_words
from dracaena.controller.allocation.effort import SET_STEPS, Effort, Work
from dracaena.controller.allocation.legal.capacity import AmountDemand
from dracaena.controller.allocation.legal.problem import Problem
from dracaena.controller.allocation.score.box import SetRule, make_rule, ordinals_of
from dracaena.controller.allocation.score.choices import Choice, Engine
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool, NodeState, SharedGpu
from dracaena.controller.allocation.walk.answers import QuestionAnswers
from dracaena.controller.allocation.walk.fractions import Deal, Option
from dracaena.controller.allocation.walk.node_choice import NodeGpus, NodeQuestion, agreeing_gpus
from dracaena.controller.allocation.walk.places import NodePlaces, Places
from dracaena.controller.allocation.walk.shares.assignments import MOST_LEFT, ShareAssignment, ShareAssignments
from dracaena.controller.allocation.walk.shares.question import ShareQuestion, masks_of, share_question

MAX_ASSIGNMENTS: Final = 5_000
"""Ways to distribute the shares of one pod that are compared for a set of whole GPUs: four shares over eight GPUs have
4,096. If there are more, those that begin with the fullest GPUs are compared."""


class SharePlaces(Places[ShareQuestion]):
    """Answers for one pod that asks for amounts."""

    worse = "where its shares would leave more unused or break into a free GPU"

    def __init__(
        self,
        inventory: Inventory,
        answers: QuestionAnswers,
        engine: Engine,
        amounts: Sequence[AmountDemand],
        effort: Effort,
        *,
        fractional: bool,
    ) -> None:
        """`fractional` as in capacity.amounts."""
        super().__init__(inventory, answers, engine, frozenset(one.place for one in amounts))
        self._amounts, self.effort, self._fractional = amounts, effort, fractional
        self._known: dict[NodeKind, ShareQuestion] = {}

    def question(self, kind: NodeKind) -> ShareQuestion:
        """See Places."""
        found = self._known.get(kind)
        if found is None:
            masks = self.answers.of_kind(kind).of_request
            found = self._known[kind] = share_question(kind, masks, self._amounts, fractional=self._fractional)
        return found

    def narrowed(
        self, asked: ShareQuestion, problem: Problem, pool: NodePool, gpus: NodeGpus, node_question: NodeQuestion
    ) -> ShareQuestion:
        """See Places."""
        options = agreeing_gpus(problem, gpus, self.engine, node_question)
        return asked.narrowed([tuple(map(int.__and__, asked.masks, masks)) for masks in options])

    def on(self, asked: ShareQuestion, state: NodeState, held: int) -> NodeShares:
        """See Places."""
        return NodeShares(self, asked, state, held)


class NodeShares(NodePlaces[ShareQuestion]):
    """The shares on a node in one state. At most MAX_ASSIGNMENTS are compared beside each set of whole GPUs, with at
    most MAX_LOOKS for each way to agree."""

    def __init__(self, of_pod: SharePlaces, asked: ShareQuestion, state: NodeState, held: int) -> None:
        super().__init__(of_pod, asked, state, held)
        present, self._effort = of_pod.answers.of_kind(state.kind).present, of_pod.effort
        self._in_use = {one.ordinal: one for one in state.shares if present >> one.ordinal & 1}
        demands = tuple(one for one in asked.shares if one.place in asked.fractions)
        self._ways = {option: self._assignments(demands, masks_of(asked, option)) for option in asked.options}

    def _assignments(self, demands: Sequence[AmountDemand], masks: Mapping[int, int]) -> ShareAssignments:
        return ShareAssignments(self._asked, demands, masks, self._in_use, self._rules(demands), self._effort)

    def _rules(self, demands: Sequence[AmountDemand]) -> dict[int, SetRule]:
        """Return which sets the policies of requests for shares allow."""
        policies = {one.place: self._requests.policies[one.place] for one in demands}
        strict = {at: policy for at, policy in policies.items() if policy != NO_POLICY}
        if not strict:
            return {}
        table, every = self._engine.table(self._box, self._nothing), (1 << self._box.gpu_count) - 1
        return {at: make_rule(table, policy, every) for at, policy in strict.items()}

    def deals(self, option: Option, whole: Choice | None) -> Iterator[Deal]:
        """See NodePlaces."""
        free = self._free & ~(0 if whole is None else whole.mask)
        ways = self._ways[option]
        for assignment in self._most(MAX_ASSIGNMENTS, ways.all(free)):
            self._effort.charge(SET_STEPS, Work.SETS)
            yield self._deal(option, whole, assignment)
        self.looks = sum(one.looks for one in self._ways.values())
        self.cut_off |= ways.cut_off

    def _deal(self, option: Option, whole: Choice | None, assignment: ShareAssignment) -> Deal:
        filled, shareable = assignment.filled, self._asked.kind.shareable
        touched = sum(1 << ordinal for ordinal in filled)
        joined = sum(1 << ordinal for ordinal in filled if ordinal in self._in_use)
        left_of = self._ways[option].left_of
        lefts = [left_of(ordinal, filled[ordinal].taken) for ordinal in ordinals_of(touched & shareable)]
        left = (min(sum(one for one, _ in lefts), MOST_LEFT), min(sum(one for _, one in lefts), MOST_LEFT))
        picks = tuple((at, *ordinals_of(mask)) for at, mask in assignment.parts)
        return Deal(whole, option, picks, touched & ~joined, left, (touched & ~shareable).bit_count(), joined)

    def names(self, pool: NodePool, deal: Deal) -> Iterator[tuple[int, str]]:
        """See NodePlaces."""
        for at, *ordinals in deal.picks:
            yield from ((at, name) for one in ordinals if (name := pool.devices[one]) is not None)

    # Reasons

    def lack(self) -> str:
        """See NodePlaces."""
        return next(filter(None, map(self._lack_of, self._asked.amounts)), "")

    def no_room(self) -> str:
        """See NodePlaces."""
        where = f" on {self._which}GPUs" if self._which else ""
        if self.cut_off:
            return f"no room was found for everything that the pod requests at once{where}"
        return f"without room for everything that the pod requests at once{where}"

    def _lack_of(self, demand: AmountDemand) -> str:
        question, words, mask = self._asked, str(demand), self._asked.masks[demand.place]
        if not mask and not question.kind.shareable:
            return "whose GPUs are not available in shares"
        if not any(question.taken[demand.place]):
            return f"whose GPUs never have {words}"
        if not mask:
            return "without a GPU that the request may have"
        ways = self._assignments((demand,), {demand.place: mask})
        if ways.gpus_with_room(self._free, demand) >= demand.count:
            return ""
        others = {
            shared.mode
            for shared in self._in_use.values()
            if mask >> shared.ordinal & 1 and self._has_room(demand, shared)
        }
        if others:
            return f"whose {self._which}GPUs with {words} left are shared in another mode ({', '.join(sorted(others))})"
        if demand.count > 1:
            return f"with fewer than {demand.count} {self._which}GPUs with {words} left"
        return f"without {words} left on one {self._which}GPU"

    def _has_room(self, demand: AmountDemand, shared: SharedGpu) -> bool:
        wanted, one = self._asked.taken[demand.place][shared.ordinal], self._asked.kind.devices[shared.ordinal]
        if wanted is None or one is None:
            return False
        left = shared.left_nano(one.device)
        return all(wanted[name] <= left[name] for name in wanted)


def most_left(inventory: Inventory, amounts: Sequence[AmountDemand]) -> str:
    """Say how much memory the GPU with most left has, in words; "" if no amount of memory is asked for, or GPUs are
    given in shares on a node with more to give than GPUs: only the rules know what is left there.

    Cost: O(states of nodes × GPUs)."""
    wanted = [one.capacity[MEMORY_CAPACITY].nano for one in amounts if MEMORY_CAPACITY in one.capacity]
    mixed = (one for kind in inventory.buckets if kind.is_mixed for one in inventory.devices_of(kind))
    if wanted and any(one.allow_multiple_allocations for one in mixed):
        return ""
    lefts = [
        left
        for kind, by_state in inventory.buckets.items()
        for names in by_state.values()
        for left in _memory(kind, inventory.state(names[0]), names[0])
    ]
    if not wanted or not lefts:
        return "no GPU of the cluster is available in shares" if wanted else ""
    most, (left, node) = max(one for one, _, _ in lefts), max((left, node) for _, left, node in lefts)
    if max(wanted) > most:
        return too_small_gpus(f"{size_in_words(max(wanted))} of memory", size_in_words(most))
    if not left:
        return "no memory of any GPU is left"
    return f"the GPU with most memory left has {size_in_words(left)} (on {node})" if left < max(wanted) else ""


def _memory(kind: NodeKind, state: NodeState | str, node: str) -> Iterator[tuple[int, int, str]]:
    """Yield, for each GPU of a node that is given in shares, its memory and what is left of it, in billionths."""
    if isinstance(state, str):
        return
    in_use = {one.ordinal: one for one in state.shares}
    for ordinal in ordinals_of(kind.shareable):
        one = kind.devices[ordinal]
        for held in () if one is None else one.device.capacities:
            if held.name == MEMORY_CAPACITY:
                shared = in_use.get(ordinal)
                left = held.value.nano if state.free >> ordinal & 1 else 0
                if shared is not None:
                    left = held.value.nano - dict(shared.taken).get(MEMORY_CAPACITY, 0)
                yield held.value.nano, left, node
