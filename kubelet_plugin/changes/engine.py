"""Brings things of the node to what is wanted of them: the only place that decides when something is changed or undone.

Prepare and unprepare, a driver that was opened again, a lost or broken checkpoint, a start and a sweep all ask for the
same: look, plan, note, act. Each is computed again from what is wanted, seen and noted at that moment, so it does not
matter what an earlier call did, or where it was killed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import DeviceName
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.changes.change import (
    SWEEP,
    Act,
    AnyThingKind,
    End,
    ForOwner,
    How,
    Note,
    Parameters,
    Supposed,
    Thing,
    ThingPlan,
    Unreadable,
    Wants,
    had,
    no_time_left,
    wanted,
)
from dracaena.kubelet_plugin.changes.ledger import Ledger, note_decoder
from dracaena.kubelet_plugin.ports import GpuGoneError, NodeLock, NotOfferedError
from dracaena.kubelet_plugin.store.claims import NodeClaims

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SettledThings:
    """What became of things."""

    problems: Mapping[Thing, DracaenaError]
    """Those that are not as they are wanted, each with why; those that waited for others with the problem of these."""
    acted: tuple[Thing, ...]
    """Those that were changed or undone."""

    def check(self) -> None:
        """Raise the first problem, if there is one."""
        first = next(iter(self.problems.values()), None)
        for thing, problem in self.problems.items():
            if problem is not first:  # things that wait for another one have its problem
                log.info("not settled yet", thing=str(thing), error=str(problem))
        if first is not None:
            raise first


@dataclass(frozen=True, slots=True)
class _Planned:
    """One thing on its way."""

    thing: Thing
    before: Note[Any] | Unreadable | None
    wants: Wants
    plan: ThingPlan[Any, Any]


class ChangeEngine:
    """From any thread; keeps no state. Callers of settle() hold the GPUs of the things, and not NodeClaims.

    What two instances of the plugin do during an upgrade is ordered by the lock of the GPU: under it every note is read
    again.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        kinds: Iterable[AnyThingKind],
        claims: NodeClaims,
        gpu_lock: Callable[[DeviceName], NodeLock],
    ) -> None:
        """`gpu_lock` returns the lock of a GPU, the same one for the same name."""
        self._ledger = ledger
        self.kinds = {kind.name: kind for kind in kinds}
        for kind in self.kinds.values():
            note_decoder(kind.noted)
        self._claims = claims
        self._gpu_lock = gpu_lock

    def gpu(self, thing: Thing) -> DeviceName:
        """Return the GPU whose lock guards a thing."""
        return self.kinds[thing.kind].gpu(thing)

    def noted_of(self, thing: Thing) -> Any | None:
        """Return what is noted of a thing, None if that is nothing or cannot be read."""
        note = self._ledger.read(thing, self.kinds[thing.kind].noted)
        return note.noted if isinstance(note, Note) else None

    def noted(self, owner: str) -> tuple[Thing, ...]:
        """Return the things that were changed for an owner, by the ledger alone. Reads all notes."""
        things = (thing for kind in self.kinds for thing in self._ledger.things(kind))
        return tuple(thing for thing in things if self.is_owner(thing, owner))

    def asked_by(self, thing: Thing, owner: str) -> Sequence[Parameters]:
        """Return what an owner wanted of a thing, by the ledger alone."""
        return _owners(self._ledger.read(thing, self.kinds[thing.kind].noted)).get(owner, ())

    def is_owner(self, thing: Thing, owner: str) -> bool:
        """Whether a thing was changed for an owner, by the ledger alone."""
        return owner in _owners(self._ledger.read(thing, self.kinds[thing.kind].noted))

    def settle(self, things: Iterable[Thing], call: ForOwner, left_s: Callable[[], float]) -> SettledThings:
        """Bring things to what is wanted of them now. `left_s` returns how long the call may go on: nothing is looked
        at or begun after that.

        Things of a claim that begins are changed all or none, as far as their plans can tell. What cannot be undone
        keeps nothing else of its kind from it; things that are undone later stay as they are. Raises nothing.
        """
        asked = set(things)
        unknown = {thing: _unsupported(thing) for thing in sorted(asked) if thing.kind not in self.kinds}
        if unknown:
            return SettledThings(unknown, ())
        ordered = sorted(asked, key=self._order, reverse=bool(call.ends))
        acted: list[Thing] = []
        for name, run in itertools.groupby(ordered, key=lambda thing: thing.kind):
            kind, some = self.kinds[name], tuple(run)
            try:
                with kind.hold():
                    settled = self._settle(kind, some, call, left_s)
            except DracaenaError as error:
                settled = SettledThings(dict.fromkeys(some, error), ())
            acted += settled.acted
            if settled.problems:
                wait = next(iter(settled.problems.values()))
                later = ordered[ordered.index(some[-1]) + 1 :]
                return SettledThings({**settled.problems, **dict.fromkeys(later, wait)}, tuple(acted))
        return SettledThings({}, tuple(acted))

    def _order(self, thing: Thing) -> tuple[int, Thing]:
        return self.kinds[thing.kind].rank, thing

    def _settle(
        self, kind: AnyThingKind, things: Sequence[Thing], call: ForOwner, left_s: Callable[[], float]
    ) -> SettledThings:
        planned, problems = [], {}
        for thing in things:
            try:
                if left_s() <= 0:
                    raise no_time_left(thing)  # a look may take as long as an act
                planned.append(self._planned(kind, thing, call))
            except DracaenaError as error:
                problems[thing] = error
                if call.begins:
                    return SettledThings(problems, ())
        due = []
        for each in planned:
            try:
                if self._note(each, call):
                    due.append(each)
            except DracaenaError as error:
                problems[each.thing] = error
        if problems and call.begins:
            return SettledThings(problems, ())
        acts = [
            Act(each.thing, each.plan.act, each.wants.get(call.begins, ()), partial(self._note_step, each))
            for each in due
        ]
        acted = []
        for each, end in zip(due, kind.do(acts, left_s) if acts else (), strict=True):
            try:
                problem = self._end(each, end, call)
            except DracaenaError as error:
                problem = error
            if problem is not None:
                problems[each.thing] = problem
            elif end.how is How.DONE:
                acted.append(each.thing)
        return SettledThings(problems, tuple(acted))

    def _planned(self, kind: AnyThingKind, thing: Thing, call: ForOwner) -> _Planned:
        before = self._ledger.read(thing, kind.noted)
        note, owners = self._known(kind, thing, before)
        wants = self._wants(thing, owners, call)
        plan = partial(_Planned, thing, before, wants)
        if call.ends and not isinstance(note, Note):
            return plan(ThingPlan(stays="nothing of it is known to be ours"))
        if note is None and not wants:  # a file of an earlier boot, or a thing whose claim has ended
            return plan(ThingPlan())
        without_act: ThingPlan[Any, Any] = ThingPlan(note.noted if isinstance(note, Note) else None)
        # Without it in the note, an earlier call noted its end and may have been killed before the act.
        if call.ends in owners and wants and kind.asked(wants) == kind.asked(owners):
            return plan(without_act)
        if wants and not any(wants.values()):  # of those that have a part in it, nobody can say which
            return plan(without_act)
        try:
            return plan(kind.plan(wants, kind.look(thing, wants), _without(note, call.ends)))
        except GpuGoneError as error:
            if call.comes_again:
                raise
            log.info("nothing is left to undo", thing=str(thing), reason=str(error))
            return plan(without_act)

    def _known(
        self, kind: AnyThingKind, thing: Thing, note: Note[Any] | Unreadable | None
    ) -> tuple[Note[Any] | Unreadable | None, Wants]:
        """Return what is known of a thing: what is noted, or is supposed in its place for claims that were prepared
        with it; and its owners. Where it is not noted who they are, each claim that cannot be read may be one.
        """
        if isinstance(note, Note):
            return note, note.owners
        with self._claims.hold():
            checkpoints = self._claims.current()
            proven = had(thing, checkpoints)
            if note is None and not proven:
                return None, {}
            lost = [each.uid for each, _ in self._claims.unsure()]
        lost += [each.prepared.claim.uid for each in checkpoints if each.provisional and not each.prepared.wants]
        owners: Wants = {**dict.fromkeys(lost, ()), **proven}
        supposed = kind.supposed(proven) if proven else None
        if supposed is None:
            return note, owners if note is not None else {}
        return Supposed(self._ledger.boot_id, owners, supposed), owners

    def _wants(self, thing: Thing, owners: Wants, call: ForOwner) -> Wants:
        with self._claims.hold():
            unsure = {each.uid for each, _ in self._claims.unsure()} if owners else frozenset[str]()
            return wanted(thing, owners, self._claims.current(), unsure, call)

    def _note(self, each: _Planned, call: ForOwner) -> bool:
        """Note what is about to be done; return whether anything is."""
        plan = each.plan
        if plan.stays and call == SWEEP:
            raise TemporaryError(plan.stays)
        if plan.stays:
            log.info("nothing is undone", thing=str(each.thing), reason=plan.stays)
        if each.wants and plan.noted is not None and self._as_note(each, plan.noted) != each.before:
            self._keep(each, plan.noted)
        if plan.act is None and not each.wants and not plan.stays:
            self._ledger.drop(each.thing)
        return plan.act is not None

    def _keep(self, each: _Planned, noted: object) -> None:
        self._ledger.write(each.thing, self._as_note(each, noted))

    def _note_step(self, each: _Planned, noted: object) -> None:
        """Note what became known between two steps of an act. Until it is undone, the thing is of who had it."""
        owners = each.wants or _owners(each.before)
        self._ledger.write(each.thing, Note(self._ledger.boot_id, owners, noted))

    def _as_note(self, each: _Planned, noted: object) -> Note[Any]:
        return Note(self._ledger.boot_id, each.wants, noted)

    def _end(self, each: _Planned, end: End[Any], call: ForOwner) -> DracaenaError | None:
        """Note what an act led to; return why the thing is not as it is wanted, None if it is."""
        if (call.ends or not each.wants) and _is_lost(end, call):
            log.info("nothing is left to undo", thing=str(each.thing), reason=str(end.problem or end.how.name))
            if not each.wants:
                self._ledger.drop(each.thing)
            return None
        if end.how is How.REFUSED:
            if each.before is not None:
                self._ledger.write(each.thing, each.before)
            else:
                self._ledger.drop(each.thing)
        elif end.how is How.DONE and end.left is not None:
            self._keep(each, end.left)
            if call.ends and not each.wants:  # a sweep goes on with what is left
                log.warning("not all is as it was before", thing=str(each.thing), error=str(end.problem))
                return None
        elif end.how is How.DONE and not each.wants:
            self._ledger.drop(each.thing)
        return end.problem

    def sweep(
        self, kind: str, on_troubles: Callable[[Sequence[Trouble], Sequence[Trouble]], None] = lambda *_: None
    ) -> int:
        """Undo what no claim wants any more and no call would undo; return how many things were. A GPU that a call
        works on is left to that call. `on_troubles` gets what is not as it was before, and what may be so still because
        a call has its GPU.

        Raises DracaenaError if the ledger cannot be read.
        """
        count, troubles, unseen = 0, [], []
        for thing in self._ledger.things(kind):
            try:
                with self._gpu_lock(self.gpu(thing)).hold(0.0):  # before NodeClaims, as calls do
                    settled = self._swept(thing)
            except TemporaryError as error:
                unseen.append(self.kinds[kind].trouble(thing, error))
                continue
            for problem in settled.problems.values():
                log.info("what no claim wants any more stays for now", thing=str(thing), error=str(problem))
                troubles.append(self.kinds[kind].trouble(thing, problem))
            for each in settled.acted:
                log.warning("what no claim wanted any more is undone", thing=str(each))
            count += len(settled.acted)
        on_troubles([*filter(None, troubles)], [*filter(None, unseen)])
        return count

    def _swept(self, thing: Thing) -> SettledThings:
        kind = self.kinds[thing.kind]
        try:
            _, owners = self._known(kind, thing, self._ledger.read(thing, kind.noted))
            if not self._wants(thing, owners, SWEEP):
                return self.settle([thing], SWEEP, lambda: 1.0)
        except DracaenaError as error:
            return SettledThings({thing: error}, ())
        return SettledThings({}, ())


def _unsupported(thing: Thing) -> TemporaryError:
    return TemporaryError(
        f"{thing} cannot be made or undone: this release, or its settings on this node, do not support {thing.kind!r}. "
        "Run the release that prepared the claim; its devices stay held until then"
    )


def _owners(note: Note[Any] | Unreadable | None) -> Wants:
    return note.owners if isinstance(note, Note) else {}


def _without(note: Note[Any] | Unreadable | None, owner: str) -> Note[Any] | Unreadable | None:
    """Return a note without an owner that ends."""
    if not isinstance(note, Note) or owner not in note.owners:
        return note
    return replace(note, owners={uid: asked for uid, asked in note.owners.items() if uid != owner})


def _is_lost(end: End[Any], call: ForOwner) -> bool:
    """Whether a thing that was to be undone is gone with its GPU, or with the driver's ability to have it changed."""
    if end.how is How.REFUSED and (end.problem is None or isinstance(end.problem, NotOfferedError)):
        return True
    return not call.comes_again and isinstance(end.problem, GpuGoneError)
