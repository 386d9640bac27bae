"""Who has what on this node: the checkpoints and CDI specs of its claims, behind the one lock that orders all changes.

The files are the state, one checkpoint and one spec for each claim. Where GPUs are divided or shared a node may have
hundreds of claims, and reading them all takes longer than preparing one, so what was read is kept. Two instances of the
plugin share the folders during an upgrade. The first question of each hold of the lock therefore checks whether a
folder still has the mark that it had when it was last read; if not, it compares the stamp of each checkpoint and reads
those that changed, or lists the specs.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import functools
import operator
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Concatenate, Final, ParamSpec, TypeVar

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.kubelet_plugin.device_kinds.cdi_spec import spec_file_name
from dracaena.kubelet_plugin.ports import DocumentStore, NodeLock, StampedStore
from dracaena.kubelet_plugin.prepare.cdi.devices import devices_in_spec
from dracaena.kubelet_plugin.prepare.effects import Effect, wanted_besides
from dracaena.kubelet_plugin.prepare.journals.checkpoint import (
    SUFFIX,
    Broken,
    Checkpoint,
    State,
    decode_checkpoint,
    encode_checkpoint,
    file_name,
)
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim, PreparedDevice

BOOT_MARK: Final = "boot-id"
"""File that names the boot in which an instance of the plugin last started."""

MOST_NAMED: Final = 7
"""Most claims that are named: as many as a GPU has MIG devices. There may be more shares."""

ByBoot = tuple[tuple[Checkpoint, ...], tuple[Checkpoint, ...], tuple[Broken, ...]]
"""Checkpoints of this boot, of earlier ones, and those that cannot be trusted."""

IsOf = Callable[[PreparedDevice, DeviceName], bool]
"""Whether a device is a GPU or a part of it."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
K = TypeVar("K", bound=Checkpoint | Broken | PreparedClaim)

log = structlog.get_logger()


def is_of_gpu(device: PreparedDevice, gpu: DeviceName) -> bool:
    """Whether a device is the whole GPU or a part of it."""
    return device.physical_gpu == gpu


class _Seen:
    """Whether a folder is as it was last seen."""

    def __init__(self, files: StampedStore) -> None:
        self._files = files
        self._mark: Hashable | None = None  # None: look again
        self.is_checked = False
        """Whether the mark, or none, was checked in this hold of the lock: nobody else changes anything meanwhile."""

    def is_current(self) -> bool:
        """Return whether nothing has changed."""
        if not self.is_checked:
            self.is_checked = self._mark is not None and self._files.mark() == self._mark
        return self.is_checked

    def note(self) -> None:
        """Note that the folder was just seen, or changed by us."""
        self._mark, self.is_checked = self._files.set_mark(), True

    def doubt(self) -> bool:
        """Return whether nothing has changed so far. From now on that is unknown until note(), as if the next change
        failed.
        """
        was_current = self.is_current()
        self._mark, self.is_checked = None, False
        return was_current


def _held(question: Callable[Concatenate[NodeClaims, P], R]) -> Callable[Concatenate[NodeClaims, P], R]:
    """Have a method take the lock."""

    @functools.wraps(question)
    def with_lock(claims: NodeClaims, /, *given: P.args, **named: P.kwargs) -> R:
        if claims._holder == threading.get_ident():  # noqa: SLF001 - it is a method of theirs; hold() would cost more
            return question(claims, *given, **named)
        with claims.hold():
            return question(claims, *given, **named)

    return with_lock


class NodeClaims:
    """From any thread. Each question and each change takes the node's lock, and so does nobody else. hold() makes
    several of them one. All raise DracaenaError, also if the lock cannot be acquired.
    """

    def __init__(
        self,
        *,
        driver: str,
        boot_id: str,
        lock: NodeLock,
        checkpoints: StampedStore,
        specs: StampedStore,
        marks: DocumentStore,
    ) -> None:
        """`marks` is for BOOT_MARK, apart from the claims' files."""
        self.boot_id = boot_id
        self._driver = driver
        self._lock = lock
        self._holder: int | None = None  # the thread that holds the lock
        self._files = checkpoints
        self._marks = marks
        self._kept: dict[ClaimUid, tuple[Hashable, Checkpoint | Broken | None]] = {}
        self._kept_seen = _Seen(checkpoints)
        self._by_boot: ByBoot = ((), (), ())  # this and the next three say what _kept does
        self._uids: frozenset[ClaimUid] = frozenset()
        self._prepared: tuple[PreparedClaim, ...] = ()
        self._changing: tuple[Checkpoint, ...] = ()  # those of this boot whose claims want changes of the node
        self._specs = specs
        self._with_spec: frozenset[ClaimUid] = frozenset()
        self._specs_seen = _Seen(specs)
        self._around_uid = spec_file_name(driver, ClaimUid("\0")).split("\0")  # in the names of specs

    @contextlib.contextmanager
    def hold(self, within_s: float | None = None) -> Iterator[None]:
        """Hold the lock for a block, in which nobody else changes anything; a block within a block is part of it.

        Raises TemporaryError if the lock cannot be acquired in time (None: its default; 0: do not wait).
        """
        me = threading.get_ident()
        if self._holder == me:
            yield
            return
        with self._lock.hold(within_s):
            self._holder = me
            self._kept_seen.is_checked = self._specs_seen.is_checked = False
            try:
                yield
            finally:
                self._holder = None

    @_held
    def of(self, uid: ClaimUid) -> Checkpoint | Broken | None:
        """Return the checkpoint of a claim, of whatever boot; None if there is none."""
        data = self._files.read(file_name(uid))
        return None if data is None else decode_checkpoint(uid, data)

    def current_of(self, uid: ClaimUid) -> Checkpoint | None:
        """Return the checkpoint of a claim if it is of this boot and can be trusted."""
        found = self.of(uid)
        return found if isinstance(found, Checkpoint) and found.boot_id == self.boot_id else None

    def may_be_in_use(self, uid: ClaimUid) -> bool:
        """Whether containers may have the claim's devices by its checkpoint; True if that does not say."""
        found = self.of(uid)
        return isinstance(found, Broken) or (found is not None and found.boot_id == self.boot_id and found.in_use)

    def current(self) -> tuple[Checkpoint, ...]:
        """Return all checkpoints of this boot, sorted by claim UID; the same object as long as nothing changed.

        Those of an earlier boot are left out: none of its containers runs any more, so they hold nothing. They stay on
        disk until kubelet prepares or unprepares their claim again.
        """
        return self.by_boot()[0]

    def broken(self) -> tuple[Broken, ...]:
        """Return the checkpoints that cannot be trusted, sorted by claim UID."""
        return self.by_boot()[2]

    @_held
    def by_boot(self) -> ByBoot:
        """Return the checkpoints of this boot, those of earlier ones, and those that cannot be trusted; each sorted."""
        if not self._kept_seen.is_current():
            # The stamps are taken before the reads: at worst a file is read once more than needed.
            stamps = self._files.stamps(SUFFIX)
            self._keep({ClaimUid(name.removesuffix(SUFFIX)): stamp for name, stamp in stamps.items()})
        return self._by_boot

    @_held
    def uids(self) -> frozenset[ClaimUid]:
        """Return the claims that have a checkpoint, whatever it says."""
        self.by_boot()
        return self._uids

    @_held
    def prepared(self) -> tuple[PreparedClaim, ...]:
        """Return the claims whose containers may have their devices now, sorted by claim UID; the same object as long
        as nothing changed.
        """
        self.by_boot()
        return self._prepared

    @_held
    def unsure(self) -> tuple[tuple[Broken, PreparedClaim], ...]:
        """Return the claims whose checkpoints broke, and those whose checkpoints are gone while their CDI specs are
        there; each with what it holds according to its spec. Their containers may run.

        One whose spec is gone too, or cannot be read, is without devices. A spec that names none is of no claim.
        """
        found = [(each, self._salvage_if_read(each) or _nothing_known(each)) for each in self.by_boot()[2]]
        for uid in sorted(self.with_spec() - self.uids()):
            gone = Broken(uid, "is gone")
            salvaged = self._salvage_if_read(gone)
            if salvaged is None or salvaged.devices:
                found.append((gone, salvaged or _nothing_known(gone)))
        return tuple(found)

    @_held
    def salvage(self, broken: Broken) -> PreparedClaim:
        """Return what a claim with a broken checkpoint holds according to its CDI spec; no devices if it has none.

        The nodes in the spec may belong to another device by now, so all of them also count as former ones.
        """
        spec = self._specs.read(spec_file_name(self._driver, broken.uid))
        devices = () if spec is None else devices_in_spec(spec, broken.uid)
        return PreparedClaim(ClaimReference("", "", broken.uid), devices, former=devices)

    @_held
    def who_has(self, gpu: DeviceName | None, is_of: IsOf = is_of_gpu) -> str | None:
        """Return which claims have something of a GPU here, or of any GPU if it is None; None if no claim has.

        A claim for admin access counts too: it would lose its device nodes. A claim of which nothing is known may have
        any GPU. Outside hold() the answer may be outdated a moment later.
        """
        found = [each.prepared.claim for each in self.current() if gpu is None or _has(each.prepared, gpu, is_of)]
        if found:
            return have_in_words(found, gpu)
        for each, salvaged in self.unsure():
            devices = salvaged.devices
            if gpu is None or not devices or any(is_of(device, gpu) for device in devices):
                return f"claim UID {each.uid}, whose checkpoint {each.problem}, may have {_gpu_in_words(gpu)}"
        return None

    @_held
    def wanting(self, *kinds: str) -> Sequence[tuple[Checkpoint, Effect]]:
        """Return what claims want of some kinds of things, each with its claim's checkpoint, sorted by claim UID."""
        self.by_boot()
        return [(each, effect) for each in self._changing for effect in each.prepared.wants if effect.kind in kinds]

    @_held
    def with_spec(self) -> frozenset[ClaimUid]:
        """Return the claims that have a CDI spec."""
        if not self._specs_seen.is_current():
            head, tail = self._around_uid
            uid_at = slice(len(head), -len(tail))
            names = [name for name in self._specs.names(tail) if name.startswith(head)]
            self._with_spec = frozenset([ClaimUid(name[uid_at]) for name in names if name[uid_at]])
            self._specs_seen.note()
        return self._with_spec

    @_held
    def has_spec(self, uid: ClaimUid) -> bool:
        """Whether a claim has a CDI spec."""
        return self._specs.read(spec_file_name(self._driver, uid)) is not None

    @_held
    def spec_is_seen(self, uid: ClaimUid) -> bool:
        """Whether there is a CDI spec; a folder that cannot even be read holds none of ours."""
        try:
            return self.has_spec(uid)
        except DracaenaError:
            return False

    @_held
    def write_spec(self, uid: ClaimUid, spec: bytes) -> None:
        """Write the CDI spec of a claim: its containers can be started."""
        seen = self._specs_seen.doubt()
        self._specs.write(spec_file_name(self._driver, uid), spec)
        if seen:
            self._with_spec |= {uid}
            self._specs_seen.note()

    @_held
    def remove_spec(self, uid: ClaimUid) -> None:
        """Remove the CDI spec: no container of the claim can be started until there is one again."""
        seen = self._specs_seen.doubt()
        self._specs.remove(spec_file_name(self._driver, uid))
        if seen:
            self._with_spec -= {uid}
            self._specs_seen.note()

    @_held
    def start(self, prepared: PreparedClaim, *, lost: bool = False) -> Checkpoint:
        """Record that this claim takes its devices. Keeps what an older checkpoint of this boot wants.

        A broken file is first copied to `<name>.broken`, then replaced, so that there is a file at every moment.
        `lost`: its checkpoint is gone, and its containers may run.
        """
        anew = self._anew(prepared)
        answered = anew.answered or lost
        # Until all that it wants is done, a claim that was answered must not be brought in line with its devices alone.
        started = dataclasses.replace(anew, answered=answered, provisional=answered and bool(anew.prepared.wants))
        return self._write(started)

    @_held
    def set_aside(self, prepared: PreparedClaim, reason: str, *, provisional: bool) -> Checkpoint:
        """Record that this claim holds its devices, that none of its containers can be started, and why.

        `provisional`: its devices and configs are not known to be right.
        """
        anew = self._anew(prepared)
        return self._write(dataclasses.replace(anew, answered=True, aside=reason, provisional=provisional))

    def finish(self, started: Checkpoint) -> None:
        """Record that the claim is prepared."""
        self._write(Checkpoint(State.DONE, started.boot_id, started.prepared))

    def want(self, checkpoint: Checkpoint, wants: Sequence[Effect]) -> Checkpoint:
        """Record what a claim wants of the node, and that it has nothing of other things any more."""
        prepared = dataclasses.replace(checkpoint.prepared, wants=tuple(wants))
        keys = {effect.key for effect in wants}
        had = tuple(effect for effect in checkpoint.had if effect.key in keys)
        return self._write(dataclasses.replace(checkpoint, prepared=prepared, had=had))

    def begin_again(self, checkpoint: Checkpoint) -> None:
        """Record that a claim is no longer prepared, and holds its devices until what it wanted is undone."""
        had = checkpoint.has
        self._write(dataclasses.replace(checkpoint, state=State.STARTED, answered=False, aside=None, had=had))

    @_held
    def remove(self, uid: ClaimUid) -> None:
        """Forget a claim. A broken checkpoint stays as `<name>.broken`."""
        old = self.of(uid)
        if isinstance(old, Broken):
            self._keep_broken(old)
        self.discard(uid)

    @_held
    def discard(self, uid: ClaimUid) -> None:
        """Forget a claim, even if its checkpoint is broken."""
        seen = self._kept_seen.doubt()
        self._files.remove(file_name(uid))
        if seen:
            self._keep_one(uid, None)

    @_held
    def enter_boot(self, before_mark: Callable[[], None]) -> bool:
        """Record that this boot has begun; return whether what is found here certainly comes from an earlier one.

        It does when an instance starts for the first time in a boot. Without the mark of an earlier boot nothing is
        certain: the mark of this one may have been lost. Nor is it where a claim was prepared in this boot already,
        which an earlier start could not mark. `before_mark` is called in between: it is called again by the
        next start if this one is killed before the boot is marked, and by no start after that.
        """
        now = f"{self.boot_id}\n".encode()
        last = self._marks.read(BOOT_MARK)
        if last == now:
            return False
        if last is not None:
            before_mark()
        # Marked first: whatever breaks from now on belongs to this boot, even if nothing is done about the rest.
        self._marks.write(BOOT_MARK, now)
        return last is not None and not self.by_boot()[0]

    @_held
    def look_at_each(self) -> None:
        """Check every file next time: changing a file in place does not change its folder's mark."""
        self._kept_seen.doubt()
        self._specs_seen.doubt()

    def _keep(self, stamps: Mapping[ClaimUid, Hashable]) -> None:
        """Read what changed, and remember all."""
        kept, self._kept = self._kept, {}
        for uid, stamp in sorted(stamps.items()):
            known = kept.get(uid)
            self._kept[uid] = known if known is not None and known[0] == stamp else (stamp, self.of(uid))
        found = [each for _, each in self._kept.values() if each is not None]
        good = [each for each in found if isinstance(each, Checkpoint)]
        self._by_boot = (
            tuple([each for each in good if each.boot_id == self.boot_id]),
            tuple([each for each in good if each.boot_id != self.boot_id]),
            tuple([each for each in found if isinstance(each, Broken)]),
        )
        self._uids = frozenset(map(_uid_of, found))
        self._prepared = tuple([each.prepared for each in self._by_boot[0] if each.in_use])
        self._changing = tuple([each for each in self._by_boot[0] if each.prepared.wants])
        self._kept_seen.note()

    def _keep_one(self, uid: ClaimUid, written: Checkpoint | None) -> None:
        """Remember the one checkpoint that was just written, None: removed. Costs no look at the others."""
        now, earlier, broken = self._by_boot
        current, old = (written, None) if written is None or written.boot_id == self.boot_id else (None, written)
        self._by_boot = (with_claim(now, uid, current), with_claim(earlier, uid, old), with_claim(broken, uid, None))
        self._kept.pop(uid, None)
        self._uids -= {uid}
        if written is not None:
            self._kept[uid] = (None, written)
            self._uids |= {uid}
        # A claim that has only started is not prepared yet, so nothing changed for whoever asks for prepared ones.
        prepared = current.prepared if current is not None and current.in_use else None
        self._prepared = with_claim(self._prepared, uid, prepared)
        changing = current if current is not None and current.prepared.wants else None
        self._changing = with_claim(self._changing, uid, changing)
        self._kept_seen.note()

    def _anew(self, prepared: PreparedClaim) -> Checkpoint:
        old = self.of(prepared.claim.uid)
        if isinstance(old, Broken):
            self._keep_broken(old)
            return Checkpoint(State.STARTED, self.boot_id, prepared, answered=True)
        if old is None or old.boot_id != self.boot_id:
            return Checkpoint(State.STARTED, self.boot_id, prepared)
        wants = wanted_besides(old.prepared.wants, prepared.wants, in_use=old.in_use)
        prepared = dataclasses.replace(prepared, wants=wants)
        return Checkpoint(State.STARTED, self.boot_id, prepared, answered=old.in_use, had=old.has)

    @_held
    def _write(self, checkpoint: Checkpoint) -> Checkpoint:
        uid = checkpoint.prepared.claim.uid
        seen = self._kept_seen.doubt()
        self._files.write(file_name(uid), encode_checkpoint(checkpoint))
        if seen:
            self._keep_one(uid, checkpoint)
        return checkpoint

    def _keep_broken(self, broken: Broken) -> None:
        name = file_name(broken.uid)
        data = self._files.read(name)
        if data is not None:
            self._files.write(f"{name}.broken", data)
        log.error("broken checkpoint set aside", file=f"{name}.broken", problem=broken.problem, claim_uid=broken.uid)

    def _salvage_if_read(self, broken: Broken) -> PreparedClaim | None:
        """A spec that cannot be read, such as a link in its place, must not keep other claims from their answers."""
        try:
            return self.salvage(broken)
        except DracaenaError as error:
            log.warning("it is not known what a claim holds", claim_uid=broken.uid, error=str(error))
            return None


def _uid_of(kept: Checkpoint | Broken | PreparedClaim) -> ClaimUid:
    if isinstance(kept, Checkpoint):
        return kept.prepared.claim.uid
    return kept.uid if isinstance(kept, Broken) else kept.claim.uid


def with_claim(those: tuple[K, ...], uid: ClaimUid, one: K | None) -> tuple[K, ...]:
    """Return those, sorted by claim UID, with another one of a claim, or none; the same object if that is no change."""
    at = bisect.bisect_left(those, uid, key=_uid_of)
    after = at + 1 if at < len(those) and _uid_of(those[at]) == uid else at
    if one is None:
        return those if at == after else (*those[:at], *those[after:])
    return (*those[:at], one, *those[after:])


def differing(old: Sequence[T], new: Sequence[T]) -> tuple[list[T], list[T]]:
    """Return what is in the first sequence alone, and in the second alone, by identity; each in its order.

    For hundreds of values of which one was replaced: what both begin and end with costs some nanoseconds a value.
    """
    head = _common(old, new)
    old, new = old[head:], new[head:]
    tail = _common(old[::-1], new[::-1])
    old, new = old[: len(old) - tail], new[: len(new) - tail]
    before, now = set(map(id, old)), set(map(id, new))
    return [each for each in old if id(each) not in now], [each for each in new if id(each) not in before]


def _common(one: Sequence[T], other: Sequence[T]) -> int:
    """Return how many values both begin with."""
    same = list(map(operator.is_, one, other))
    return same.index(False) if False in same else len(same)


def have_in_words(claims: Collection[ClaimReference], gpu: DeviceName | None) -> str:
    """Return that some claims have something of a GPU, or of any GPU of the node if it is None."""
    shown = sorted(f"{claim} (UID {claim.uid})" for claim in claims)
    if len(shown) == 1:
        return f"claim {shown[0]} has {_gpu_in_words(gpu)}"
    more = f" and {len(shown) - MOST_NAMED} more" if len(shown) > MOST_NAMED else ""
    return f"{len(shown)} claims have {_gpu_in_words(gpu)}: {', '.join(shown[:MOST_NAMED])}{more}"


def _has(prepared: PreparedClaim, gpu: DeviceName, is_of: IsOf) -> bool:
    devices = (*prepared.devices, *prepared.former)
    return any(is_of(device, gpu) for device in devices) or any(effect.gpu == gpu for effect in prepared.wants)


def _gpu_in_words(gpu: DeviceName | None) -> str:
    return "a GPU of this node" if gpu is None else f"{gpu} or a part of it"


def _nothing_known(broken: Broken) -> PreparedClaim:
    return PreparedClaim(ClaimReference("", "", broken.uid), ())
