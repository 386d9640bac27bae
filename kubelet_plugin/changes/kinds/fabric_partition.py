"""Fabric Manager's partitions: active while a claim wants one, which links the GPUs in it.

A partition is noted before it is activated and until it is inactive. So one that is active and not noted is somebody
else's, and is neither taken nor deactivated.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.errors import BadInputError, DracaenaError, TemporaryError
from dracaena.api.fabric import FabricPartition
from dracaena.api.names import DeviceName
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.changes.change import (
    Act,
    End,
    How,
    Note,
    OwnersAlone,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    one_by_one,
)
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.discovery.fabric_partitions import FabricAnswer, ToldPartition
from dracaena.kubelet_plugin.ports import NOT_ACTIVATED, FabricCode, FabricManager, FabricManagerError, NodeLock
from dracaena.kubelet_plugin.prepare.effects import FABRIC_PARTITION
from dracaena.process.clock import Clock

LOCK_WAIT_S: Final = 10.0
"""Longest wait for another call that changes partitions: one of them takes some seconds, one that hangs 10 s."""

BEGIN_S: Final = 8.0
"""How long after the first of some partitions another one may be begun. One takes 37 s at most: LOCK_WAIT_S, two
questions to Fabric Manager and one message between them if it restarted (5 s each), the change (10 s), and 2 s for a
process that must be killed. Together with these 8 s that is kubelet's deadline for a call, 45 s. Whoever refuses a
change answers at once, which leaves time for the question after it."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """What Fabric Manager says of one partition; the last three are of no account unless it `is_same`."""

    partition: FabricPartition
    is_same: bool
    """Whether the partition with this id has these GPUs."""
    is_supported: bool = False
    """Whether it can be activated as the hardware is now."""
    is_active: bool = False
    others: str = ""
    """What is active of its GPUs' partitions, in words; itself too."""


class Change(enum.Enum):
    """What is done to a partition."""

    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"


class FabricPartitions(ThingKind[OwnersAlone, Change]):
    """For FABRIC_PARTITION; a thing has the name of a FabricPartition. From any thread."""

    name = FABRIC_PARTITION
    rank = 60
    noted = OwnersAlone

    def __init__(self, manager: FabricManager, lock: NodeLock, ledger: Ledger, clock: Clock) -> None:
        """`lock` orders changes of partitions across all instances of the plugin, since those of different GPUs may
        overlap.
        """
        self._manager = manager
        self._lock = lock
        self._ledger = ledger
        self._clock = clock
        self._answer: FabricAnswer | FabricManagerError | None = None
        """Of the current hold, whose thread alone uses it. None: not asked yet."""

    def gpu(self, thing: Thing) -> DeviceName:
        """See ThingKind: a lock of its own, since hold() orders all of them."""
        return DeviceName(f"{thing.kind}-{thing.name}")

    def supposed(self, _wants: Wants) -> OwnersAlone:
        """See ThingKind: it was inactive before."""
        return OwnersAlone()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """See ThingKind."""
        with self._lock.hold(LOCK_WAIT_S):
            self._answer = None
            yield

    def noted_numbers(self) -> frozenset[int]:
        """Return the ids of the partitions that may be active through us. Raises DracaenaError."""
        found: set[int] = set()
        for thing in self._ledger.things(FABRIC_PARTITION):
            if self._ledger.read(thing, OwnersAlone) is not None:
                with suppress(BadInputError):  # a file that somebody else put there
                    found.add(FabricPartition.named(thing.name).id)
        return frozenset(found)

    def answer(self) -> FabricAnswer:
        """Return what Fabric Manager says. It is told which partitions are active if it waits for that, and asked once
        in each hold(); outside of one, another call might activate a partition meanwhile, which would be missing.
        Raises FabricManagerError, again in the same hold too.
        """
        if self._answer is None:
            try:
                self._answer = self._read_or_tell()
            except FabricManagerError as error:
                self._answer = error
        if isinstance(self._answer, FabricManagerError):
            raise self._answer
        return self._answer

    def look(self, thing: Thing, _wants: Wants) -> SeenPartition | None:
        """Return what Fabric Manager says of a partition, None if it is not in its shared mode any more."""
        try:
            answer = self.answer()
        except FabricManagerError as error:
            if error.code != FabricCode.NOT_SUPPORTED:
                raise
            return None
        partition = FabricPartition.named(thing.name)
        found = answer.partition(partition.id)
        if found is None or found.modules != partition.modules:
            return SeenPartition(partition, is_same=False)
        busy = [each for each in answer.partitions if each.is_active and each.modules & partition.modules]
        return SeenPartition(
            partition,
            is_same=True,
            is_supported=partition.id not in answer.unsupported,
            is_active=found.is_active,
            others="; ".join(map(self._whose, busy)),
        )

    def plan(
        self, wants: Wants, seen: SeenPartition | None, note: Note[OwnersAlone] | Unreadable | None
    ) -> ThingPlan[OwnersAlone, Change]:
        """See ThingKind. Deactivates whatever Fabric Manager lists: an activation without an answer may be under way.
        A partition that has other GPUs now, or none in another mode, is not the one that was activated.
        """
        if not wants:
            if isinstance(note, Unreadable):
                return ThingPlan(
                    stays=f"{note.problem}, so it is not known which claims have it: once none of them runs, remove "
                    "that file from the plugin's folder `ledger` and deactivate the partition"
                )
            return ThingPlan(act=Change.DEACTIVATE if seen is not None and seen.is_same else None)
        if seen is None:
            raise TemporaryError("Fabric Manager is not in its shared NVSwitch mode (FABRIC_MODE=1) any more")
        if not (seen.is_same and seen.is_supported):
            raise TemporaryError(
                f"Fabric Manager does not have, or does not support, {seen.partition} any more: waiting until its "
                "partitions were read again"
            )
        if seen.is_active and note is not None:
            return ThingPlan(OwnersAlone())
        if seen.others:
            raise TemporaryError(
                f"Fabric Manager's {seen.partition} cannot be activated while its GPUs are in {seen.others}"
            )
        return ThingPlan(OwnersAlone(), Change.ACTIVATE)

    def do(self, acts: Sequence[Act[Change]], left_s: Callable[[], float]) -> Sequence[End[OwnersAlone]]:
        """See ThingKind: within kubelet's deadline."""
        until_s = self._clock.monotonic() + BEGIN_S

        def own_left_s() -> float:
            return until_s - self._clock.monotonic()

        def why() -> str:
            if own_left_s() > 0:
                return ""
            return (
                f". Fabric Manager is slow: it had {BEGIN_S:g} s (on the node: `systemctl status nvidia-fabricmanager`)"
            )

        return one_by_one(acts, lambda: min(left_s(), own_left_s()), self._do, why)

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        """See ThingKind."""
        text = f"partition {thing.name} may be active, and no claim needs it any more: {problem}"
        return trouble(TroubleKind.FABRIC_PARTITION, text, f"partition {thing.name}")

    def _do(self, act: Act[Change]) -> End[OwnersAlone]:
        number = FabricPartition.named(act.thing.name).id
        try:
            if act.step is Change.ACTIVATE:
                self._manager.activate(number)
            else:
                self._manager.deactivate(number)
        except FabricManagerError as error:
            if act.step is Change.ACTIVATE:
                # What an earlier call of ours, without an answer in time, may have activated meanwhile is noted.
                return End(How.REFUSED, _in_use(error)) if error.code in NOT_ACTIVATED else End(How.UNANSWERED, error)
            # The second one: in its mode for vGPUs, where it did not activate it either.
            if error.code not in (FabricCode.UNINITIALIZED, FabricCode.NOT_SUPPORTED) and self._may_be(number, error):
                return End(How.UNANSWERED, error)
        return End()

    def _may_be(self, number: int, refusal: FabricManagerError) -> bool:
        """Whether a partition may be active after its deactivation was refused, with whatever code. Without an answer
        it may: the call may still be under way, and so may an earlier activation.
        """
        if refusal.code is None:
            return True
        try:
            return number in self._manager.read().active
        except FabricManagerError as error:
            log.warning("partitions cannot be read after a refusal", partition=number, error=str(error))
            return True

    def _read_or_tell(self) -> FabricAnswer:
        try:
            return self._manager.read()
        except FabricManagerError as error:
            if error.code != FabricCode.NOT_CONFIGURED:
                raise
        active = sorted(self.noted_numbers())
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

    def _whose(self, partition: ToldPartition) -> str:
        found = FabricPartition(partition.id, partition.modules)
        note = self._ledger.read(Thing(FABRIC_PARTITION, found.name), OwnersAlone)
        claims = ", ".join(sorted(note.owners)) if isinstance(note, Note) else ""
        return f"{found} of {f'the claims with UID {claims}' if claims else 'no claim of this node'}"


def _in_use(refusal: FabricManagerError) -> FabricManagerError:
    """Return a refusal with what may be behind it. No partition with these GPUs was active a moment ago, and the same
    answer may mean that a GPU is initialised.
    """
    return FabricManagerError(
        f"{refusal}: either somebody has just activated this partition or another one with its GPUs (on the node: "
        "`fmpm -l`), or persistence mode keeps one of these initialised (`nvidia-smi --query-gpu=pci.bus_id,"
        "persistence_mode --format=csv`; `nvidia-smi -i BUS_ID -pm 0` turns it off)",
        refusal.code,
    )
