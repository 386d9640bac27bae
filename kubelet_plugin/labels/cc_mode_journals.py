"""Stores the journal of the modes of confidential computing in its file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock
from dracaena.kubelet_plugin.prepare.journals.cc_modes import (
    CcModeJournal,
    ModeChange,
    ModeStep,
    RefusedMode,
    decode_cc_modes,
    encode_cc_modes,
)

JOURNAL: Final = "cc-modes"
"""Name of the file."""

OF_ANOTHER: Final = "another process of the plugin is changing the mode of the GPUs: its result is checked next"
"""Why a process that read the journal before another one wrote it does nothing."""

log = structlog.get_logger()


class CcModeJournals:
    """From any thread. `lock` is that of the calls, which the other instance during an upgrade shares. All methods
    except modes() raise DracaenaError.
    """

    def __init__(self, files: DocumentStore, lock: NodeLock, boot_id: str) -> None:
        self._files = files
        self._lock = lock
        self._boot_id = boot_id

    def read(self) -> CcModeJournal:
        """Return the current journal."""
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
        journal = self._read()
        if journal.change is not None:
            return (
                "the mode of confidential computing of this node's GPUs is being changed, and no claim gets one of "
                "them before that is done: kubelet asks again"
            )
        if journal.asking:
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
            self._write(CcModeJournal(self._boot_id, change=change))
        return change

    def note(self, change: ModeChange, modes: Mapping[str, str] | None = None) -> ModeChange:
        """Record the progress of the change, and the modes that were read; None: they are not known."""
        with self._lock.hold():
            self._write(CcModeJournal(self._boot_id, modes or {}, change))
        return change

    def end(self, refused: RefusedMode | None = None, *, only: ModeChange | None = None) -> None:
        """Record that the change is over, and what was refused: claims get GPUs again. Does nothing if `only` names
        another change than the one that is under way.
        """
        with self._lock.hold():
            journal = self._read()
            if only in (None, journal.change):
                self._write(replace(journal, change=None, refused=refused))

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
            journal = self._read()
            self._write(replace(journal, modes={**journal.modes, **modes}, asking=False))

    def forget_modes(self, is_held: Callable[[str], bool]) -> CcModeJournal:
        """Forget the modes of GPUs that no claim has, and return the journal after that. `is_held` is called with the
        lock held. Keeps everything during a change.
        """
        with self._lock.hold():
            journal = self._read()
            if journal.change is None:
                journal = replace(journal, modes={of: mode for of, mode in journal.modes.items() if is_held(of)})
                self._write(journal)
            return journal

    def _write(self, journal: CcModeJournal) -> None:
        if journal == CcModeJournal(self._boot_id):
            self._files.remove(JOURNAL)
        else:
            self._files.write_if_changed(JOURNAL, encode_cc_modes(journal))

    def _read(self) -> CcModeJournal:
        data = self._files.read(JOURNAL)
        if data is None:
            return CcModeJournal(self._boot_id)
        try:
            return decode_cc_modes(data, self._boot_id)
        except ValueError as error:
            raise PermanentError(
                f"file {JOURNAL} in the plugin's folder cannot be read ({error}), so no claim gets a GPU of this node: "
                "look at the modes and the drivers of the GPUs, then remove the file"
            ) from error
