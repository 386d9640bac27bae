"""Which PodGroup comes first where several hold some of the devices that they need and wait for the rest.

kube-scheduler binds the pods of a gang together or not at all, and we allocate pod by pod. Two gangs that each have
half of the devices would wait for each other, and lose and regain them in turns (docs/design/gangs.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

import structlog

from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.reach import Reach
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.state.gangs import Family, group_of
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.walk.pod_demand import Turn, turn
from dracaena.controller.lifecycle.pod_record import is_unbound
from dracaena.controller.lifecycle.prospects import SETTLE_S
from dracaena.controller.queue.waiting_lines import NOWHERE, Scope
from dracaena.controller.state.gang_room import GangRoom
from dracaena.controller.state.records import Records
from dracaena.process.clock import rfc3339

GIVE_UP_S: Final = 300.0
"""How long a group keeps what it has without getting more, and then how long it gets nothing. Long compared with the
time in which pods end and others take their place; what a group keeps is idle meanwhile."""

KEPT: Final = "kept for a gang that comes before this one's and waits for the rest of its GPUs"
"""Why a node is left out for a pod, in words that follow a count. The other group may be in any namespace."""

QUOTA_KEPT: Final = "not used while a gang of this namespace that comes before this one's waits for its quota"
"""The same."""

GAVE_UP: Final = "left to others, because this pod's gang did not get all of its GPUs"
"""The same."""

YIELDED: Final = "pod-group"
"""Label of the metric for an allocation that is given back for a group that comes first."""

NEVER_CREATED: Final = "~"
"""Comes after every time of the API."""

ALL: Final = ""
"""The contest of the groups of all namespaces; the others have the name of their namespace."""

log = structlog.get_logger()


class GroupPlace(NamedTuple):
    """Of two groups, the one with the lesser place comes before the other."""

    priority: int
    """Negated."""
    queued: str
    """Since when it waits for its turn among all groups (RFC 3339): when its first pod was created, or later, when a
    group of its namespace last gave up."""
    queued_here: str
    """The same among the groups of its namespace: when its first pod was created, or when it last gave up itself."""
    key: Family


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group with waiting pods and no bound one: a bound pod shows that its gang was complete once."""

    key: Family
    turn: Turn
    """The turn of its first pod."""
    placed: int
    """How many of its pods have their devices."""
    pods: tuple[str, ...]
    """Keys of the pods that wait."""


@dataclass(frozen=True, slots=True)
class First:
    """The group that comes first."""

    group: Waiting
    place: GroupPlace
    since_s: float
    """When the group came first, or last got devices since then."""
    kept: Mapping[str, str]
    """The nodes that later groups leave to it, with the reason: those that could serve one of its waiting pods if all
    other pods left them."""


@dataclass(frozen=True, slots=True)
class Past:
    """What is remembered of a group for as long as all of its pods are unbound."""

    placed: int = 0
    """The most pods that had their devices while it came first, since it last gave up."""
    in_vain_s: float = 0.0
    """How long it has come first since then without getting more. It may have been interrupted."""
    gave_up_s: float = float("-inf")
    gave_up_at: str = ""
    """The same moment in RFC 3339."""


class GroupTurns:
    """Part of its owner, and used under the owner's lock.

    Of the groups that hold something and wait for more, the one with the earliest place comes first. It keeps what it
    has, and other groups neither get nor keep anything that it may use. When it has come first for GIVE_UP_S without
    getting more, it gives up: it gives back what it has, gets nothing for as long, and goes behind every group that
    waits, as do the other groups of its namespace. So it comes first again only after each of those did, and however
    many groups can never be complete, each group comes first in the end.

    A group that only the quota of its namespace stops comes before groups of this namespace alone. Nothing is stored: a
    new leader begins with the order of creation.
    """

    def __init__(self, inventory: Inventory, records: Records) -> None:
        self._inventory = inventory
        self._records = records
        self._past: dict[Family, Past] = {}
        self._gave_up_at: dict[str, str] = {}
        """Namespace → when one of its groups last gave up among the groups of all namespaces (RFC 3339)."""
        self._places: Mapping[Family, GroupPlace] = {}
        """Of the groups that waited at the last review."""
        self._first: dict[str, First] = {}
        """Contest → who comes first in it."""
        self._resting: frozenset[Family] = frozenset()
        """The groups that gave up and get nothing yet."""
        self._held_up: frozenset[Family] = frozenset()
        """The groups that their quota stops."""
        self._stuck_s: Mapping[Family, float] = {}
        """Groups that cannot start → since when, as reviews saw it."""
        self._room = GangRoom(inventory, records)
        self._reviewed_s: float | None = None

    @property
    def first(self) -> First | None:
        """The group that comes before those of all namespaces."""
        return self._first.get(ALL)

    def review(self, now_s: float, now: datetime, is_beyond_quota: Callable[[str], bool]) -> Scope:
        """See which groups come first now; return the nodes that other groups may use again, None for any. Call this
        about once a second. `is_beyond_quota` tells this of a pod that waits. Cost: a step for each pod of the groups
        that wait, and one for each node while one comes first."""
        before, rested_before = self._first, self._resting
        took_s = now_s - (now_s if self._reviewed_s is None else self._reviewed_s)
        self._first, self._reviewed_s = {}, now_s
        unbound = self._records.groups.unbound()
        since_s = self._stuck_s
        self._stuck_s = {one: since_s.get(one, now_s) for one in unbound if self.obstacle(one) is not None}
        groups = list(self._waiting(one for one in unbound if one not in self._stuck_s))
        self._forget_others()
        self._resting = self._resting_at(now_s)
        self._places = self._all_places(groups)
        able = sorted((one for one in groups if one.key not in self._resting), key=lambda one: self._places[one.key])
        own = [one for one in able if any(map(is_beyond_quota, one.pods))]
        for namespace in sorted({one.key.namespace for one in own}):
            there = [one for one in own if one.key.namespace == namespace]
            self._put_first(namespace, there, before, took_s, now_s, now)
        self._held_up = frozenset(one.key for one in own)
        free = [one for one in able if one.key not in self._held_up and not self._is_after(one.key, one.key.namespace)]
        self._put_first(ALL, free, before, took_s, now_s, now)
        has_rested = bool(rested_before - self._resting)
        self._resting = self._resting_at(now_s)
        return None if has_rested else self._left_by(before)

    def obstacle(self, group: Family) -> Refused | None:
        """Return why a group cannot start: its PodGroup or pods of its gang do not exist, or the cluster is too small.
        None: it may, or it did."""
        pods, sizes = self._records.groups, self._inventory.families.sizes
        if pods.has_bound(group):
            return None
        gang = sizes.hard(group, pods.labelled_size(group))
        if gang is None:
            missing = sizes.not_there(group)
            return None if missing is None else Refused(RefusalKind.INCOMPLETE, missing, concerns_us=True)
        missing = gang.lack(pods.count(group))
        if missing is not None:
            return Refused(RefusalKind.INCOMPLETE, missing, concerns_us=True)
        lack = self._room.lack(group)
        if lack is None:
            return None
        why = f"all nodes together have room for {lack[0]} of the {lack[1]} pods of its gang ({gang.said})"
        return Refused(RefusalKind.GANG_TOO_LARGE, why, concerns_us=True)

    def refusal(self, pod: Pod, claims: Iterable[ResourceClaim]) -> Refused | None:
        """Return why the group of a pod cannot start, if the pod gets nothing because of that. A pod on a node, or with
        an allocated claim, gets what it needs."""
        group = group_of(pod)
        return None if group is None or _has_place(pod, claims) else self.obstacle(group)

    def look_for_room(self) -> Collection[str]:
        """See whether one more gang that waits is larger than the cluster (GangRoom.look); return the pods that may be
        served now."""
        lacking = self._stuck_s
        able = [
            one
            for one in self._records.groups.unbound()
            if self._inventory.families.sizes.hard(one, self._records.groups.labelled_size(one)) is not None
            and (one not in lacking or self._room.lack(one) is not None)
        ]
        return self._room.look(able)

    def keeps(self, pod: Pod) -> bool:
        """Whether a pod keeps what it has because its group comes first."""
        group = group_of(pod)
        return group is not None and any(first.group.key == group for first in self._first_for(group))

    def yields(self, pod: Pod, node: str, now_s: float) -> bool:
        """Whether a pod has to give back what it has on a node: its group gave up, another comes first, or it cannot
        start, for longer than it takes a controller to replace a pod.

        The first group gets some seconds before others must yield: its pods may still be on their way through the
        queue. A pod whose group is complete keeps what it has.
        """
        group = group_of(pod)
        if group is None:
            return False
        if now_s - self._stuck_s.get(group, now_s) >= SETTLE_S:
            return True
        is_due = group in self._resting or any(
            node in first.kept and now_s - first.since_s >= SETTLE_S for first in self._before(pod, group)
        )
        return is_due and bool(self._records.groups.waiting(group))

    def kept_from(self, pod: Pod, claims: Iterable[ResourceClaim]) -> Mapping[str, str]:
        """Return the nodes that a pod must not use because of other groups, with the reason. Pods without a group use
        what they find, as everywhere; for a pod that waits too long a node is kept (StarvationGuard)."""
        group = group_of(pod)
        if group is None or _has_place(pod, claims):
            return {}  # the claim decides the node
        if group in self._resting:
            return dict.fromkeys(self._inventory.nodes.names, GAVE_UP)
        kept: dict[str, str] = {}
        for first in self._before(pod, group):
            kept |= first.kept
        return kept

    def turn_of(self, pod: Pod) -> Turn:
        """Return the turn of a pod among all that wait: its own, or that of its group since that, or its namespace,
        gave up, as if the pod had been created then."""
        its_turn, group = turn(pod), group_of(pod)
        place = self._places.get(group) if group is not None else None
        if place is None or place.queued <= _created(its_turn):
            return its_turn
        return place.priority, False, place.queued, pod.key

    # Who comes first

    def _put_first(
        self,
        contest: str,
        order: Sequence[Waiting],
        before: Mapping[str, First],
        took_s: float,
        now_s: float,
        now: datetime,
    ) -> None:
        """Find out who comes first in a contest. A group that gives up leaves it to the next review to find another."""
        group = self._earliest(order)
        if group is None:
            return
        known = before.get(contest)
        is_known = known is not None and known.group.key == group.key
        past = self._past.get(group.key, Past())
        has_more = group.placed > past.placed
        past = replace(
            past,
            placed=max(past.placed, group.placed),
            in_vain_s=0.0 if has_more else past.in_vain_s + (took_s if is_known else 0.0),
        )
        self._past[group.key] = past
        kept = self._kept_for(group, contest)
        if past.in_vain_s >= GIVE_UP_S or not kept:
            self._give_up(group, contest, now_s, now)
            return
        since_s = known.since_s if known is not None and is_known and not has_more else now_s
        self._first[contest] = First(group, self._places[group.key], since_s, kept)
        if not is_known:
            log.info("group comes first", group=str(group.key), placed=group.placed, waiting=len(group.pods))

    def _earliest(self, order: Sequence[Waiting]) -> Waiting | None:
        """Return the earliest group that holds something. If it, or its namespace, gave up before, a group that waits
        for longer comes first though it holds nothing: what there is may be taken whenever it is free."""
        holder = next((one for one in order if one.placed), None)
        if holder is None:
            return None
        return order[0] if self._places[holder.key].queued > _created(holder.turn) else holder

    def _give_up(self, group: Waiting, contest: str, now_s: float, now: datetime) -> None:
        at = rfc3339(now)
        self._past[group.key] = Past(gave_up_s=now_s, gave_up_at=at)
        if contest == ALL:
            self._gave_up_at[group.key.namespace] = at
        log.info("group gives up", group=str(group.key), placed=group.placed, waiting=len(group.pods))

    def _kept_for(self, group: Waiting, contest: str) -> Mapping[str, str]:
        """Return the nodes that a group is left when it comes first in a contest. A quota is used up wherever its GPUs
        are."""
        if contest != ALL:
            return dict.fromkeys(self._inventory.nodes.names, QUOTA_KEPT)
        return dict.fromkeys(sorted(self._nodes_for(group)), KEPT)

    def _first_for(self, group: Family) -> Iterator[First]:
        """Yield who comes first in the contests that a group takes part in."""
        for contest in (group.namespace, ALL):
            if contest in self._first:
                yield self._first[contest]

    def _before(self, pod: Pod, group: Family) -> Iterator[First]:
        """Yield who comes first before a pod's group: who has an earlier place, and before a group that its quota stops
        the pod that comes first among all."""
        is_held_up = group in self._held_up
        for first in self._first_for(group):
            if first.place < self._place(pod, group) or (is_held_up and first is self.first):
                yield first

    def _is_after(self, group: Family, contest: str) -> bool:
        first = self._first.get(contest)
        return first is not None and first.place < self._places[group]

    def _resting_at(self, now_s: float) -> frozenset[Family]:
        return frozenset(key for key, past in self._past.items() if now_s - past.gave_up_s < GIVE_UP_S)

    def _left_by(self, before: Mapping[str, First]) -> Scope:
        """Return the nodes that are kept for no group now, or for another group than before."""
        left: set[str] = set()
        for contest, first in before.items():
            now = self._first.get(contest)
            is_same = now is not None and now.group.key == first.group.key
            left |= first.kept.keys() - (now.kept.keys() if now is not None and is_same else NOWHERE)
        return frozenset(left)

    # Places

    def _all_places(self, groups: Iterable[Waiting]) -> Mapping[Family, GroupPlace]:
        """A group that gave up, itself or by its namespace, comes behind every group that waited before: also behind
        those of lower priority."""
        places: dict[Family, GroupPlace] = {}
        found = [(self._place_of(group.key, group.turn), group) for group in groups]
        least = min((place.priority for place, _ in found), default=0)
        for place, group in sorted(found, key=lambda one: (one[0].queued, one[0].queued_here)):
            least = max(least, place.priority)
            places[group.key] = place._replace(priority=least) if place.queued > _created(group.turn) else place
        return places

    def _place_of(self, group: Family, its_turn: Turn) -> GroupPlace:
        """Return the place of a group by itself."""
        here = max(_created(its_turn), self._past.get(group, Past()).gave_up_at)
        return GroupPlace(its_turn[0], max(here, self._gave_up_at.get(group.namespace, "")), here, group)

    def _place(self, pod: Pod, group: Family) -> GroupPlace:
        """Return the place of a pod's group; if it came after the last review, as if it had this pod alone."""
        return self._places.get(group) or self._place_of(group, turn(pod))

    def _forget_others(self) -> None:
        """Forget the groups that are gone or were bound, and the namespaces without other groups."""
        waiting = set(self._records.groups.unbound())
        namespaces = {key.namespace for key in waiting}
        self._past = {key: past for key, past in self._past.items() if key in waiting}
        self._gave_up_at = {name: at for name, at in self._gave_up_at.items() if name in namespaces}

    # Groups

    def _waiting(self, groups: Iterable[Family]) -> Iterator[Waiting]:
        for key in groups:
            group = None if self._inventory.families.sizes.is_basic(key) else self._read(key)
            if group is not None:
                yield group

    def _read(self, key: Family) -> Waiting | None:
        waiting = tuple(sorted(self._records.groups.waiting(key)))
        if not waiting:
            return None
        pods = [pod for name in self._records.groups.pods(key) if (pod := self._records.pod(name)) is not None]
        pods = [pod for pod in pods if pod.metadata.deletion_timestamp is None and is_unbound(pod)]
        return Waiting(key, min(map(turn, pods)), len(pods) - len(waiting), waiting)

    def _nodes_for(self, group: Waiting) -> frozenset[str]:
        known: dict[tuple[bytes, str], bool] = {}
        nodes: set[str] = set()
        seen: set[tuple[object, ...]] = set()
        for key in group.pods:
            pod = self._records.pod(key)
            records = [] if pod is None else [self._records.claim(one.key or "") for one in self._records.named_by(pod)]
            claims = [record.shown for record in records if record is not None]
            if pod is None or len(claims) < len(records):
                continue
            reach = Reach(self._inventory, pod, claims)
            if reach.kind in seen:
                continue
            seen.add(reach.kind)
            nodes.update(node for node in self._inventory.nodes.names if reach.most(node, known))
        return frozenset(nodes)


def _has_place(pod: Pod, claims: Iterable[ResourceClaim]) -> bool:
    return bool(pod.spec.node_name) or any(claim.status.allocation is not None for claim in claims)


def _created(its_turn: Turn) -> str:
    _, never_created, created, _ = its_turn
    return NEVER_CREATED if never_created else created
