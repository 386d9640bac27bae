"""What is written down of layouts on this node: which GPUs are being changed, and which parts of them are ours.

On disk: one JSON object. Parts outlive no boot, so a document of another boot says nothing. Here is what is written of
MIG layouts; vgpu_layout_journal has what is written of those of vGPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

import msgspec

from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout

VERSION: Final = 1

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class LayoutJournal(Generic[R]):
    """The whole document; GPUs of which nothing is to be said are left out."""

    boot_id: str
    empty: R
    """What is known of a GPU of which nothing is to be said."""
    gpus: Mapping[str, R] = field(default_factory=dict)
    """By what names a GPU for good: its UUID, or its PCI address."""

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
    """Reads a document in a boot; one of another boot is empty. Raises ValueError for what cannot be read."""


@dataclass(frozen=True, slots=True)
class MadeInstance:
    """A GPU instance that we made, or are about to make."""

    profile: str
    start: int
    size: int
    number: int | None = None
    """The driver's. None: it was asked for, and may have been made."""
    uuid: str | None = None
    """Of its MIG device. None: not known yet, or written by a plugin that did not write it down."""

    @property
    def placement(self) -> MigPlacement:
        """Where it lies."""
        return MigPlacement(self.start, self.size)

    def may_be(self, found: GpuInstance) -> bool:
        """Whether an instance is this one, as far as it can be told without its UUID. A number alone says nothing: the
        driver gives it to the next instance.
        """
        same_place = (found.profile, found.placement) == (self.profile, self.placement)
        return same_place and self.number in (None, found.number)


@dataclass(frozen=True, slots=True)
class GpuRecord:
    """What is known of one GPU."""

    changing: GpuLayout | None = None
    """What it is being changed into: begun, and not known to be done and read since. None: it is at rest."""
    made: tuple[MadeInstance, ...] = ()

    def candidate(self, found: GpuInstance) -> MadeInstance | None:
        """Return the entry that an instance may be of, None for one that we did not make."""
        return next((each for each in self.made if each.may_be(found)), None)

    def making(self, profile: MigProfile, placement: MigPlacement) -> GpuRecord:
        """Return this with an instance that is about to be made."""
        return replace(self, made=(*self.made, MadeInstance(profile.name, placement.start, placement.size)))

    def identified(self, number: int, uuid: str | None = None) -> GpuRecord:
        """Return this with the number and the UUID of what was entered last."""
        return replace(self, made=(*self.made[:-1], replace(self.made[-1], number=number, uuid=uuid)))

    def without(self, gone: MadeInstance) -> GpuRecord:
        """Return this without an instance."""
        return replace(self, made=tuple(each for each in self.made if each != gone))


class JournalDocument(msgspec.Struct):
    """What the documents of all kinds begin with."""

    version: int
    boot_id: str


D = TypeVar("D", bound=JournalDocument)


def read_document(data: bytes, kind: type[D]) -> D:
    """Read a document of a kind. Raises ValueError for one that cannot be read, or is of another version."""
    try:
        document = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if document.version != VERSION:
        raise ValueError(f"version {document.version}, expected {VERSION}")
    return document


class _Layout(msgspec.Struct):
    name: str
    enabled: bool
    counts: dict[str, int]


class _Made(msgspec.Struct, omit_defaults=True):
    profile: str
    start: int
    size: int
    number: int | None = None
    uuid: str | None = None


class _Gpu(msgspec.Struct, omit_defaults=True):
    changing: _Layout | None = None
    made: tuple[_Made, ...] = ()


class _Document(JournalDocument):
    gpus: dict[str, _Gpu] = msgspec.field(default_factory=dict)


def encode_journal(journal: LayoutJournal[GpuRecord]) -> bytes:
    """Return the file's content."""
    gpus = {
        uuid: _Gpu(
            None if record.changing is None else _layout(record.changing),
            tuple(_Made(each.profile, each.start, each.size, each.number, each.uuid) for each in record.made),
        )
        for uuid, record in sorted(journal.gpus.items())
    }
    return msgspec.json.format(msgspec.json.encode(_Document(VERSION, journal.boot_id, gpus)), indent=1) + b"\n"


def decode_journal(data: bytes, boot_id: str) -> LayoutJournal[GpuRecord]:
    """Read a file in a boot; one of another boot is empty. Raises ValueError for what cannot be read."""
    document = read_document(data, _Document)
    if document.boot_id != boot_id:
        return LayoutJournal(boot_id, GpuRecord())
    return LayoutJournal(boot_id, GpuRecord(), {uuid: _record(each) for uuid, each in document.gpus.items()})


MIG_JOURNAL: Final = JournalForm("mig-layouts", GpuRecord(), encode_journal, decode_journal)


def _layout(layout: GpuLayout) -> _Layout:
    return _Layout(layout.name, layout.enabled, dict(layout.counts))


def _record(found: _Gpu) -> GpuRecord:
    changing = found.changing
    return GpuRecord(
        None if changing is None else GpuLayout(changing.name, changing.enabled, changing.counts),
        tuple(MadeInstance(each.profile, each.start, each.size, each.number, each.uuid) for each in found.made),
    )
