"""Brings what is on this node to what one label of its Node asks for, while nobody uses it.

A thing that must change, a GPU or all GPUs of the node, is first withheld by a taint on its devices; otherwise seven
small pods could keep it busy forever by taking turns. The change waits for allocations from before the taint and for
running pods to end. Then the thing is changed, and published as before once the node was read again.

What things there are, what the label asks of them and how they are changed is said by a LabelRow: one for MIG layouts,
one for vGPU layouts, one for modes of confidential computing.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from dracaena.api.errors import BadInputError, DracaenaError, PermanentError, TemporaryError
from dracaena.api.machine import Machine
from dracaena.kubelet_plugin.worker import Worker, WorkerService
from dracaena.process.clock import Clock

LOOK_S: Final = 10.0
"""Pause between two looks. A look reads small files and compares values; a driver is asked only about what is not as it
should be."""

SETTLE_S: Final = 30.0
"""How long the taint must have been on the devices before anything is changed: by then an earlier allocation has its
pod bound here, or kube-scheduler has rejected it. The controller takes such an allocation back after the same time."""

T = TypeVar("T")
"""A thing as last read."""
G = TypeVar("G")
"""What a thing should become, or is being changed to. Equal values mean the same."""

log = structlog.get_logger()


class InUseError(TemporaryError):
    """The thing, or a part of it, is in use. The text says by whom."""


class BlockedError(PermanentError):
    """The thing stays as it is until somebody acts. The text says who, on what."""


class LabelState(enum.Enum):
    """The state of one thing; for a node, the worst of its things."""

    APPLIED = "Applied"
    PENDING = "Pending"
    FAILED = "Failed"


StateAndReason = tuple[LabelState, str]
"""State of one thing, and why; no reason if it is applied."""


@dataclass(frozen=True, slots=True)
class LabelReport:
    """What is to be reported."""

    value: str
    """What the label says, empty if it says nothing any more."""
    state: LabelState
    reason: str = ""
    """Empty if it is applied."""


@dataclass(frozen=True, slots=True)
class LabelPorts:
    """What a follower is connected to. Things have the names that their rows give them."""

    key: str
    """Key of the label."""
    default: str | None
    """The value for a Node without the label; None: then nothing is asked for."""
    labels: Callable[[], Mapping[str, str] | None]
    """Labels of this Node; None before it was seen."""
    withhold: Callable[[Collection[str]], None]
    """See NodeDevices.withhold()."""
    is_withheld: Callable[[str], bool]
    """Whether the API server shows all devices of a thing with the taint."""
    read_soon: Callable[[], None]
    """See LiveMachine.read_soon()."""
    tell: Callable[[LabelReport | None], None]
    """Called after each look; None: nothing is asked for."""


class LabelRow(ABC, Generic[T, G]):
    """What one label is about. For the thread that looks; a look calls the methods in this order."""

    name: str
    """Names the thread, and what is looked at in the log."""

    @abstractmethod
    def things(self, machine: Machine | None) -> Mapping[str, T] | None:
        """Return the things of this node by name; None while they are not known. `machine` is the last reading, None
        before the first. Raises DracaenaError.
        """

    @abstractmethod
    def is_read(self, thing: T, goal: G) -> bool:
        """Whether the last reading proves that it began after a change to this goal."""

    @abstractmethod
    def rest(self, name: str, goal: G) -> None:
        """Release a thing that was changed and read since; does nothing if it is being changed to something else."""

    @abstractmethod
    def targets(self, value: str) -> Mapping[str, G]:
        """Return what each thing should become by the value of the label. Raises BadInputError if that is impossible,
        DracaenaError if it is not known whether it is possible.
        """

    @abstractmethod
    def begun(self) -> Mapping[str, G]:
        """Return what things are being changed to. Raises DracaenaError if the notes cannot be read."""

    def goals(self, begun: Mapping[str, G], targets: Mapping[str, G] | None) -> Mapping[str, G]:
        """Return what each thing is to become. What has begun is finished; a target replaces its goal. `targets` is
        None if they cannot be known.
        """
        return {**begun, **(targets or {})}

    @abstractmethod
    def settled(self, thing: T, goal: G) -> StateAndReason | None:
        """Return the state of a thing that needs no change, or cannot be changed; None for all others. Not called for
        one whose change has begun.
        """

    @abstractmethod
    def user(self, thing: T) -> str | None:
        """Return who uses a thing or may come to use it, None for nobody."""

    @abstractmethod
    def change(self, thing: T, goal: G) -> G:
        """Change a thing, and return what begun() says of it from now on until rest(). Raises InUseError, BlockedError,
        and DracaenaError for what is retried.
        """

    def failed(self, _thing: T, _goal: G, error: DracaenaError) -> LabelState:
        """Return the state of a thing that could not be changed, and remember what the next look has to know."""
        return LabelState.FAILED if isinstance(error, BlockedError) else LabelState.PENDING

    @abstractmethod
    def words(self, thing: T) -> str:
        """Return the name of a thing in messages."""

    def differs(self, _thing: T, _goal: G) -> str:
        """Return what is said of a thing before what it waits for, if anything."""
        return ""


class LabelFollower(WorkerService, Generic[T, G]):
    """Has a thread of its own. take(), read_again() and look_soon() are for any thread. Nothing is published before the
    first look has said what is withheld (NodeDevices). A change that is under way at the end is finished after the next
    start.
    """

    def __init__(self, row: LabelRow[T, G], ports: LabelPorts, clock: Clock) -> None:
        self._row = row
        self._ports = ports
        self._clock = clock
        self._machine: Machine | None = None  # replaced whole
        self._readings = 0
        # Only for the thread that looks:
        self._withheld_s: dict[str, float] = {}  # since when each thing was seen to be withheld
        self._changed: dict[str, tuple[G, int]] = {}  # changed but not read since: goal, number of readings by then
        self._worker = Worker(row.name, self._run, clock)

    def take(self, machine: Machine) -> None:
        """Use another reading from now on."""
        self._machine = machine
        self.read_again()

    def read_again(self) -> None:
        """Record that another reading found the same machine."""
        self._readings += 1
        self._worker.notice()

    def look_soon(self, *_news: object) -> None:
        """Look now instead of after the pause. Never blocks. For whoever shows what a look may have waited for: the
        labels of the Node, before which nothing is published, and slices, by which devices are withheld.
        """
        self._worker.notice()

    def _run(self) -> None:
        while self._worker.wait(within_s=LOOK_S):
            try:
                self.look()
            except PermanentError as error:
                value = (self._ports.labels() or {}).get(self._ports.key, self._ports.default)
                self._ports.tell(LabelReport(value or "", LabelState.FAILED, str(error)))
            except DracaenaError as error:
                log.warning("label not followed", what=self._row.name, error=str(error))
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("label not followed: internal error of the plugin", what=self._row.name)

    def look(self) -> None:
        """Take each thing one step further. Raises DracaenaError if the things cannot be read, or their notes cannot be
        read or written.
        """
        labels = self._ports.labels()
        things = None if labels is None else self._row.things(self._machine)
        if labels is None or things is None:
            return
        self._give_back(things)
        value = labels.get(self._ports.key, self._ports.default)
        targets, problem = self._targets_or_problem(value)
        begun = self._row.begun()
        # Another instance of the plugin may have ended our change, and begun another one.
        self._changed = {name: each for name, each in self._changed.items() if begun.get(name) == each[0]}
        goals = self._row.goals(begun, targets)
        states: dict[str, StateAndReason] = {}
        due: list[str] = []
        for name, thing in things.items():
            if name not in goals:
                continue
            settled = None if name in begun else self._row.settled(thing, goals[name])
            if settled is not None:
                states[name] = settled
            else:
                due.append(name)
        self._withhold(due)
        for name in due:
            states[name] = self._go_on(name, things[name], goals[name], begun=name in begun)
        self._ports.tell(_report(value, problem, states))

    def _targets_or_problem(self, value: str | None) -> tuple[Mapping[str, G] | None, str | None]:
        """Return what the label asks for, or what is wrong with it."""
        if value is None:
            return {}, None
        try:
            return self._row.targets(value), None
        except BadInputError as error:
            return None, str(error)
        except DracaenaError as error:
            return None, f"it is not known what GPUs these are: {error}"

    def _give_back(self, things: Mapping[str, T]) -> None:
        """Release the things that were changed and that a reading since shows like that. A reading that began before a
        change may end after it, so the second one ends the wait, whatever it shows.
        """
        for name, (goal, readings) in tuple(self._changed.items()):
            if name not in things:
                continue
            if self._readings >= readings + 2 or self._row.is_read(things[name], goal):
                self._row.rest(name, goal)
                del self._changed[name]

    def _withhold(self, names: Collection[str]) -> None:
        self._ports.withhold(names)
        self._withheld_s = {name: since_s for name, since_s in self._withheld_s.items() if name in names}

    def _go_on(self, name: str, thing: T, goal: G, *, begun: bool) -> StateAndReason:
        """Change a thing if it may be changed now; return its state."""
        words = self._row.words(thing)
        try:
            if name not in self._changed:
                waiting = None if begun else self._waits_for(name, thing)
                if waiting is not None:
                    return LabelState.PENDING, "; ".join(filter(None, (self._row.differs(thing, goal), waiting)))
                self._changed[name] = (self._row.change(thing, goal), self._readings)
        except (InUseError, BlockedError) as error:
            return self._row.failed(thing, goal, error), str(error)
        except DracaenaError as error:
            return self._row.failed(thing, goal, error), f"{words}: {error}"
        self._ports.read_soon()
        return LabelState.PENDING, f"{words} is done; published once the driver has been read again"

    def _waits_for(self, name: str, thing: T) -> str | None:
        """Return what to wait for before a thing is touched."""
        if not self._ports.is_withheld(name):
            self._withheld_s.pop(name, None)
            return f"the devices of {self._row.words(thing)} are being withheld"
        now_s = self._clock.monotonic()
        if now_s - self._withheld_s.setdefault(name, now_s) < SETTLE_S:
            return f"the devices of {self._row.words(thing)} are withheld; waiting for pods that already have one"
        return self._row.user(thing)


def _report(value: str | None, problem: str | None, states: Mapping[str, StateAndReason]) -> LabelReport | None:
    if problem is not None:
        return LabelReport(value or "", LabelState.FAILED, problem)
    if not states:
        return LabelReport(value, LabelState.APPLIED) if value else None
    found = [state for state, _ in states.values()]
    worst = next(state for state in (LabelState.FAILED, LabelState.PENDING, LabelState.APPLIED) if state in found)
    texts = dict.fromkeys(text for state, text in states.values() if state is worst and text)
    return LabelReport(value or "", worst, "; ".join(texts))
