"""Stores the journal of one kind of layouts in its file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import structlog

from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.journals.layouts import JournalForm, LayoutJournal


class LayoutRecord(Protocol):
    """What is known of one GPU: a frozen dataclass."""

    @property
    def changing(self) -> object | None:
        """The layout that it is being changed to; None: no change is under way."""
        ...

    def changed_to(self, layout: Any, /) -> Any:
        """Return this with a change to a layout under way, or with none."""
        ...


R = TypeVar("R", bound=LayoutRecord)

log = structlog.get_logger()


class LayoutJournals(Generic[R]):
    """From any thread. `lock` is that of the calls, which the other instance during an upgrade shares."""

    def __init__(self, files: DocumentStore, lock: NodeLock, boot_id: str, form: JournalForm[R]) -> None:
        self._form = form
        self._files = files
        self._lock = lock
        self._boot_id = boot_id

    def read(self) -> LayoutJournal[R]:
        """Return the current journal. Raises DracaenaError, as the other methods do."""
        with self._lock.hold():
            return self._read()

    def begin(self, gpu: str, layout: object, user: Callable[[], str | None]) -> R:
        """Record that a GPU is being changed, and return its record: from now on no claim gets anything of it.

        `user` returns, with the lock held, who has something of it. Raises InUseError if somebody has.
        """
        with self._lock.hold():
            found = user()
            if found is not None:
                raise InUseError(found)
            record: R = self._read().of(gpu).changed_to(layout)
            self._note(gpu, record)
        return record

    def note(self, gpu: str, record: R) -> R:
        """Replace the record of a GPU, and return it."""
        with self._lock.hold():
            self._note(gpu, record)
        return record

    def rest(self, gpu: str, layout: object) -> None:
        """Record that the change of a GPU to this layout is over; does nothing if it is being changed to another."""
        with self._lock.hold():
            record = self._read().of(gpu)
            if record.changing == layout:
                self._note(gpu, record.changed_to(None))

    def changing(self) -> frozenset[str]:
        """Return the GPUs that are being changed, as the journal names them. The caller holds the lock."""
        return frozenset(gpu for gpu, record in self._read().gpus.items() if record.changing is not None)

    def _note(self, gpu: str, record: R) -> None:
        journal = self._read().having(gpu, record)
        if journal.gpus:
            self._files.write_if_changed(self._form.file, self._form.encode(journal))
        else:
            self._files.remove(self._form.file)

    def _read(self) -> LayoutJournal[R]:
        data = self._files.read(self._form.file)
        if data is None:
            return LayoutJournal(self._boot_id, self._form.empty)
        try:
            return self._form.decode(data, self._boot_id)
        except ValueError as error:
            # From now on the parts that it listed are nobody's: they are reported as such, and never destroyed.
            log.error(
                "journal of layouts is lost: what it had made counts as made by others",
                journal=self._form.file,
                error=str(error),
            )
            self._files.write(f"{self._form.file}.broken", data)
            self._files.remove(self._form.file)
            return LayoutJournal(self._boot_id, self._form.empty)
