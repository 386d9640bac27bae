"""Adds Fabric Manager's partitions to readings, and activates again those that it forgot when it was restarted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.fabric import FabricPartition
from dracaena.api.machine import Machine
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.changes.change import SWEEP, Note, Thing, thing_of
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.fabric_partition import FabricPartitions
from dracaena.kubelet_plugin.changes.ledger import Ledger, note_decoder
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
from dracaena.kubelet_plugin.ports import FabricCode, FabricManager, FabricManagerError
from dracaena.kubelet_plugin.prepare.effects import FABRIC_PARTITION
from dracaena.kubelet_plugin.store.claims import NodeClaims

PLACES: Final = Thing("fabric-places", "node")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class NotedPlaces:
    """Where GPUs are on their board, as read in this boot: of one that the NVIDIA driver gives away, nobody knows."""

    modules: Mapping[str, int]
    """PCI address → module id."""


class FabricReadings:
    """read() and renew() come from one thread at a time."""

    def __init__(
        self, manager: FabricManager, partitions: FabricPartitions, ledger: Ledger, claims: NodeClaims
    ) -> None:
        self._manager = manager
        self.partitions = partitions
        self._ledger = ledger
        note_decoder(NotedPlaces)
        self._claims = claims
        self._active: frozenset[int] | None = None
        """What was active at the last reading. None: that is not known, or there are no partitions."""

    def read(self, reading: Reading) -> Reading:
        """Return a reading with the current partitions, or without NVLinks and with a trouble if Fabric Manager does
        not report them. Raises DracaenaError if the ledger cannot be read.
        """
        machine = reading.machine
        remembered = self._remember(machine)
        self._active = None
        try:
            # A partition that is active through us is noted before or after the answer.
            before = self.partitions.noted_numbers()
            answer = self._read_or_tell()
            foreign = answer.active - before - self.partitions.noted_numbers()
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
        self._active = answer.active
        troubles = [_foreign(each) for each in answer.partitions if each.id in foreign]
        machine = with_partitions(machine, answer, remembered, foreign)
        return _with(reading, machine, *troubles, *place_troubles(machine))

    def renew(self, engine: ChangeEngine, on_troubles: Callable[[Sequence[Trouble]], None]) -> None:
        """Activate again what containers may have and was not active at the last reading. `on_troubles` gets what was
        lost, and whether it is active again.
        """
        troubles = []
        for thing, claims in sorted(self._lost().items()):
            settled = engine.settle([thing], SWEEP, lambda: 1.0)
            if not (settled.acted or settled.problems):
                continue  # it was activated after that reading
            partition = FabricPartition.named(thing.name)
            text = f"Fabric Manager restarted, and {partition} was no longer active"
            again = "it is again. Programs that use its NVLinks must be restarted"
            text += "".join(f", and cannot be activated: {each}" for each in settled.problems.values()) or f": {again}"
            text += f" (claims with UID {', '.join(sorted(claims))})"
            troubles.append(trouble(TroubleKind.FABRIC_PARTITION, text, f"partition {partition.id}"))
        on_troubles(troubles)

    def _lost(self) -> Mapping[Thing, set[str]]:
        """Return the partitions that were not active at the last reading, each with the claims that have it."""
        lost: dict[Thing, set[str]] = {}
        try:
            found = [] if self._active is None else self._claims.wanting(FABRIC_PARTITION)
        except DracaenaError as error:
            log.warning("it is not known which partitions claims have", error=str(error))
            return lost
        for checkpoint, effect in found:
            thing = thing_of(effect)
            if checkpoint.in_use and FabricPartition.named(thing.name).id not in (self._active or ()):
                lost.setdefault(thing, set()).add(checkpoint.prepared.claim.uid)
        return lost

    def _read_or_tell(self) -> FabricAnswer:
        """Wait for calls that change partitions only if Fabric Manager must be told something."""
        try:
            return self._manager.read()
        except FabricManagerError as error:
            if error.code != FabricCode.NOT_CONFIGURED:
                raise
        with self.partitions.hold():
            return self.partitions.answer()

    def _remember(self, machine: Machine) -> Mapping[str, int]:
        """Return the module ids that were read since the node came up, with those of this machine."""
        joined = now = places_read(machine)
        try:
            known, joined = self._joined(now)
            if joined != known:
                with self._claims.hold():  # between the look and the write the other instance might note more
                    _, joined = self._joined(now)
                    places = NotedPlaces(dict(sorted(joined.items())))
                    self._ledger.write(PLACES, Note(self._ledger.boot_id, {}, places))
        except DracaenaError as error:
            log.warning("module ids that were read before are not known, or not saved", error=str(error))
        return joined

    def _joined(self, now: Mapping[str, int]) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return the module ids that are noted, and the same with those of now. A place belongs to the GPU that has it
        now, and no longer to the one that had it before.
        """
        note = self._ledger.read(PLACES, NotedPlaces)
        known = note.noted.modules if isinstance(note, Note) else {}
        return known, {**{address: module for address, module in known.items() if module not in now.values()}, **now}


def _foreign(told: ToldPartition) -> Trouble:
    return trouble(
        TroubleKind.FABRIC_PARTITION,
        f"{FabricPartition(told.id, told.modules)} is active, and no claim of this node has it: no claim gets its GPUs "
        "until whoever activated it deactivates it",
        f"partition {told.id}",
    )


def _with(reading: Reading, machine: Machine, *troubles: Trouble) -> Reading:
    return dataclasses.replace(reading, machine=machine, troubles=(*reading.troubles, *troubles))
