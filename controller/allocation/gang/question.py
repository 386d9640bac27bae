"""What a gang asks of a cluster, and what it is answered (docs/design/gangs.md).

Levels are counted from the node up (their height): 0 is the node, then the NVLink clique where some node is in one,
then the levels of the cluster with the lowest first, and last the whole cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from dracaena.controller.allocation.state.node_state import NodeKind
from dracaena.controller.allocation.walk.answers import QuestionAnswers

CLIQUE: Final = "NVLink clique"
CLUSTER: Final = "cluster"
NODE: Final = "node"

Pattern = tuple[int, ...]
"""How many pods of each class."""


class Rails(Enum):
    """Whether the GPUs of all members are to be on the same rails of the network."""

    IGNORED = "Ignored"
    PREFERRED = "Preferred"
    """Where no pod gives up bandwidth on its node for it."""
    REQUIRED = "Required"


def no_limit(_node: str) -> int:
    """Return how many pods of a class a node can take besides their devices: any number."""
    return 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class MemberClass:
    """Equal pods of a gang."""

    count: int
    answers: QuestionAnswers
    """What nodes give to one of them."""
    most_on: Callable[[str], int] = no_limit
    """Returns how many of them alone a node can take, whatever its devices: 0 if it is unfit."""
    needs: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """What one of them takes of a node besides devices (GangQuestion.left)."""

    @property
    def gpus(self) -> int:
        """GPUs of one of them."""
        return self.answers.question.count


def nothing_said(_node: str) -> Mapping[str, int] | None:
    """Return what a node has left besides devices: it does not say."""
    return None


@dataclass(frozen=True, slots=True, eq=False)
class GangQuestion:
    """A gang, and what holds for all its members together."""

    classes: tuple[MemberClass, ...]
    required: int | None = None
    """The height of the largest domain that may hold all; None: the cluster."""
    preferred: int | None = None
    """The height at which no smaller domain is better any more; None: the node."""
    rails: Rails = Rails.IGNORED
    rails_of: Callable[[NodeKind], Sequence[int | None]] | None = None
    """Returns the rail of each GPU of a kind of node; None: rails are ignored."""
    left: Callable[[str], Mapping[str, int] | None] = nothing_said
    """Returns what a node has left of what classes need besides devices; None: enough of everything."""
    fixed: tuple[str, ...] = ()
    """The nodes of members that stay where they are: all members are in one domain with them."""
    fixed_rails: tuple[int, ...] | None = None
    """The rails of these members, ascending."""

    @property
    def counts(self) -> Pattern:
        """Pods of each class."""
        return tuple(one.count for one in self.classes)

    @property
    def gpus(self) -> int:
        """GPUs of all members."""
        return sum(one.count * one.gpus for one in self.classes)


@dataclass(frozen=True, slots=True)
class Seat:
    """What one node gives to a gang."""

    node: str
    sets: tuple[tuple[int, ...], ...]
    """For each class the GPUs of each of its members there, as masks."""


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Where all members go."""

    height: int
    domain: str
    """Of that height, as the cluster names it."""
    seats: tuple[Seat, ...]
    """By the names of the nodes."""
    parts: tuple[int, ...] = ()
    """Domains that have members, for each height below: cliques first, then from the top."""
    left_gpus: int = 0
    """Free GPUs that the domain has left."""
    rails: tuple[int, ...] | None = None
    """The rails of the largest members, ascending, if all have the same."""
    holding: int = 1
    """Domains of that height with room for all, as far as their nodes taken one by one show."""
    cut_off: bool = False
    """Whether the search ended at its limit: a better plan may exist."""


@dataclass(frozen=True, slots=True)
class LevelRoom:
    """What the domains of one height have for a gang that fits nowhere."""

    name: str
    domains: int
    """Those with nodes that have GPUs, free or not; once members run, the one that they are in."""
    holding: int
    """Those that have room for each class by itself."""
    best: str
    """The one with room for the most members; "" if none has room for any."""
    room_pods: int
    """How many members it has room for, counting each class by itself."""


@dataclass(frozen=True, slots=True)
class GangRefusal:
    """The gang fits nowhere now."""

    pods: int
    """Its members that have to be placed."""
    levels: tuple[LevelRoom, ...]
    """From the node up to the largest domain that may hold all."""

    def __str__(self) -> str:
        """Say for each level how close the best domain comes."""
        if not self.levels:
            return "the members that run already are in no domain of the required level"
        last = self.levels[-1]
        if not last.room_pods:
            where = "the cluster" if last.name == CLUSTER else f"each {last.name}"
            return f"{where} has room for none of its {self.pods} pods"
        one = "1 pod" if last.room_pods == 1 else f"{last.room_pods} pods"
        where = "the cluster" if last.name == CLUSTER else f"the best {last.name} ({last.best})"
        if last.holding:
            head = f"its {self.pods} pods fit one by one, and not together, in {last.holding} of the {last.domains}"
            head += f" domains of level {last.name}"
        else:
            head = f"{one} of {self.pods} would fit in {where}"
        smaller = [
            f"{level.name}: {level.holding} of {level.domains} have room for all, the best for {level.room_pods}"
            for level in self.levels[:-1]
        ]
        return "; ".join((head, *reversed(smaller)))
