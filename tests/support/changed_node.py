"""A node whose things are changed for claims by the engine, on a real ledger: anything may happen in any order.

Things are the time slices of two GPUs, which claims share, and two functions of the PCI bus, each for one claim. The
claims' checkpoints and CDI specs are kept here. Two instances of the plugin share all of it. A process may be killed
before and after each step: of the ledger's files, of a checkpoint, of the hardware.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid, DeviceName, gpu_device_name
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.changes.change import (
    Act,
    End,
    ForOwner,
    How,
    Note,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    one_by_one,
    thing_of,
)
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.time_slices import TimeSlices
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.prepare.effects import TIME_SLICE, Effect
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Broken, Checkpoint, State
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim
from support.fake_nvidia_smi import FakeTimeSlices
from support.killed_steps import KilledSteps, StopError
from support.plugin import ThreadLock, gpu_uuid

NEVER = 1 << 30
BOOT = "boot-1"
GPUS = tuple(gpu_uuid(number) for number in range(2))
SLOTS = ("slot-0", "slot-1")
WANTED = (TimeSliceInterval.LONG, TimeSliceInterval.SHORT)
"""What claims set; nobody else does, so it is always known whose an interval is."""
OF_OTHERS = (TimeSliceInterval.DEFAULT, TimeSliceInterval.MEDIUM)
BOUND = "bound"
TAKEN = "vfio-pci"


class ViolationOfChangesError(Exception):
    """Something was changed or left that must not be."""


@dataclass
class Slots(ThingKind[str, str]):
    """For a driver of a PCI function, on a dict. Nothing is supposed: an admin may have bound it."""

    drivers: dict[str, str]
    step: Callable[[], None]
    refusing: set[str] = field(default_factory=set)
    """Slots whose acts are refused: nothing happens."""
    silent: set[str] = field(default_factory=set)
    """Slots whose acts happen without an answer."""
    name = BOUND
    rank = 20
    noted = str
    """The driver from before."""

    def look(self, thing: Thing, wants: Wants) -> str:
        return self.drivers[thing.name]

    def plan(self, wants: Wants, seen: str, note: Note[str] | Unreadable | None) -> ThingPlan[str, str]:
        if isinstance(note, Unreadable) and seen == TAKEN:
            return ThingPlan(stays="" if wants else note.problem)
        known = note.noted if isinstance(note, Note) else None
        if wants:
            if known is None and seen == TAKEN:
                return ThingPlan()  # an admin's
            return ThingPlan(seen if known is None or seen != TAKEN else known, None if seen == TAKEN else TAKEN)
        return ThingPlan(act=known if seen == TAKEN else None)

    def do(self, acts: Sequence[Act[str]], left_s: Callable[[], float]) -> Sequence[End[str]]:
        return one_by_one(acts, left_s, self._set)

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        return trouble(TroubleKind.NOT_GIVEN_BACK, str(problem), thing.name)

    def _set(self, act: Act[str]) -> End[str]:
        name = act.thing.name
        if name in self.refusing:
            return End(How.REFUSED, TemporaryError(f"{name} is refused"))
        self.step()
        self.drivers[name] = act.step
        self.step()
        return End(How.UNANSWERED, TemporaryError("no answer")) if name in self.silent else End()


class ClaimsOfNode:
    """Stands for the checkpoints and specs of this node: what is there now, and what may be."""

    def __init__(self) -> None:
        self.good: dict[ClaimUid, Checkpoint] = {}
        self.broken: set[ClaimUid] = set()
        self.specs: set[ClaimUid] = set()
        self.boot_id = BOOT

    def hold(self) -> AbstractContextManager[None]:
        return nullcontext()

    def current(self) -> tuple[Checkpoint, ...]:
        return tuple(self.good[uid] for uid in sorted(self.good))

    def unsure(self) -> Iterator[tuple[Broken, PreparedClaim]]:
        lost = self.specs - self.good.keys() - self.broken
        for uid in sorted(self.broken | lost):
            yield Broken(uid, "is gone"), PreparedClaim(ClaimReference("", "", uid), ())


class ChangedNode:
    """One run of the search. `check()` is called after each act, `end()` once at last."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.chance = folder, random.Random(seed)
        self.slices = FakeTimeSlices(**{uuid: self.chance.choice(OF_OTHERS) for uuid in GPUS})
        self.drivers = {slot: self.chance.choice(("nvidia", "")) for slot in SLOTS}
        self.first, self.first_intervals = dict(self.drivers), dict(self.slices.intervals)
        self.touched: set[str] = set()
        """GPUs whose interval somebody else has set since."""
        self.claims = ClaimsOfNode()
        self.wants: dict[ClaimUid, tuple[Effect, ...]] = {}
        """What claims that kubelet has not unprepared want."""
        self.ending: set[ClaimUid] = set()
        """Those that kubelet has asked to unprepare: no container of them runs."""
        self.lost_notes: set[Thing] = set()
        self.count = 0
        self.gpu_locks: dict[str, ThreadLock] = {}
        self.instances = [self.start(), self.start()]

    def start(self) -> ChangeEngine:
        """Start an instance of the plugin over what is there."""
        self.steps = KilledSteps(NEVER)
        self.slices.before_each = self.steps.step
        self.slots = Slots(self.drivers, self.steps.step)
        files = DocumentFolder(self.folder / "ledger", steps=_Following(self), synced=False, in_place_if_full=True)
        self.gpu_locks = {}
        self.ledger = Ledger(files, ThreadLock(), BOOT)
        return ChangeEngine(
            ledger=self.ledger,
            kinds=[self.slots, TimeSlices(self.slices)],
            claims=self.claims,  # type: ignore[arg-type]
            gpu_lock=lambda gpu: self.gpu_locks.setdefault(gpu, ThreadLock()),
        )

    @property
    def engine(self) -> ChangeEngine:
        return self.chance.choice(self.instances)

    def step(self) -> None:
        """Do one thing, perhaps without its end."""
        self.steps.left = self.chance.randrange(1, 14) if self.chance.random() < 0.35 else NEVER
        self.slots.refusing = {self.chance.choice(SLOTS)} if self.chance.random() < 0.1 else set()
        self.slots.silent = {self.chance.choice(SLOTS)} if self.chance.random() < 0.1 else set()
        acts = [self.prepare] * 5 + [self.unprepare] * 4 + [self.renew, self.sweep, self.reload, self.lose_all]
        acts += [
            self.foreign,
            self.break_checkpoint,
            self.lose_checkpoint,
            self.rebuild,
            self.lose_note,
            self.break_note,
        ]
        try:
            with suppress(DracaenaError):
                self.chance.choice(acts)()
        except StopError:
            self.instances = [self.start(), self.start()]
        self.steps.left = NEVER
        self.slots.refusing, self.slots.silent = set(), set()
        self.check()

    # What kubelet asks for

    def prepare(self) -> None:
        started = [uid for uid in self.wants if self.state(uid) is not State.DONE and uid not in self.claims.specs]
        uid = self.chance.choice([*started, ClaimUid("")]) or self._new()
        self._prepare(uid, fresh=uid not in self.claims.good and uid not in self.claims.broken)

    def _new(self) -> ClaimUid:
        self.count += 1
        uid, taken = ClaimUid(f"c{self.count}"), {e.device for each in self.wants.values() for e in each}
        free = [slot for slot in SLOTS if slot not in taken]
        slots = self.chance.sample(free, self.chance.randint(0, len(free)))
        effects = [Effect(BOUND, DeviceName(slot), DeviceName(slot)) for slot in slots]
        for uuid in GPUS if self.chance.random() < 0.7 or not slots else ():
            interval = self._interval_of(gpu_device_name(uuid)) or self.chance.choice(WANTED).value
            gpu = gpu_device_name(uuid)
            effects.append(Effect(TIME_SLICE, gpu, gpu, uid, {"interval": interval, "required": False}))
        self.wants[uid] = tuple(effects)
        return uid

    def _interval_of(self, gpu: DeviceName) -> str | None:
        """The interval that claims have on a GPU: the guard lets no other in."""
        found = [str(e.parameters["interval"]) for each in self.wants.values() for e in each if e.device == gpu]
        return next(iter(found), None)

    def _prepare(self, uid: ClaimUid, *, fresh: bool) -> None:
        self.steps.step()
        self._write(uid, State.STARTED)
        problems = self.engine.settle(map(thing_of, self.wants[uid]), ForOwner(begins=uid), lambda: 1.0).problems
        if problems and fresh:
            self._end(uid)
        if problems:
            return
        self.claims.specs.add(uid)
        self.steps.step()
        self._write(uid, State.DONE)

    def unprepare(self) -> None:
        if self.wants:
            self._end(self.chance.choice(sorted(self.wants)))

    def _end(self, uid: ClaimUid) -> None:
        self.ending.add(uid)
        things: Sequence[Thing]
        engine = self.engine
        if uid in self.claims.good:
            self.claims.specs.discard(uid)
            self.steps.step()
            self._write(uid, State.STARTED)
            things = [thing_of(effect) for effect in self.wants[uid]]
        else:
            things = engine.noted(uid)
        before = dict(self.slices.intervals)
        shared = {e.device for each, wants in self.wants.items() if each != uid for e in wants}
        if engine.settle(things, ForOwner(ends=uid), lambda: 1.0).problems:
            return
        for uuid, interval in before.items():
            if (
                interval in OF_OTHERS
                and gpu_device_name(uuid) not in shared
                and self.slices.intervals[uuid] != interval
            ):
                raise ViolationOfChangesError(f"{interval} of {uuid} is somebody else's, and was replaced")
        self.steps.step()
        self.claims.specs.discard(uid)
        self.claims.good.pop(uid, None)
        self.claims.broken.discard(uid)
        self.wants.pop(uid)

    def state(self, uid: ClaimUid) -> State | None:
        found = self.claims.good.get(uid)
        return None if found is None else found.state

    def _write(self, uid: ClaimUid, state: State) -> None:
        claim = PreparedClaim(ClaimReference("default", uid, uid), (), wants=self.wants[uid])
        answered = uid in self.claims.specs or uid in self.claims.broken
        self.claims.good[uid] = Checkpoint(state, BOOT, claim, answered=answered and state is State.STARTED)
        self.claims.broken.discard(uid)

    # What else happens

    def renew(self) -> None:
        done = [uid for uid in sorted(self.wants) if self.state(uid) is State.DONE]
        for uid in done:
            things = [thing_of(effect) for effect in self.wants[uid]]
            self.engine.settle(things, ForOwner(begins=uid), lambda: 1.0)

    def sweep(self) -> None:
        for kind in (BOUND, TIME_SLICE):
            self.engine.sweep(kind)

    def reload(self) -> None:
        """The GPU driver is loaded anew and has forgotten the intervals; those of claims are made again."""
        self.slices.intervals = dict.fromkeys(GPUS, TimeSliceInterval.DEFAULT)
        self.touched |= set(GPUS)
        self.renew()

    def foreign(self) -> None:
        gpu = self.chance.choice(GPUS)
        self.slices.intervals[gpu] = self.chance.choice(OF_OTHERS)
        self.touched.add(gpu)

    def break_checkpoint(self) -> None:
        done = [uid for uid in sorted(self.claims.good) if self.state(uid) is State.DONE]
        for uid in done[:1]:
            del self.claims.good[uid]
            self.claims.broken.add(uid)

    def lose_checkpoint(self) -> None:
        done = [uid for uid in sorted(self.claims.good) if self.state(uid) is State.DONE]
        for uid in done[:1]:
            del self.claims.good[uid]

    def lose_all(self) -> None:
        """All files of a claim are lost, and its pod is gone."""
        for uid in self.chance.sample(sorted(self.wants), min(1, len(self.wants))):
            self.claims.good.pop(uid, None)
            self.claims.broken.discard(uid)
            self.claims.specs.discard(uid)
            del self.wants[uid]

    def rebuild(self) -> None:
        """From the API: with a plan, or without one while the GPUs are not known."""
        for each, _ in list(self.claims.unsure()):
            if each.uid not in self.wants:
                self.claims.specs.discard(each.uid)
                self.claims.broken.discard(each.uid)
            elif self.chance.random() < 0.3:
                claim = PreparedClaim(ClaimReference("default", each.uid, each.uid), ())
                self.claims.good[each.uid] = Checkpoint(State.STARTED, BOOT, claim, answered=True, provisional=True)
                self.claims.broken.discard(each.uid)
            else:
                self._prepare(each.uid, fresh=False)

    def lose_note(self) -> None:
        self._damage(lambda path: path.unlink())

    def break_note(self) -> None:
        self._damage(lambda path: path.write_bytes(path.read_bytes()[:-9]))

    def _damage(self, damage: Callable[[Path], object]) -> None:
        """Damage a note that has been written: what is known of its thing is gone."""
        if self.chance.random() < 0.8:
            return
        for path in sorted((self.folder / "ledger").glob("*.json"))[:1]:
            damage(path)
            kind, _, name = path.name.removesuffix(".json").partition(".")
            self.lost_notes.add(Thing(kind, name))

    # What must be so

    def things(self) -> dict[Thing, bool]:
        """All things, and whether each is as somebody else left it."""
        found = {Thing(BOUND, slot): driver != TAKEN for slot, driver in self.drivers.items()}
        slices = {gpu_device_name(uuid): interval for uuid, interval in self.slices.intervals.items()}
        return found | {Thing(TIME_SLICE, gpu): interval in OF_OTHERS for gpu, interval in slices.items()}

    def check(self) -> None:
        noted = {thing for kind in (BOUND, TIME_SLICE) for thing in self.ledger.things(kind)}
        for thing, is_of_others in self.things().items():
            if not is_of_others and thing not in noted and thing not in self.lost_notes:
                raise ViolationOfChangesError(f"{thing} is changed, and nothing says so")
        for uid, effects in self.wants.items():
            is_running = uid in self.claims.specs and self.state(uid) in (None, State.DONE) and uid not in self.ending
            for effect in effects if is_running else ():
                if effect.kind == BOUND and self.drivers[effect.device] != TAKEN:
                    raise ViolationOfChangesError(f"{effect} is undone beside {uid}, whose containers may run")

    def end(self) -> None:
        """End all claims, whatever was lost: everything is as it was before."""
        for uid in sorted(self.wants):
            self._end(uid)
        self.claims.specs.clear()
        self.claims.broken.clear()
        self.sweep()
        for slot, driver in self.drivers.items():
            if Thing(BOUND, slot) not in self.lost_notes and driver != self.first[slot]:
                raise ViolationOfChangesError(f"{slot} has {driver}, and had {self.first[slot]}")
        for thing, is_of_others in self.things().items():
            if thing.kind == TIME_SLICE and not is_of_others and thing not in self.lost_notes:
                raise ViolationOfChangesError(f"{thing} is still that of a share")
        for uuid, interval in self.slices.intervals.items():
            is_known = uuid not in self.touched and Thing(TIME_SLICE, gpu_device_name(uuid)) not in self.lost_notes
            if is_known and interval is not self.first_intervals[uuid]:
                raise ViolationOfChangesError(f"{uuid} has {interval}, and had {self.first_intervals[uuid]}")
        left = {thing for kind in (BOUND, TIME_SLICE) for thing in self.ledger.things(kind)} - self.lost_notes
        if left:
            raise ViolationOfChangesError(f"the ledger still names {left}")


class _Following(KilledSteps):
    """Steps of files that are counted with those of the hardware."""

    def __init__(self, node: ChangedNode) -> None:
        super().__init__(NEVER)
        self._node = node

    def step(self) -> None:
        self._node.steps.step()


def run_changes(folder: Path, seed: int, steps: int = 30) -> ChangedNode:
    node = ChangedNode(folder, seed)
    for _ in range(steps):
        node.step()
    node.end()
    return node
