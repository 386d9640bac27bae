"""The ledger of what the plugin changed on its node: one small file per thing.

A file is written before the first act on its thing and removed after the last, so at all times the ledger names at
least what was changed. It is the only such record: what claims want is in their checkpoints, what became of it is seen
on the node. On disk: one JSON object `{"checksum", "note"}`; the checksum is over the bytes of the value of `note`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dracaena.kubelet_plugin.changes.change import N, Note, Thing, Unreadable
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock

LASTING: Final = "cc-modes"
"""The kind whose changes outlive a boot, and so do its notes."""

_SUFFIX: Final = ".json"


class _File(msgspec.Struct):
    checksum: str
    note: msgspec.Raw


class _OfBoot(msgspec.Struct):
    """The part of a note that those of all kinds have."""

    boot_id: str


_FILE: Final = msgspec.json.Decoder(_File)  # inspected by the thread that imports: see kube.client
_OF_BOOT: Final = msgspec.json.Decoder(_OfBoot)


_NOTES: Final[dict[type, msgspec.json.Decoder[Any]]] = {}


def note_decoder(noted: type[N]) -> msgspec.json.Decoder[Note[N]]:
    """Return what reads the notes of a kind. Whoever has the kind calls this before threads start: two that inspect a
    type at once crash the process (kube.client).
    """
    form: Any = Note
    if noted not in _NOTES:
        _NOTES[noted] = msgspec.json.Decoder(form[noted])
    return _NOTES[noted]


class Ledger:
    """From any thread; the note of a thing belongs to whoever holds the lock of its GPU. All methods raise
    DracaenaError if a file cannot be read or written: then nothing may be done to its thing.
    """

    def __init__(self, files: DocumentStore, lock: NodeLock, boot_id: str) -> None:
        """`lock` is NodeClaims, which guards all writes on this node: write(), drop() and clear() take it."""
        self._files = files
        self._lock = lock
        self.boot_id = boot_id

    def things(self, kind: str) -> tuple[Thing, ...]:
        """Return all things of a kind with a note, from whatever boot and readable or not; sorted."""
        names = (name.removesuffix(_SUFFIX).partition(".") for name in self._files.names(_SUFFIX))
        return tuple(sorted(Thing(kind, thing) for found, _, thing in names if found == kind))

    def read(self, thing: Thing, noted: type[N]) -> Note[N] | Unreadable | None:
        """Return the note of a thing in this boot, None if there is none: most changes outlive no boot."""
        note = self.read_of_any_boot(thing, noted)
        return None if isinstance(note, Note) and note.boot_id != self.boot_id else note

    def read_of_any_boot(self, thing: Thing, noted: type[N]) -> Note[N] | Unreadable | None:
        """Return the note of a thing whose change may outlive a boot, None if there is none."""
        data = self._files.read(_name(thing))
        if data is None:
            return None
        try:
            file = _FILE.decode(data)
            if _checksum(bytes(file.note)) != file.checksum:
                raise ValueError("its checksum is wrong")
            return note_decoder(noted).decode(file.note)
        except (ValueError, RecursionError) as error:
            return Unreadable(f"its note {_name(thing)} is broken ({error})", data)

    def write(self, thing: Thing, note: Note[N] | Unreadable) -> None:
        """Replace the note of a thing, also by one that was read and could not be."""
        data = note.data if isinstance(note, Unreadable) else _encode(note)
        with self._lock.hold():
            self._files.write(_name(thing), data)

    def drop(self, thing: Thing) -> None:
        """Remove the note of a thing: nothing of ours is left of it."""
        self._remove([_name(thing)])

    def set_aside(self, thing: Thing, note: Unreadable) -> None:
        """Keep a note that cannot be read as `<name>.broken`, and remove it. The caller holds the lock since before it
        was read: on a full disk a note is overwritten in place.
        """
        self._files.write(f"{_name(thing)}.broken", note.data)
        self._files.remove(_name(thing))

    def clear(self) -> None:
        """Remove all notes but lasting ones and those of this boot, which are there if an earlier start could not mark
        it. Those that cannot be read count as older.
        """
        names = (name for name in self._files.names(_SUFFIX) if not name.startswith(f"{LASTING}."))
        self._remove(name for name in names if not self._is_of_this_boot(name))

    def _is_of_this_boot(self, name: str) -> bool:
        data = self._files.read(name)
        try:
            return data is not None and _OF_BOOT.decode(_FILE.decode(data).note).boot_id == self.boot_id
        except (ValueError, RecursionError):
            return False

    def _remove(self, names: Iterable[str]) -> None:
        with self._lock.hold():
            for name in names:
                self._files.remove(name)


def _name(thing: Thing) -> str:
    return f"{thing.kind}.{thing.name}{_SUFFIX}"


def _encode(note: Note[N]) -> bytes:
    body = msgspec.json.encode(note, order="deterministic")
    return msgspec.json.encode(_File(_checksum(body), msgspec.Raw(body))) + b"\n"


def _checksum(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()
