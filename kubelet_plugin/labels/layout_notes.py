"""What the ledger says of GPUs in layouts of one kind: a note for each GPU of which something is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import structlog

from dracaena.kubelet_plugin.changes.change import Note, Thing, Unreadable
from dracaena.kubelet_plugin.changes.ledger import Ledger, note_decoder
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.ports import NodeLock


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


class LayoutNotes(Generic[R]):
    """From any thread. GPUs go by their permanent names: UUIDs, or PCI addresses. `lock` is that of the ledger. All
    methods raise DracaenaError.
    """

    def __init__(self, ledger: Ledger, lock: NodeLock, kind: str, empty: R) -> None:
        """`empty` is the record of a GPU of which nothing is known."""
        self._ledger = ledger
        self._lock = lock
        self._kind = kind
        self._empty = empty
        note_decoder(type(empty))

    def read(self) -> Mapping[str, R]:
        """Return the records of all GPUs of which something is known."""
        found = {thing.name: self.of(thing.name) for thing in self._ledger.things(self._kind)}
        return {gpu: record for gpu, record in found.items() if record != self._empty}

    def of(self, gpu: str) -> R:
        """Return the record of a GPU. A note that cannot be read is set aside: from then on its change is not known to
        be under way, and parts that it listed are nobody's. They are reported as such, and never destroyed.
        """
        thing = self._thing(gpu)
        with self._lock.hold():
            note = self._ledger.read(thing, type(self._empty))
            if isinstance(note, Unreadable):
                log.error(
                    "a note is lost: a change counts as over, what it listed as made by others", problem=note.problem
                )
                self._ledger.set_aside(thing, note)
        return note.noted if isinstance(note, Note) else self._empty

    def begin(self, gpu: str, layout: object, user: Callable[[], str | None]) -> R:
        """Record that a GPU is being changed, and return its record: from now on no claim gets anything of it.

        `user` returns, with the lock held, who has something of it. Raises InUseError if somebody has.
        """
        with self._lock.hold():
            found = user()
            if found is not None:
                raise InUseError(found)
            record: R = self.of(gpu).changed_to(layout)
            return self.note(gpu, record)

    def note(self, gpu: str, record: R) -> R:
        """Replace the record of a GPU, and return it."""
        if record == self._empty:
            self._ledger.drop(self._thing(gpu))
        else:
            self._ledger.write(self._thing(gpu), Note(self._ledger.boot_id, {}, record))
        return record

    def rest(self, gpu: str, layout: object) -> None:
        """Record that the change of a GPU to this layout is over; does nothing if it is being changed to another."""
        with self._lock.hold():
            record = self.of(gpu)
            if record.changing == layout:
                self.note(gpu, record.changed_to(None))

    def changing(self) -> frozenset[str]:
        """Return the GPUs that are being changed. The caller holds the lock."""
        return frozenset(gpu for gpu, record in self.read().items() if record.changing is not None)

    def _thing(self, gpu: str) -> Thing:
        return Thing(self._kind, gpu)
