"""Which gangs are larger than the cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from dracaena.api.objects import Pod, PodSpec
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.reach import BOUNDLESS, Reach
from dracaena.controller.allocation.state.gangs import Family
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.state.records import Records

MOST_PODS: Final = 1_024
"""Of a gang that is looked at: some 5 ms, in which no decision is made."""

MOST_KINDS: Final = 4
"""Of its pods. Gangs have a leader and workers; each kind costs another step for each node."""

NOBODY: Final[Collection[str]] = ()


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found for a gang."""

    number: int
    """Of two looks the later one has the larger number."""
    needed: int
    """How many of its pods with claims have to be served at once."""
    room: int
    """For how many all nodes have room, at most; of a gang that has enough it is only known that it has."""


class GangRoom:
    """Part of its owner, and used under the owner's lock.

    Room is what the GPUs of all nodes come to that the pods may use, if all other pods were gone: CPU, memory and
    links are not counted, so it may be called too large and never too small. A look costs a step for each node
    until the room is enough, and a thousand gangs may wait: so each call of look() is about one, the one that was
    looked at longest ago.
    """

    def __init__(self, inventory: Inventory, records: Records) -> None:
        self._inventory, self._records = inventory, records
        self._looks: dict[Family, _Look] = {}
        self._numbers = count()

    def look(self, gangs: Collection[Family]) -> Collection[str]:
        """Look at one of the gangs that wait, and forget all others; return the pods that wait for the room that it has
        now and did not have before. Call this about once a second."""
        self._looks = {gang: look for gang, look in self._looks.items() if gang in gangs}
        if not gangs:
            return NOBODY
        gang = min(gangs, key=lambda one: (self._looks[one].number if one in self._looks else -1, one))
        was_too_large = self.lack(gang) is not None
        needed = self._needed(gang)
        self._looks[gang] = _Look(next(self._numbers), needed, self._room(gang, needed))
        return self._records.groups.waiting(gang) if was_too_large and self.lack(gang) is None else NOBODY

    def lack(self, gang: Family) -> tuple[int, int] | None:
        """Return for how many pods of a gang all nodes have room and how many it needs to be served at once, if that is
        more. A gang whose size has changed since the look is none."""
        look = self._looks.get(gang)
        if look is None or look.room >= look.needed or look.needed != self._needed(gang):
            return None
        return look.room, look.needed

    def _needed(self, gang: Family) -> int:
        pods = self._records.groups
        found = self._inventory.families.sizes.hard(gang, pods.labelled_size(gang))
        return 0 if found is None or found.size is None else found.size - pods.count_without_claims(gang)

    def _room(self, gang: Family, needed: int) -> int:
        """Return for how many pods the nodes have room, or some number that is enough."""
        reaches = self._reaches(gang)
        if reaches is None:
            return BOUNDLESS
        known: dict[tuple[bytes, str], bool] = {}
        room = 0
        for node in self._inventory.nodes.names:
            room += max(one.most(node, known) for one in reaches)
            if room >= needed:
                break
        return room

    def _reaches(self, gang: Family) -> Sequence[Reach] | None:
        """Return what the pods ask of a node, each kind once. None: there are too many, or some of them may be served
        by what others have."""
        keys = self._records.groups.pods(gang)
        kinds: list[tuple[PodSpec, Sequence[ResourceClaim], Pod]] = []
        for key in keys:
            pod, claims = self._records.pod(key), self._claims(key)
            if pod is None or claims is None or len(keys) > MOST_PODS or len(kinds) > MOST_KINDS:
                return None
            if not any(_are_alike(pod.spec, spec) and _ask_alike(claims, theirs) for spec, theirs, _ in kinds):
                kinds.append((pod.spec, claims, pod))
        return [Reach(self._inventory, pod, claims) for _, claims, pod in kinds] or None

    def _claims(self, key: str) -> Sequence[ResourceClaim] | None:
        """Return the claims of a pod; None if one does not exist, or if other pods name it too."""
        pod = self._records.pod(key)
        named = () if pod is None else self._records.named_by(pod)
        records = [self._records.claim(one.key or "") for one in named]
        is_shared = any(self._records.is_shared(one.key or "", key) for one in named)
        return None if is_shared or None in records else [one.shown for one in records if one is not None]


def _are_alike(one: PodSpec, other: PodSpec) -> bool:
    """Whether two pods may run on the same nodes."""
    return (one.node_selector, one.affinity, one.tolerations) == (
        other.node_selector,
        other.affinity,
        other.tolerations,
    )


def _ask_alike(some: Sequence[ResourceClaim], others: Sequence[ResourceClaim]) -> bool:
    return [one.spec for one in some] == [one.spec for one in others]
