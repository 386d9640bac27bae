"""Keeps the journal of the modes of confidential computing in its file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError, PermanentError, TemporaryError
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

OF_ANOTHER: Final = "another process of the plugin changes the mode of the GPUs: what it has done is looked at next"
"""Why a process that read the journal before another one wrote it does nothing."""

log = structlog.get_logger()


class NodeInUseError(TemporaryError):
    """Somebody has a GPU of the node. The text says who."""


class CcModeJournals:
    """From any thread. `lock` is that of the calls, which the other instance during an upgrade shares. All methods but
    modes() raise DracaenaError.
    """

    def __init__(self, files: DocumentStore, lock: NodeLock, boot_id: str) -> None:
        self._files = files
        self._lock = lock
        self._boot_id = boot_id

    def read(self) -> CcModeJournal:
        """Return what is written down."""
        with self._lock.hold():
            return self._read()

    def modes(self) -> Mapping[str, str]:
        """Return the modes that are known of GPUs, by PCI address. The file is replaced as a whole: no lock is held."""
        try:
            return self._read().modes
        except DracaenaError as error:
            log.warning("modes of confidential computing are not known", error=str(error))
            return {}

    def is_changing(self) -> bool:
        """Whether a change was begun and is not over, or nothing can be told. No lock is held."""
        try:
            return self._read().change is not None
        except DracaenaError:
            return True

    def refusal(self) -> str | None:
        """Return why nobody is given a GPU of this node now, None where nothing is in the way. The caller holds the
        lock.
        """
        journal = self._read()
        if journal.change is not None:
            return (
                "the mode of confidential computing of this node's GPUs is being changed, and none is given to anybody "
                "before that is over (docs/vm.md): kubelet asks again"
            )
        if journal.asking:
            return "this node's GPUs are being asked which mode they are in, which takes seconds: kubelet asks again"
        return None

    def begin(self, mode: str, drivers: Mapping[str, str], user: Callable[[], str | None]) -> ModeChange:
        """Write down that all GPUs are being switched, and return it: no claim gets anything of the node now.

        `user` says, with the lock held, who has something of it. Raises NodeInUseError where somebody has, or another
        process has begun a change meanwhile.
        """
        change = ModeChange(mode, ModeStep.UNBINDING, drivers)
        with self._lock.hold():
            found = user() if self._read().change is None else OF_ANOTHER
            if found is not None:
                raise NodeInUseError(found)
            self._write(CcModeJournal(self._boot_id, change=change))
        return change

    def note(self, change: ModeChange, modes: Mapping[str, str] | None = None) -> ModeChange:
        """Write down how far the change is, and what was read of the modes; None: they are not known."""
        with self._lock.hold():
            self._write(CcModeJournal(self._boot_id, modes or {}, change))
        return change

    def end(self, refused: RefusedMode | None = None) -> None:
        """Write down that nothing is being changed, and what was refused: claims get GPUs again."""
        with self._lock.hold():
            self._write(replace(self._read(), change=None, refused=refused))

    def refuse(self, refused: RefusedMode | None) -> None:
        """Write down that a mode cannot be had; None: what was refused may be tried again."""
        with self._lock.hold():
            self._write(replace(self._read(), refused=refused))

    def begin_asking(self, addresses: Collection[str], is_held: Callable[[str], bool]) -> tuple[str, ...]:
        """Write down that GPUs are being asked for their modes, and return those that no claim has: nobody gets one
        until asked() was called. `is_held` is called with the lock held.
        """
        with self._lock.hold():
            free = tuple(address for address in sorted(addresses) if not is_held(address))
            if free:
                self._write(replace(self._read(), asking=True))
            return free

    def asked(self, modes: Mapping[str, str]) -> None:
        """Write down what GPUs answered, beside what is known of others."""
        with self._lock.hold():
            journal = self._read()
            self._write(replace(journal, modes={**journal.modes, **modes}, asking=False))

    def forget_modes(self, is_held: Callable[[str], bool]) -> CcModeJournal:
        """Forget which modes were read of GPUs that no claim has, and return what is written down then. `is_held` is
        called with the lock held. Nothing is forgotten of a change.
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
                f"file {JOURNAL} in the plugin's folder cannot be read ({error}), so nobody gets a GPU of this node: "
                "look at the modes and the drivers of the GPUs, then remove the file"
            ) from error
