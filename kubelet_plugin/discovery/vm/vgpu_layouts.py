"""A file of vGPU layouts in the form of NVIDIA's vgpu-device-manager, and a node's GPUs → the vGPUs of each.

    version: v1
    vgpu-configs:
      small:
        - devices: all
          device-filter: ["0x20B010DE"]
          vgpu-devices: {"A100-10C": 4}

layout_files says what its parts mean. An index is the position of a GPU among all of NVIDIA's by PCI address, as in
vgpu-device-manager.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from dracaena.api.errors import BadInputError
from dracaena.api.vgpu import vgpu_type
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

_ENTRY_KEYS = ("devices", "device-filter", "vgpu-devices")


@dataclass(frozen=True, slots=True)
class VgpuLayout:
    """Which vGPUs one GPU should have."""

    name: str
    """Name of the layout that says so."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Type, by the last word of the driver's name for it → how many; none is 0."""


@dataclass(frozen=True, slots=True)
class VgpuLayoutEntry(LayoutEntry):
    """One entry of a layout."""

    counts: Mapping[str, int]


VgpuLayouts = Mapping[str, tuple[VgpuLayoutEntry, ...]]
"""Name → entries."""


@dataclass(frozen=True, slots=True)
class OfferedType:
    """A type that the vGPU manager has for a GPU."""

    type_id: str
    """As the kernel's files have it: `nvidia-222`, or `1414`."""
    most: int | None = None
    """How many of it the GPU has room for if nothing else is on it; None: not known."""


@dataclass(frozen=True, slots=True)
class VgpuFunction:
    """A function of a GPU on which vGPUs are made: the GPU itself, or a virtual function, which is one vGPU or none."""

    address: str
    room: Mapping[str, int] = field(default_factory=dict)
    """Number of a type, as OfferedType has it → how many more can be made here now; types without room may be left
    out."""
    has_type_file: bool = False
    """Whether it becomes a vGPU by a number in its current_vgpu_type; otherwise mediated devices are made on it."""


@dataclass(frozen=True, slots=True)
class VgpuOnGpu:
    """An existing vGPU."""

    identity: str
    """UUID of a mediated device, or the address of the virtual function that it is."""
    type_id: str
    iommu_group: int | None = None


@dataclass(frozen=True, slots=True)
class VgpuGpu:
    """A physical GPU as the vGPU manager has it now."""

    address: str
    index: int
    device_id: int
    functions: tuple[VgpuFunction, ...] = ()
    """By address. Empty: the vGPU manager offers nothing on it."""
    vgpus: tuple[VgpuOnGpu, ...] = ()
    """By identity."""
    types: Mapping[str, OfferedType] = field(default_factory=dict)
    """By the last word of the name."""
    knows_all_types: bool = True
    """Whether these are all. Virtual functions list only types that they have room for, and NVML may not know more."""

    def __str__(self) -> str:
        """Return it as admins find it in the file and on the node."""
        return f"GPU {self.index} ({self.address})"


@dataclass(frozen=True, slots=True)
class OurVgpu:
    """A vGPU that we made, or are about to make."""

    identity: str
    type_name: str
    type_id: str

    def may_be(self, found: VgpuOnGpu) -> bool:
        """Whether a vGPU may be this one. A virtual function with another type is somebody else's by now."""
        return (self.identity, self.type_id) == (found.identity, found.type_id)


def read_vgpu_layouts(document: object) -> VgpuLayouts:
    """Read a file. Raises BadInputError that names the place and what was expected there."""
    return entries_of_layouts(document, "vgpu-configs", _entry)


def vgpu_layouts(
    name: str, layouts: VgpuLayouts, gpus: Sequence[VgpuGpu], first: Mapping[int, str]
) -> Mapping[str, VgpuLayout]:
    """Return what a layout makes of the GPUs of a node, by address; GPUs that it does not name stay as they are.

    `first` has addresses, see named_gpus(). `all` skips GPUs on which the vGPU manager offers nothing. Raises
    BadInputError if the layout is not possible here as written: then nothing may be changed, not even in part.
    """
    found: dict[str, VgpuLayout] = {}
    by_address, ids = {gpu.address: gpu for gpu in gpus}, {gpu.address: gpu.device_id for gpu in gpus}
    for where, entry, address, gpu in named_gpus(name, layouts, by_address, first, ids, _is_offered):
        found[address] = VgpuLayout(name, _as_offered(entry.counts, gpu))
        problem = vgpu_layout_problem(gpu, found[address])
        if problem is not None:
            raise BadInputError(f"{where}: {problem}")
    if not found:
        raise BadInputError(f"layout {name} names no GPU of this node on which the vGPU manager offers types")
    return found


def vgpu_layout_problem(gpu: VgpuGpu, layout: VgpuLayout) -> str | None:
    """Return why a GPU can never have these vGPUs, or why that is not known, as a sentence; None if it can, as far as
    that is known before they are made: only the driver knows which MIG-backed types fit together.
    """
    if not layout.counts:
        return None
    if not gpu.functions:
        return (
            f"the vGPU manager offers no types on {gpu}: install it, or enable the GPU's virtual functions "
            f"(`/usr/lib/nvidia/sriov-manage -e {gpu.address}`)"
        )
    unknown = sorted(set(layout.counts) - set(gpu.types))
    if unknown and not gpu.knows_all_types:
        return (
            f"it is not known whether {gpu} can have {listed(unknown)}: the NVIDIA driver does not tell its types, and "
            f"sysfs lists only those of which it has room for another one, {listed(sorted(gpu.types))}; let the plugin "
            "reach NVML, or remove the vGPUs of that GPU"
        )
    if unknown:
        return f"{gpu} has no vGPU type {listed(unknown)}, it has {listed(sorted(gpu.types))}"
    for name, count in layout.counts.items():
        most = gpu.types[name].most
        if most is not None and count > most:
            return f"{gpu} has room for at most {most} x {name}, {count} are asked for"
    total = sum(layout.counts.values())
    if all(function.address != gpu.address for function in gpu.functions) and total > len(gpu.functions):
        return f"{gpu} has {len(gpu.functions)} virtual functions, each for one vGPU, {total} are asked for"
    return None


def has_vgpu_layout(gpu: VgpuGpu, layout: VgpuLayout, ours: Collection[OurVgpu]) -> bool:
    """Whether a GPU has the vGPUs of its layout, whoever made them."""
    names = {offered.type_id: name for name, offered in gpu.types.items()}
    names |= {each.type_id: each.type_name for each in ours}
    return Counter(names.get(each.type_id, each.type_id) for each in gpu.vgpus) == Counter(layout.counts)


def made_by_others(gpu: VgpuGpu, ours: Collection[OurVgpu]) -> tuple[VgpuOnGpu, ...]:
    """Return the vGPUs of a GPU that we did not make."""
    return tuple(each for each in gpu.vgpus if not any(mine.may_be(each) for mine in ours))


@dataclass(frozen=True, slots=True)
class VgpuSteps:
    """What to do to a GPU all of whose vGPUs are ours."""

    kept: tuple[OurVgpu, ...]
    removed: tuple[OurVgpu, ...]
    made: tuple[str, ...]
    """Types, in the order in which they are made: the largest MIG-backed ones first, so that small ones do not block
    them."""


def vgpu_steps(gpu: VgpuGpu, layout: VgpuLayout, ours: Sequence[OurVgpu]) -> VgpuSteps:
    """Return the steps that bring a GPU into a layout; vGPUs that fit it stay."""
    left, kept, removed = Counter(layout.counts), [], []
    for mine in ours:
        if not any(mine.may_be(each) for each in gpu.vgpus):
            continue
        if left[mine.type_name] > 0:
            left[mine.type_name] -= 1
            kept.append(mine)
        else:
            removed.append(mine)
    made = [name for name in sorted(left, key=_size_first) for _ in range(left[name])]
    return VgpuSteps(tuple(kept), tuple(removed), tuple(made))


def function_with_room(gpu: VgpuGpu, type_name: str) -> tuple[VgpuFunction, OfferedType] | None:
    """Return where another vGPU of a type can be made now, and the type; None: nowhere. To spread vGPUs, this is the
    first of the functions with the most room.
    """
    offered = gpu.types.get(type_name)
    if offered is None:
        return None
    functions = [each for each in gpu.functions if each.room.get(offered.type_id, 0) > 0]
    if not functions:
        return None
    return max(functions, key=lambda each: each.room[offered.type_id]), offered


def _is_offered(gpu: VgpuGpu) -> bool:
    return bool(gpu.functions)


def _as_offered(counts: Mapping[str, int], gpu: VgpuGpu) -> Mapping[str, int]:
    """Return counts by the GPU's own type names: if it offers a type only without the MIG attribute (`ME`), that is
    meant, as in vgpu-device-manager.
    """
    found: Counter[str] = Counter()
    for name, count in counts.items():
        read = vgpu_type(name)
        plain = name if read is None else read.without_attribute
        found[plain if name not in gpu.types and plain in gpu.types else name] += count
    return dict(found)


def _entry(document: object, where: str) -> VgpuLayoutEntry:
    given = map_of(document, where, _ENTRY_KEYS)
    counts = counts_of(given, "vgpu-devices", where, "vGPUs")
    _check_beside_each_other(counts, f"{where}: vgpu-devices")
    return VgpuLayoutEntry(indices_of(given, where), device_ids_of(given, where), counts)


def _check_beside_each_other(counts: Mapping[str, int], where: str) -> None:
    """Refuse types that no GPU can have together. Time-sliced vGPUs of a GPU must have one type: mixing them
    (heterogeneous sizes) needs a mode of the GPU that the driver forgets.
    """
    for name in counts:
        read = vgpu_type(name)
        if read is None or read.short_name != name:
            raise BadInputError(
                f"{where}: {seen(name)}, expected a type as 'A100-40C' or 'A100-1-5C', the last word of what the "
                "driver calls it"
            )
        if read.slices is None and len(counts) > 1:
            raise BadInputError(
                f"{where}: {listed(sorted(counts))} for one GPU, expected one type: only MIG-backed ones can be beside "
                f"each other, and {name} is time-sliced"
            )


def _size_first(name: str) -> tuple[int, str]:
    read = vgpu_type(name)
    return (-(read.slices or 0) if read is not None else 0, name)
