"""Activates Fabric Manager's partitions for claims, deactivates them, and adds the existing ones to readings.

A partition is in the journal of its claim before it is activated. So a partition that is active and in no journal is
somebody else's, and one that is in a journal and not active was lost when Fabric Manager restarted. A file also records
what was activated here, for claims whose checkpoint breaks.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.machine import Machine
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.device_kinds.partition_effects import MODULES, PARTITION
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.discovery.fabric_partitions import (
    FabricAnswer,
    ToldPartition,
    place_troubles,
    places_read,
    with_partitions,
    without_partitions,
    without_places,
)
from dracaena.kubelet_plugin.ports import (
    ALREADY_ACTIVE,
    DocumentStore,
    EffectPendingError,
    FabricCode,
    FabricManager,
    FabricManagerError,
    NodeLock,
)
from dracaena.kubelet_plugin.prepare.effects import FABRIC_PARTITION, Effect, Scalar
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.process.clock import Clock

STATE: Final = "state"
ACTIVATING: Final = "activating"
"""Outcome: the partition may be active through us."""
ACTIVE: Final = "active"

LOCK_WAIT_S: Final = 10.0
"""Longest wait for another call that changes partitions: one of them takes some seconds, one that hangs 10 s."""

BEGIN_S: Final = 8.0
"""How long after the first of a claim's partitions another one may be begun. One takes 37 s at most: LOCK_WAIT_S, two
questions to Fabric Manager and one message between them if it restarted (5 s each), the change (10 s), and 2 s for a
process that must be killed. Together with these 8 s that is kubelet's deadline for a call, 45 s. Whoever refuses a
change answers at once, which leaves time for the question after it."""

PLACES: Final = "modules.json"
"""File with the module ids that were read in this boot, by PCI address."""

ACTIVATED: Final = "activated.json"
"""File with the partitions that may be active through us in this boot, by id."""


@dataclass(frozen=True, slots=True)
class Journaled:
    """The effect of a partition."""

    claim_uid: str
    effect: Effect
    in_use: bool
    """Whether containers may have the claim's devices; False while the effect is being undone."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What the checkpoints of this boot say about partitions."""

    entries: tuple[Journaled, ...] = ()
    is_whole: bool = True
    """Whether no checkpoint is broken, or gone while its CDI spec is there: it may have named more partitions."""

    @property
    def named(self) -> frozenset[int]:
        """Return the partitions of all claims, whether they were tried or not."""
        return frozenset(_number(each.effect) for each in self.entries)

    @property
    def may_be_active(self) -> frozenset[int]:
        """Return the partitions that may be active through us."""
        return frozenset(_number(each.effect) for each in self.entries if _may_be_active(each.effect))

    @property
    def active(self) -> Mapping[int, frozenset[int]]:
        """Return the partitions of prepared claims, with the module ids of their GPUs."""
        return {
            _number(each.effect): _modules(each.effect)
            for each in self.entries
            if each.in_use and (each.effect.outcome or {}).get(STATE) == ACTIVE
        }

    def claims(self, partition: int) -> str:
        """Return the UIDs of the claims for which a partition may be active."""
        return ", ".join(
            sorted({e.claim_uid for e in self.entries if _number(e.effect) == partition and _may_be_active(e.effect)})
        )


log = structlog.get_logger()


class FabricPartitions:
    """Implements NotingEffectMeans and JoinedEffectMeans for FABRIC_PARTITION. From any thread; read() from one at a
    time.
    """

    def __init__(
        self, manager: FabricManager, lock: NodeLock, files: DocumentStore, claims: NodeClaims, clock: Clock
    ) -> None:
        """`lock` orders changes of partitions across all instances of the plugin; it is taken before that of the calls.
        `files` keep the module ids of GPUs that the NVIDIA driver has given away since, and what is active through us.
        """
        self._manager = manager
        self._lock = lock
        self._files = files
        self._claims = claims
        self._boot_id = claims.boot_id
        self._clock = clock

    def _journal(self) -> Journal:
        with self._claims.hold():
            found, unsure = self._claims.effects(FABRIC_PARTITION), self._claims.unsure()
        entries = (Journaled(each.prepared.claim.uid, effect, each.in_use) for each, effect in found)
        return Journal(tuple(entries), is_whole=not unsure)

    def apply_joined(
        self, effects: Sequence[Effect], note: Callable[[Effect, Mapping[str, Scalar]], None]
    ) -> Sequence[Mapping[str, Scalar]]:
        """See JoinedEffectMeans: within kubelet's deadline. Raises EffectPendingError for partitions that are left by
        then, and like apply_noting(). All partitions of earlier calls cost one question together, so each call makes
        progress.
        """
        until_s = self._clock.monotonic() + BEGIN_S
        tried = [effect for effect in effects if _may_be_active(effect)]
        answer = self._read_or_tell() if tried else None
        left = [each for each in effects if answer is None or each not in tried or not _is_active(each, answer)]
        for number, effect in enumerate(left):
            if (number or tried) and self._clock.monotonic() >= until_s:
                raise EffectPendingError(_late("activate", left[number:], len(effects)))
            note(effect, self.apply_noting(effect, self._others(effect), partial(note, effect)))
        return [{STATE: ACTIVE}] * len(effects)

    def undo_joined(self, effects: Sequence[Effect], undone: Callable[[Effect], None]) -> None:
        """See JoinedEffectMeans: within kubelet's deadline. Raises TemporaryError for partitions that are left by then,
        and like undo().
        """
        until_s = self._clock.monotonic() + BEGIN_S
        for number, effect in enumerate(effects):
            if number and self._clock.monotonic() >= until_s:
                raise TemporaryError(_late("deactivate", effects[number:], len(effects)))
            self.undo(effect, self._others(effect))
            undone(effect)

    def _others(self, effect: Effect) -> Sequence[Effect]:
        return [each.effect for each in self._journal().entries if not each.effect.is_same(effect)]

    def apply_noting(
        self, effect: Effect, others: Sequence[Effect], note: Callable[[Mapping[str, Scalar]], None]
    ) -> Mapping[str, Scalar]:
        """See NotingEffectMeans. Raises TemporaryError if Fabric Manager refuses or does not answer, if its partitions
        changed since the claim was planned, and if somebody else has one of the GPUs.
        """
        number = _number(effect)
        with self._lock.hold(LOCK_WAIT_S):
            answer = self._answer()
            partition = answer.partition(number)
            if partition is None or _modules(effect) != partition.modules or number in answer.unsupported:
                raise TemporaryError(
                    f"Fabric Manager's partition {number} is not that of modules {effect.parameters[MODULES]} any "
                    "more: waiting until its partitions were read again"
                )
            is_ours = any(_may_be_active(each) and _number(each) == number for each in (effect, *others))
            if partition.is_active and (is_ours or self._is_left(number)):
                note({STATE: ACTIVATING})
                return {STATE: ACTIVE}
            self._refuse_overlap(partition, answer)
            note({STATE: ACTIVATING})
            try:
                self._activate(number)
            except FabricManagerError as error:
                # Somebody else was quicker: it is not ours to deactivate, unless an earlier call of ours activated it
                # and got no answer in time.
                if error.code in ALREADY_ACTIVE and not is_ours:
                    self._forget({number})
                    note({})
                raise
        return {STATE: ACTIVE}

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        """See NotingEffectMeans. Keeps partitions that were never tried, or that another share of the GPU needs."""
        number = _number(effect)
        if not _may_be_active(effect) or any(_may_be_active(each) and _number(each) == number for each in others):
            return
        with self._lock.hold(LOCK_WAIT_S):
            try:
                answer = self._answer()
            except FabricManagerError as error:
                if error.code != FabricCode.NOT_SUPPORTED:
                    raise
                log.warning("Fabric Manager has no partitions any more", partition=number, answer=str(error))
                self._forget({number})
                return
            partition = answer.partition(number)
            if partition is None or partition.modules != _modules(effect):
                log.warning("Fabric Manager has another partition now, which stays as it is", partition=number)
                self._forget({number})
                return
            self._deactivate(number)  # whatever the list says: an activation without an answer may still be under way

    def read(self, reading: Reading) -> Reading:
        """Return a reading with the current partitions, or without NVLinks and with a trouble if Fabric Manager does
        not report them. Raises TemporaryError if the journals cannot be read.
        """
        machine = reading.machine
        remembered = self._remember(machine)
        try:
            answer, foreign, found = self._look()
        except FabricManagerError as error:
            if error.code == FabricCode.NOT_SUPPORTED:
                text = (
                    f"setting `fabric-partitions` is on, and Fabric Manager is not in its shared NVSwitch mode "
                    f"(FABRIC_MODE=1): no partitions are activated ({error})"
                )
                return _with(reading, without_places(machine), trouble(TroubleKind.FABRIC_MANAGER, text))
            text = f"GPUs are published without NVLinks, and claims for them wait: {error}"
            machine = without_partitions(machine, str(error))
            return _with(reading, machine, trouble(TroubleKind.FABRIC_MANAGER, text))
        machine = with_partitions(machine, answer, remembered, foreign)
        return _with(reading, machine, *found, *place_troubles(machine))

    def _look(self) -> tuple[FabricAnswer, frozenset[int], list[Trouble]]:
        """Return Fabric Manager's answer, the active partitions of nobody, and the troubles."""
        # A partition that is active through us is in at least one of the two journals, before or after the answer.
        before = self._journal()
        answer = self._read_or_tell()
        after = self._journal()
        troubles = []
        lost = (before.active.keys() & after.active.keys()) - answer.active
        unnamed = self._activated() - before.named - after.named
        is_whole = before.is_whole and after.is_whole
        if lost or (unnamed and is_whole):
            with self._lock.hold(LOCK_WAIT_S):
                self._end_left()
                troubles += self._renew()
                answer, after = self._manager.read(), self._journal()
        foreign = answer.active - before.may_be_active - after.may_be_active
        if not is_whole:
            foreign -= unnamed  # a claim whose checkpoint is broken or gone may have it
        troubles += [
            trouble(
                TroubleKind.FABRIC_PARTITION,
                f"partition {number} (modules {_text(answer.gpus_of([number]))}) is active, and no claim of this node "
                "has it: no claim gets its GPUs until whoever activated it deactivates it",
                f"partition {number}",
            )
            for number in sorted(foreign)
        ]
        return answer, foreign, troubles

    def _read_or_tell(self) -> FabricAnswer:
        """Like _answer(), for callers without the lock, which is acquired if Fabric Manager must be told something."""
        try:
            return self._manager.read()
        except FabricManagerError as error:
            if error.code != FabricCode.NOT_CONFIGURED:
                raise
        with self._lock.hold(LOCK_WAIT_S):
            return self._answer()

    def _answer(self) -> FabricAnswer:
        """Return Fabric Manager's answer; before that, tell it which partitions are active if it waits for that. The
        caller holds the lock: otherwise a partition that another call activates meanwhile would be missing.
        """
        try:
            return self._manager.read()
        except FabricManagerError as error:
            if error.code != FabricCode.NOT_CONFIGURED:
                raise
        journal = self._journal()
        active = sorted(journal.may_be_active if journal.is_whole else journal.may_be_active | self._activated())
        self._keep_if_possible(active)  # the journals name them already, and Fabric Manager ends if nobody tells it
        try:
            self._manager.set_active(active)
        except FabricManagerError as error:
            # With the code of the question: "not supported" means here that it does not wait, and not its mode.
            raise FabricManagerError(
                f"Fabric Manager is starting, and does not accept yet which partitions are active: {error}",
                FabricCode.NOT_CONFIGURED,
            ) from error
        log.warning("Fabric Manager restarted, and was told which partitions are active", partitions=active)
        return self._manager.read()

    def _renew(self) -> list[Trouble]:
        """Reactivate what claims have and Fabric Manager has forgotten; the caller holds the lock."""
        troubles = []
        journal, answer = self._journal(), self._manager.read()
        for number, modules in sorted(journal.active.items()):
            if number in answer.active:
                continue
            text = f"Fabric Manager restarted, and partition {number} was no longer active"
            partition = answer.partition(number)
            if partition is None or partition.modules != modules:
                text += f", and cannot be activated: it is not that of modules {_text(modules)} any more"
            else:
                try:
                    self._activate(number)
                    text += ": it is again. Programs that use its NVLinks must be restarted"
                except DracaenaError as error:
                    text += f", and cannot be activated: {error}"
            text += f" (claims with UID {journal.claims(number)})"
            troubles.append(trouble(TroubleKind.FABRIC_PARTITION, text, f"partition {number}"))
        return troubles

    def _end_left(self) -> None:
        """Deactivate partitions that are active through us for claims that ended while their checkpoint was broken, or
        because Fabric Manager was told so just before a journal ended; the caller holds the lock.
        """
        journal = self._journal()
        for number in sorted(self._activated() - journal.named) if journal.is_whole else ():
            try:
                self._deactivate(number)
                log.warning("a partition that no claim has any more was deactivated", partition=number)
            except FabricManagerError as error:
                log.warning("a partition that no claim has any more stays active", partition=number, error=str(error))

    def _is_left(self, number: int) -> bool:
        """Whether a partition is active through us, for a claim whose journal was lost."""
        return number in self._activated() - self._journal().may_be_active

    def _activate(self, number: int) -> None:
        """Activate a partition, never without its note in the file. Raises DracaenaError."""
        self._keep_activated({*self._activated(), number})
        self._manager.activate(number)

    def _deactivate(self, number: int) -> None:
        """Deactivate a partition; an inactive one is fine."""
        try:
            self._manager.deactivate(number)
        except FabricManagerError as error:
            # The second one: in its mode for vGPUs, where it did not activate it either.
            if error.code not in (FabricCode.UNINITIALIZED, FabricCode.NOT_SUPPORTED) and self._may_still_be(
                error, number
            ):
                raise
        self._forget({number})

    def _may_still_be(self, refusal: FabricManagerError, number: int) -> bool:
        """Whether a partition may be active after its deactivation was refused, with whatever code. Without an answer
        it may: the call may still be under way, and so may an earlier activation.
        """
        if refusal.code is None:
            return True
        try:
            is_active = number in self._manager.read().active
        except FabricManagerError as error:
            log.warning("partitions cannot be read after a refusal", partition=number, error=str(error))
            return True
        if not is_active:
            log.info("a partition is not active, though its deactivation was refused", refusal=str(refusal))
        return is_active

    def _forget(self, numbers: Collection[int]) -> None:
        self._keep_if_possible(self._activated().difference(numbers))

    def _keep_if_possible(self, partitions: Collection[int]) -> None:
        try:
            self._keep_activated(partitions)
        except DracaenaError as error:
            log.warning("activated partitions are not recorded", file=ACTIVATED, error=str(error))

    def _refuse_overlap(self, partition: ToldPartition, answer: FabricAnswer) -> None:
        busy = [each for each in answer.partitions if each.is_active and each.modules & partition.modules]
        if not busy:
            return
        journal = self._journal()
        texts = []
        for each in busy:
            claims = journal.claims(each.id)
            whose = f"of the claims with UID {claims}" if claims else "of no claim of this node"
            texts.append(f"partition {each.id} {whose} (modules {_text(each.modules)})")
        raise TemporaryError(
            f"Fabric Manager's partition {partition.id} (modules {_text(partition.modules)}) cannot be activated while "
            f"its GPUs are in {'; '.join(texts)}"
        )

    def _remember(self, machine: Machine) -> Mapping[str, int]:
        """Return the module ids that were read since the node came up, with those of this machine."""
        known = self._remembered()
        now = places_read(machine)
        # A place belongs to the GPU that has it now, and no longer to the one that had it before.
        kept = {address: module for address, module in known.items() if module not in now.values()}
        joined = {**kept, **now}
        if joined != known:
            try:
                self._write(PLACES, modules=dict(sorted(joined.items())))
            except DracaenaError as error:
                log.warning("module ids are not saved for the next start", file=PLACES, error=str(error))
        return joined

    def _remembered(self) -> Mapping[str, int]:
        try:
            modules = self._kept(PLACES).get("modules", {})
            return {str(address): int(module) for address, module in modules.items()}
        except (DracaenaError, ValueError, AttributeError, TypeError, RecursionError) as error:
            log.warning("module ids that were read before are not known", error=str(error))
            return {}

    def _activated(self) -> frozenset[int]:
        """Return what may be active through us; empty if that is not known."""
        try:
            return frozenset(map(int, self._kept(ACTIVATED).get("partitions", ())))
        except (DracaenaError, ValueError, AttributeError, TypeError, RecursionError) as error:
            log.warning("partitions that were activated before are not known", error=str(error))
            return frozenset()

    def _keep_activated(self, partitions: Collection[int]) -> None:
        """Record what may be active through us; the caller holds the lock. Raises DracaenaError."""
        if self._activated() != frozenset(partitions):
            self._write(ACTIVATED, partitions=sorted(partitions))

    def _kept(self, file: str) -> Mapping[str, Any]:
        """Return the content of a file of this boot; empty if there is none."""
        document: Mapping[str, Any] = json.loads(self._files.read(file) or b"{}")
        return document if document.get("boot") == self._boot_id else {}

    def _write(self, file: str, **fields: Any) -> None:
        self._files.write(file, f"{json.dumps({'boot': self._boot_id, **fields})}\n".encode())


def _with(reading: Reading, machine: Machine, *troubles: Trouble) -> Reading:
    return dataclasses.replace(reading, machine=machine, troubles=(*reading.troubles, *troubles))


def _is_active(effect: Effect, answer: FabricAnswer) -> bool:
    partition = answer.partition(_number(effect))
    return partition is not None and partition.is_active and partition.modules == _modules(effect)


def _late(verb: str, left: Sequence[Effect], count: int) -> str:
    numbers = " ".join(str(_number(effect)) for effect in left)
    return (
        f"Fabric Manager is slow: it had {BEGIN_S:g} s to {verb} the {count} partitions of this claim, and {numbers} "
        "are left. Kubelet's next call goes on with them; on the node: `systemctl status nvidia-fabricmanager`"
    )


def _number(effect: Effect) -> int:
    return int(effect.parameters[PARTITION])


def _modules(effect: Effect) -> frozenset[int]:
    return frozenset(map(int, str(effect.parameters[MODULES]).split()))


def _may_be_active(effect: Effect) -> bool:
    return STATE in (effect.outcome or {})


def _text(modules: Collection[int]) -> str:
    return " ".join(map(str, sorted(modules)))
