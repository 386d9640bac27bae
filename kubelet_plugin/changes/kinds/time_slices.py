"""The time slices of a GPU: set with its first share, and back as they were with the last.

What somebody else has set since stays, and counts as what was there before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.changes.change import (
    Act,
    End,
    How,
    Note,
    Supposed,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    one_by_one,
)
from dracaena.kubelet_plugin.ports import GpuGoneError, NotOfferedError, TimeSliceSetter
from dracaena.kubelet_plugin.prepare.effects import TIME_SLICE

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NotedInterval:
    """What is noted of one GPU."""

    before: TimeSliceInterval
    """The interval from before the first share."""
    ours: tuple[TimeSliceInterval, ...] = ()
    """Intervals that were set, or are about to be set, for shares since; each once, from short to long."""


class TimeSlices(ThingKind[NotedInterval, TimeSliceInterval]):
    """For TIME_SLICE; a thing has the device name of its GPU. From any thread; keeps no state."""

    name = TIME_SLICE
    rank = 40
    noted = NotedInterval

    def __init__(self, setter: TimeSliceSetter) -> None:
        self._setter = setter

    def asked(self, wants: Wants) -> TimeSliceInterval | None:
        """Return the interval. Claims that want different ones never have shares of one GPU (LastGuard); a claim that
        does so alone gets the last of them.
        """
        found = [TimeSliceInterval(str(each["interval"])) for uid in sorted(wants) for each in wants[uid]]
        return found[-1] if found else None

    def supposed(self, wants: Wants) -> NotedInterval | None:
        """See ThingKind: the driver's default is taken for what was there before."""
        interval = self.asked(wants)
        return None if interval is None else NotedInterval(TimeSliceInterval.DEFAULT, (interval,))

    def look(self, thing: Thing, _wants: Wants) -> TimeSliceInterval | None:
        """Return the interval that the GPU has, None if it cannot be read."""
        try:
            return self._setter.read(_uuid(thing))
        except NotOfferedError:
            return None

    def plan(
        self, wants: Wants, seen: TimeSliceInterval | None, note: Note[NotedInterval] | Unreadable | None
    ) -> ThingPlan[NotedInterval, TimeSliceInterval]:
        """See ThingKind. An interval that cannot be read is set in any case, and counts as the driver's default from
        before the first share; so does what is seen over a note that cannot be read, since it may be ours. What is seen
        while a share lives that was noted says nothing of what was there before it: a driver that was loaded anew has
        its own default.
        """
        known = note.noted if isinstance(note, Note) else None
        interval = self.asked(wants)
        if interval is None:
            return _back(known, seen, note)
        is_shared = isinstance(note, Note) and not wants.keys().isdisjoint(note.owners)
        is_ours = isinstance(note, Note) and (
            (is_shared and not isinstance(note, Supposed)) or seen in (None, *note.noted.ours)
        )
        if known is None or not is_ours:
            before = None if isinstance(note, Unreadable) else seen
            known = NotedInterval(before or TimeSliceInterval.DEFAULT)
        ours = tuple(each for each in TimeSliceInterval if each is interval or each in known.ours)
        noted = NotedInterval(known.before, ours)
        return ThingPlan(noted, None if seen is interval else interval)

    def do(self, acts: Sequence[Act[TimeSliceInterval]], left_s: Callable[[], float]) -> Sequence[End[NotedInterval]]:
        """See ThingKind."""
        return one_by_one(acts, left_s, self._set)

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        """See ThingKind. A GPU that is away has a taint that says so."""
        if isinstance(problem, GpuGoneError):
            return None
        text = (
            f"the time slices of {thing.name} may not be as they were before claims had shares of it: {problem}; on "
            "the node: `nvidia-smi compute-policy --list`"
        )
        return trouble(TroubleKind.NOT_RESTORED, text, thing.name)

    def _set(self, act: Act[TimeSliceInterval]) -> End[NotedInterval]:
        try:
            self._setter.set(_uuid(act.thing), act.step)
        except NotOfferedError as error:
            return _refused(act, error)
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        return End()


def _back(
    known: NotedInterval | None, seen: TimeSliceInterval | None, note: Note[NotedInterval] | Unreadable | None
) -> ThingPlan[NotedInterval, TimeSliceInterval]:
    if isinstance(note, Unreadable):
        return ThingPlan(
            stays=f"{note.problem}, so it is not known which interval was set before: `nvidia-smi compute-policy "
            "--set-timeslice` sets one; then remove that file from the plugin's folder `ledger`"
        )
    is_ours = known is not None and (seen is None or (seen in known.ours and seen is not known.before))
    return ThingPlan(act=known.before if known is not None and is_ours else None)


def _refused(act: Act[TimeSliceInterval], error: NotOfferedError) -> End[NotedInterval]:
    if any(each["required"] for each in act.own):
        problem = PermanentError(
            f"GpuConfig requires sharing strategy TimeSlicing for {act.thing.name}: {error}; with `enforcement: "
            "BestEffort` it is prepared without"
        )
        return End(How.REFUSED, problem)
    log.warning("a GPU has no time slices of ours", device=act.thing.name, reason=str(error))
    return End(How.REFUSED)


def _uuid(thing: Thing) -> str:
    return f"GPU-{thing.name.removeprefix('gpu-')}"
