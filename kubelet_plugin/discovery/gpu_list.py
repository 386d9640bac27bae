"""The setting `gpus`: what each GPU of a node is for, and which GPUs of a machine an entry selects.

A GPU is selected by its index, UUID, PCI address or product, or by `all`. The closest selection holds: entries that
name the GPU hold in place of those that name its product, and these in place of `all`. Several entries that select it
equally closely hold together: a claim may then get it in each of these ways.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from dracaena.api.errors import BadInputError
from dracaena.api.machine import Gpu, Machine
from dracaena.kubelet_plugin.discovery.vm.pci_products import PCI_PRODUCTS

ALL: Final = "all"
ON_DEMAND: Final = "onDemand"
EXISTING: Final = "existing"

NO_INDICES: Final[Mapping[int, str]] = {}

_PCI_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class GpuRole(enum.StrEnum):
    """What a GPU is for."""

    WHOLE = "whole"
    """One claim at a time, as the node has it: whole, or as the MIG devices that an admin made."""
    SHARED = "shared"
    """Several claims at a time, by memory and cores."""
    MIG = "mig"
    """Divided into MIG devices when claims ask for them."""
    LAYOUT = "layout"
    """Divided into MIG devices as a file of layouts says."""
    PASSTHROUGH = "passthrough"
    """Virtual machines, as a whole."""
    VGPU = "vgpu"
    """Virtual machines, as vGPUs."""


BOUND_BY_ADMIN: Final = "as: passthrough, bind: existing"
VGPU_LAYOUT: Final = "as: vgpu, file: …"
MACHINE: Final = "machine"
FABRIC_PARTITIONS: Final = "fabric-partitions"
CC_MODE_TOOL: Final = "cc-mode-tool"

_LAYOUT: Final = "as: layout"
_ONCE: Final = (_LAYOUT, VGPU_LAYOUT)
_CHANGED: Final = "both change GPUs while nobody has them, and a reset ends MIG devices and vGPUs"
_RECORDED: Final = "a recorded machine has no GPUs for virtual machines"

_EXCLUSIVE: Final[Mapping[frozenset[str], str]] = {
    frozenset(pair): reason
    for *pair, reason in (
        (_LAYOUT, "as: mig", "claims and a file would divide the same GPUs, and no counter keeps the two apart"),
        (_LAYOUT, "as: passthrough", "a layout divides GPUs while claims may get them for virtual machines"),
        (_LAYOUT, VGPU_LAYOUT, "each would take the GPU instances of MIG-backed vGPUs for somebody else's"),
        (_LAYOUT, "as: whole", "the file of layouts says itself which GPUs stay whole"),
        (MACHINE, "as: passthrough", _RECORDED),
        (MACHINE, BOUND_BY_ADMIN, _RECORDED),
        (MACHINE, "as: vgpu", _RECORDED),
        (MACHINE, VGPU_LAYOUT, _RECORDED),
        (MACHINE, FABRIC_PARTITIONS, "a recorded machine has no Fabric Manager"),
        (MACHINE, CC_MODE_TOOL, "a recorded machine has no GPUs whose mode could change"),
        (CC_MODE_TOOL, _LAYOUT, _CHANGED),
        (CC_MODE_TOOL, VGPU_LAYOUT, _CHANGED),
        (CC_MODE_TOOL, FABRIC_PARTITIONS, "what Fabric Manager does when all GPUs are reset is not known"),
    )
}
"""Features of a node that exclude each other → why. Two entries, an entry and a setting, or two settings."""


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"role": "as"}):
    """An entry as it is written."""

    select: str | int | list[str | int]
    role: GpuRole
    bind: Literal["onDemand", "existing"] | None = None
    file: str | None = None
    layout: str | None = None
    condition: bool | None = None


msgspec.json.Decoder(_Given)  # inspected by the thread that imports: see kube.client


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """One entry of the list."""

    select: tuple[str, ...]
    """Words in lower case."""
    role: GpuRole
    bind: str = ""
    """Of passthrough: ON_DEMAND if claims bind the GPUs to VFIO, else an admin has done so."""
    file: str = ""
    """Of layouts, for MIG or vGPUs."""
    layout: str = ""
    """Of a node whose label names none; empty: GPUs stay as they are."""
    condition: bool = False
    """Whether the Node gets a condition that says whether its layout is applied."""

    @property
    def feature(self) -> str:
        """Its name in _EXCLUSIVE, and in messages."""
        if self.role is GpuRole.PASSTHROUGH and not self.binds:
            return BOUND_BY_ADMIN
        return VGPU_LAYOUT if self.role is GpuRole.VGPU and self.file else f"as: {self.role}"

    @property
    def binds(self) -> bool:
        """Whether its GPUs are bound to VFIO for a claim."""
        return self.bind == ON_DEMAND


@dataclass(frozen=True, slots=True)
class ListedGpus:
    """Which GPUs of a machine have one role."""

    gpus: tuple[Gpu, ...] = ()
    """In the order of the machine."""
    named: frozenset[str] = frozenset()
    """UUIDs of those that are not only selected by `all`: if such a GPU cannot have the role, that is a problem."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Word of the list, or UUID of a GPU → what is wrong with it, as a sentence."""


@dataclass(frozen=True, slots=True)
class GpuList:
    """All entries of a node, which can be combined."""

    entries: tuple[GpuEntry, ...] = ()

    def has(self, *roles: GpuRole) -> bool:
        """Whether an entry has one of these roles."""
        return any(entry.role in roles for entry in self.entries)

    def layouts(self, role: GpuRole) -> GpuEntry | None:
        """Return the entry of a role that names a file of layouts: at most one does."""
        return next((entry for entry in self.entries if entry.role is role and entry.file), None)

    @property
    def binds(self) -> bool:
        """Whether GPUs are bound to VFIO for claims."""
        return any(entry.binds for entry in self.entries)

    def binds_function(self, address: str, device_id: int) -> bool:
        """Whether the GPU at a PCI address is bound to VFIO for claims, whatever driver has it now."""
        product = PCI_PRODUCTS.get(device_id, "").lower()
        return any(entry.binds for entry in self._closest({address}, product))

    def bound_words(self) -> frozenset[str]:
        """Return the words except `all` that select GPUs to be bound to VFIO."""
        return frozenset(word for entry in self.entries if entry.binds for word in entry.select) - {ALL}

    def listed(self, role: GpuRole, machine: Machine, first: Mapping[int, str] = NO_INDICES) -> ListedGpus:
        """Return the GPUs of a machine that have a role, and what is wrong with the entries that give it.

        `first` says which UUID each index had first: the index means that GPU from then on. NVML numbers the present
        GPUs, so when one is lost, those after it move up although the list did not mean them. That is a problem as
        well. So is a GPU that equally close entries make whole and something else: it stays whole.
        """
        words = {word for entry in self.entries if entry.role is role for word in entry.select} - {ALL}
        problems = {word: problem for word in sorted(words) if (problem := _unclear(word, machine, first))}
        listed, named = [], set()
        for gpu in machine.gpus:
            own, product = set(_words(gpu, first)), (gpu.product_name or "").lower()
            found = self._closest(own, product)
            roles = {entry.role for entry in found}
            if role not in roles:
                continue
            if role is not GpuRole.WHOLE and GpuRole.WHOLE in roles:
                problems[gpu.uuid] = (
                    f"GPU {gpu.uuid} is selected equally closely as {GpuRole.WHOLE} and as {role}, by "
                    f"{', '.join(sorted(repr(word) for entry in found for word in entry.select if word in own))}: it "
                    "stays whole"
                )
                continue
            listed.append(gpu)
            if not any(ALL in entry.select for entry in found):
                named.add(gpu.uuid)
        return ListedGpus(tuple(listed), frozenset(named), problems)

    def _closest(self, own: set[str], product: str) -> list[GpuEntry]:
        """Return the entries that hold for a GPU with these words of its own, and this product; empty: not known."""
        for words in (own, {product} - {""}, {ALL}):
            found = [entry for entry in self.entries if not words.isdisjoint(entry.select)]
            if found:
                return found
        return []


ALL_WHOLE: Final = GpuList()
"""Each GPU is for one claim at a time."""


def read_gpus(document: Any) -> GpuList:
    """Read the list as it was written. Raises BadInputError for an entry that cannot be, or two that exclude each
    other, with the reason, in words that follow the place of the list.
    """
    try:
        given = msgspec.convert(document, list[_Given])
    except msgspec.ValidationError as error:
        raise BadInputError(f"{error} (expected entries `{{select: …, as: {'|'.join(GpuRole)}}}`)") from error
    entries = tuple(_entry(each, f"entry {number}") for number, each in enumerate(given, start=1))
    _check_words(entries)
    refuse_combinations([entry.feature for entry in entries])
    return GpuList(entries)


def refuse_combinations(features: Sequence[str]) -> None:
    """Raise BadInputError if two features of a node exclude each other: those of entries, and the names of settings."""
    for number, one in enumerate(features):
        for other in features[number + 1 :]:
            if one == other and one in _ONCE:
                raise BadInputError(f"`{one}` appears twice: a node has one file of each kind of layouts")
            if reason := _EXCLUSIVE.get(frozenset((one, other))):
                raise BadInputError(f"`{one}` cannot be combined with `{other}`: {reason}; leave out one of them")


def _entry(given: _Given, where: str) -> GpuEntry:
    words = given.select if isinstance(given.select, list) else [given.select]
    select = tuple(dict.fromkeys(str(word).strip().lower() for word in words))
    role, is_one = given.role, given.role in (GpuRole.LAYOUT, GpuRole.VGPU)
    made = GpuEntry(
        select,
        role,
        (given.bind or ON_DEMAND) if role is GpuRole.PASSTHROUGH else "",
        given.file or "",
        given.layout or "",
        given.condition or False,
    )
    only_all = is_one or made.bind == EXISTING
    for refused, why in (
        (not select or "" in select, "selects nothing: expected `all`, indices, UUIDs, PCI addresses or products"),
        (ALL in select and len(select) > 1, "combines `all` with other words: leave out one or the other"),
        (any(word.startswith("mig-") for word in select), "selects a MIG device: expected GPUs"),
        (given.bind is not None and role is not GpuRole.PASSTHROUGH, f"has `bind`, which `as: {role}` does not have"),
        (
            not is_one and any(each is not None for each in (given.file, given.layout, given.condition)),
            f"has `file`, `layout` or `condition`, which `as: {role}` does not have",
        ),
        (role is GpuRole.LAYOUT and not made.file, "needs `file`, which names the file of MIG layouts"),
        (bool(made.layout or made.condition) and not made.file, "has `layout` or `condition` without a `file`"),
        (bool(made.file) and not made.file.startswith("/"), f"has file {made.file!r}: expected an absolute path"),
        (
            only_all and select != (ALL,),
            f"must select `all`: with `{made.feature}`, a file or whoever bound the GPUs says which are meant",
        ),
    ):
        if refused:
            raise BadInputError(f"{where} {why}")
    return made


def _check_words(entries: Sequence[GpuEntry]) -> None:
    """Refuse one word for a GPU that is whole and something else; and with GPUs that are bound to VFIO for claims,
    words that mean no such GPU while it is bound: the role of a GPU must not depend on who has it.
    """
    whole = {word for entry in entries if entry.role is GpuRole.WHOLE for word in entry.select}
    other = {word: entry.role for entry in entries if entry.role is not GpuRole.WHOLE for word in entry.select}
    for word in sorted(whole & other.keys()):
        raise BadInputError(f"{word!r} is selected as whole and as {other[word]}: leave out one of them")
    if not any(entry.binds for entry in entries):
        return
    products = {product.lower() for product in PCI_PRODUCTS.values()}
    for word in sorted((whole | other.keys()) - products - {ALL}):
        if not _PCI_ADDRESS.fullmatch(word):
            raise BadInputError(
                f"{word!r} cannot be combined with `as: passthrough`: a GPU that is bound to VFIO has no index and no "
                "UUID, and its product is known for some device ids only; select PCI addresses (0000:18:00.0)"
            )


def _words(gpu: Gpu, first: Mapping[int, str]) -> Iterator[str]:
    if first.get(gpu.index, gpu.uuid) == gpu.uuid:
        yield str(gpu.index)
    yield from (str(index) for index, uuid in first.items() if uuid == gpu.uuid)
    yield gpu.uuid.lower()
    yield from () if gpu.pci_bus_id is None else (gpu.pci_bus_id.lower(),)


def _unclear(word: str, machine: Machine, first: Mapping[int, str]) -> str | None:
    """Return what is wrong with a word on a machine, None if it selects GPUs there."""
    moved = next((gpu for gpu in machine.gpus if word == str(gpu.index) and word not in _words(gpu, first)), None)
    if moved is not None:
        return (
            f"index {word} was GPU {first[moved.index]} when the plugin started and is GPU {moved.uuid} now, which it "
            "does not select: use UUIDs or PCI addresses"
        )
    if any(word in _words(gpu, first) or word == (gpu.product_name or "").lower() for gpu in machine.gpus):
        return None
    if any(word in (gpu.pci_bus_id, (gpu.product_name or "").lower()) for gpu in machine.passthrough):
        return None  # a virtual machine has it
    return f"{word!r} is not an index, UUID, PCI address or product of a GPU of this node{_has(machine)}"


def _has(machine: Machine) -> str:
    if not machine.gpus:
        return ", which has none"
    known = sorted({gpu.product_name for gpu in machine.gpus if gpu.product_name is not None})
    return f" (indices {', '.join(str(gpu.index) for gpu in machine.gpus)}; {', '.join(known) or 'names not known'})"
