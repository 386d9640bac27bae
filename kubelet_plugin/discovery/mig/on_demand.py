"""The GPUs of a machine that the setting `gpus` has divided for claims → which of them can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.api.mig_geometry import MEMORY_SLICE, MigPlace, MigPlacement, consumption, counters, places
from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.discovery.gpu_list import NO_INDICES, GpuList, GpuRole
from dracaena.kubelet_plugin.discovery.mig.instances import MadeDevice

_WITH_A_RESET: Final = ("Ampere",)
"""Architectures that change MIG mode by a reset of the GPU. Older ones have no MIG; newer ones change it at once."""


@dataclass(frozen=True, slots=True)
class DividedGpus:
    """What the settings mean on one machine."""

    uuids: frozenset[str] = frozenset()
    """GPUs whose places for MIG devices are published."""
    switched: frozenset[str] = frozenset()
    """Those of them whose MIG mode the plugin changes: they are also published whole."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Word of the list, or UUID of a GPU that cannot be divided → what is wrong, as a sentence."""


NOT_DIVIDED: Final = DividedGpus()


def divided_gpus(gpu_list: GpuList, machine: Machine, first: Mapping[int, str] = NO_INDICES) -> DividedGpus:
    """Read a list as GpuList.listed() does.

    `all` skips GPUs without MIG, and Ampere GPUs that are not in MIG mode: they stay whole. A GPU that is named but
    cannot be divided is a problem.
    """
    listed = gpu_list.listed(GpuRole.MIG, machine, first)
    problems = dict(listed.problems)
    uuids: set[str] = set()
    for gpu in listed.gpus:
        problem = _obstacle(gpu)
        if problem is None:
            uuids.add(gpu.uuid)
        elif gpu.uuid in listed.named or _is_unknown(gpu):
            problems[gpu.uuid] = problem
    at_once = (gpu.uuid for gpu in machine.gpus if gpu.uuid in uuids and changes_mode_at_once(gpu))
    return DividedGpus(frozenset(uuids), frozenset(at_once), problems)


def changes_mode_at_once(gpu: Gpu) -> bool:
    """Whether MIG mode of a GPU can be changed without a reset. False if that is not known."""
    return gpu.architecture is not None and gpu.architecture not in _WITH_A_RESET


def places_of(gpu: Gpu) -> tuple[MigPlace, ...]:
    """Return the places for MIG devices on a GPU."""
    return places(gpu.uuid, gpu.mig_profiles)


def as_published(machine: Machine, divided: DividedGpus) -> Machine:
    """Return a machine without the current MIG devices of divided GPUs, and with MIG mode off where the plugin changes
    it: what is published of a GPU must not change with each claim.
    """
    if not divided.uuids:
        return machine
    gpus = tuple(replace(gpu, mig_enabled=False) if gpu.uuid in divided.switched else gpu for gpu in machine.gpus)
    migs = tuple(mig for mig in machine.mig_devices if mig.parent_uuid not in divided.uuids)
    empty = tuple(each for each in machine.empty_gpu_instances if each.parent_uuid not in divided.uuids)
    return replace(machine, gpus=gpus, mig_devices=migs, empty_gpu_instances=empty)


def taken_by_others(
    machine: Machine, divided: DividedGpus, own: Collection[DeviceName]
) -> Mapping[str, Mapping[str, int]]:
    """Return how much GPU instances that no claim made take of the counters of each divided GPU, by UUID.

    `own` names the places of claims. An instance of an unknown profile takes its memory slices.
    """
    strangers: dict[str, set[tuple[str, MigPlacement]]] = {}
    there: tuple[MigDevice | EmptyGpuInstance, ...] = (*machine.mig_devices, *machine.empty_gpu_instances)
    for each in there:
        if each.parent_uuid in divided.uuids and each.device_name not in own:
            profile = each.profile.partition("c.")[2] or each.profile
            strangers.setdefault(each.parent_uuid, set()).add((profile, MigPlacement(each.start, each.size)))
    return {gpu.uuid: _taken(gpu, strangers[gpu.uuid]) for gpu in machine.gpus if gpu.uuid in strangers}


def vanished(machine: Machine, made: Mapping[DeviceName, MadeDevice]) -> Mapping[DeviceName, str]:
    """Return place and UUID of those MIG devices that are gone, from GPUs whose MIG devices could be read."""
    told = {gpu.uuid for gpu in machine.gpus if gpu.mig_enabled is not None}
    there = {mig.uuid for mig in machine.mig_devices}
    return {p: device.uuid for p, device in made.items() if device.gpu in told and device.uuid not in there}


def _taken(gpu: Gpu, strangers: Collection[tuple[str, MigPlacement]]) -> Mapping[str, int]:
    there, known = counters(gpu.mig_profiles), {profile.name: profile for profile in gpu.mig_profiles}
    taken: Counter[str] = Counter()
    for name, placement in strangers:
        profile = known.get(name)
        if profile is None:
            taken.update({f"{MEMORY_SLICE}{number}": 1 for number in range(placement.start, placement.end)})
        else:
            taken.update(consumption(MigPlace(gpu.uuid, profile, placement), there))
    return taken


def _is_unknown(gpu: Gpu) -> bool:
    """Whether a GPU has MIG, and only its possible divisions are not reported."""
    return gpu.mig_enabled is not None and not gpu.mig_profiles


def _obstacle(gpu: Gpu) -> str | None:
    if gpu.mig_enabled is None:
        return f"GPU {gpu.uuid} has no MIG, or its driver does not say"
    if not gpu.mig_profiles:
        return (
            f"the driver does not report how GPU {gpu.uuid} can be divided; some do so only in MIG mode: turn that on "
            "once (`nvidia-smi -mig 1`)"
        )
    if not gpu.mig_enabled and not changes_mode_at_once(gpu):
        return (
            f"GPU {gpu.uuid} is not in MIG mode, and {gpu.architecture or 'its architecture'} enters it by a reset: it "
            "stays whole until an admin has done that (`nvidia-smi -mig 1`, then a reset or a reboot)"
        )
    return None
