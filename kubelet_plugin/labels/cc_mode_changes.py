"""Switches all GPUs of a node to one mode of confidential computing, noting each step before it is taken.

NVIDIA's program needs GPUs that no driver uses. So the GPU driver is closed for the whole change; each GPU is unbound
from its driver, switched and reset; then the modes of all are read, because the program's report of a switch proves
nothing. Finally each GPU gets its driver back. Even a GPU that is in the mode already is switched: somebody may have
written another mode without the reset, which no answer shows and which takes effect when a virtual machine resets the
GPU.

If a GPU cannot be switched, all are switched back. If that is not certain either, the change is stuck: no claim gets a
GPU of the node until an admin has acted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.kubelet_plugin.changes.pci_hand import FunctionOpenError, PciHand
from dracaena.kubelet_plugin.labels.cc_mode_notes import OF_ANOTHER, CcModeNotes
from dracaena.kubelet_plugin.labels.follower import BlockedError, InUseError
from dracaena.kubelet_plugin.ports import (
    CcModeProgram,
    NodeLock,
    NotOfferedError,
    PciDrivers,
    WriteHangsError,
)
from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeChange, ModeStep, RefusedMode

log = structlog.get_logger()


class ModeRefusedError(BlockedError):
    """The mode cannot be reached. All GPUs are as before, and the note says why."""


class ModeStuckError(BlockedError):
    """The GPUs can be brought neither into the mode nor back. The text says who must act."""


class DriverRefusedError(TemporaryError):
    """All GPUs are in the mode, but a driver does not take one of them back."""


class CcModeChanges:
    """One thread at a time; `lock` keeps out other processes of the plugin."""

    def __init__(
        self,
        program: CcModeProgram,
        drivers: PciDrivers,
        hand: PciHand,
        closed: Callable[[str], AbstractContextManager[None]],
        notes: CcModeNotes,
        lock: NodeLock,
    ) -> None:
        """`closed` keeps the GPU driver closed on
        this node for a block, which the text names (GpuDriverLending.closed).
        """
        self._program = program
        self._drivers = drivers
        self._hand = hand
        self._closed = closed
        self._notes = notes
        self._lock = lock

    def ask(self, addresses: Collection[str], is_held: Callable[[str], bool]) -> Mapping[str, str]:
        """Read the modes of GPUs that a VFIO driver has, unless a claim or a process has them; keep and return them.

        Raises NotOfferedError for a GPU that cannot be in any mode. One that does not answer is left out.
        """
        with self._lock.hold(0):
            closed = [address for address in addresses if not self._may_be_open(address)]
            free = self._notes.begin_asking(closed, is_held)
            if not free:
                return {}
            modes: dict[str, str] = {}
            try:
                for address in free:
                    try:
                        modes[address] = self._program.query(address)
                    except TemporaryError as error:
                        log.warning("mode of confidential computing not known", gpu=address, error=str(error))
            finally:
                self._notes.asked(modes)
        return modes

    def end_asking(self) -> None:
        """Release GPUs whose modes another process was reading when it ended."""
        with self._lock.hold(0):
            self._notes.asked({})

    def change(self, mode: str, addresses: Sequence[str], user: Callable[[], str | None]) -> ModeChange:
        """Switch all GPUs, and return the change in step BINDING: the drivers are back, and the caller calls
        CcModeNotes.end() once the GPUs were read again. `user`: see CcModeNotes.begin().

        Raises FunctionOpenError and InUseError, then nothing was begun, and what go_on() raises.
        """
        with self._lock.hold(0), self._closed(f"switching the GPUs to mode {mode} of confidential computing"):
            functions = [self._hand.get(address) for address in addresses]
            for function in functions:
                self._hand.refuse_while_open(function)
            drivers = {str(each.address): each.driver or "" for each in functions}
            return self._finished(self._notes.begin(mode, drivers, user))

    def go_on(self, change: ModeChange) -> ModeChange:
        """Finish a change that was begun, from any point; return it as change() does.

        Raises ModeRefusedError and FunctionOpenError, which end it; ModeStuckError; and other DracaenaErrors, after
        which to retry.
        """
        if change.step is ModeStep.STUCK:
            raise ModeStuckError(change.problem)
        for address in change.drivers:
            self._refuse_while_writing(address)
        with self._lock.hold(0):
            if self._notes.read().change != change:
                raise InUseError(OF_ANOTHER)
            with self._closed(f"switching the GPUs to mode {change.mode} of confidential computing"):
                return self._finished(self._with_drivers(change))

    def _with_drivers(self, change: ModeChange) -> ModeChange:
        """Return a change that a reboot has interrupted, with the current drivers noted."""
        if change.drivers or change.step is ModeStep.BINDING:
            return change
        functions = self._drivers.read().functions
        drivers = {str(address): each.driver or "" for address, each in sorted(functions.items()) if each.is_gpu}
        return self._notes.note(replace(change, drivers=drivers))

    def _finished(self, change: ModeChange) -> ModeChange:
        if change.step is ModeStep.UNBINDING:
            change = self._unbound(change)
        if change.step is ModeStep.SWITCHING:
            for address in change.drivers:
                self._unbind(address)
            change = self._switched(change)
        self._give_back(change)
        return change

    def _unbound(self, change: ModeChange) -> ModeChange:
        """Unbind the GPUs from their drivers and note their modes. If that fails, nothing was switched."""
        try:
            for address in change.drivers:
                self._unbind(address)
            before = {address: self._program.query(address) for address in change.drivers}
        except WriteHangsError:
            raise
        except FunctionOpenError:
            self._give_back(change)
            self._notes.end()
            raise
        except (TemporaryError, NotOfferedError) as error:
            self._give_back(change)
            self._notes.end(RefusedMode(change.mode, str(error)))
            raise ModeRefusedError(str(error)) from error
        return self._notes.note(replace(change, step=ModeStep.SWITCHING, before=before))

    def _switched(self, change: ModeChange) -> ModeChange:
        """Switch all GPUs and check each; on failure switch them back."""
        try:
            for address in change.drivers:
                self._program.switch(address, change.mode)
            modes = {address: self._program.query(address) for address in change.drivers}
        except WriteHangsError:
            raise
        except (TemporaryError, NotOfferedError) as error:
            return self._switched_back(change, str(error))
        wrong = [f"the GPU at {address} is in mode {mode}" for address, mode in modes.items() if mode != change.mode]
        if wrong:
            return self._switched_back(change, f"{', '.join(wrong)} after it was reset, expected {change.mode}")
        return self._notes.note(replace(change, step=ModeStep.BINDING), modes)

    def _switched_back(self, change: ModeChange, problem: str) -> ModeChange:
        """Switch all GPUs to the one mode that they had. A GPU that cannot be switched may change with its next reset,
        so its answer alone proves nothing. Raises ModeStuckError.
        """
        log.warning("GPUs are switched back", mode=change.mode, problem=problem)
        found, problems = "", []
        for address in change.drivers:
            before = change.before.get(address, "")
            try:
                if before:
                    self._program.switch(address, before)
                mode = self._program.query(address)
            except WriteHangsError:
                raise
            except (TemporaryError, NotOfferedError) as error:
                problems.append(str(error))
                continue
            found = found or mode
            if mode not in (before, "") or mode != found:
                problems.append(f"the GPU at {address} is in mode {mode}")
        if found and not problems:
            return self._notes.note(
                replace(change, mode=found, step=ModeStep.BINDING, problem=problem, refused=change.mode),
                dict.fromkeys(change.drivers, found),
            )
        words = (
            f"{problem}; and the GPUs could not all be brought back into one mode: {'; '.join(problems) or 'none'}. No "
            "claim gets a GPU of this node. Bring all of them into one mode with NVIDIA's program, or restart "
            "the node, then remove the label and set it again"
        )
        self._notes.note(replace(change, step=ModeStep.STUCK, problem=words))
        raise ModeStuckError(words)

    def _unbind(self, address: str) -> None:
        self._refuse_while_writing(address)
        function = self._hand.get(address)
        if function.driver is not None:
            self._hand.release(address, function)
            self._hand.expect(address, None)

    def _refuse_while_writing(self, address: str) -> None:
        if self._drivers.is_writing(address):
            raise WriteHangsError(f"an earlier step for the GPU at {address} has not ended: look at `dmesg`")

    def _give_back(self, change: ModeChange) -> None:
        """Bind the GPUs to the drivers that they had. One that somebody else has bound meanwhile stays bound."""
        for address, driver in reversed(tuple(change.drivers.items())):
            function = self._hand.find(address)
            if function is None or function.driver is not None or not driver:
                continue
            if not self._drivers.is_loaded(driver):
                log.warning("the driver that a GPU had is not loaded", gpu=address, driver=driver)
                continue
            try:
                self._hand.bind(address, address, driver)
            except WriteHangsError:
                raise
            except TemporaryError as error:
                raise DriverRefusedError(
                    f"the GPUs are in mode {change.mode}, and {error}. Bind it to another driver (vfio-pci), or "
                    "remove the label and set it to the former mode"
                ) from error

    def _may_be_open(self, address: str) -> bool:
        """Whether a process has a GPU open, such as a virtual machine without a claim, or that is not known."""
        try:
            self._hand.refuse_while_open(self._hand.get(address))
        except TemporaryError as error:
            log.info("a GPU is not asked for its mode", gpu=address, reason=str(error))
            return True
        return False
