"""The journal of vGPU layouts on this node: which GPUs are being changed, and which vGPUs are ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import OurVgpu, VgpuLayout, VgpuOnGpu
from dracaena.kubelet_plugin.prepare.journals.document import JournalDocument, read_document
from dracaena.kubelet_plugin.prepare.journals.layouts import (
    VERSION,
    JournalForm,
    LayoutJournal,
)


@dataclass(frozen=True, slots=True)
class VgpuRecord:
    """What is known of one GPU."""

    changing: VgpuLayout | None = None
    """The layout that it is being changed to, until that is done and was read back. None: no change is under way."""
    made: tuple[OurVgpu, ...] = ()
    """Each is noted before it is made, so some may not exist yet, or no longer exist."""
    before: tuple[OurVgpu, ...] | None = None
    """What was `made` when the change began. None: no change is under way, or that is not known."""

    def changed_to(self, layout: VgpuLayout | None) -> VgpuRecord:
        """Return this with a change under way, or with none."""
        if layout is None:
            return replace(self, changing=None, before=None)
        return replace(self, changing=layout, before=self.made if self.changing is None else self.before)

    def is_untouched(self, there: Sequence[VgpuOnGpu]) -> bool:
        """Whether what is on the GPU proves that nothing was written to it for the change that is under way: nothing
        that was made before is gone, and nothing was made since. The caller knows that no write is hanging.
        """
        if self.before is None:
            return False
        new = set(self.made) - set(self.before)
        exist = {mine for mine in {*self.made, *self.before} if any(map(mine.may_be, there))}
        return exist.issuperset(self.before) and exist.isdisjoint(new)

    def making(self, vgpu: OurVgpu) -> VgpuRecord:
        """Return this with a vGPU that is about to be made."""
        return replace(self, made=(*self.without(vgpu).made, vgpu))

    def without(self, gone: OurVgpu) -> VgpuRecord:
        """Return this without a vGPU."""
        return replace(self, made=tuple(each for each in self.made if each.identity != gone.identity))


NOTHING_KNOWN: Final = VgpuRecord()


class _VgpuLayoutDocument(msgspec.Struct):
    name: str
    counts: dict[str, int]


class _VgpuDocument(msgspec.Struct):
    identity: str
    type_name: str
    type_id: str


class _VgpuGpuDocument(msgspec.Struct, omit_defaults=True):
    changing: _VgpuLayoutDocument | None = None
    made: tuple[_VgpuDocument, ...] = ()
    before: tuple[_VgpuDocument, ...] | None = None


class _VgpuLayoutsDocument(JournalDocument):
    gpus: dict[str, _VgpuGpuDocument] = msgspec.field(default_factory=dict)
    """By PCI address."""


def encode_vgpu_journal(journal: LayoutJournal[VgpuRecord]) -> bytes:
    """Return the file's content."""
    gpus = {
        address: _VgpuGpuDocument(
            None
            if record.changing is None
            else _VgpuLayoutDocument(record.changing.name, dict(record.changing.counts)),
            _written(record.made),
            None if record.before is None else _written(record.before),
        )
        for address, record in sorted(journal.gpus.items())
    }
    return (
        msgspec.json.format(msgspec.json.encode(_VgpuLayoutsDocument(VERSION, journal.boot_id, gpus)), indent=1) + b"\n"
    )


def decode_vgpu_journal(data: bytes, boot_id: str) -> LayoutJournal[VgpuRecord]:
    """Read a file in a boot; one of another boot is empty. Raises ValueError if it cannot be read."""
    document = read_document(data, _VgpuLayoutsDocument, VERSION)
    if document.boot_id != boot_id:
        return LayoutJournal(boot_id, NOTHING_KNOWN)
    return LayoutJournal(boot_id, NOTHING_KNOWN, {address: _record(each) for address, each in document.gpus.items()})


VGPU_JOURNAL: Final = JournalForm("vgpu-layouts", NOTHING_KNOWN, encode_vgpu_journal, decode_vgpu_journal)


def _record(found: _VgpuGpuDocument) -> VgpuRecord:
    changing = None if found.changing is None else VgpuLayout(found.changing.name, found.changing.counts)
    return VgpuRecord(changing, _read(found.made), None if found.before is None else _read(found.before))


def _written(vgpus: Iterable[OurVgpu]) -> tuple[_VgpuDocument, ...]:
    return tuple(_VgpuDocument(each.identity, each.type_name, each.type_id) for each in vgpus)


def _read(vgpus: Iterable[_VgpuDocument]) -> tuple[OurVgpu, ...]:
    return tuple(OurVgpu(each.identity, each.type_name, each.type_id) for each in vgpus)
