"""The mode of confidential computing as something that a label of the Node asks for: of all GPUs or of none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dracaena.api.confidential import CC_ENABLED_MODES, CC_MODES
from dracaena.api.errors import DracaenaError
from dracaena.api.machine import Machine
from dracaena.api.passthrough import passthrough_device_name
from dracaena.kubelet_plugin.changes.pci_hand import FunctionOpenError
from dracaena.kubelet_plugin.discovery.vm.passthrough import PciBus, PciFunction
from dracaena.kubelet_plugin.labels.cc_mode_changes import CcModeChanges, DriverRefusedError
from dracaena.kubelet_plugin.labels.cc_mode_notes import CcModeNotes
from dracaena.kubelet_plugin.labels.follower import BlockedError, LabelRow, LabelState, StateAndReason
from dracaena.kubelet_plugin.node.devices import EVERY_GPU
from dracaena.kubelet_plugin.ports import NotOfferedError
from dracaena.kubelet_plugin.prepare.journals.cc_modes import NO_MODE, ModeChange, ModeStep, NotedModes, RefusedMode
from dracaena.kubelet_plugin.store.gpu_users import GpuUsers
from dracaena.process.clock import Clock

AGAIN_S: Final = 60.0
"""Pause after a process had a GPU open, and after a GPU did not report its mode: to find that out, NVML is closed and a
program is started."""

_AGAIN: Final = "to try again, remove the label and set it again"

_Modes = Mapping[str, str | None]
"""PCI address → mode of each GPU, None if it is not known."""


@dataclass(frozen=True, slots=True)
class CcModePorts:
    """What is asked of the node."""

    label: str
    """Key of the label."""
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
    read_soon: Callable[[], None]
    """See LiveMachine.read_soon()."""


class CcModes(LabelRow[Machine | None, ModeChange]):
    """The node is the one thing. A goal that has not begun has no drivers yet."""

    name = "cc-modes"

    def __init__(
        self, changes: CcModeChanges, notes: CcModeNotes, users: GpuUsers, ports: CcModePorts, clock: Clock
    ) -> None:
        self._changes = changes
        self._notes = notes
        self._users = users
        self._ports = ports
        self._clock = clock
        self._noted = NotedModes()
        self._modes: _Modes = {}
        self._open: tuple[str, float] | None = None  # who had a GPU open, and when to look again
        self._refused_driver = False  # whether a driver does not take a GPU in its current mode
        self._silent_s: dict[str, float] = {}  # GPUs that did not report their mode, and when to ask again
        self._is_set_anew = False  # whether the label was removed since the modes were read

    def things(self, machine: Machine | None) -> Mapping[str, Machine | None] | None:
        """Return the node. During a change its GPUs may have no driver, and so there may be no reading."""
        return None if machine is None and not self._notes.is_changing() else {EVERY_GPU: machine}

    def is_read(self, _thing: Machine | None, _goal: ModeChange) -> bool:
        """Nothing proves it: a reading that shows the new mode may have begun while GPUs had no driver."""
        return False

    def rest(self, _name: str, goal: ModeChange) -> None:
        """End the change; the modes were read by it."""
        self._is_set_anew = False
        self._notes.end(RefusedMode(goal.refused, goal.problem) if goal.refused else None, only=goal)

    def targets(self, value: str) -> Mapping[str, ModeChange]:
        """Return the change that the label asks for, even if it names no mode."""
        return {EVERY_GPU: ModeChange(value, ModeStep.UNBINDING)}

    def begun(self) -> Mapping[str, ModeChange]:
        """Return the change that is under way."""
        self._noted = self._notes.read()
        if self._noted.asking:
            self._changes.end_asking()
        return {} if self._noted.change is None else {EVERY_GPU: self._noted.change}

    def goals(
        self, begun: Mapping[str, ModeChange], targets: Mapping[str, ModeChange] | None
    ) -> Mapping[str, ModeChange]:
        """Return the change that is under way, whatever the label says by now, or else the one that it asks for."""
        wanted = targets[EVERY_GPU].mode if targets else None
        if self._noted.refused is not None and self._noted.refused.mode != wanted:
            self._notes.refuse(None)
            self._noted = replace(self._noted, refused=None)
        if wanted is None:
            self._is_set_anew, self._open = True, None
        return {EVERY_GPU: self._continued(begun[EVERY_GPU], wanted)} if begun else targets or {}

    def _continued(self, change: ModeChange, wanted: str | None) -> ModeChange:
        """Return how a change goes on: one that is stuck, or that a driver resists, accepts another mode."""
        if change.step is ModeStep.STUCK and wanted != change.mode:
            if wanted not in CC_MODES:
                return self._notes.note(replace(change, mode=NO_MODE))  # the label may come back
            return self._notes.note(replace(change, step=ModeStep.SWITCHING, mode=wanted, problem=""))
        resisted = change.step is ModeStep.BINDING and self._refused_driver
        if resisted and wanted in CC_MODES and wanted != change.mode:
            before = dict.fromkeys(change.drivers, change.mode)
            return self._notes.note(ModeChange(wanted, ModeStep.SWITCHING, change.drivers, before))
        return change

    def settled(self, thing: Machine | None, goal: ModeChange) -> StateAndReason | None:
        """Return the state of a node whose GPUs are in the mode, or cannot be switched to it."""
        if thing is None:
            return LabelState.PENDING, "the GPUs have not been read yet"
        if self._is_set_anew:
            self._noted = self._notes.forget_modes(self._is_held)  # somebody else may have changed them
            self._is_set_anew = False
        bus = self._ports.read_bus()
        gpus = [each for _, each in sorted(bus.functions.items()) if each.is_gpu]
        modes = _known_modes(thing, gpus, self._noted)
        if any(mode != goal.mode for mode in modes.values()):
            obstacle = self._obstacle(goal.mode, thing, bus, gpus)
            if obstacle is not None:
                return LabelState.FAILED, obstacle
        try:
            self._modes = {**modes, **self._asked_modes(gpus, modes)}
        except NotOfferedError as error:
            self._notes.refuse(RefusedMode(goal.mode, str(error)))
            return LabelState.FAILED, f"{error}; {_AGAIN}"
        return (LabelState.APPLIED, "") if set(self._modes.values()) <= {goal.mode} else None

    def _obstacle(self, wanted: str, machine: Machine, bus: PciBus, gpus: Sequence[PciFunction]) -> str | None:
        """Return why the GPUs cannot be switched to the mode of the label, before any was touched."""
        if wanted not in CC_MODES:
            return f"label {self._ports.label} of this node is {wanted[:63]!r}, expected one of {', '.join(CC_MODES)}"
        if self._noted.refused is not None:
            return f"{self._noted.refused.problem}; {_AGAIN}"
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

    def _asked_modes(self, gpus: Sequence[PciFunction], modes: _Modes) -> Mapping[str, str]:
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

    def user(self, _thing: Machine | None) -> str | None:
        """Return who uses a GPU of the node, or may come to use one."""
        if self._open is not None and self._clock.monotonic() < self._open[1]:
            return self._open[0]
        return (
            self._users.holding(None)
            or self._users.allocated(None)
            or self._ports.unclaimed()
            or self._ports.driver_refusal()
        )

    def change(self, _thing: Machine | None, goal: ModeChange) -> ModeChange:
        """Switch the GPUs, or continue from wherever an earlier try left them."""
        self._refused_driver = False
        if self._noted.change is None:
            return self._changes.change(
                goal.mode, list(self._modes), lambda: self._users.holding(None) or self._ports.unclaimed()
            )
        missing = self._ports.missing_program()
        if missing is not None and goal.step in (ModeStep.UNBINDING, ModeStep.SWITCHING):
            raise BlockedError(missing)
        return self._changes.go_on(goal)

    def failed(self, thing: Machine | None, goal: ModeChange, error: DracaenaError) -> LabelState:
        """Remember who has a GPU open, and that a driver refuses one in its mode."""
        if isinstance(error, FunctionOpenError):
            self._open = (str(error), self._clock.monotonic() + AGAIN_S)
        self._refused_driver = isinstance(error, DriverRefusedError)
        return LabelState.FAILED if self._refused_driver else super().failed(thing, goal, error)

    def words(self, _thing: Machine | None) -> str:
        """Return the node."""
        return "this node"

    def differs(self, _thing: Machine | None, goal: ModeChange) -> str:
        """Return in which modes the GPUs are."""
        others = [mode or "not known" for mode in self._modes.values() if mode != goal.mode]
        return f"the mode of {len(others)} of {len(self._modes)} GPUs is {' or '.join(sorted(set(others)))}"


def _known_modes(machine: Machine, gpus: Sequence[PciFunction], noted: NotedModes) -> _Modes:
    """Return the mode of each GPU by address. The mode read after its last reset takes precedence over what the NVIDIA
    driver says.
    """
    by_driver = {gpu.pci_bus_id: gpu.cc_mode for gpu in machine.gpus}
    addresses = [str(each.address) for each in gpus]
    return {address: noted.modes.get(address, by_driver.get(address)) for address in addresses}
