"""Creates the MIG instances of claims at exact places, and destroys only those that it created.

The claim's journal says whether an instance is ours: `making` is noted before the driver is asked for it, its number
afterwards. An instance at a place without that note is somebody else's, and stays. A step that the driver refuses did
nothing, so its note is removed; a step without an answer may have been done, so its note stays.

If the journal was lost with the claim's checkpoint, the one that replaces it notes nothing. Then the record beside it
(MigDeviceRecords) says what was made for this claim: an instance is ours if its MIG device is the recorded one. It is
taken as it is, because containers may be using it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

import structlog

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.host.facts.troubles import GpuDriverTroubleError, TroubleKind
from dracaena.host.gpu_driver.thread import StoppedError, WedgedError
from dracaena.kubelet_plugin.discovery.mig.instances import IN_USE, GpuInstance, MigRefusedError
from dracaena.kubelet_plugin.discovery.mig.on_demand import changes_mode_at_once
from dracaena.kubelet_plugin.discovery.vm.passthrough import why_divided_by_mig
from dracaena.kubelet_plugin.effects.mig_device_records import MigDeviceRecords
from dracaena.kubelet_plugin.ports import EffectPendingError, GpuGoneError
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar

STEP_S: Final = 15.0
"""Longest that one step may take. Creating an instance takes about a second; kubelet allows a call 45 s, and retries.
"""

T = TypeVar("T")

Note = Callable[[Mapping[str, Scalar]], None]

log = structlog.get_logger()


class MigControl(Protocol):
    """Changes GPUs (adapters.nvml.mig_control). For the driver's thread; methods raise MigRefusedError."""

    def mode(self, gpu: str) -> tuple[bool, bool]:
        """Return whether a GPU is in MIG mode, and whether it will be after its next reset."""
        ...

    def set_mode(self, gpu: str, *, enabled: bool) -> None:
        """Change the mode, and verify that it is in force."""
        ...

    def profiles(self, gpu: str) -> tuple[MigProfile, ...]:
        """Return how a GPU can be divided, as its driver reports now."""
        ...

    def instances(self, gpu: str, profiles: tuple[MigProfile, ...]) -> tuple[GpuInstance, ...]:
        """Return all GPU instances, including those without a compute instance."""
        ...

    def create_gpu_instance(self, gpu: str, profile: MigProfile, placement: MigPlacement) -> int:
        """Create one exactly at this placement; return its number."""
        ...

    def create_compute_instance(self, gpu: str, gpu_instance_id: int, compute_slices: int) -> None:
        """Create the compute instance that has all slices of a GPU instance."""
        ...

    def mig_device(self, gpu: str, gpu_instance_id: int) -> tuple[int, str] | None:
        """Return the compute instance of a GPU instance, and the UUID of its MIG device."""
        ...

    def destroy_compute_instances(self, gpu: str, gpu_instance_id: int) -> None:
        """Destroy the compute instances of a GPU instance."""
        ...

    def destroy_gpu_instance(self, gpu: str, gpu_instance_id: int) -> None:
        """Destroy a GPU instance without a compute instance."""
        ...


Ask = Callable[[str, Callable[[], T], float], T]
AccessMinors = Callable[[int, int, int], tuple[int, int] | None]
"""GPU minor, GPU instance, compute instance → numbers of the nodes that open it (adapters.mig_access)."""


class MigInstances:
    """Implements NotingEffectMeans for MIG_INSTANCE. From any thread; keeps no state."""

    def __init__(
        self,
        control: MigControl,
        ask: Callable[[str, Callable[[], object], float], object],
        read_gpu: Callable[[str], Gpu],
        access_minors: AccessMinors,
        records: MigDeviceRecords,
        touch: Callable[[DeviceName], None] = lambda _place: None,
    ) -> None:
        """`ask` runs a step in the driver's thread (LiveMachine.ask). `read_gpu` returns a GPU as last read; it raises
        GpuGoneError if the node does not have it, and TemporaryError before the first reading. `touch` is called with
        each place where something is about to change, or did.
        """
        self._control = control
        self._ask = ask
        self._read_gpu = read_gpu
        self._access_minors = access_minors
        self._records = records
        self._touch = touch

    def apply_noting(self, effect: Effect, _others: Sequence[Effect], note: Note) -> Mapping[str, Scalar]:
        """See NotingEffectMeans. Raises PermanentError for a place that the GPU cannot have.

        Raises EffectPendingError while the driver does not answer: it may still carry out the step.
        """
        gpu, profile, placement = self._wanted(effect)
        try:
            self._touch(effect.device)
            number = self._gpu_instance(effect, gpu, profile, placement, note)
            outcome = self._compute_instance(effect, gpu, profile, number, note)
        except (WedgedError, StoppedError) as error:
            raise EffectPendingError(f"{effect} is not ready yet: {error}") from error
        self._records.note(effect, outcome)
        return outcome

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        """See EffectMeans. Raises TemporaryError while a process uses the instance, or the driver does not answer.

        An instance counts as undone if its GPU is gone, or the driver that made it is no longer loaded. While the
        driver is released it counts as undone too: it goes with the driver, or belongs to nobody afterwards (MigTaken).
        """
        was_there = False
        try:
            was_there = self._undo(effect, others)
        except DracaenaError as error:
            if not self._went_with_gpu(str(effect.parameters["gpu"]), error):
                raise
            log.warning("MIG device is left behind", effect=str(effect), reason=str(error))
        if effect.outcome or was_there:
            self._records.forget(effect.device)

    def is_recorded(self, effect: Effect, claim: ClaimUid) -> bool:
        """See RecordedEffectMeans."""
        return self._records.made_for(claim, effect) is not None

    def destroy(self, effect: Effect, others: Sequence[Effect]) -> bool:
        """Destroy a MIG device that only its record knows; return whether it was there. Raises DracaenaError, also if
        its GPU is gone or the driver may not be asked.
        """
        return self._undo(effect, others)

    def _went_with_gpu(self, gpu: str, error: DracaenaError) -> bool:
        """Whether the error of a step means that the GPU is gone, or may not be asked any more."""
        if isinstance(error, GpuDriverTroubleError):
            return error.reason in (TroubleKind.RELEASED, TroubleKind.NOT_LOADED)
        return isinstance(error, MigRefusedError) and (
            (error.gpu_is_gone and self._is_still_gone(gpu)) or self._is_left_out(gpu)
        )

    def _is_still_gone(self, gpu: str) -> bool:
        """Whether a GPU that one step called gone does not answer: a GPU that does still has its instances."""
        try:
            self._step("reading the MIG mode", lambda: self._control.mode(gpu))
        except MigRefusedError as error:
            return error.gpu_is_gone
        except DracaenaError:
            return False
        return False

    def _is_left_out(self, gpu: str) -> bool:
        """Whether the node was read and lacks a GPU. That alone is no proof: the first reading may have been early."""
        try:
            self._read_gpu(gpu)
        except TemporaryError as error:
            return isinstance(error, GpuGoneError)
        return False

    def _undo(self, effect: Effect, others: Sequence[Effect]) -> bool:
        """Destroy what an effect made, and make its GPU whole if nothing is left on it; return whether there was
        something to destroy.
        """
        noted = self._noted(effect)
        uuid = str(effect.parameters["gpu"])
        # First, because it needs no reading: after a restart there is none while the driver is released.
        if not any(self._step("reading the MIG mode", lambda: self._control.mode(uuid))):
            return False
        gpu = self._read_gpu(uuid)
        profiles = self._profiles(gpu, must_know=str(effect.parameters["profile"]) if noted else None)
        found = self._found(gpu, profiles)
        mine = self._mine(effect, gpu, noted, found) if noted else None
        if mine is not None:
            self._destroy(effect, gpu, mine)
            self._touch(effect.device)
            found = tuple(each for each in found if each is not mine)
        if not others and not found:
            self._become_whole(gpu)
        return mine is not None

    def _wanted(self, effect: Effect) -> tuple[Gpu, MigProfile, MigPlacement]:
        given = effect.parameters
        gpu = self._read_gpu(str(given["gpu"]))
        placement = MigPlacement(int(given["start"]), int(given["size"]))
        profile = next((each for each in gpu.mig_profiles if each.name == given["profile"]), None)
        if profile is None:
            offered = ", ".join(each.name for each in gpu.mig_profiles) or "none"
            raise TemporaryError(
                f"GPU {gpu.uuid} has no MIG profile {given['profile']} as it was last read; its profiles: {offered}"
            )
        if placement not in profile.placements:
            starts = ", ".join(str(each.start) for each in profile.placements)
            raise PermanentError(
                f"GPU {gpu.uuid} has no place for MIG profile {profile.name} at memory slice {placement.start}; it can "
                f"be at: {starts}"
            )
        return gpu, profile, placement

    def _gpu_instance(self, effect: Effect, gpu: Gpu, profile: MigProfile, placement: MigPlacement, note: Note) -> int:
        """Return the number of our GPU instance, created now or by an earlier attempt."""
        noted = self._noted(effect)
        self._enter_mode(gpu)  # first: outside MIG mode there are no instances, and some drivers report no profiles
        profiles = self._profiles(gpu, must_know=profile.name)
        found = self._found(gpu, profiles)
        mine = self._mine(effect, gpu, noted, found) if noted else None
        if mine is None:
            self._refuse_beside_strangers(gpu, placement, found)
            note({"making": True})
            told = next(each for each in profiles if each.name == profile.name)  # its number is this driver's
            try:
                number = self._step(
                    f"making {effect}", lambda: self._control.create_gpu_instance(gpu.uuid, told, placement)
                )
            except MigRefusedError as error:
                if error.did_nothing and error.call.startswith("nvmlDeviceCreate"):
                    note({})
                raise TemporaryError(f"{effect} cannot be made: {error}") from error
        else:
            number = mine.number
        note({"making": True, "gpu_instance": number})
        return number

    def _noted(self, effect: Effect) -> Mapping[str, Scalar]:
        """Return what the journal notes or, if it is a new one that notes nothing, what the record says."""
        return (self._records.made(effect) or {}) if effect.outcome is None else effect.outcome

    def _mine(
        self, effect: Effect, gpu: Gpu, noted: Mapping[str, Scalar], found: Sequence[GpuInstance]
    ) -> GpuInstance | None:
        """Return the instance that this effect made. If its MIG device was noted, an instance with another UUID is not
        ours: the driver reuses number and place for the next one that is created.
        """
        mine = next((each for each in found if _is_ours(effect, noted, each)), None)
        if mine is None or "uuid" not in noted:
            return mine
        device = self._step(f"reading {effect}", lambda: self._control.mig_device(gpu.uuid, mine.number))
        if device is None:
            return mine if effect.outcome else None  # the number alone is no proof by the record, which may be old
        return mine if device[1] == noted["uuid"] else None

    def _refuse_beside_strangers(self, gpu: Gpu, placement: MigPlacement, found: Sequence[GpuInstance]) -> None:
        """Refuse a place that another instance overlaps: one of a claim that is about to end, or somebody else's."""
        other = next((each for each in found if each.placement.overlaps(placement)), None)
        if other is not None:
            raise TemporaryError(
                f"{placement} of GPU {gpu.uuid} {'is' if placement.size == 1 else 'are'} taken by GPU instance "
                f"{other.number} ({other.profile} at {other.placement.start}): it goes with its claim; if no claim "
                "made it, remove it with `nvidia-smi mig -dci` and `-dgi`"
            )

    def _compute_instance(
        self, effect: Effect, gpu: Gpu, profile: MigProfile, number: int, note: Note
    ) -> Mapping[str, Scalar]:
        device = self._step(f"reading {effect}", lambda: self._control.mig_device(gpu.uuid, number))
        if device is None:
            slices = profile.compute_slices
            try:
                self._step(f"making {effect}", lambda: self._control.create_compute_instance(gpu.uuid, number, slices))
            except MigRefusedError as error:
                self._roll_back(effect, gpu, number, note)
                raise TemporaryError(f"{effect} cannot be made: {error}") from error
            device = self._step(f"reading {effect}", lambda: self._control.mig_device(gpu.uuid, number))
        if device is None:
            raise TemporaryError(f"{effect} was made, but the driver shows no MIG device in it yet")
        compute, identity = device
        access = None if gpu.minor is None else self._access_minors(gpu.minor, number, compute)
        if access is None:
            raise TemporaryError(f"{effect} is made, but it is not known which nodes of /dev/nvidia-caps open it")
        return {
            "making": True,
            "gpu_instance": number,
            "compute_instance": compute,
            "uuid": identity,
            "gpu_instance_node": access[0],
            "compute_instance_node": access[1],
        }

    def _roll_back(self, effect: Effect, gpu: Gpu, number: int, note: Note) -> None:
        """Destroy a GPU instance that gets no compute instance: nobody would see it. If that fails, the note stays."""
        try:
            self._step(f"undoing {effect}", lambda: self._control.destroy_gpu_instance(gpu.uuid, number))
        except DracaenaError as error:
            log.warning("GPU instance without a compute instance stays", effect=str(effect), error=str(error))
            return
        note({})

    def _destroy(self, effect: Effect, gpu: Gpu, mine: GpuInstance) -> None:
        try:
            self._step(f"undoing {effect}", lambda: self._control.destroy_compute_instances(gpu.uuid, mine.number))
            self._step(f"undoing {effect}", lambda: self._control.destroy_gpu_instance(gpu.uuid, mine.number))
        except MigRefusedError as error:
            if error.instance_is_gone:
                return
            if error.gpu_is_gone:
                raise
            raise TemporaryError(f"{effect} cannot be destroyed: {error}") from error

    def _enter_mode(self, gpu: Gpu) -> None:
        enabled, pending = self._step("reading the MIG mode", lambda: self._control.mode(gpu.uuid))
        if enabled:
            return
        if not changes_mode_at_once(gpu):
            state = "is pending until the GPU is reset" if pending else "is off"
            raise TemporaryError(
                f"MIG mode of GPU {gpu.uuid} {state}, and {gpu.architecture or 'this GPU'} changes it with a reset "
                "only: an admin does that (`nvidia-smi -mig 1`, then a reset), not a claim"
            )
        try:
            self._step("entering MIG mode", lambda: self._control.set_mode(gpu.uuid, enabled=True))
        except MigRefusedError as error:
            raise TemporaryError(f"GPU {gpu.uuid} does not enter MIG mode: {error}") from error

    def _become_whole(self, gpu: Gpu) -> None:
        """Leave MIG mode once nothing of a GPU is divided. A failure is only logged: it matters to the next claim that
        wants the GPU whole.
        """
        if not changes_mode_at_once(gpu):
            return
        try:
            leave_mig_mode(self._control, self._step, gpu)
        except DracaenaError as error:
            log.warning("GPU stays in MIG mode", gpu=gpu.uuid, error=str(error))

    def _profiles(self, gpu: Gpu, must_know: str | None) -> tuple[MigProfile, ...]:
        """Return the profiles as the driver reports them now: since the last reading it may have been replaced.

        Raises TemporaryError if `must_know` is missing: its instances would be overlooked.
        """
        profiles = self._step("reading MIG profiles", lambda: self._control.profiles(gpu.uuid))
        if must_know is not None and must_know not in {each.name for each in profiles}:
            told = ", ".join(each.name for each in profiles) or "none"
            raise TemporaryError(
                f"the NVIDIA driver does not report MIG profile {must_know} of GPU {gpu.uuid} now, so it is not known "
                f"whether its MIG device exists; profiles: {told}"
            )
        return profiles

    def _found(self, gpu: Gpu, profiles: tuple[MigProfile, ...]) -> tuple[GpuInstance, ...]:
        return self._step("reading GPU instances", lambda: self._control.instances(gpu.uuid, profiles))

    def _step(self, what: str, work: Callable[[], T]) -> T:
        return self._ask(what, work, STEP_S)  # type: ignore[return-value]


class WholeGpus:
    """Implements EffectMeans for MIG_OFF: keeps a GPU out of MIG mode while a claim has it whole."""

    def __init__(
        self,
        control: MigControl,
        ask: Callable[[str, Callable[[], object], float], object],
        read_gpu: Callable[[str], Gpu],
    ) -> None:
        """See MigInstances."""
        self._control = control
        self._ask = ask
        self._read_gpu = read_gpu

    def apply(self, effect: Effect, _others: Sequence[Effect]) -> Mapping[str, Scalar]:
        """See EffectMeans. Raises TemporaryError while instances are left, or a process has the GPU open."""
        gpu = self._read_gpu(str(effect.parameters["gpu"]))
        try:
            leave_mig_mode(self._control, self._step, gpu)
        except MigRefusedError as error:
            raise TemporaryError(
                f"GPU {gpu.uuid} does not leave MIG mode, so it cannot be used whole: {error}"
            ) from error
        return {}

    def refuse_divided(self, gpu: Gpu) -> None:
        """Refuse a GPU that is in MIG mode now if only an admin can change its mode. Raises DracaenaError, also if the
        driver does not report the mode.
        """
        enabled, _pending = self._step("reading the MIG mode", lambda: self._control.mode(gpu.uuid))
        refused = why_divided_by_mig(replace(gpu, mig_enabled=enabled))
        if refused is not None:
            raise TemporaryError(refused)

    def undo(self, _effect: Effect, _others: Sequence[Effect]) -> None:
        """See EffectMeans. There is nothing to undo: whoever divides the GPU next turns MIG mode on."""

    def _step(self, what: str, work: Callable[[], T]) -> T:
        return self._ask(what, work, STEP_S)  # type: ignore[return-value]


def leave_mig_mode(control: MigControl, step: Callable[[str, Callable[[], object]], object], gpu: Gpu) -> None:
    """Turn MIG mode off if it is on. Raises MigRefusedError, with IN_USE if any instance is left, ours or not."""

    def leave() -> None:
        if not any(control.mode(gpu.uuid)):
            return
        left = control.instances(gpu.uuid, control.profiles(gpu.uuid))
        if left:
            raise MigRefusedError(
                f"GPU instance {left[0].number} ({left[0].profile}) is left: nvmlDeviceSetMigMode", IN_USE
            )
        control.set_mode(gpu.uuid, enabled=False)

    step("leaving MIG mode", leave)


def _is_ours(effect: Effect, noted: Mapping[str, Scalar], found: GpuInstance) -> bool:
    """Whether an instance is the one that this effect made: same place, same profile, and same number if known.

    A number alone proves nothing: the driver reuses it for the next instance.
    """
    given = effect.parameters
    there = (found.profile, found.placement.start, found.placement.size)
    if there != (given["profile"], given["start"], given["size"]):
        return False
    return noted.get("gpu_instance", found.number) == found.number
