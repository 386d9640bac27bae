"""Keeps the journal of static MIG layouts in its file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.kubelet_plugin.discovery.mig_layouts import GpuLayout
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.layout_journal import GpuRecord, LayoutJournal, decode_journal, encode_journal

JOURNAL: Final = "mig-layouts"
"""Name of the file."""

log = structlog.get_logger()


class GpuInUseError(TemporaryError):
    """Somebody has the GPU, or a part of it. The text says who."""


class LayoutJournals:
    """From any thread. `lock` is that of the calls, which the other instance during an upgrade shares."""

    def __init__(self, files: DocumentStore, lock: NodeLock, boot_id: str) -> None:
        self._files = files
        self._lock = lock
        self._boot_id = boot_id

    def read(self) -> LayoutJournal:
        """Return what is written down. Raises DracaenaError, as the other methods do."""
        with self._lock.hold():
            return self._read()

    def begin(self, gpu: str, layout: GpuLayout, user: Callable[[], str | None]) -> GpuRecord:
        """Write down that a GPU is being changed, and return what is known of it: no claim gets anything of it now.

        `user` says, with the lock held, who has something of it. Raises GpuInUseError where somebody has.
        """
        with self._lock.hold():
            found = user()
            if found is not None:
                raise GpuInUseError(found)
            record = replace(self._read().of(gpu), changing=layout)
            self._note(gpu, record)
        return record

    def note(self, gpu: str, record: GpuRecord) -> GpuRecord:
        """Write down what is known of a GPU from now on, and return it."""
        with self._lock.hold():
            self._note(gpu, record)
        return record

    def rest(self, gpu: str, layout: GpuLayout) -> None:
        """Write down that a GPU is no longer being changed into a layout; into another one it may be by now."""
        with self._lock.hold():
            record = self._read().of(gpu)
            if record.changing == layout:
                self._note(gpu, replace(record, changing=None))

    def changing(self) -> frozenset[DeviceName]:
        """Return the whole GPUs that are being changed. The caller holds the lock."""
        gpus = self._read().gpus
        return frozenset(gpu_device_name(uuid) for uuid, record in gpus.items() if record.changing is not None)

    def _note(self, gpu: str, record: GpuRecord) -> None:
        journal = self._read().having(gpu, record)
        if journal.gpus:
            self._files.write_if_changed(JOURNAL, encode_journal(journal))
        else:
            self._files.remove(JOURNAL)

    def _read(self) -> LayoutJournal:
        data = self._files.read(JOURNAL)
        if data is None:
            return LayoutJournal(self._boot_id)
        try:
            return decode_journal(data, self._boot_id)
        except ValueError as error:
            # What it had is nobody's from now on: it is told as such, and never destroyed.
            log.error("journal of MIG layouts is lost: what it had made counts as made by others", error=str(error))
            self._files.write(f"{JOURNAL}.broken", data)
            self._files.remove(JOURNAL)
            return LayoutJournal(self._boot_id)
