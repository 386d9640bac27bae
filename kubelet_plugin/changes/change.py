"""What a change of the node is: a thing, who wants it and how, what is noted of it, and the interface of its kind.

Values only. A thing is, for example, the time slices of one GPU. Its owners are the claims that want something of it,
or the Node's label that does.
What has to be done follows from three facts, whatever happened before: what its owners want, what is seen on the node,
and what the ledger has noted of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from dracaena.api.errors import DracaenaError
from dracaena.api.names import DeviceName
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.ports import EffectPendingError
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar
from dracaena.kubelet_plugin.prepare.journals.checkpoint import Checkpoint

N = TypeVar("N")
"""What a kind notes of a thing besides its owners."""
A = TypeVar("A")
"""What a kind can be told to do to a thing."""


@dataclass(frozen=True, slots=True, order=True)
class Thing:
    """One thing of the node that is changed as a whole."""

    kind: str
    name: str
    """Identifies it among those of its kind, and is part of a file's name."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.name}"


def thing_of(effect: Effect) -> Thing:
    """Return the thing of which a claim wants something."""
    return Thing(*effect.key)


Parameters = Mapping[str, Scalar]

Wants = Mapping[str, tuple[Parameters, ...]]
"""Owner, a claim's UID or NODE_LABEL → what it wants of one thing. A claim may want one thing for several devices."""

NODE_LABEL: Final = "node-label"
"""Owner of what a label of the Node asks for. It has no checkpoint: it wants what is noted, until it is ended."""


@dataclass(frozen=True, slots=True)
class Note(Generic[N]):
    """What the ledger says of one thing. It is written before the first act, and removed after the last."""

    boot_id: str
    owners: Wants
    noted: N


@dataclass(frozen=True, slots=True)
class Supposed(Note[N]):
    """What is taken for noted where the note is lost and claims were prepared with the thing. The end of one of them
    may have undone the thing and dropped the note, so what is seen and is no value of ours is somebody else's.
    """


@dataclass(frozen=True, slots=True)
class Unreadable:
    """There is a note that cannot be read. `problem` is a sentence that names its file, `data` is what is in it."""

    problem: str
    data: bytes


@dataclass(frozen=True, slots=True)
class ThingPlan(Generic[N, A]):
    """What brings one thing to what is wanted of it."""

    noted: N | None = None
    """What to note before anything is done; None: as it is."""
    act: A | None = None
    """None: nothing has to be done."""
    stays: str = ""
    """Why a thing that nobody wants stays as it is, for admins. Its note stays too."""


class How(enum.Enum):
    """How an act ended."""

    DONE = 1
    REFUSED = 2
    """Nothing happened: the note becomes what it was before."""
    UNANSWERED = 3
    """It may have happened, or may still happen: the note stays."""


@dataclass(frozen=True, slots=True)
class End(Generic[N]):
    """The end of one act."""

    how: How = How.DONE
    problem: DracaenaError | None = None
    """Why its owners do not have what they want; None: they do, or can do without it."""
    left: N | None = None
    """What is still noted afterwards. None: what was noted, or nothing once nobody wants the thing."""


@dataclass(frozen=True, slots=True)
class Act(Generic[A]):
    """One act of a plan."""

    thing: Thing
    step: A
    own: tuple[Parameters, ...]
    """What the claim of the current call wants; empty if the call is about no claim, or about its end."""
    note: Callable[[Any], None]
    """Notes what became known between two steps of the act, such as the number of what was made. Raises DracaenaError:
    then the next step must not follow."""


@dataclass(frozen=True, slots=True)
class OwnersAlone:
    """What is noted of a thing if its name and its owners say all: it may be there through us, and was not before."""


class ThingKind(Protocol[N, A]):
    """One kind of things. For each GPU one caller at a time calls it, across all instances of the plugin. What a kind
    inherits fits one whose things are GPUs, wanted or not, with nothing in common.
    """

    name: str
    rank: int
    """Things of lower rank are settled first, and undone last."""
    noted: type[N]

    def gpu(self, thing: Thing) -> DeviceName:
        """Return the GPU whose lock guards a thing."""
        return DeviceName(thing.name)

    def asked(self, wants: Wants) -> object:
        """Return what owners want together, to be compared: if it stays the same, an owner can go without an act."""
        return bool(wants)

    def supposed(self, wants: Wants) -> N | None:
        """Return what to take for noted of a thing whose note is lost or broken, while claims that were prepared want
        it: nobody knows any more what was there before them. None: then nothing of it is known to be ours.
        """
        del wants
        return None

    def hold(self) -> AbstractContextManager[object]:
        """Hold what all things of this kind share for a block, in which some of them are looked at, planned, noted and
        done. The caller has their GPUs and not NodeClaims. Raises TemporaryError if another call has it for too long.
        """
        return nullcontext()

    def look(self, thing: Thing, wants: Wants) -> Any:
        """Return what is seen of a thing, as far as a plan for `wants` needs it. Raises DracaenaError: GpuGoneError if
        it is lost with its GPU, and EffectPendingError while an earlier act may still take effect.
        """
        ...

    def plan(self, wants: Wants, seen: Any, note: Note[N] | Unreadable | None) -> ThingPlan[N, A]:
        """Return what to do: values in, values out. Without `wants`, everything is to be as it was before; it is
        not asked if nothing is noted either. The owners in `note` are without the one that ends: without `wants`, of
        those left nothing else is known, and their containers may run. Raises DracaenaError if what is wanted is
        impossible now: then nothing is noted.
        """
        ...

    def do(self, acts: Sequence[Act[A]], left_s: Callable[[], float]) -> Sequence[End[N]]:
        """Carry out acts, jointly where that is cheaper, and return the end of each, in order. Does not raise
        DracaenaError. No act begins once `left_s` returns 0.
        """
        ...

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        """Return what admins are told of a thing that nobody wants and that is not as it was before; None: nothing."""
        ...


AnyThingKind = ThingKind[Any, Any]


@dataclass(frozen=True, slots=True)
class ForOwner:
    """For which owner things are settled; for none by a sweep."""

    begins: str = ""
    """UID of the claim that is being prepared, or whose things are made again; or NODE_LABEL."""
    ends: str = ""
    """UID of the claim that is being unprepared, or NODE_LABEL: it wants nothing of these any more, whatever its
    checkpoint says."""
    asks: Mapping[Thing, Parameters] = field(default_factory=dict)
    """What NODE_LABEL wants, if it begins."""

    @property
    def comes_again(self) -> bool:
        """Whether a GPU that is away can be waited for: a sweep and the label do, a claim has to end."""
        return self.ends in ("", NODE_LABEL)


SWEEP = ForOwner()


def wanted(
    thing: Thing, noted: Wants, checkpoints: Iterable[Checkpoint], unsure: Collection[str], call: ForOwner
) -> Wants:
    """Return who wants a thing and how, by the checkpoints of this boot and by what is noted.

    A claim that was noted and cannot be read now (`unsure`: its checkpoint broke, or was lost while it has a CDI spec)
    wants what is noted; that is empty if it is only assumed to be an owner. One that is being prepared by another call
    and got to no note wants nothing yet. NODE_LABEL has no checkpoint, and wants what is noted, except in calls for
    claims: these get such a thing once an admin has taken it from the label and undone it.
    """
    found: dict[str, tuple[Parameters, ...]] = {}
    readable: set[str] = set()
    for each in checkpoints:
        uid, wants = each.prepared.claim.uid, each.prepared.wants
        if each.provisional and not wants:
            continue  # rebuilt without a plan: only the note says what it has
        readable.add(uid)
        asked = tuple(effect.parameters for effect in wants if thing_of(effect) == thing)
        if asked and (each.in_use or uid == call.begins or uid in noted):
            found[uid] = asked
    rebuilt = {each.prepared.claim.uid for each in checkpoints} - readable
    keeping = {*unsure, *rebuilt}
    if {call.begins, call.ends} <= {"", NODE_LABEL}:
        keeping.add(NODE_LABEL)
    found |= {uid: asked for uid, asked in noted.items() if uid not in readable and uid in keeping}
    if thing in call.asks:
        found[call.begins] = (call.asks[thing],)
    found.pop(call.ends, None)
    return found


def had(thing: Thing, checkpoints: Iterable[Checkpoint]) -> Wants:
    """Return which claims were prepared with a thing, and how: it is ours, whatever is noted of it."""
    found = {
        each.prepared.claim.uid: tuple(effect.parameters for effect in each.has if thing_of(effect) == thing)
        for each in checkpoints
    }
    return {uid: asked for uid, asked in found.items() if asked}


def one_by_one(
    acts: Sequence[Act[A]], left_s: Callable[[], float], work: Callable[[Act[A]], End[N]], why: Callable[[], str] = str
) -> Sequence[End[N]]:
    """Carry out acts one after another, none once the time is up: to those left nothing has happened. `why` returns
    how the sentence that says so goes on.
    """
    ends: list[End[N]] = []
    for act in acts:
        if left_s() > 0:
            ends.append(work(act))
        else:
            ends.append(End(How.REFUSED, no_time_left(act.thing, why())))
    return ends


def no_time_left(what: object, why: str = "") -> EffectPendingError:
    """Return why nothing is begun. `why` continues the sentence."""
    return EffectPendingError(f"no time is left for {what} in this call: the next one goes on with it{why}")
