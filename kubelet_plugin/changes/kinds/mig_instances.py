"""MIG devices that are made at exact places, for a claim or for the layout that the Node's label names, and destroyed
when these end.

An instance is ours if it is noted: before the driver is asked for it, with its number after that, and with the UUID of
its MIG device once it has one. What lies at a place without being noted is somebody else's, and stays. So does what was
made for a claim of which every trace is lost but the note: its containers may run until kubelet ends the claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
from dracaena.api.machine import Gpu
from dracaena.api.mig import mig_device_name
from dracaena.api.mig_geometry import MigProfile
from dracaena.api.names import DeviceName
from dracaena.host.facts.troubles import GpuDriverTroubleError, Trouble, TroubleKind, trouble
from dracaena.host.gpu_driver.thread import StoppedError, WedgedError
from dracaena.kubelet_plugin.changes.change import (
    NODE_LABEL,
    Act,
    End,
    How,
    Note,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    no_time_left,
)
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance, MadeInstance, MigRefusedError
from dracaena.kubelet_plugin.discovery.mig.on_demand import changes_mode_at_once
from dracaena.kubelet_plugin.ports import EffectPendingError, GpuGoneError
from dracaena.kubelet_plugin.prepare.effects import MIG_INSTANCE
from dracaena.kubelet_plugin.prepare.prepared_claim import gpu_of_part
from dracaena.process.clock import Clock

LAYOUT: Final = "mig-layouts"
"""Kind of the notes of GPUs that are being brought into a layout (labels.layout_notes)."""

SETTLED_S: Final = 180.0
"""How long a place counts as ours after something was last made or undone there: a reading that began earlier may show
what is gone by now. Longer than a reading may take (live_machine.READ_DEADLINE_S)."""

AccessMinors = Callable[[int, int, int], tuple[int, int] | None]
"""GPU minor, GPU instance, compute instance → numbers of the nodes that open it (adapters.kernel.mig_access)."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SeenPlace:
    """What is seen of the GPU of one place."""

    gpu: Gpu | None = None
    """As last read. None: it is not in MIG mode, and nobody wants the place."""
    enabled: bool = False
    """Whether it is in MIG mode now."""
    pending: bool = False
    """Whether it will be after its next reset."""
    profiles: tuple[MigProfile, ...] = ()
    """Empty outside of MIG mode, as is the next one."""
    instances: tuple[GpuInstance, ...] = ()
    uuid: str | None = None
    """Of the MIG device at the place, None if there is none."""

    def is_told(self, profile: str) -> bool:
        """Whether the driver reports a profile: otherwise its instances are overlooked."""
        return any(each.name == profile for each in self.profiles)

    def ours(self, made: MadeInstance) -> GpuInstance | None:
        """Return the instance that was made, None if it is not there."""
        return next((each for each in self.instances if made.is_it(each, self.uuid)), None)


@dataclass(frozen=True, slots=True)
class Make:
    """Make an instance, or what an earlier try has left to make."""

    gpu: Gpu
    is_in_mode: bool
    made: MadeInstance


@dataclass(frozen=True, slots=True)
class Destroy:
    """Destroy an instance, and make its GPU whole if nothing is left on it."""

    gpu: Gpu
    made: MadeInstance
    number: int | None
    """None: it is not there."""


Step = Make | Destroy


class MigInstances(ThingKind[MadeInstance, Step]):
    """For MIG_INSTANCE; a thing has the device name of its place. From any thread.

    Nothing is supposed where a note is lost, since somebody else's instance may have the place by now.
    """

    name = MIG_INSTANCE
    rank = 20
    noted = MadeInstance

    def __init__(
        self,
        hand: MigHand,
        read_gpu: Callable[[str], Gpu],
        access_minors: AccessMinors,
        ledger: Ledger,
        clock: Clock,
    ) -> None:
        """`read_gpu` returns a GPU as last read; it raises GpuGoneError if the node does not have it, and
        TemporaryError before the first reading.
        """
        self._hand = hand
        self._read_gpu = read_gpu
        self._access_minors = access_minors
        self._ledger = ledger
        self._clock = clock
        self._lock = threading.Lock()
        self._touched: dict[DeviceName, float] = {}

    def gpu(self, thing: Thing) -> DeviceName:
        """See ThingKind."""
        return gpu_of_part(DeviceName(thing.name))

    def asked(self, wants: Wants) -> MadeInstance | None:
        """Return the place that is wanted. Only one claim has it at a time (LastGuard)."""
        for given in (each for uid in sorted(wants) for each in wants[uid]):
            return MadeInstance(str(given["profile"]), int(given["start"]), int(given["size"]))
        return None

    def places(self) -> frozenset[DeviceName]:
        """Return the places where instances are those of claims, may be, or were a moment ago. Raises DracaenaError."""
        noted = {each.name for each, note in self._notes() if not _is_of_layout(note)}
        return frozenset(map(DeviceName, noted)) | self.settling()

    def of_layout(self, gpu: str) -> Mapping[Thing, MadeInstance]:
        """Return what was made, or may have been, for the layout of a GPU, by UUID. Raises DracaenaError."""
        notes = ((thing, note) for thing, note in self._notes() if _uuid(self.gpu(thing)) == gpu)
        return {thing: note.noted for thing, note in notes if isinstance(note, Note) and _is_of_layout(note)}

    def besides(self, gpu: str, made: Collection[MadeInstance]) -> Sequence[GpuInstance]:
        """Return the instances of a GPU, by UUID, that are none of these. Raises DracaenaError."""
        found = self._hand.instances(gpu, self._hand.profiles(gpu))
        return [each for each in found if not any(mine.is_it(each, self._device(gpu, each)) for mine in made)]

    def _notes(self) -> Iterator[tuple[Thing, Note[MadeInstance] | Unreadable]]:
        for thing in self._ledger.things(MIG_INSTANCE):
            note = self._ledger.read(thing, MadeInstance)
            if note is not None:
                yield thing, note

    def _device(self, gpu: str, instance: GpuInstance) -> str | None:
        """Return the UUID of the MIG device of an instance, None if it has none."""
        device = self._hand.device(gpu, instance.number) if instance.has_compute else None
        return None if device is None else device[1]

    def settling(self) -> frozenset[DeviceName]:
        """Return the places that a reading may be too old to show as they are."""
        since_s = self._clock.monotonic() - SETTLED_S
        with self._lock:
            self._touched = {place: at_s for place, at_s in self._touched.items() if at_s >= since_s}
            return frozenset(self._touched)

    def look(self, thing: Thing, wants: Wants) -> SeenPlace:
        """See ThingKind. A GPU whose driver is not loaded, or released, is gone with its instances: what is there
        afterwards belongs to nobody (MigTaken).
        """
        uuid = _uuid(self.gpu(thing))
        if wants:
            gpu = self._read_gpu(uuid)
            try:
                return self._look(thing, gpu, self._hand.mode(uuid))
            except (WedgedError, StoppedError) as error:
                raise EffectPendingError(f"{thing} is not ready yet: {error}") from error
        try:
            # First, because it needs no reading: after a restart there is none while the driver is released.
            mode = self._hand.mode(uuid)
            return self._look(thing, self._shown(uuid), mode) if any(mode) else SeenPlace()
        except DracaenaError as error:
            if not self._is_lost(uuid, error):
                raise
            raise GpuGoneError(str(error)) from error

    def _look(self, thing: Thing, gpu: Gpu, mode: tuple[bool, bool]) -> SeenPlace:
        enabled, pending = mode
        if not enabled:
            return SeenPlace(gpu, enabled, pending)
        profiles = self._hand.profiles(gpu.uuid)
        instances = self._hand.instances(gpu.uuid, profiles)
        there = next((each for each in instances if _name(gpu.uuid, each) == thing.name), None)
        device = None if there is None else self._device(gpu.uuid, there)
        return SeenPlace(gpu, enabled, pending, profiles, instances, device)

    def _shown(self, uuid: str) -> Gpu:
        """Return a GPU that the driver has, as last read."""
        try:
            return self._read_gpu(uuid)
        except GpuGoneError as error:
            raise TemporaryError(f"GPU {uuid} answers, and is waited for until a reading shows it: {error}") from error

    def _is_lost(self, uuid: str, error: DracaenaError) -> bool:
        """Whether the error of a step means that the GPU is gone, or may not be asked any more."""
        if isinstance(error, GpuDriverTroubleError):
            return error.reason in (TroubleKind.RELEASED, TroubleKind.NOT_LOADED)
        return isinstance(error, MigRefusedError) and (
            (error.gpu_is_gone and self._is_still_gone(uuid)) or self._is_left_out(uuid)
        )

    def _is_still_gone(self, uuid: str) -> bool:
        """Whether a GPU that one step called gone does not answer: a GPU that does still has its instances."""
        try:
            self._hand.mode(uuid)
        except MigRefusedError as error:
            return error.gpu_is_gone
        except DracaenaError:
            return False
        return False

    def _is_left_out(self, uuid: str) -> bool:
        """Whether the node was read and lacks a GPU. That alone is no proof: the first reading may have been early."""
        try:
            self._read_gpu(uuid)
        except TemporaryError as error:
            return isinstance(error, GpuGoneError)
        return False

    def plan(
        self, wants: Wants, seen: SeenPlace, note: Note[MadeInstance] | Unreadable | None
    ) -> ThingPlan[MadeInstance, Step]:
        """See ThingKind. Raises PermanentError for a place that the GPU cannot have, and TemporaryError for one that
        another instance takes: of a claim that is about to end, or somebody else's.
        """
        place = self.asked(wants)
        if place is None:
            return _away(seen, note)
        gpu = seen.gpu
        assert gpu is not None
        if len(wants) > 1:
            raise TemporaryError(f"the place is wanted by several owners: {', '.join(sorted(wants))}")
        # Some drivers report profiles in MIG mode only, so the last reading may be too old to have them.
        _refuse_impossible(gpu if gpu.mig_profiles else replace(gpu, mig_profiles=seen.profiles), place)
        _refuse_without_mode(gpu, seen)
        made = note.noted if isinstance(note, Note) and not wants.keys().isdisjoint(note.owners) else None
        if seen.enabled and not seen.is_told(place.profile):
            raise _untold(seen, gpu.uuid, place.profile)
        ours = None if made is None else seen.ours(made)
        if made is None or ours is None:
            _refuse_beside_others(gpu, place, seen.instances)
            made = replace(place, is_asked_for=seen.enabled)
            return ThingPlan(made, Make(gpu, seen.enabled, made))
        made = replace(made, number=ours.number)
        is_complete = made.uuid is not None and made.nodes is not None
        return ThingPlan(made, None if is_complete else Make(gpu, seen.enabled, made))

    def do(self, acts: Sequence[Act[Step]], left_s: Callable[[], float]) -> Sequence[End[MadeInstance]]:
        """See ThingKind. Once one cannot be made, none is made after it."""
        ends: list[End[MadeInstance]] = []
        failed: DracaenaError | None = None
        for act in acts:
            if left_s() <= 0:
                failed = failed or no_time_left(act.thing)
            if isinstance(act.step, Destroy) and left_s() > 0:
                ends.append(self._destroy(act, act.step))
            elif isinstance(act.step, Make) and failed is None:
                ends.append(self._make(act, act.step))
                failed = ends[-1].problem
            else:
                ends.append(End(How.REFUSED, failed or no_time_left(act.thing)))
            self._touch(act.thing)
        whole = {each.step.gpu.uuid: each.step.gpu for each in acts if isinstance(each.step, Destroy)}
        for gpu in whole.values() if left_s() > 0 else ():
            self._become_whole(gpu, {act.thing for act in acts})
        return ends

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        """See ThingKind. A GPU that is away has a taint that says so."""
        if isinstance(problem, GpuGoneError):
            return None
        return trouble(TroubleKind.MIG_TAKEN, f"MIG device {thing.name} stays: {problem}", thing.name)

    def _make(self, act: Act[Step], step: Make) -> End[MadeInstance]:
        gpu, made = step.gpu, step.made
        self._touch(act.thing)
        try:
            if not (step.is_in_mode or self._hand.mode(gpu.uuid)[0]):
                try:
                    self._hand.set_mode(gpu.uuid, enabled=True)
                except MigRefusedError as error:
                    how = How.REFUSED if error.did_nothing else How.UNANSWERED
                    return End(how, TemporaryError(f"GPU {gpu.uuid} does not enter MIG mode: {error}"))
            profile = self._told(gpu, made)
            if not made.is_asked_for:
                made = replace(made, is_asked_for=True)
                act.note(made)
            made = self._hand.make(gpu.uuid, profile, made, act.note, self._nodes_of(gpu))
        except (WedgedError, StoppedError) as error:
            return End(How.UNANSWERED, EffectPendingError(f"{act.thing} is not ready yet: {error}"))
        except MigRefusedError as error:
            return End(How.UNANSWERED, MigRefusedError(error.call, error.reason, f"{act.thing} cannot be made: "))
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        if made.nodes is None:
            problem = f"{act.thing} is made, but it is not known which nodes of /dev/nvidia-caps open it"
            return End(How.UNANSWERED, TemporaryError(problem))
        return End()

    def _told(self, gpu: Gpu, made: MadeInstance) -> MigProfile:
        """Return the profile by the number that this driver has for it: it may have been replaced since it was read."""
        profiles = self._hand.profiles(gpu.uuid)
        found = next((each for each in profiles if each.name == made.profile), None)
        if found is None:
            raise _untold(SeenPlace(profiles=profiles), gpu.uuid, made.profile)
        return found

    def _nodes_of(self, gpu: Gpu) -> Callable[[int, int], tuple[int, int] | None]:
        def nodes_of(gpu_instance: int, compute_instance: int) -> tuple[int, int] | None:
            return None if gpu.minor is None else self._access_minors(gpu.minor, gpu_instance, compute_instance)

        return nodes_of

    def _destroy(self, act: Act[Step], step: Destroy) -> End[MadeInstance]:
        if step.number is None:
            return End()
        try:
            if step.made.uuid is not None:
                act.note(replace(step.made, uuid=None))  # from now on it has no MIG device by which it is recognised
            self._hand.destroy(step.gpu.uuid, step.number)
        except DracaenaError as error:
            if self._is_lost(step.gpu.uuid, error):
                return End(How.UNANSWERED, GpuGoneError(str(error)))
            if isinstance(error, MigRefusedError):
                error = MigRefusedError(error.call, error.reason, f"{act.thing} cannot be destroyed: ")
            return End(How.UNANSWERED, error)
        return End()

    def _become_whole(self, gpu: Gpu, undone: set[Thing]) -> None:
        """Leave MIG mode once nothing of a GPU is divided, and nobody is about to. A failure is only logged: it matters
        to the next claim that wants the GPU whole.
        """
        if not changes_mode_at_once(gpu):
            return
        try:
            if Thing(LAYOUT, gpu.uuid) in self._ledger.things(LAYOUT):
                return
            noted = set(self._ledger.things(MIG_INSTANCE)) - undone
            if any(_uuid(self.gpu(each)) == gpu.uuid for each in noted):
                return
            if not self._hand.instances(gpu.uuid, self._hand.profiles(gpu.uuid)):
                self._hand.leave_mode(gpu.uuid)
        except DracaenaError as error:
            log.warning("GPU stays in MIG mode", gpu=gpu.uuid, error=str(error))

    def _touch(self, thing: Thing) -> None:
        with self._lock:
            self._touched[DeviceName(thing.name)] = self._clock.monotonic()


def _away(seen: SeenPlace, note: Note[MadeInstance] | Unreadable | None) -> ThingPlan[MadeInstance, Step]:
    if isinstance(note, Unreadable):
        return ThingPlan(
            stays=f"{note.problem}, so it is not known whether it was made for a claim: `nvidia-smi mig -dci` and "
            "`-dgi` destroy it once no pod uses it; then remove that file from the plugin's folder `ledger`"
        )
    if note is not None and NODE_LABEL in note.owners:
        return ThingPlan(stays="a layout of its GPU made it, or is to make it")
    if note is not None and note.owners:
        return ThingPlan(
            stays=f"it was made for the claim with UID {', '.join(sorted(note.owners))}, which has lost its checkpoint "
            "and its CDI spec: its containers may run until kubelet ends the claim"
        )
    if note is None or seen.gpu is None:
        return ThingPlan()
    made = note.noted
    if made.is_asked_for and seen.enabled and not seen.is_told(made.profile):
        raise _untold(seen, seen.gpu.uuid, made.profile)
    ours = seen.ours(made)
    return ThingPlan(act=Destroy(seen.gpu, made, None if ours is None else ours.number))


def _refuse_impossible(gpu: Gpu, place: MadeInstance) -> None:
    profile = next((each for each in gpu.mig_profiles if each.name == place.profile), None)
    if profile is None:
        offered = ", ".join(each.name for each in gpu.mig_profiles) or "none"
        raise TemporaryError(
            f"GPU {gpu.uuid} has no MIG profile {place.profile} as it was last read; its profiles: {offered}"
        )
    if place.placement not in profile.placements:
        starts = ", ".join(str(each.start) for each in profile.placements)
        raise PermanentError(
            f"GPU {gpu.uuid} has no place for MIG profile {profile.name} at memory slice {place.start}; it can be at: "
            f"{starts}"
        )


def _refuse_without_mode(gpu: Gpu, seen: SeenPlace) -> None:
    if seen.enabled or changes_mode_at_once(gpu):
        return
    state = "is pending until the GPU is reset" if seen.pending else "is off"
    raise TemporaryError(
        f"MIG mode of GPU {gpu.uuid} {state}, and {gpu.architecture or 'this GPU'} changes it with a reset only: an "
        "admin does that (`nvidia-smi -mig 1`, then a reset), not a claim"
    )


def _refuse_beside_others(gpu: Gpu, place: MadeInstance, found: Sequence[GpuInstance]) -> None:
    other = next((each for each in found if each.placement.overlaps(place.placement)), None)
    if other is not None:
        raise TemporaryError(
            f"{place.placement} of GPU {gpu.uuid} {'is' if place.size == 1 else 'are'} taken by GPU instance "
            f"{other.number} ({other.profile} at {other.placement.start}): it goes with its claim; if no claim made "
            "it, remove it with `nvidia-smi mig -dci` and `-dgi`"
        )


def _untold(seen: SeenPlace, gpu: str, profile: str) -> TemporaryError:
    told = ", ".join(each.name for each in seen.profiles) or "none"
    return TemporaryError(
        f"the NVIDIA driver does not report MIG profile {profile} of GPU {gpu} now, so it is not known whether its MIG "
        f"device exists; profiles: {told}"
    )


def _is_of_layout(note: Note[MadeInstance] | Unreadable) -> bool:
    return isinstance(note, Note) and NODE_LABEL in note.owners


def _uuid(gpu: DeviceName) -> str:
    return f"GPU-{gpu.removeprefix('gpu-')}"


def _name(gpu: str, instance: GpuInstance) -> str:
    return mig_device_name(gpu, instance.profile, instance.placement.start)
