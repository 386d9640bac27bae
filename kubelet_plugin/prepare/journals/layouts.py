"""The journal of layouts on this node: which GPUs are being changed, and which parts of them are ours.

On disk: one JSON object. Parts do not outlive a boot, so a document of another boot is meaningless. This file has the
journal of MIG layouts; vgpu_layouts has that of vGPU layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

import msgspec

from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout
from dracaena.kubelet_plugin.prepare.journals.document import (
    JournalDocument,
    encode_record,
    read_document,
    read_fields,
)

VERSION: Final = 1

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LayoutJournal(Generic[R]):
    """The whole document; GPUs with an empty record are left out."""

    boot_id: str
    empty: R
    """The empty record."""
    gpus: Mapping[str, R] = field(default_factory=dict)
    """By the permanent name of a GPU: its UUID, or its PCI address."""

    def of(self, gpu: str) -> R:
        """Return what is known of a GPU."""
        return self.gpus.get(gpu, self.empty)

    def having(self, gpu: str, record: R) -> LayoutJournal[R]:
        """Return this with another record of one GPU."""
        gpus = {**self.gpus, gpu: record}
        return replace(self, gpus={name: each for name, each in gpus.items() if each != self.empty})


class _LayoutsDocument(JournalDocument):
    gpus: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


msgspec.json.Decoder(_LayoutsDocument)  # inspected by the thread that imports: see kube.client


@dataclass(frozen=True, slots=True)
class JournalForm(Generic[R]):
    """How the journal of one kind of layouts is written: its GPUs have the fields of their records."""

    file: str
    """Name of the file."""
    empty: R
    """The empty record, a dataclass."""

    def __post_init__(self) -> None:
        msgspec.json.Decoder(type(self.empty))  # inspected by the thread that imports: see kube.client

    def encode(self, journal: LayoutJournal[R]) -> bytes:
        """Return the file's content."""
        return encode_record({"boot_id": journal.boot_id, "gpus": journal.gpus}, VERSION)

    def decode(self, data: bytes, boot_id: str) -> LayoutJournal[R]:
        """Read a file in a boot; one of another boot is empty. Raises ValueError if it cannot be read."""
        document = read_document(data, _LayoutsDocument, VERSION)
        gpus = {gpu: read_fields(record, type(self.empty)) for gpu, record in document.gpus.items()}
        return LayoutJournal(boot_id, self.empty, gpus if document.boot_id == boot_id else {})


@dataclass(frozen=True, slots=True)
class MadeInstance:
    """A GPU instance that we made, or are about to make."""

    profile: str
    start: int
    size: int
    number: int | None = None
    """The driver's number. None: it was requested, and may have been made."""
    uuid: str | None = None
    """UUID of its MIG device. None: not known yet."""

    @property
    def placement(self) -> MigPlacement:
        """Where it lies."""
        return MigPlacement(self.start, self.size)

    def may_be(self, found: GpuInstance) -> bool:
        """Whether an instance may be this one, as far as that shows without its UUID. A number alone proves nothing:
        the driver reuses it for the next instance.
        """
        same_place = (found.profile, found.placement) == (self.profile, self.placement)
        return same_place and self.number in (None, found.number)


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What is known of one GPU."""

    changing: GpuLayout | None = None
    """The layout that it is being changed to, until that is done and was read back. None: no change is under way."""
    made: tuple[MadeInstance, ...] = ()

    def changed_to(self, layout: GpuLayout | None) -> GpuRecord:
        """Return this with a change under way, or with none."""
        return replace(self, changing=layout)

    def candidate(self, found: GpuInstance) -> MadeInstance | None:
        """Return the entry that an instance may belong to, None for one that we did not make."""
        return next((each for each in self.made if each.may_be(found)), None)

    def making(self, profile: MigProfile, placement: MigPlacement) -> GpuRecord:
        """Return this with an instance that is about to be made."""
        return replace(self, made=(*self.made, MadeInstance(profile.name, placement.start, placement.size)))

    def identified(self, number: int, uuid: str | None = None) -> GpuRecord:
        """Return this with the number and the UUID of the last entry filled in."""
        return replace(self, made=(*self.made[:-1], replace(self.made[-1], number=number, uuid=uuid)))

    def without(self, gone: MadeInstance) -> GpuRecord:
        """Return this without an instance."""
        return replace(self, made=tuple(each for each in self.made if each != gone))


MIG_JOURNAL: Final = JournalForm("mig-layouts", GpuRecord())
