"""The checkpoints of this node: one file per claim. The files are the state.

Where GPUs are divided or shared a node may have hundreds of claims, and reading them all takes longer than preparing
one, so their contents are cached. Two instances of the plugin share the folder during an upgrade. Each call therefore
first checks, under the node's lock, whether the folder still has the mark that it had when it was last read; if not, it
compares the stamp of each file and reads those that changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence

import structlog

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.ports import DocumentStore, StampedStore
from dracaena.kubelet_plugin.prepare.effects import Effect, is_among, journaled
from dracaena.kubelet_plugin.prepare.journals.checkpoint import (
    SUFFIX,
    Broken,
    Checkpoint,
    State,
    decode_checkpoint,
    encode_checkpoint,
    file_name,
)
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim

BOOT_MARK = "boot-id"
"""File that names the boot in which an instance of the plugin last started."""

ByBoot = tuple[tuple[Checkpoint, ...], tuple[Checkpoint, ...], tuple[Broken, ...]]
"""Checkpoints of this boot, of earlier ones, and those that cannot be trusted."""

log = structlog.get_logger()


class Checkpoints:
    """Reads and writes checkpoints. Callers hold the node's lock."""

    def __init__(self, files: StampedStore, marks: DocumentStore, boot_id: str, turn: Callable[[], int]) -> None:
        """`marks` is for BOOT_MARK, apart from the claims' files.

        `turn` returns a number for the current hold of the node's lock: nobody else writes while it stays the same.
        """
        self._files = files
        self._marks = marks
        self.boot_id = boot_id
        self._turn = turn
        self._kept: dict[str, tuple[Hashable, Checkpoint | Broken | None]] = {}  # in the order of the names
        self._mark: Hashable | None = None  # of the folder when the cache was right; None: look again
        self._seen_in: int | None = None  # the turn in which the mark was last checked
        self._sorted: ByBoot | None = None  # this and the next two are derived from _kept
        self._uids: frozenset[ClaimUid] | None = None
        self._prepared: tuple[PreparedClaim, ...] | None = None

    def load(self, uid: ClaimUid) -> Checkpoint | Broken | None:
        """Return the checkpoint of a claim, None if there is none."""
        data = self._files.read(file_name(uid))
        return None if data is None else decode_checkpoint(uid, data)

    def holds(self, uid: ClaimUid) -> bool:
        """Whether a claim may hold devices: it has a checkpoint of this boot, or one that cannot be trusted."""
        found = self.load(uid)
        return isinstance(found, Broken) or (found is not None and found.boot_id == self.boot_id)

    def owner(self, effect: Effect) -> ClaimUid | None:
        """Return the claim that has an effect in its journal, None if none has."""
        now, _ = self.load_all()
        return next((each.prepared.claim.uid for each in now if is_among(effect, each.prepared.effects)), None)

    def has_broken(self, uid: ClaimUid) -> bool:
        """Whether a checkpoint of this claim broke, and was rebuilt or removed since."""
        return self._files.read(f"{file_name(uid)}.broken") is not None

    def may_be_in_use(self, uid: ClaimUid) -> bool:
        """Whether containers may have the claim's devices by its checkpoint; True if that does not say."""
        found = self.load(uid)
        return isinstance(found, Broken) or (found is not None and found.boot_id == self.boot_id and found.in_use)

    def load_all(self) -> tuple[tuple[Checkpoint, ...], tuple[Broken, ...]]:
        """Return all checkpoints of this boot, and those that cannot be trusted; each sorted by claim UID.

        Those of an earlier boot are left out: none of its containers runs any more, so they hold nothing. They stay on
        disk until kubelet prepares or unprepares their claim again.
        """
        now, _, broken = self.load_by_boot()
        return now, broken

    def load_by_boot(self) -> ByBoot:
        """Return the checkpoints of this boot, those of earlier ones, and those that cannot be trusted; each sorted."""
        self._look()
        if self._sorted is None:
            good = [found for _, found in self._kept.values() if isinstance(found, Checkpoint)]
            now = tuple([found for found in good if found.boot_id == self.boot_id])
            earlier = () if len(now) == len(good) else tuple(c for c in good if c.boot_id != self.boot_id)
            broken = tuple([found for _, found in self._kept.values() if isinstance(found, Broken)])
            self._sorted = (now, earlier, broken)
        return self._sorted

    def uids(self) -> frozenset[ClaimUid]:
        """Return the claims that have a checkpoint, whatever it says."""
        self._look()
        if self._uids is None:
            known = (name for name, (_, found) in self._kept.items() if found is not None)
            self._uids = frozenset([ClaimUid(name.removesuffix(SUFFIX)) for name in known])
        return self._uids

    def enter_boot(self) -> bool:
        """Record that this boot has begun; return whether what is found here certainly comes from an earlier one.

        It does when an instance starts for the first time in a boot. Without the mark of an earlier boot nothing is
        certain: the mark of this one may have been lost.
        """
        now = f"{self.boot_id}\n".encode()
        last = self._marks.read(BOOT_MARK)
        if last == now:
            return False
        # Marked first: whatever breaks from now on belongs to this boot, even if nothing is done about the rest.
        self._marks.write(BOOT_MARK, now)
        return last is not None

    def look_at_each(self) -> None:
        """Check every file next time: changing a file in place does not change its folder's mark."""
        self._mark = self._seen_in = None

    def _look(self) -> None:
        turn = self._turn()
        if turn == self._seen_in:
            return
        if self._mark is None or self._files.mark() != self._mark:
            # The stamps are taken before the reads: at worst a file is read once more than needed.
            stamps = self._files.stamps(SUFFIX)
            self._keep({name: self._kept_or_read(name, stamp) for name, stamp in stamps.items()})
        self._seen_in = turn

    def _keep(self, kept: dict[str, tuple[Hashable, Checkpoint | Broken | None]]) -> None:
        self._kept, self._sorted, self._uids, self._prepared = kept, None, None, None
        self._mark = self._files.set_mark()

    def _kept_or_read(self, name: str, stamp: Hashable) -> tuple[Hashable, Checkpoint | Broken | None]:
        kept = self._kept.get(name)
        if kept is not None and kept[0] == stamp:
            return kept
        return (stamp, self.load(ClaimUid(name.removesuffix(SUFFIX))))

    def prepared(self) -> tuple[PreparedClaim, ...]:
        """Return the claims whose containers may have their devices now, sorted by claim UID."""
        self._look()
        if self._prepared is None:
            now, _ = self.load_all()
            self._prepared = tuple([c.prepared for c in now if c.in_use])
        return self._prepared

    def start(self, prepared: PreparedClaim, *, lost: bool = False) -> Checkpoint:
        """Record that this claim takes its devices. Keeps the effects of an older checkpoint of this boot.

        A broken file is first copied to `<name>.broken`, then replaced, so that there is a file at every moment.
        `lost`: its checkpoint is gone, and its containers may run.
        """
        anew = self._anew(prepared)
        answered = anew.answered or lost
        # Until its effects are made, a claim that was answered must not be brought in line with its devices alone.
        started = dataclasses.replace(anew, answered=answered, planned=not (answered and anew.prepared.effects))
        self._write(started)
        return started

    def set_aside(self, prepared: PreparedClaim, reason: str, *, planned: bool) -> Checkpoint:
        """Record that this claim holds its devices, that none of its containers can be started, and why.

        `planned`: whether its devices and configs are known to be right.
        """
        aside = dataclasses.replace(self._anew(prepared), answered=True, aside=reason, planned=planned)
        self._write(aside)
        return aside

    def finish(self, started: Checkpoint) -> None:
        """Record that the claim is prepared."""
        self._write(dataclasses.replace(started, state=State.DONE, answered=False, aside=None, planned=True))

    def journal(self, checkpoint: Checkpoint, effects: Sequence[Effect]) -> Checkpoint:
        """Record which effects of a claim were made, or may have been; everything else stays as it is."""
        prepared = dataclasses.replace(checkpoint.prepared, effects=tuple(effects))
        written = dataclasses.replace(checkpoint, prepared=prepared)
        self._write(written)
        return written

    def begin_again(self, checkpoint: Checkpoint) -> None:
        """Record that a claim is no longer prepared, and holds its devices until its effects are undone."""
        self._write(dataclasses.replace(checkpoint, state=State.STARTED, answered=False, aside=None))

    def _anew(self, prepared: PreparedClaim) -> Checkpoint:
        old = self.load(prepared.claim.uid)
        if isinstance(old, Checkpoint) and old.boot_id == self.boot_id and old.prepared.effects:
            effects = journaled(old.prepared.effects, prepared.effects)
            prepared = dataclasses.replace(prepared, effects=effects)
        started = Checkpoint(State.STARTED, self.boot_id, prepared)
        if isinstance(old, Checkpoint):
            in_use = old.in_use and old.boot_id == self.boot_id
            return dataclasses.replace(started, answered=in_use)
        if isinstance(old, Broken):
            self._keep_broken(old)
            return dataclasses.replace(started, answered=True)
        return started

    def remove(self, uid: ClaimUid) -> None:
        """Forget a claim. A broken checkpoint stays as `<name>.broken`."""
        old = self.load(uid)
        if isinstance(old, Broken):
            self._keep_broken(old)
        self.discard(uid)

    def discard(self, uid: ClaimUid) -> None:
        """Forget a claim, even if its checkpoint is broken."""
        name = file_name(uid)
        with self._changing() as seen:
            self._files.remove(name)
            if seen:
                self._keep({other: kept for other, kept in self._kept.items() if other != name})

    def _write(self, checkpoint: Checkpoint) -> None:
        name = file_name(checkpoint.prepared.claim.uid)
        with self._changing() as seen:
            self._files.write(name, encode_checkpoint(checkpoint))
            if seen:
                # A claim that has only started is not prepared yet, so the cached list of prepared claims stays valid.
                prepared = None if checkpoint.in_use or name in self._kept else self._prepared
                kept = {**self._kept, name: (None, checkpoint)}
                self._keep(kept if name in self._kept else {name: kept[name] for name in sorted(kept)})
                self._prepared = prepared

    @contextlib.contextmanager
    def _changing(self) -> Iterator[bool]:
        """Yield whether the cache was right before this change. If the change fails, it is unknown what is on disk."""
        seen_in, self._seen_in = self._seen_in, None
        self._mark = None
        yield seen_in == self._turn()
        self._seen_in = seen_in

    def _keep_broken(self, broken: Broken) -> None:
        name = file_name(broken.uid)
        data = self._files.read(name)
        if data is not None:
            self._files.write(f"{name}.broken", data)
        log.error("broken checkpoint set aside", file=f"{name}.broken", problem=broken.problem, claim_uid=broken.uid)
