"""A file of MIG layouts in the form of NVIDIA's mig-parted, and the GPUs of a node → how to divide each of them.

    version: v1
    mig-configs:
      all-1g.10gb:
        - devices: all
          device-filter: ["0x233010DE"]
          mig-enabled: true
          mig-devices: {"1g.10gb": 7}

layout_files says what its parts mean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Gpu, Machine
from dracaena.kubelet_plugin.discovery.gpu_list import NO_INDICES
from dracaena.kubelet_plugin.discovery.layout_files import (
    LayoutEntry,
    counts_of,
    device_ids_of,
    entries_of_layouts,
    indices_of,
    listed,
    map_of,
    named_gpus,
    seen,
)
from dracaena.kubelet_plugin.discovery.mig.on_demand import changes_mode_at_once
from dracaena.kubelet_plugin.discovery.mig.packing import packed

_ENTRY_KEYS = ("devices", "device-filter", "mig-enabled", "mig-devices")
_SHARED = re.compile(r"^[0-9]+c\.")
"""Prefix of a compute instance that shares its GPU instance with others."""


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """The target of one GPU."""

    name: str
    """Name of the layout that says so."""
    enabled: bool
    """Whether it should be in MIG mode; otherwise it is whole."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Profile → how many instances; none is 0."""


@dataclass(frozen=True, slots=True)
class MigEntry(LayoutEntry):
    """One entry of a layout. Indices are those of NVML."""

    enabled: bool
    counts: Mapping[str, int]


Layouts = Mapping[str, tuple[MigEntry, ...]]
"""Name → entries."""


def read_layouts(document: object) -> Layouts:
    """Read a file. Raises BadInputError naming the place and what was expected there."""
    return entries_of_layouts(document, "mig-configs", _entry)


def asks_for_device_ids(name: str, layouts: Layouts) -> bool:
    """Whether a layout can only be applied if the PCI IDs of the GPUs are known."""
    return any(entry.device_ids for entry in layouts.get(name, ()))


def gpu_layouts(
    name: str,
    layouts: Layouts,
    machine: Machine,
    device_ids: Mapping[str, int],
    first: Mapping[int, str] = NO_INDICES,
) -> Mapping[str, GpuLayout]:
    """Return what a layout makes of the GPUs of a node, by UUID; GPUs that it does not name stay as they are.

    `device_ids` by UUID, see asks_for_device_ids(); `first`: see named_gpus(). `all` skips GPUs without MIG. Raises
    BadInputError if the layout is not possible here as written: then nothing may be changed, not even in part.
    """
    found: dict[str, GpuLayout] = {}
    gpus = {gpu.uuid: gpu for gpu in machine.gpus}
    for where, entry, uuid, gpu in named_gpus(name, layouts, gpus, first, device_ids, _has_mig):
        if entry.enabled and not _has_mig(gpu):
            raise BadInputError(f"{where}: GPU {gpu.index} has no MIG, or its driver does not say")
        if _has_mig(gpu):
            found[uuid] = GpuLayout(name, entry.enabled, entry.counts)
    if not found:
        raise BadInputError(f"layout {name} names no GPU of this node that has MIG")
    problems = (layout_problem(gpu, found[gpu.uuid]) for gpu in machine.gpus if gpu.uuid in found)
    text = "; ".join(dict.fromkeys(problem for problem in problems if problem is not None))
    if text:
        raise BadInputError(f"layout {name}: {text}")
    return found


def layout_problem(gpu: Gpu, layout: GpuLayout) -> str | None:
    """Return why a GPU can never be divided like this, as a sentence; None if it can, or its profiles are unknown."""
    if not layout.enabled or not gpu.mig_profiles:
        return None
    known = {profile.name: profile for profile in gpu.mig_profiles}
    unknown = sorted(set(layout.counts) - set(known))
    if unknown:
        shared = any(map(_SHARED.match, unknown))
        why = "; compute instances that share a GPU instance (`1c.2g…`) are not made" if shared else ""
        return f"GPU {gpu.index} has no profile {listed(unknown)}, it has {listed(list(known))}{why}"
    if packed(layout.counts, gpu.mig_profiles) is None:
        wanted = " + ".join(f"{count} x {name}" for name, count in layout.counts.items())
        alone = (
            f"{name} at most {_most(gpu, name)}" for name, count in layout.counts.items() if count > _most(gpu, name)
        )
        most = ", ".join(alone)
        return f"GPU {gpu.index} has no room for {wanted}" + (f" ({most})" if most else " together")
    return None


def has_layout(machine: Machine, gpu: Gpu, layout: GpuLayout) -> bool:
    """Whether a GPU matches its layout, whoever divided it and wherever its instances are."""
    if bool(gpu.mig_enabled) != layout.enabled:
        return False
    return Counter(profile for profile, _ in _complete_instances(machine, gpu)) == Counter(layout.counts)


def gpu_instances(machine: Machine, gpu: Gpu) -> AbstractSet[tuple[str, int]]:
    """Return profile and start of the GPU instances of a GPU, including those without a MIG device."""
    empty = {(each.profile, each.start) for each in machine.empty_gpu_instances if each.parent_uuid == gpu.uuid}
    return _complete_instances(machine, gpu) | empty


def _complete_instances(machine: Machine, gpu: Gpu) -> AbstractSet[tuple[str, int]]:
    migs = (mig for mig in machine.mig_devices if mig.parent_uuid == gpu.uuid)
    return {(_SHARED.sub("", mig.profile, count=1), mig.start) for mig in migs}


def mode_obstacle(gpu: Gpu, layout: GpuLayout) -> str | None:
    """Return what keeps the plugin from changing the MIG mode of a GPU, None if it can or need not."""
    if gpu.mig_enabled == layout.enabled or changes_mode_at_once(gpu):
        return None
    state = "on" if layout.enabled else "off"
    return (
        f"MIG mode of GPU {gpu.index} is to be {state}, and {gpu.architecture or 'its architecture'} changes it by a "
        f"reset: drain the node, then `nvidia-smi -i {gpu.uuid} -mig {int(layout.enabled)}` and "
        f"`nvidia-smi -i {gpu.uuid} --gpu-reset`, in a virtual machine a reboot"
    )


def _has_mig(gpu: Gpu) -> bool:
    return gpu.mig_enabled is not None


def _most(gpu: Gpu, name: str) -> int:
    """Return how many instances of one profile a GPU has room for."""
    profile = next(each for each in gpu.mig_profiles if each.name == name)
    upto = range(len(profile.placements), 0, -1)
    return next((count for count in upto if packed({name: count}, gpu.mig_profiles) is not None), 0)


def _entry(document: object, where: str) -> MigEntry:
    given = map_of(document, where, _ENTRY_KEYS)
    enabled = given.get("mig-enabled")
    if not isinstance(enabled, bool):
        raise BadInputError(f"{where}: mig-enabled: {seen(enabled)}, expected true or false")
    counts = counts_of(given, "mig-devices", where, "instances")
    if counts and not enabled:
        raise BadInputError(f"{where}: mig-devices with mig-enabled: false, expected none")
    return MigEntry(indices_of(given, where), device_ids_of(given, where), enabled, counts)
