"""What nodes would give if nothing of theirs were in use and no GPU were tainted: separates what is never possible from
what is not possible now. Used only by explanations, never by decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from dracaena.api import reasons
from dracaena.api.objects import Toleration
from dracaena.controller.allocation.legal.outcome import DeviceRule, DoesNotFit
from dracaena.controller.allocation.nodes.node_filter import PINNED_ELSEWHERE, NodeFilter
from dracaena.controller.allocation.request import Question
from dracaena.controller.allocation.state.emptied import emptied
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.node_state import NodeKind, NodePool, NodeState
from dracaena.controller.allocation.walk.answers import Answers
from dracaena.controller.allocation.walk.node_rules import NodeRules

_ANYTHING = (Toleration(operator="Exists"),)


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a node does not have the devices."""

    text: str
    """In words that follow a count of nodes."""
    lasting: bool
    """Whether the node would lack them even with all of its devices free and untainted."""


class LastingLacks:
    """Answers for one pod and one choice of alternatives. Reads the inventory, which must not change meanwhile.

    Cost: that of a decision for each kind of node; if equal nodes may differ, for each node.
    """

    def __init__(self, inventory: Inventory, rules: NodeRules, answers: Answers) -> None:
        self._inventory, self._rules = inventory, rules
        self._count = rules.facts.question.count
        self._answers = answers.to(_tolerating(rules.facts.question))
        self._known: dict[tuple[NodeKind, int], str | None] = {}
        self._lacks: dict[tuple[NodeState, int], Lack | None] = {}

    def lack(self, name: str) -> Lack | None:
        """Return why a node that offers devices does not have the requested ones; None when it has them."""
        if not self._rules.are_alike(name):
            return self._lack(name)
        state, pool = self._on(name)
        key = state, pool.offered
        if key not in self._lacks:
            self._lacks[key] = self._lack(name)
        return self._lacks[key]

    def alike(self, name: str) -> tuple[NodeKind, int] | None:
        """Return a key that nodes with the same answer from never() share; None if each may get a different one."""
        state, pool = self._on(name)
        return (state.kind, pool.offered) if self._rules.are_alike(name) else None

    def never(self, name: str) -> str | None:
        """Return why a node that offers devices could not serve the pod even with all of them free; None when it could,
        or when that is not certain."""
        if self._rules.has_fractions:
            return None  # shares of a GPU come and go, and how much of it is left is reported elsewhere
        key = self.alike(name)
        if key is None:
            return self._never(name, *self._on(name))
        if key not in self._known:
            self._known[key] = self._never(name, *self._on(name))
        return self._known[key]

    def is_too_small(self, name: str) -> bool:
        """Return whether a node that offers devices has fewer GPUs, of any kind, than are asked for."""
        return self.gpus(name) < self._count and self._gives_whole_gpus_alone(self._on(name)[0].kind)

    def _gives_whole_gpus_alone(self, kind: NodeKind) -> bool:
        """Whether nodes of a kind have nothing but whole GPUs for this pod."""
        if not self._inventory.is_mixed(kind):
            return True
        is_cut_on_demand = bool(kind.partitions.gpus) and not kind.partitions.has_more
        if self._inventory.allowed_drivers or not is_cut_on_demand:
            return False
        return not self._answers.of_kind(kind).matches_parts()

    def gpus(self, name: str) -> int:
        """Return how many GPUs of a node that offers devices are ours to give, in use or not."""
        return self._on(name)[1].offered.bit_count()

    def _lack(self, name: str) -> Lack | None:
        text = self._rules.shortfall(name)
        if text is None:
            return None
        never = self.never(name)
        return Lack(self._not_now(name, text), lasting=False) if never is None else Lack(never, lasting=True)

    def _never(self, name: str, state: NodeState, pool: NodePool) -> str | None:
        rules = self._rules
        if rules.facts.question.counts and not self._inventory.is_mixed(state.kind) and not rules.is_first_fit:
            held = rules.held(name)
            reason = self._answers.of_kind(state.kind).with_held(pool.offered & ~held, held).reason
            if reason or rules.is_exact:
                besides = " besides those that the pod has" if held and reason.startswith("with") else ""
                return f"{_of_all(reason)}{besides}" or None
        if self._count > 1 and self.is_too_small(name):
            return f"with fewer than {self._count} GPUs"
        lack = rules.lack_of_identities(name, pool.offered)
        if lack is not None:
            return _of_all(lack)
        if self._inventory.allowed_drivers:
            return None  # what others hold of another driver's devices is not released below
        with emptied(self._inventory, pool.pool, self._inventory.holdings.of_pool(pool.pool)):
            found = rules.choice(name)
        return f"where {found}" if isinstance(found, DoesNotFit) and _lasts(found) else None

    def _not_now(self, name: str, text: str) -> str:
        """Say why a node that has enough GPUs has too few of them now."""
        state, pool = self._on(name)
        count = self._count
        if self._rules.has_fractions or not count or self._inventory.is_mixed(state.kind) or self._rules.held(name):
            return text
        present = self._rules.answers.of_kind(state.kind).present
        if (state.free & present).bit_count() >= count:
            return text
        is_tainted = (pool.offered & present).bit_count() < count
        is_free = state.free.bit_count() >= count
        if count == 1:
            return reasons.all_tainted(free=not is_tainted) if is_tainted or is_free else text
        if is_tainted:
            return (
                f"with {count} or more GPUs, fewer than {count} of them without taints that the claim does not tolerate"
            )
        if is_free:
            return f"with {count} or more GPUs, fewer than {count} of them free and untainted"
        return f"with {count} or more GPUs, fewer than {count} of them free"

    def _on(self, name: str) -> tuple[NodeState, NodePool]:
        state, pool = self._inventory.state(name), self._inventory.pool(name)
        assert isinstance(state, NodeState)
        assert pool is not None
        return state, pool


class Never:
    """Learns, node by node, whether any could serve a pod with all of its devices free. Nodes may come again."""

    def __init__(self) -> None:
        self._may = False
        self._all_too_small = True
        self._largest = 0
        self._is_every_node = True
        self._known: set[tuple[Hashable, ...]] = set()

    @property
    def is_refuted(self) -> bool:
        """Whether some node could serve it."""
        return self._may

    def knows(self, *alike: Hashable | None) -> bool:
        """Return whether a node of the same key was already noted (LastingLacks.alike, for each combination)."""
        if None in alike or alike in self._known:
            return None not in alike
        self._known.add(alike)
        return False

    def could(self) -> None:
        """Note a node that could serve it, or for which that is unknown."""
        self._may = True

    def could_not(self, gpus: int, *, too_small: bool) -> None:
        """Note a node that could not, the number of its GPUs, and whether that number is the reason."""
        self._largest = max(self._largest, gpus)
        self._all_too_small &= too_small

    def leave_open(self) -> None:
        """Note a node that offers no devices now: it may have none, or many that cannot be used, or not yet."""
        self._is_every_node = False

    def words(self, count: int) -> str:
        """Return why no node could, with the number of GPUs that are asked for; empty if one could, or if there is
        none. It says nothing about nodes that were not asked."""
        if self._may or not self._largest:
            return ""
        node = "no node" if self._is_every_node else "no node that offers GPUs"
        if self._all_too_small:
            return reasons.too_few_gpus(node, count, self._largest)
        return f"{node} could serve it with all of its GPUs free"


def look_whether_ever(never: Never, lacks: Sequence[LastingLacks], name: str) -> None:
    """Note in `never` whether a node that offers devices could ever serve the pod, with any of its alternatives."""
    if never.is_refuted or (lacks and never.knows(*(one.alike(name) for one in lacks))):
        return
    if not lacks or any(one.never(name) is None for one in lacks):
        never.could()
    else:
        never.could_not(lacks[0].gpus(name), too_small=all(one.is_too_small(name) for one in lacks))


def reasons_of_nodes(
    inventory: Inventory, node_filter: NodeFilter, lacks: Sequence[LastingLacks], left: deque[str], never: Never
) -> Iterator[tuple[str, Lack | str | None]]:
    """Take nodes off `left`, and yield each existing one with the first of these reasons that applies. It is not the
    node of a claim that the pod has; it has no GPUs of ours to give; it is barred; the pod cannot run there
    (unfit_for's order); it lacks the requested devices; it has too little of what is no device. None: no reason
    applies. Note in `never` for each that offers devices whether it could ever give the requested ones.

    `lacks` are those of each choice of alternatives, the most preferred first; empty if no node can be meant.
    """
    while left:
        name = left.popleft()
        if name not in inventory.nodes:
            continue
        indexed = inventory.nodes.get(name)
        unfit = node_filter.unfit(indexed) if lacks else PINNED_ELSEWHERE
        state = inventory.state(name)
        if isinstance(state, NodeState):
            look_whether_ever(never, lacks, name)
        else:
            never.leave_open()
        if not lacks or unfit == PINNED_ELSEWHERE:
            yield name, PINNED_ELSEWHERE
        elif isinstance(state, str):
            yield name, state
        else:
            # Naming too little CPU next to too few GPUs does not help: only the last reason can be acted on.
            short = lacks[0].lack(name) or node_filter.shortage(indexed)
            yield name, unfit or short or node_filter.lack_of_others(indexed)


def _of_all(text: str) -> str:
    """Return the words for a lack among a node's free GPUs, changed to all of its GPUs."""
    return text.replace(" free ", " ")


def _lasts(found: DoesNotFit) -> bool:
    """Return whether a refusal, found with nothing in use, is valid as long as what is published stays as it is."""
    is_tainted = any(reason.rule is DeviceRule.TAINT for reason in found.reasons)
    return not (is_tainted or found.pools or found.cut_off)


def _tolerating(question: Question) -> Question:
    tolerations = tuple(_ANYTHING for _ in question.eligibility.tolerations)
    return replace(question, eligibility=replace(question.eligibility, tolerations=tolerations))
