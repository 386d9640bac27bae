"""Brings the GPUs of this node into the layout that its label names, each as soon as nobody uses it: one look after the
other, for whatever kind of parts GPUs are divided into.

A GPU that is to be divided anew is first withheld: its devices get a taint, or seven small pods could keep it for ever
by taking turns. What was given away before the taint is waited for, and what runs. Then it is changed, and published as
before once the node was read again.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from dracaena.api.errors import BadInputError, DracaenaError
from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.layouts.journals import GpuInUseError, LayoutBlockedError
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock

LOOK_S: Final = 10.0
"""Pause between two looks. One reads a small file and compares values; the driver is asked only about GPUs that are
not as they should be."""

SETTLE_S: Final = 30.0
"""How long the taint must have been on a GPU's devices before it is changed: who was given one before has its pod bound
here by then, or kube-scheduler does not want it. The controller takes such an allocation back after the same time."""

Standing = tuple["LayoutState", str]
"""State of one GPU, and why."""

G = TypeVar("G")
"""A GPU as it was read."""
L = TypeVar("L")
"""What a GPU is to be. Equal values mean the same."""

log = structlog.get_logger()


class LayoutState(enum.Enum):
    """How far a layout is; of a node the last of these that any of its GPUs is in."""

    APPLIED = "Applied"
    PENDING = "Pending"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """What is to be told."""

    layout: str
    state: LayoutState
    reason: str
    """Empty where it is applied."""


@dataclass(frozen=True, slots=True)
class LayoutPorts:
    """What the layouts are joined to. A GPU is named by what its journal names it by."""

    name: Callable[[], str | None]
    """The layout that this node is to have, empty: none; None while that is not known."""
    withhold: Callable[[Collection[str]], None]
    """See NodeDevices.withhold()."""
    is_withheld: Callable[[str], bool]
    """Whether the API server shows all devices of a GPU with the taint."""
    read_soon: Callable[[], None]
    """See LiveMachine.read_soon()."""
    tell: Callable[[LayoutReport | None], None]
    """Called after each look; None: there is no layout."""


class LayoutRounds(ABC, Generic[G, L]):
    """One thread of its own; read_again() is for any."""

    what: str
    """What is looked after, for the log."""

    def __init__(self, users: GpuUsers, ports: LayoutPorts, clock: Clock, thread: str) -> None:
        self._users = users
        self._ports = ports
        self._clock = clock
        self._readings = 0
        # Only for the thread that looks:
        self._withheld_s: dict[str, float] = {}  # since when each GPU was seen to be withheld
        self._changed: dict[str, tuple[L, int]] = {}  # to what, after how many readings; not read since then
        self._worker = Worker(thread, self._run, clock)

    @abstractmethod
    def _gpus(self) -> Mapping[str, G] | None:
        """Return the GPUs of this node by name; None while they are not known. Raises DracaenaError."""

    @abstractmethod
    def _wish(self, name: str) -> Mapping[str, L]:
        """Return what is to be by a layout. Raises BadInputError where that cannot be, DracaenaError where it is not
        known whether it can.
        """

    @abstractmethod
    def _begun(self) -> Mapping[str, L]:
        """Return what GPUs are being changed into. Raises DracaenaError where the journal cannot be read."""

    @abstractmethod
    def _is_read(self, gpu: G, layout: L) -> bool:
        """Whether the last reading of the node shows a GPU as its layout says."""

    @abstractmethod
    def _settled(self, gpu: G, layout: L) -> Standing | None:
        """Return the state of a GPU of which nothing is to be changed, or cannot be; None for all others. Not asked of
        one that was begun.
        """

    @abstractmethod
    def _change(self, gpu: G, layout: L) -> None:
        """Change a GPU. Raises GpuInUseError, LayoutBlockedError, and DracaenaError for what is tried again."""

    @abstractmethod
    def _rest(self, name: str, layout: L) -> None:
        """Give a GPU back that was changed and read since."""

    @abstractmethod
    def _device(self, gpu: G) -> DeviceName:
        """Return what GpuUsers calls a GPU."""

    @abstractmethod
    def _label(self, gpu: G) -> str:
        """Return what messages call a GPU."""

    def _remember(self, gpu: G, layout: L, error: LayoutBlockedError) -> None:
        """Take note of what blocks a GPU. Nothing to be remembered where each look finds it out."""

    def _forget(self, layouts: Mapping[str, L]) -> None:
        """Forget what blocked GPUs that are to be something else now."""

    def _state_after(self, _error: DracaenaError) -> LayoutState:
        """Return how a GPU stands after a step failed."""
        return LayoutState.PENDING

    def start(self) -> None:
        """Begin. Nothing is published before the first look has said what is withheld (NodeDevices)."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread. A GPU that is being changed is finished by the next start."""
        self._worker.stop()

    def read_again(self) -> None:
        """Take note that another reading found the last machine."""
        self._readings += 1
        self._worker.notice()

    def _run(self) -> None:
        while self._worker.wait(within_s=LOOK_S):
            try:
                self.look()
            except DracaenaError as error:
                log.warning("layouts not looked after", what=self.what, error=str(error))
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("layouts not looked after by an error of the plugin", what=self.what)

    def look(self) -> None:
        """Bring each GPU a step on. Raises DracaenaError where the GPUs or the journal cannot be read, or it cannot be
        written.
        """
        name = self._ports.name()
        gpus = None if name is None else self._gpus()
        if name is None or gpus is None:
            return
        self._give_back(gpus)
        wished, problem = self._wished(name)
        begun = self._begun()
        layouts = {**begun, **wished}
        self._forget(layouts)
        standings: dict[str, Standing] = {}
        due: list[str] = []
        for each, gpu in gpus.items():
            layout = layouts.get(each)
            if layout is None:
                continue
            settled = None if each in begun or each in self._changed else self._settled(gpu, layout)
            if settled is not None:
                standings[each] = settled
            else:
                due.append(each)
        self._withhold(due)
        for each in due:
            standings[each] = self._go_on(each, gpus[each], layouts[each], begun=each in begun)
        self._ports.tell(_report(name, problem, standings))

    def _wished(self, name: str) -> tuple[Mapping[str, L], str | None]:
        """Return what is to be by the label and the file, and what is wrong with them: then nothing is to be."""
        if not name:
            return {}, None
        try:
            return self._wish(name), None
        except BadInputError as error:
            return {}, str(error)
        except DracaenaError as error:
            return {}, f"it is not known what GPUs these are: {error}"

    def _give_back(self, gpus: Mapping[str, G]) -> None:
        """Give the GPUs back that were changed, and that the last reading shows so. One that was begun before a change
        may come after it: it is over with the second, whatever that shows.
        """
        for name, gpu in gpus.items():
            changed = self._changed.get(name)
            if changed is None:
                continue
            layout, readings = changed
            if self._is_read(gpu, layout) or self._readings >= readings + 2:
                self._rest(name, layout)
                del self._changed[name]

    def _withhold(self, gpus: Collection[str]) -> None:
        self._ports.withhold(gpus)
        self._withheld_s = {name: since_s for name, since_s in self._withheld_s.items() if name in gpus}

    def _go_on(self, name: str, gpu: G, layout: L, *, begun: bool) -> Standing:
        """Change a GPU if its time has come; return how it stands."""
        if name in self._changed:
            return self._is_done(gpu)
        try:
            waiting = None if begun else self._waits_for(name, gpu)
            if waiting is not None:
                return LayoutState.PENDING, waiting
            self._change(gpu, layout)
        except GpuInUseError as error:
            return LayoutState.PENDING, str(error)
        except LayoutBlockedError as error:
            self._remember(gpu, layout, error)
            return LayoutState.FAILED, str(error)
        except DracaenaError as error:
            return self._state_after(error), f"{self._label(gpu)}: {error}"
        self._changed[name] = (layout, self._readings)
        return self._is_done(gpu)

    def _is_done(self, gpu: G) -> Standing:
        self._ports.read_soon()
        return LayoutState.PENDING, f"{self._label(gpu)} is done, and published when the driver was read again"

    def _waits_for(self, name: str, gpu: G) -> str | None:
        """Return what is waited for before a GPU is touched."""
        if not self._ports.is_withheld(name):
            self._withheld_s.pop(name, None)
            return f"the devices of {self._label(gpu)} are being withheld"
        now_s = self._clock.monotonic()
        if now_s - self._withheld_s.setdefault(name, now_s) < SETTLE_S:
            return f"the devices of {self._label(gpu)} are withheld; pods that were given one before are waited for"
        device = self._device(gpu)
        return self._users.holding(device) or self._users.allocated(device)


def _report(name: str, problem: str | None, standings: Mapping[str, Standing]) -> LayoutReport | None:
    if problem is not None:
        return LayoutReport(name, LayoutState.FAILED, problem)
    if not standings:
        return LayoutReport(name, LayoutState.APPLIED, "") if name else None
    found = [state for state, _ in standings.values()]
    worst = next(state for state in (LayoutState.FAILED, LayoutState.PENDING, LayoutState.APPLIED) if state in found)
    texts = dict.fromkeys(text for state, text in standings.values() if state is worst and text)
    return LayoutReport(name, worst, "; ".join(texts))
