"""Keeps the GPUs of this node in the mode of confidential computing that its label names, switching when all are idle.

The mode concerns the whole node: all GPUs or none. While the label names another mode than they have, a taint withholds
all devices. The switch waits for earlier allocations and running pods to end; then the GPUs are switched
(CcModeChanges), and published as before once they were read again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from dracaena.api.confidential import CC_ENABLED_MODES, CC_MODES
from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.api.machine import Machine
from dracaena.api.passthrough import passthrough_device_name
from dracaena.kubelet_plugin.cc_modes.changes import (
    CcModeChanges,
    DriverRefusedError,
    ModeRefusedError,
    ModeStuckError,
)
from dracaena.kubelet_plugin.cc_modes.journals import CcModeJournals
from dracaena.kubelet_plugin.changes.pci_hand import FunctionOpenError
from dracaena.kubelet_plugin.discovery.vm.passthrough import PciBus, PciFunction
from dracaena.kubelet_plugin.ports import NotOfferedError
from dracaena.kubelet_plugin.prepare.journals.cc_modes import NO_MODE, CcModeJournal, ModeChange, ModeStep, RefusedMode
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from dracaena.kubelet_plugin.worker import Worker
from dracaena.process.clock import Clock

LOOK_S: Final = 10.0
"""Pause between two looks. A look reads two small files and /sys."""

SETTLE_S: Final = 30.0
"""How long the taint must have been on all devices before the GPUs are switched: by then an earlier allocation has its
pod bound here, or kube-scheduler has rejected it. The controller takes such an allocation back after the same time."""

AGAIN_S: Final = 60.0
"""Pause after a process had a GPU open, and after a GPU did not report its mode: to find that out, NVML is closed and a
program is started."""

_AGAIN: Final = "to try again, remove the label and set it again"

log = structlog.get_logger()


class ModeState(enum.Enum):
    """The state of a mode."""

    APPLIED = "Applied"
    PENDING = "Pending"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ModeReport:
    """What is to be reported."""

    mode: str
    state: ModeState
    reason: str = ""
    """Empty if it is applied."""


@dataclass(frozen=True, slots=True)
class ModePorts:
    """What the modes are connected to."""

    label: str
    """Key of the label."""
    labels: Callable[[], Mapping[str, str] | None]
    """Labels of this Node; None before it was seen."""
    missing_program: Callable[[], str | None]
    """Return why nothing can be switched on this node: no program for it (CcModeProgram.missing), or no way to see who
    has a GPU open.
    """
    read_bus: Callable[[], PciBus]
    runs_confidential_guests: Callable[[], bool]
    keeps_mig_devices: bool
    """Whether MIG devices are an admin's: a reset would end them."""
    unclaimed: Callable[[], str | None]
    """Return which GPU VFIO still has for a claim that has ended, None if there is none: it may be given back at any
    moment. Raises DracaenaError.
    """
    driver_refusal: Callable[[], str | None]
    """Who has requested that the GPU driver be released."""
    withhold: Callable[[bool], None]
    """Withhold all devices of the node, or none any more (NodeDevices.withhold)."""
    is_withheld: Callable[[], bool]
    """Whether the API server shows all devices of the node with the taint."""
    read_soon: Callable[[], None]
    """See LiveMachine.read_soon()."""
    tell: Callable[[ModeReport | None], None]
    """Called after each look; None: no mode is requested."""


class CcModes:
    """Has a thread of its own; take() and read_again() are for the thread that reads, look_soon() is for any."""

    def __init__(
        self, changes: CcModeChanges, journals: CcModeJournals, users: GpuUsers, ports: ModePorts, clock: Clock
    ) -> None:
        self._changes = changes
        self._journals = journals
        self._users = users
        self._ports = ports
        self._clock = clock
        self._machine: Machine | None = None  # replaced whole
        self._readings = 0
        # Only for the thread that looks:
        self._withheld_s: float | None = None  # since when all devices were seen to be withheld
        self._bound: tuple[ModeChange, int] | None = None  # a change that only waits for a reading; readings before it
        self._open: tuple[str, float] | None = None  # who had a GPU open, and when to look again
        self._refused_driver = False  # whether a driver does not take a GPU in its current mode
        self._silent_s: dict[str, float] = {}  # GPUs that did not report their mode, and when to ask again
        self._is_set_anew = False  # whether the label was removed since the modes were read
        self._worker = Worker("cc-modes", self._run, clock)

    def start(self) -> None:
        """Begin. Nothing is published before the first look has said whether devices are withheld (NodeDevices)."""
        self._worker.start()

    def stop(self) -> None:
        """End the thread. The next start finishes a change that is under way."""
        self._worker.stop()

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
                self._ports.tell(ModeReport(NO_MODE, ModeState.FAILED, str(error)))
            except DracaenaError as error:
                log.warning("modes of confidential computing not checked", error=str(error))
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("modes of confidential computing not checked: internal error of the plugin")

    def look(self) -> None:
        """Take the node one step further. Raises DracaenaError if the journal cannot be read or written."""
        labels = self._ports.labels()
        if labels is None:
            return
        wanted = labels.get(self._ports.label)
        self._is_set_anew |= wanted is None
        journal = self._journals.read()
        if journal.refused is not None and journal.refused.mode != wanted:
            self._journals.refuse(None)
            journal = replace(journal, refused=None)
        if journal.asking:
            self._changes.end_asking()
        if journal.change is not None:
            self._ports.withhold(True)
            self._ports.tell(self._finish(journal.change, wanted))
        elif self._machine is not None:
            self._ports.tell(self._begin(self._machine, wanted, journal))

    def _finish(self, change: ModeChange, wanted: str | None) -> ModeReport:
        """Continue a change that was begun, whatever the label says by now."""
        if change.step is ModeStep.STUCK:
            if wanted == change.mode:
                return ModeReport(change.mode, ModeState.FAILED, change.problem)
            if wanted not in CC_MODES:
                if change.mode != NO_MODE:
                    self._journals.note(replace(change, mode=NO_MODE))  # the label may come back
                return ModeReport(wanted or NO_MODE, ModeState.FAILED, change.problem)
            change = self._journals.note(replace(change, step=ModeStep.SWITCHING, mode=wanted, problem=""))
        if change.step is ModeStep.BINDING and wanted in CC_MODES and wanted != change.mode and self._refused_driver:
            before = dict.fromkeys(change.drivers, change.mode)
            change = self._journals.note(ModeChange(wanted, ModeStep.SWITCHING, change.drivers, before))
        if self._bound is not None and self._bound[0] != change:
            self._bound = None  # the other instance during an upgrade has begun another one
        missing = None if change.step is ModeStep.BINDING else self._ports.missing_program()
        if missing is not None:
            return ModeReport(change.mode, ModeState.FAILED, missing)
        return self._carried_out(change.refused or change.mode, lambda: self._changes.go_on(change))

    def _carried_out(self, mode: str, work: Callable[[], ModeChange]) -> ModeReport:
        """Switch the GPUs unless that was done, and wait for a reading of their new state."""
        try:
            if self._bound is None:
                self._bound = (work(), self._readings)
        except (ModeRefusedError, ModeStuckError, DriverRefusedError) as error:
            self._refused_driver = isinstance(error, DriverRefusedError)
            return ModeReport(mode, ModeState.FAILED, str(error))
        except FunctionOpenError as error:
            self._open = (str(error), self._clock.monotonic() + AGAIN_S)
            return ModeReport(mode, ModeState.PENDING, str(error))
        except DracaenaError as error:
            return ModeReport(mode, ModeState.PENDING, str(error))
        change, readings = self._bound
        if self._readings < readings + 2:  # a reading that began before the change may end after it
            self._ports.read_soon()
            return ModeReport(mode, ModeState.PENDING, "done; published once the GPUs have been read again")
        self._bound, self._is_set_anew = None, False  # the modes were read by the change
        refused = RefusedMode(change.refused, change.problem) if change.refused else None
        self._journals.end(refused)
        self._ports.withhold(False)
        if refused is not None:
            return ModeReport(mode, ModeState.FAILED, f"{refused.problem}; {_AGAIN}")
        return ModeReport(mode, ModeState.APPLIED)

    def _begin(self, machine: Machine, wanted: str | None, journal: CcModeJournal) -> ModeReport | None:
        """Withhold the GPUs if they differ and can be switched, and switch them once nothing uses them."""
        self._bound = None  # the other instance during an upgrade has ended it
        if wanted is None:
            self._released()
            return None
        if self._is_set_anew:
            journal = self._journals.forget_modes(self._is_held)  # somebody else may have changed them
            self._is_set_anew = False
        bus = self._ports.read_bus()
        gpus = [each for _, each in sorted(bus.functions.items()) if each.is_gpu]
        modes = _known_modes(machine, gpus, journal)
        if any(mode != wanted for mode in modes.values()):
            obstacle = self._obstacle(wanted, machine, bus, gpus, journal)
            if obstacle is not None:
                self._released()
                return ModeReport(wanted, ModeState.FAILED, obstacle)
        try:
            modes = {**modes, **self._asked_modes(gpus, modes)}
        except NotOfferedError as error:
            self._journals.refuse(RefusedMode(wanted, str(error)))
            self._released()
            return ModeReport(wanted, ModeState.FAILED, f"{error}; {_AGAIN}")
        others = [mode or "not known" for mode in modes.values() if mode != wanted]
        if not others:
            self._released()
            return ModeReport(wanted, ModeState.APPLIED)
        self._ports.withhold(True)
        differs = f"the mode of {len(others)} of {len(modes)} GPUs is {' or '.join(sorted(set(others)))}"
        waiting = self._waits_for()
        if waiting is not None:
            return ModeReport(wanted, ModeState.PENDING, f"{differs}; {waiting}")
        report = self._carried_out(
            wanted,
            lambda: self._changes.change(
                wanted, list(modes), lambda: self._users.holding(None) or self._ports.unclaimed()
            ),
        )
        if self._journals.read().change is None:  # refused, or somebody came first
            self._ports.withhold(report.state is ModeState.PENDING)
        return report

    def _released(self) -> None:
        self._ports.withhold(False)
        self._withheld_s = self._open = None

    def _obstacle(
        self, wanted: str, machine: Machine, bus: PciBus, gpus: Sequence[PciFunction], journal: CcModeJournal
    ) -> str | None:
        """Return why the GPUs cannot be switched to the mode of the label, before any was touched."""
        if wanted not in CC_MODES:
            return f"label {self._ports.label} of this node is {wanted[:63]!r}, expected one of {', '.join(CC_MODES)}"
        if journal.refused is not None:
            return f"{journal.refused.problem}; {_AGAIN}"
        enabled = wanted in CC_ENABLED_MODES
        incapable = {gpu.pci_bus_id for gpu in machine.gpus if gpu.cc_capable is False} if enabled else set()
        if enabled and not self._ports.runs_confidential_guests():
            return "KVM runs no confidential guests on this host: turn on Intel TDX or AMD SEV-SNP"
        for gpu in gpus:
            if gpu.has_console:
                return f"the GPU at {gpu.address} drives the machine's display, and either all GPUs change or none"
            if gpu.virtual_functions or str(gpu.address) in machine.vgpu_parents:
                return f"the GPU at {gpu.address} has virtual functions or vGPUs, which a reset would end"
            if str(gpu.address) in incapable:
                return f"the NVIDIA driver says that the GPU at {gpu.address} cannot compute confidentially"
        if machine.mig_devices and self._ports.keeps_mig_devices:
            return "GPUs of this node have MIG devices that an admin made, and a reset ends them: destroy them first"
        if bus.unreadable:
            return f"the GPU at {bus.unreadable[0].address} cannot be read: {bus.unreadable[0].reason}"
        return self._ports.missing_program()

    def _asked_modes(self, gpus: Sequence[PciFunction], modes: Mapping[str, str | None]) -> Mapping[str, str]:
        """Read the unknown modes of GPUs that a VFIO driver has and no claim; return them. Raises NotOfferedError for a
        GPU without modes.
        """
        now_s = self._clock.monotonic()
        unknown = [
            str(each.address)
            for each in gpus
            if modes[str(each.address)] is None
            and each.has_vfio_driver
            and now_s >= self._silent_s.get(str(each.address), now_s)
        ]
        if not unknown:
            return {}
        found = self._changes.ask(unknown, self._is_held)
        self._silent_s |= dict.fromkeys(set(unknown).difference(found), now_s + AGAIN_S)
        if found:
            self._ports.read_soon()
        return found

    def _is_held(self, address: str) -> bool:
        return self._users.holding(passthrough_device_name(address)) is not None

    def _waits_for(self) -> str | None:
        """Return what is waited for before a GPU is touched."""
        now_s = self._clock.monotonic()
        if not self._ports.is_withheld():
            self._withheld_s = None
            return "the devices of this node are being withheld"
        if self._withheld_s is None:
            self._withheld_s = now_s
        if now_s - self._withheld_s < SETTLE_S:
            return "the devices of this node are withheld; waiting for pods that already have one"
        if self._open is not None and now_s < self._open[1]:
            return self._open[0]
        return (
            self._users.holding(None)
            or self._users.allocated(None)
            or self._ports.unclaimed()
            or self._ports.driver_refusal()
        )


def _known_modes(machine: Machine, gpus: Sequence[PciFunction], journal: CcModeJournal) -> Mapping[str, str | None]:
    """Return the mode of each GPU by address, None if it is not known. The mode read after its last reset takes
    precedence over what the NVIDIA driver says.
    """
    by_driver = {gpu.pci_bus_id: gpu.cc_mode for gpu in machine.gpus}
    addresses = [str(each.address) for each in gpus]
    return {address: journal.modes.get(address, by_driver.get(address)) for address in addresses}
