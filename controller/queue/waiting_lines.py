"""Pods that fit nowhere, in lines: pods with equal requests wait in one line.

Whatever helps one pod of a line helps the first pod before the others. So a change that may help wakes the first pod of
a line, and the next pod only after the first has its devices. For 10,000 equal pods, a freed device costs two decisions
instead of 10,000.

A change names its nodes. It wakes the lines that one of these nodes may serve, and each line remembers the nodes that
have changed since its first pod was tried: what did not fit on the other nodes still does not fit there. A change that
is not about a node, such as pods that come or go elsewhere, wakes only the lines that wait for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dracaena.controller.allocation.nodes.placement.placed_pods import Change, PodCount
from dracaena.controller.allocation.reach import Prospect, Reach
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.walk.pod_demand import Turn

TOO_LONG: Final = RefusalKind.TOO_LONG.value

LACKS_ROOM_TOO: Final = f"{RefusalKind.QUOTA.value}, no room either"
"""The answer to a pod that its quota refuses, and that also waits for others to release what it wants."""

MAY_STARVE: Final = ("", LACKS_ROOM_TOO)
"""Answers to pods that wait only because other pods hold what they want."""

HOLD_BACK: Final = ("", TOO_LONG, RefusalKind.QUOTA.value, LACKS_ROOM_TOO)
"""Answers to the first pod of a line that make a decision for the pods behind it unnecessary: it fits on no node,
finding out takes too long, or it is beyond its quota. One may follow another although nothing has changed for the pods
behind: in a full cluster the answers about the quota come and go with each device that is freed and taken."""

SLACK: Final = 16
"""Stale entries that a short line may keep."""

Scope = frozenset[str] | None
"""The nodes that a change is about; None: any node."""

NOWHERE: Final[frozenset[str]] = frozenset()


@dataclass(slots=True)
class _Line:
    answer: str
    """The last answer to the first pod; empty when it fits on no node now."""
    refusal: Refused | None = None
    """What was last reported to the first pod, if its quota was the reason."""
    members: list[tuple[Turn, str]] = field(default_factory=list)
    """A heap of turns and keys. The entry of a pod that has left the line is stale."""
    count: int = 0
    reach: Reach | None = None
    """Finds out cheaply which nodes may serve it. None: there is no way to, so every change may help."""
    is_short: bool = False
    """Whether more CPU, memory and the like on some node may help."""
    changed: Scope = NOWHERE
    """Nodes that may serve the line and have changed since its first pod was tried."""
    waits_for: Mapping[Change, PodCount | None] = field(default_factory=dict)
    """Changes that are about no node and may help it. Holding on to a count keeps it up to date."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A pod's place: its line and its turn."""

    shape: bytes
    turn: Turn


class WaitingLines:
    """All lines. Part of its owner, and used under the owner's lock. Cost: O(log pods) per call, except where many pods
    are woken.

    A shape (pod_demand.shape) holds all that a pod's decision depends on apart from the cluster, so pods of one shape
    get the same answer. Invariant: since the first pod of a line was tried, nothing that may help it has changed except
    on the nodes of changed_for(); and if there are such nodes, the first pod is about to be tried again.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}
        self.standing: dict[str, Standing] = {}
        """The place of each pod that waits for something that could be freed. Read only."""
        self._changed: dict[bytes, _Line] = {}
        """The lines that something changed for."""
        self._by_change: dict[Change, set[bytes]] = {}
        """The lines that wait for a change, but for those that are about to be tried again because of it."""
        self._for_other_devices: set[bytes] = set()
        """The same for the devices of other drivers."""

    def is_behind(self, shape: bytes, turn: Turn) -> bool:
        """Return whether an equal pod with an earlier turn waits with an answer that also holds for this pod
        (HOLD_BACK)."""
        line = self._lines.get(shape)
        if line is None or line.answer not in HOLD_BACK:
            return False
        first = self._first(line)
        return first is not None and first[0] < turn

    def refusal(self, shape: bytes) -> Refused | None:
        """Return what was last reported to the first pod of a line, if its quota was the reason: it holds for all pods
        of the line."""
        line = self._lines.get(shape)
        return None if line is None else line.refusal

    def put(
        self,
        key: str,
        shape: bytes,
        turn: Turn,
        answer: str,
        *,
        reach: Callable[[], Reach | None] | None = None,
        is_short: bool = False,
        refusal: Refused | None = None,
    ) -> Sequence[str]:
        """Let a pod wait after this answer; return the pods to try now.

        If the pod's request has changed, this is the first pod of the line that it leaves. If the pod is the first of
        its line and the answer differs from the last one, it is all pods behind it, because their answer changes too.
        `reach` is called if all nodes were tried; pass None if only changed nodes were. `is_short`: whether more CPU
        and the like may help on a node that was tried. `refusal`: what is reported to the pod, if its quota is the
        reason.
        """
        known = self.standing.get(key)
        woken = self.leave(key) if known is not None and (known.shape, known.turn) != (shape, turn) else ()
        line = self._lines.setdefault(shape, _Line(answer))
        if key not in self.standing:
            self.standing[key] = Standing(shape, turn)
            heapq.heappush(line.members, (turn, key))
            line.count += 1
            if len(line.members) > 2 * line.count + SLACK:
                line.members = [(self.standing[other].turn, other) for other in self._of(line)]
        first = self._first(line)
        if first is None or first[1] != key:
            return woken
        self._note_tried(shape, line, reach, is_short=is_short)
        line.refusal = refusal
        if line.answer == answer:
            return woken
        same_for_others = line.answer in HOLD_BACK and answer in HOLD_BACK
        line.answer = answer
        if same_for_others:
            return woken
        return (*woken, *(other for other in self._of(line) if other != key))

    def leave(self, key: str) -> Sequence[str]:
        """Take a pod out of its line; if it was the first, return the next, which may get what the first did not."""
        standing = self.standing.get(key)
        if standing is None:
            return ()
        line = self._lines[standing.shape]
        was_first = self._first(line) == (standing.turn, key)
        del self.standing[key]
        line.count -= 1
        if not line.count:
            self._forget_changes(standing.shape, line)
            del self._lines[standing.shape]
            self._changed.pop(standing.shape, None)
            return ()
        following = self._first(line)
        return (following[1],) if was_first and following is not None else ()

    def wait_for(self, key: str, changes: Mapping[Change, PodCount | None], *, other_devices: bool) -> None:
        """Let the line of a pod that was tried without success wait for any of these changes, and for no others; with
        `other_devices` also for what other drivers publish or release. It waits until it is empty, whichever of its
        pods comes first. Cost: one step per change."""
        shape = self.standing[key].shape
        line = self._lines[shape]
        self._forget_changes(shape, line)
        line.waits_for = changes
        for change in changes:
            self._by_change.setdefault(change, set()).add(shape)
        if other_devices:
            self._for_other_devices.add(shape)

    def change(
        self,
        scope: Scope,
        known: dict[tuple[bytes, str], bool],
        *,
        devices_differ: bool = False,
        only_short: bool = False,
    ) -> Sequence[str]:
        """Something changed on the nodes of `scope` that may help; return the first pod of each line that it may help,
        by turn.

        `known`: see Reach.prospect(). `devices_differ`: the published devices have changed. `only_short`: there is more
        CPU and the like, and nothing else. Cost: Reach.prospect() for O(lines × nodes), and the sorting.
        """
        found: list[tuple[Turn, str]] = []
        for shape, line in self._lines.items():
            if only_short and not line.is_short:
                continue
            helping = self._helping(line, scope, known, devices_differ=devices_differ)
            if helping is not None and not helping:
                continue
            line.changed = None if helping is None or line.changed is None else line.changed | helping
            self._changed[shape] = line
            first = self._first(line)
            if first is not None:
                found.append(first)
        return [key for _, key in sorted(found)]

    def change_for(self, keys: Iterable[str]) -> Sequence[str]:
        """Something changed that may help these pods on any node; return the first pod of each of their lines, by turn.

        Cost: O(keys), and the sorting.
        """
        return self._change_anywhere({self.standing[key].shape for key in keys if key in self.standing})

    def changes_came(self, changes: Iterable[Change]) -> Sequence[str]:
        """Return the first pod of each line that waits for one of these changes, by turn.

        None is returned again for a change until it was tried, so that each step here is paid for by a decision: one
        author may make the same change very often, and very many lines may wait for it.
        """
        return self._change_anywhere({shape for change in changes for shape in self._by_change.pop(change, ())})

    def other_devices_changed(self) -> Sequence[str]:
        """The same for devices of other drivers."""
        waiting, self._for_other_devices = self._for_other_devices, set()
        return self._change_anywhere(waiting)

    def _change_anywhere(self, shapes: Iterable[bytes]) -> Sequence[str]:
        found: list[tuple[Turn, str]] = []
        for shape in shapes:
            line = self._changed[shape] = self._lines[shape]
            line.changed = None
            first = self._first(line)
            if first is not None:
                found.append(first)
        return [key for _, key in sorted(found)]

    def changed_for(self, key: str, shape: bytes, turn: Turn) -> Scope:
        """Return the nodes that changed while a pod waited: no other node can serve it. None: any node may."""
        line = self._lines.get(shape)
        if line is None or line.answer or line.reach is None or self.standing.get(key) != Standing(shape, turn):
            return None
        return line.changed

    def changed_for_earlier(self, turn: Turn) -> Scope:
        """Return the nodes that changed for lines whose first pod comes before `turn` and is about to be tried.

        Lines whose decision takes too long do not count: their pods come behind all others. Cost: O(lines for which
        something changed).
        """
        if not self._changed:
            return NOWHERE
        found: set[str] = set()
        for line in self._changed.values():
            first = self._first(line)
            if first is None or first[0] >= turn or line.answer == TOO_LONG:
                continue
            if line.changed is None:
                return None
            found |= line.changed
        return frozenset(found)

    def first_before(self, created_before: str) -> Sequence[str]:
        """Return, for each line whose first pod waits only because devices are taken, the first pod that was created
        before a time, by turn. An empty time means none.

        Cost: O(lines), or O(pods of a line) where its first pod is younger because it has a higher priority.
        """
        if not created_before:
            return ()
        found: list[tuple[Turn, str]] = []
        for line in self._lines.values():
            first = self._first(line)
            if first is None or line.answer not in MAY_STARVE:
                continue
            members = [first] if _is_before(first[0], created_before) else line.members
            old = (m for m in members if _is_before(m[0], created_before) and self._stands(line, *m))
            oldest = min(old, default=None)
            if oldest is not None:
                found.append(oldest)
        return [key for _, key in sorted(found)]

    def all(self) -> Sequence[str]:
        """Return all pods that wait, by turn. Cost: O(pods × log pods)."""
        return sorted(self.standing, key=lambda key: self.standing[key].turn)

    def fits_nowhere(self, key: str) -> bool:
        """Return whether a pod waits only because devices that it may have are taken."""
        standing = self.standing.get(key)
        return standing is not None and self._lines[standing.shape].answer in MAY_STARVE

    def _helping(
        self, line: _Line, scope: Scope, known: dict[tuple[bytes, str], bool], *, devices_differ: bool
    ) -> Scope:
        """Return the nodes of a scope that may serve a line, None where we cannot know; note whether it lacks CPU and
        the like.

        A refusal depends on classes, claims or devices anywhere, so every node counts for a line that was refused.
        """
        if scope is None or line.answer or line.reach is None:
            return scope
        if devices_differ and not line.reach.is_of_one_claim:
            return None
        prospects = {node: line.reach.prospect(node, known) for node in scope}
        line.is_short = line.is_short or Prospect.SHORT in prospects.values()
        return frozenset(node for node, prospect in prospects.items() if prospect is Prospect.POSSIBLE)

    def _note_tried(
        self, shape: bytes, line: _Line, reach: Callable[[], Reach | None] | None, *, is_short: bool
    ) -> None:
        line.changed = NOWHERE
        self._changed.pop(shape, None)
        line.is_short = is_short or (reach is None and line.is_short)
        if reach is not None:
            line.reach = reach()

    def _forget_changes(self, shape: bytes, line: _Line) -> None:
        self._for_other_devices.discard(shape)
        for change in line.waits_for:
            shapes = self._by_change.get(change, set())
            shapes.discard(shape)
            if not shapes:
                self._by_change.pop(change, None)

    def _first(self, line: _Line) -> tuple[Turn, str] | None:
        while line.members:
            turn, key = line.members[0]
            if self._stands(line, turn, key):
                return turn, key
            heapq.heappop(line.members)
        return None

    def _of(self, line: _Line) -> Sequence[str]:
        return list(dict.fromkeys(key for turn, key in sorted(line.members) if self._stands(line, turn, key)))

    def _stands(self, line: _Line, turn: Turn, key: str) -> bool:
        standing = self.standing.get(key)
        return standing is not None and standing.turn == turn and self._lines[standing.shape] is line


def _is_before(turn: Turn, created_before: str) -> bool:
    _, never_created, created, _ = turn
    return not never_created and created < created_before
