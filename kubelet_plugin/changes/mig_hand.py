"""Divides GPUs by MIG, one step of the driver at a time.

Whoever uses it decides which instances are made and destroyed, and notes each before; here is what holds for each of
them. A step that the driver refuses did nothing; one without an answer may have been done, or be done later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.mig_geometry import MigProfile
from dracaena.kubelet_plugin.discovery.mig.instances import IN_USE, GpuInstance, MadeInstance, MigRefusedError
from dracaena.kubelet_plugin.ports import Ask, MigControl

STEP_S: Final = 15.0
"""Longest that one step may take. Creating an instance takes about a second; kubelet allows a call 45 s, and retries.
"""

T = TypeVar("T")

NodesOf = Callable[[int, int], tuple[int, int] | None]
"""GPU instance, compute instance → numbers of the nodes that open it, None if they are not known."""

NoteInstance = Callable[[MadeInstance], None]
"""Notes what is known of an instance from now on. Raises DracaenaError: then the next step must not follow."""

log = structlog.get_logger()


def _no_nodes(_gpu_instance: int, _compute_instance: int) -> None:
    """Nobody needs the nodes."""


class MigHand:
    """From any thread; keeps no state. Callers have the lock of the GPU, which goes by its UUID. Methods raise
    MigRefusedError if the driver refuses a step, and GpuDriverTroubleError or StoppedError without an answer.
    """

    def __init__(self, control: MigControl, ask: Ask) -> None:
        self._control = control
        self._ask = ask

    def mode(self, gpu: str) -> tuple[bool, bool]:
        """Return whether a GPU is in MIG mode, and whether it will be after its next reset."""
        return self._step("reading the MIG mode", lambda: self._control.mode(gpu))

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return the profiles as the driver reports them now: since the last reading it may have been replaced."""
        return self._step("reading MIG profiles", lambda: self._control.profiles(gpu))

    def instances(self, gpu: str, profiles: tuple[MigProfile, ...]) -> tuple[GpuInstance, ...]:
        """Return all GPU instances of these profiles, also those without a compute instance."""
        return self._step("reading GPU instances", lambda: self._control.instances(gpu, profiles))

    def device(self, gpu: str, number: int) -> tuple[int, str] | None:
        """Return the compute instance of a GPU instance and the UUID of its MIG device, None if it has none."""
        return self._step("reading a MIG device", lambda: self._control.mig_device(gpu, number))

    def processes(self, gpu: str) -> tuple[int, ...]:
        """Return the PIDs of processes on a GPU and its MIG devices."""
        return self._step("looking for processes", lambda: self._control.processes(gpu))

    def device_id(self, gpu: str) -> int:
        """Return the PCI ID of a GPU."""
        return self._step("reading a PCI ID", lambda: self._control.device_id(gpu))

    def set_mode(self, gpu: str, *, enabled: bool) -> None:
        """Change the mode."""
        what = "entering MIG mode" if enabled else "leaving MIG mode"
        self._step(what, lambda: self._control.set_mode(gpu, enabled=enabled))

    def leave_mode(self, gpu: str) -> None:
        """Turn MIG mode off if it is on. Raises MigRefusedError with IN_USE if any instance is left, ours or not."""

        def leave() -> None:
            if not any(self._control.mode(gpu)):
                return
            left = self._control.instances(gpu, self._control.profiles(gpu))
            if left:
                raise MigRefusedError(
                    f"GPU instance {left[0].number} ({left[0].profile}) is left: nvmlDeviceSetMigMode", IN_USE
                )
            self._control.set_mode(gpu, enabled=False)

        self._step("leaving MIG mode", leave)

    def make(
        self, gpu: str, profile: MigProfile, made: MadeInstance, note: NoteInstance, nodes_of: NodesOf = _no_nodes
    ) -> MadeInstance:
        """Make an instance with its MIG device, exactly at its place; return all that is known of it. `made` is noted,
        and says how far an earlier try got. `note` is called after each step, also once nothing is left of it.
        """
        what = f"making {made.profile} at {made.start} of GPU {gpu}"
        if made.number is None:
            made = self._make_gpu_instance(gpu, profile, made, note, what)
        assert made.number is not None
        number = made.number
        device = self.device(gpu, number)
        if device is None:
            try:
                slices = profile.compute_slices
                self._step(what, lambda: self._control.create_compute_instance(gpu, number, slices))
            except MigRefusedError:
                self._roll_back(gpu, made, note)
                raise
            device = self.device(gpu, number)
        if device is None:
            raise TemporaryError(f"{made.profile} was made, but the driver shows no MIG device in it yet")
        made = replace(made, uuid=device[1], nodes=nodes_of(number, device[0]))
        note(made)
        return made

    def _make_gpu_instance(
        self, gpu: str, profile: MigProfile, made: MadeInstance, note: NoteInstance, what: str
    ) -> MadeInstance:
        try:
            number = self._step(what, lambda: self._control.create_gpu_instance(gpu, profile, made.placement))
        except MigRefusedError as error:
            if error.did_nothing and error.call.startswith("nvmlDeviceCreate"):
                note(made.as_nothing())
            raise
        made = replace(made, number=number)
        note(made)
        return made

    def _roll_back(self, gpu: str, made: MadeInstance, note: NoteInstance) -> None:
        """Destroy a GPU instance that gets no compute instance: nobody would see it. If that fails, the note stays."""
        assert made.number is not None
        number = made.number
        try:
            self._step("undoing a GPU instance", lambda: self._control.destroy_gpu_instance(gpu, number))
        except DracaenaError as error:
            log.warning("GPU instance without a compute instance stays", gpu=gpu, error=str(error))
            return
        note(made.as_nothing())

    def destroy(self, gpu: str, number: int) -> None:
        """Destroy an instance with its MIG device; one that is gone is fine."""
        what = f"destroying GPU instance {number} of GPU {gpu}"
        try:
            self._step(what, lambda: self._control.destroy_compute_instances(gpu, number))
            self._step(what, lambda: self._control.destroy_gpu_instance(gpu, number))
        except MigRefusedError as error:
            if not error.instance_is_gone:
                raise

    def _step(self, what: str, work: Callable[[], T]) -> T:
        return self._ask(what, work, STEP_S)  # type: ignore[return-value]
