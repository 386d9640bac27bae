"""What is written down of static MIG layouts on this node: which GPUs are being changed, and which instances are ours.

On disk: one JSON object. Instances outlive no boot, so a document of another boot says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from dracaena.api.mig_geometry import MigPlacement, MigProfile
from dracaena.kubelet_plugin.discovery.mig_instances import GpuInstance
from dracaena.kubelet_plugin.discovery.mig_layouts import GpuLayout

VERSION: Final = 1


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


@dataclass(frozen=True, slots=True)
class LayoutJournal:
    """The whole document; GPUs of which nothing is to be said are left out."""

    boot_id: str
    gpus: Mapping[str, GpuRecord] = field(default_factory=dict)
    """By UUID."""

    def of(self, gpu: str) -> GpuRecord:
        """Return what is known of a GPU."""
        return self.gpus.get(gpu, GpuRecord())

    def having(self, gpu: str, record: GpuRecord) -> LayoutJournal:
        """Return this with another record of one GPU."""
        gpus = {**self.gpus, gpu: record}
        return replace(self, gpus={uuid: each for uuid, each in gpus.items() if each != GpuRecord()})


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


class _Document(msgspec.Struct):
    version: int
    boot_id: str
    gpus: dict[str, _Gpu] = {}


def encode_journal(journal: LayoutJournal) -> bytes:
    """Return the file's content."""
    gpus = {
        uuid: _Gpu(
            None if record.changing is None else _layout(record.changing),
            tuple(_Made(each.profile, each.start, each.size, each.number, each.uuid) for each in record.made),
        )
        for uuid, record in sorted(journal.gpus.items())
    }
    return msgspec.json.format(msgspec.json.encode(_Document(VERSION, journal.boot_id, gpus)), indent=1) + b"\n"


def decode_journal(data: bytes, boot_id: str) -> LayoutJournal:
    """Read a file in a boot; one of another boot is empty. Raises ValueError for what cannot be read."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if document.version != VERSION:
        raise ValueError(f"version {document.version}, expected {VERSION}")
    if document.boot_id != boot_id:
        return LayoutJournal(boot_id)
    return LayoutJournal(boot_id, {uuid: _record(each) for uuid, each in document.gpus.items()})


def _layout(layout: GpuLayout) -> _Layout:
    return _Layout(layout.name, layout.enabled, dict(layout.counts))


def _record(found: _Gpu) -> GpuRecord:
    changing = found.changing
    return GpuRecord(
        None if changing is None else GpuLayout(changing.name, changing.enabled, changing.counts),
        tuple(MadeInstance(each.profile, each.start, each.size, each.number, each.uuid) for each in found.made),
    )
