"""Reconciles the GPUs of this node with the layout that its label names, changing each GPU when it is idle, for any
kind of parts that GPUs are divided into.

A GPU whose layout must change is first withheld by a taint on its devices; otherwise seven small pods could keep it
busy forever by taking turns. The change waits for allocations from before the taint and for running pods to end. Then
the GPU is changed, and published as before once the node was read again.
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
"""Pause between two looks. A look reads a small file and compares values; the driver is asked only about GPUs that are
not as they should be."""

SETTLE_S: Final = 30.0
"""How long the taint must have been on a GPU's devices before it is changed: by then an earlier allocation has its pod
bound here, or kube-scheduler has rejected it. The controller takes such an allocation back after the same time."""

StateAndReason = tuple["LayoutState", str]
"""State of one GPU, and why."""

G = TypeVar("G")
"""A GPU as last read."""
L = TypeVar("L")
"""The layout of one GPU. Equal values mean the same."""

log = structlog.get_logger()


class LayoutState(enum.Enum):
    """The state of a layout; for a node, the last of these that any of its GPUs is in."""

    APPLIED = "Applied"
    PENDING = "Pending"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class LayoutReport:
    """What is to be reported."""

    layout: str
    state: LayoutState
    reason: str
    """Empty if it is applied."""


@dataclass(frozen=True, slots=True)
class LayoutPorts:
    """What the layouts are connected to. A GPU has the name that its journal uses."""

    name: Callable[[], str | None]
    """The layout that this node should have, empty: none; None while that is not known."""
    withhold: Callable[[Collection[str]], None]
    """See NodeDevices.withhold()."""
    is_withheld: Callable[[str], bool]
    """Whether the API server shows all devices of a GPU with the taint."""
    read_soon: Callable[[], None]
    """See LiveMachine.read_soon()."""
    tell: Callable[[LayoutReport | None], None]
    """Called after each look; None: there is no layout."""


class LayoutRounds(ABC, Generic[G, L]):
    """Has a thread of its own; read_again() and look_soon() are for any thread."""

    what: str
    """The kind of layouts, for the log."""

    def __init__(self, users: GpuUsers, ports: LayoutPorts, clock: Clock, thread: str) -> None:
        self._users = users
        self._ports = ports
        self._clock = clock
        self._readings = 0
        # Only for the thread that looks:
        self._withheld_s: dict[str, float] = {}  # since when each GPU was seen to be withheld
        self._changed: dict[str, tuple[L, int]] = {}  # changed but not read since: layout, number of readings by then
        self._worker = Worker(thread, self._run, clock)

    @abstractmethod
    def _gpus(self) -> Mapping[str, G] | None:
        """Return the GPUs of this node by name; None while they are not known. Raises DracaenaError."""

    @abstractmethod
    def _target_layouts(self, name: str) -> Mapping[str, L]:
        """Return the target layout of each GPU by the layout of the node. Raises BadInputError if that is impossible,
        DracaenaError if it is not known whether it is possible.
        """

    @abstractmethod
    def _begun(self) -> Mapping[str, L]:
        """Return the layouts that GPUs are being changed to. Raises DracaenaError if the journal cannot be read."""

    def _still_wanted(self, begun: Mapping[str, L], _targets: Mapping[str, L]) -> Mapping[str, L]:
        """Drop changes that the layout of the node does not want any more and that have changed nothing; return the
        others.
        """
        return begun

    @abstractmethod
    def _is_read(self, gpu: G, layout: L) -> bool:
        """Whether the last reading of the node shows a GPU in its layout."""

    @abstractmethod
    def _settled(self, gpu: G, layout: L) -> StateAndReason | None:
        """Return the state of a GPU that needs no change, or cannot be changed; None for all others. Not called for a
        GPU whose change has begun.
        """

    @abstractmethod
    def _change(self, gpu: G, layout: L) -> None:
        """Change a GPU. Raises GpuInUseError, LayoutBlockedError, and DracaenaError for what is retried."""

    @abstractmethod
    def _rest(self, name: str, layout: L) -> None:
        """Release a GPU that was changed and read since."""

    @abstractmethod
    def _device(self, gpu: G) -> DeviceName:
        """Return the name of a GPU in GpuUsers."""

    @abstractmethod
    def _label(self, gpu: G) -> str:
        """Return the name of a GPU in messages."""

    def _remember(self, gpu: G, layout: L, error: LayoutBlockedError) -> None:
        """Remember what blocks a GPU. Does nothing if each look finds that out anyway."""

    def _forget(self, layouts: Mapping[str, L]) -> None:
        """Forget what blocked GPUs that have another target now."""

    def _state_after(self, _error: DracaenaError) -> LayoutState:
        """Return the state of a GPU after a step failed."""
        return LayoutState.PENDING

    def start(self) -> None:
        """Begin. Nothing is published before the first look has said what is withheld (NodeDevices)."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread. The next start finishes a GPU that is being changed."""
        self._worker.stop()

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
            except DracaenaError as error:
                log.warning("layouts not checked", what=self.what, error=str(error))
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("layouts not checked: internal error of the plugin", what=self.what)

    def look(self) -> None:
        """Take each GPU one step further. Raises DracaenaError if the GPUs cannot be read, or the journal cannot be
        read or written.
        """
        name = self._ports.name()
        gpus = None if name is None else self._gpus()
        if name is None or gpus is None:
            return
        self._give_back(gpus)
        targets, problem = self._targets_or_problem(name)
        begun = self._begun()
        if problem is None:
            begun = self._still_wanted(begun, targets)
        layouts = {**begun, **targets}
        self._forget(layouts)
        states: dict[str, StateAndReason] = {}
        due: list[str] = []
        for each, gpu in gpus.items():
            layout = layouts.get(each)
            if layout is None:
                continue
            settled = None if each in begun or each in self._changed else self._settled(gpu, layout)
            if settled is not None:
                states[each] = settled
            else:
                due.append(each)
        self._withhold(due)
        for each in due:
            states[each] = self._go_on(each, gpus[each], layouts[each], begun=each in begun)
        self._ports.tell(_report(name, problem, states))

    def _targets_or_problem(self, name: str) -> tuple[Mapping[str, L], str | None]:
        """Return the target layouts by the label and the file, or none and what is wrong with label or file."""
        if not name:
            return {}, None
        try:
            return self._target_layouts(name), None
        except BadInputError as error:
            return {}, str(error)
        except DracaenaError as error:
            return {}, f"it is not known what GPUs these are: {error}"

    def _give_back(self, gpus: Mapping[str, G]) -> None:
        """Release the GPUs that were changed and that the last reading shows like that. A reading that began before a
        change may end after it, so the second one ends the wait, whatever it shows.
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

    def _go_on(self, name: str, gpu: G, layout: L, *, begun: bool) -> StateAndReason:
        """Change a GPU if it may be changed now; return its state."""
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

    def _is_done(self, gpu: G) -> StateAndReason:
        self._ports.read_soon()
        return LayoutState.PENDING, f"{self._label(gpu)} is done; published once the driver has been read again"

    def _waits_for(self, name: str, gpu: G) -> str | None:
        """Return what to wait for before a GPU is touched."""
        if not self._ports.is_withheld(name):
            self._withheld_s.pop(name, None)
            return f"the devices of {self._label(gpu)} are being withheld"
        now_s = self._clock.monotonic()
        if now_s - self._withheld_s.setdefault(name, now_s) < SETTLE_S:
            return f"the devices of {self._label(gpu)} are withheld; waiting for pods that already have one"
        device = self._device(gpu)
        return self._users.holding(device) or self._users.allocated(device)


def _report(name: str, problem: str | None, states: Mapping[str, StateAndReason]) -> LayoutReport | None:
    if problem is not None:
        return LayoutReport(name, LayoutState.FAILED, problem)
    if not states:
        return LayoutReport(name, LayoutState.APPLIED, "") if name else None
    found = [state for state, _ in states.values()]
    worst = next(state for state in (LayoutState.FAILED, LayoutState.PENDING, LayoutState.APPLIED) if state in found)
    texts = dict.fromkeys(text for state, text in states.values() if state is worst and text)
    return LayoutReport(name, worst, "; ".join(texts))
