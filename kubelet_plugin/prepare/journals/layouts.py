"""The journal of layouts on this node: which GPUs are being changed, and which parts of them are ours.

On disk: one JSON object. Parts do not outlive a boot, so a document of another boot is meaningless. This file has the
journal of MIG layouts; vgpu_layouts has that of vGPU layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

import msgspec

from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout
from dracaena.kubelet_plugin.prepare.journals.document import JournalDocument, read_document

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


@dataclass(frozen=True, slots=True)
class JournalForm(Generic[R]):
    """How one kind of journal is written."""

    file: str
    """Name of the file."""
    empty: R
    encode: Callable[[LayoutJournal[R]], bytes]
    decode: Callable[[bytes, str], LayoutJournal[R]]
    """Reads a document in a boot; one of another boot is empty. Raises ValueError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class MadeInstance:
    """A GPU instance that we made, or are about to make."""

    profile: str
    start: int
    size: int
    number: int | None = None
    """The driver's number. None: it was requested, and may have been made."""
    uuid: str | None = None
    """UUID of its MIG device. None: not known yet, or the journal is of a plugin that did not record it."""

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


class _LayoutDocument(msgspec.Struct):
    name: str
    enabled: bool
    counts: dict[str, int]


class _InstanceDocument(msgspec.Struct, omit_defaults=True):
    profile: str
    start: int
    size: int
    number: int | None = None
    uuid: str | None = None


class _GpuDocument(msgspec.Struct, omit_defaults=True):
    changing: _LayoutDocument | None = None
    made: tuple[_InstanceDocument, ...] = ()


class _LayoutsDocument(JournalDocument):
    gpus: dict[str, _GpuDocument] = msgspec.field(default_factory=dict)


def encode_journal(journal: LayoutJournal[GpuRecord]) -> bytes:
    """Return the file's content."""
    gpus = {
        uuid: _GpuDocument(
            None if record.changing is None else _layout(record.changing),
            tuple(
                _InstanceDocument(each.profile, each.start, each.size, each.number, each.uuid) for each in record.made
            ),
        )
        for uuid, record in sorted(journal.gpus.items())
    }
    return msgspec.json.format(msgspec.json.encode(_LayoutsDocument(VERSION, journal.boot_id, gpus)), indent=1) + b"\n"


def decode_journal(data: bytes, boot_id: str) -> LayoutJournal[GpuRecord]:
    """Read a file in a boot; one of another boot is empty. Raises ValueError if it cannot be read."""
    document = read_document(data, _LayoutsDocument, VERSION)
    if document.boot_id != boot_id:
        return LayoutJournal(boot_id, GpuRecord())
    return LayoutJournal(boot_id, GpuRecord(), {uuid: _record(each) for uuid, each in document.gpus.items()})


MIG_JOURNAL: Final = JournalForm("mig-layouts", GpuRecord(), encode_journal, decode_journal)


def _layout(layout: GpuLayout) -> _LayoutDocument:
    return _LayoutDocument(layout.name, layout.enabled, dict(layout.counts))


def _record(found: _GpuDocument) -> GpuRecord:
    changing = found.changing
    return GpuRecord(
        None if changing is None else GpuLayout(changing.name, changing.enabled, changing.counts),
        tuple(MadeInstance(each.profile, each.start, each.size, each.number, each.uuid) for each in found.made),
    )
