"""What the ledger says of the modes of confidential computing of this node's GPUs, and of a change of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.kubelet_plugin.changes.change import Note, Thing, Unreadable
from dracaena.kubelet_plugin.changes.ledger import LASTING, Ledger, note_decoder
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.ports import NodeLock
from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeChange, ModeStep, NotedModes, RefusedMode

MODES: Final = Thing(LASTING, "node")

OF_ANOTHER: Final = "another process of the plugin is changing the mode of the GPUs: its result is checked next"
"""Why a process that read the note before another one wrote it does nothing."""

log = structlog.get_logger()


class CcModeNotes:
    """From any thread. `lock` is that of the ledger. All methods except modes() raise DracaenaError."""

    def __init__(self, ledger: Ledger, lock: NodeLock) -> None:
        """`ledger` must survive a power cut."""
        self._ledger = ledger
        self._lock = lock
        note_decoder(NotedModes)

    def read(self) -> NotedModes:
        """Return what is noted now."""
        with self._lock.hold():
            return self._read()

    def modes(self) -> Mapping[str, str]:
        """Return the known modes of GPUs, by PCI address. Needs no lock: the file is replaced as a whole."""
        try:
            return self._read().modes
        except DracaenaError as error:
            log.warning("modes of confidential computing are not known", error=str(error))
            return {}

    def is_changing(self) -> bool:
        """Whether a change was begun and is not over, or that is not known. Needs no lock."""
        try:
            return self._read().change is not None
        except DracaenaError:
            return True

    def refusal(self) -> str | None:
        """Return why no claim gets a GPU of this node now, None if they do. The caller holds the lock."""
        noted = self._read()
        if noted.change is not None:
            return (
                "the mode of confidential computing of this node's GPUs is being changed, and no claim gets one of "
                "them before that is done: kubelet asks again"
            )
        if noted.asking:
            return "this node's GPUs are being asked which mode they are in, which takes seconds: kubelet asks again"
        return None

    def begin(self, mode: str, drivers: Mapping[str, str], user: Callable[[], str | None]) -> ModeChange:
        """Record that all GPUs are being switched, and return the change: from now on no claim gets anything of the
        node.

        `user` returns, with the lock held, who has something of it. Raises InUseError if somebody has, or another
        process has begun a change meanwhile.
        """
        change = ModeChange(mode, ModeStep.UNBINDING, drivers)
        with self._lock.hold():
            found = user() if self._read().change is None else OF_ANOTHER
            if found is not None:
                raise InUseError(found)
            self._write(NotedModes(change=change))
        return change

    def note(self, change: ModeChange, modes: Mapping[str, str] | None = None) -> ModeChange:
        """Record the progress of the change, and the modes that were read; None: they are not known."""
        with self._lock.hold():
            self._write(NotedModes(modes or {}, change))
        return change

    def end(self, refused: RefusedMode | None = None, *, only: ModeChange | None = None) -> None:
        """Record that the change is over, and what was refused: claims get GPUs again. Does nothing if `only` names
        another change than the one that is under way.
        """
        with self._lock.hold():
            noted = self._read()
            if only in (None, noted.change):
                self._write(replace(noted, change=None, refused=refused))

    def refuse(self, refused: RefusedMode | None) -> None:
        """Record that a mode cannot be reached; None: the refused one may be retried."""
        with self._lock.hold():
            self._write(replace(self._read(), refused=refused))

    def begin_asking(self, addresses: Collection[str], is_held: Callable[[str], bool]) -> tuple[str, ...]:
        """Record that the modes of GPUs are being read, and return those GPUs that no claim has: no claim gets one
        until asked() was called. `is_held` is called with the lock held.
        """
        with self._lock.hold():
            free = tuple(address for address in sorted(addresses) if not is_held(address))
            if free:
                self._write(replace(self._read(), asking=True))
            return free

    def asked(self, modes: Mapping[str, str]) -> None:
        """Record the modes of these GPUs; the known modes of others stay."""
        with self._lock.hold():
            noted = self._read()
            self._write(replace(noted, modes={**noted.modes, **modes}, asking=False))

    def forget_modes(self, is_held: Callable[[str], bool]) -> NotedModes:
        """Forget the modes of GPUs that no claim has, and return what is noted after that. `is_held` is called with the
        lock held. Keeps everything during a change.
        """
        with self._lock.hold():
            noted = self._read()
            if noted.change is None:
                noted = replace(noted, modes={of: mode for of, mode in noted.modes.items() if is_held(of)})
                self._write(noted)
            return noted

    def _write(self, noted: NotedModes) -> None:
        if noted == NotedModes():
            self._ledger.drop(MODES)
        elif noted != self._read():
            self._ledger.write(MODES, Note(self._ledger.boot_id, {}, noted))

    def _read(self) -> NotedModes:
        note = self._ledger.read_of_any_boot(MODES, NotedModes)
        if isinstance(note, Unreadable):
            raise PermanentError(
                f"{note.problem}; it lies in the plugin's folder `ledger`, and no claim gets a GPU of this node: look "
                "at the modes and the drivers of the GPUs, then remove the file"
            )
        if note is None:
            return NotedModes()
        return note.noted if note.boot_id == self._ledger.boot_id else note.noted.after_boot()
