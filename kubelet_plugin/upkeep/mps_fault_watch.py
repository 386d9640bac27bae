"""Tells the pods of prepared claims about faults of the MPS server whose clients they are (docs/design/mps.md).

The supervisor has no token for the API server; it records the last fault of each share in its status. A file records
which faults were told, so that each is told once, whichever instance of the plugin looks. A plugin that is killed
between telling and recording tells the fault again, and the count of that Event is 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from dracaena.api.errors import DracaenaError
from dracaena.api.mps import MpsFault
from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.changes.kinds.mps_shares import MpsShares
from dracaena.kubelet_plugin.ports import DocumentStore
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, Effect, gpu_and_part
from dracaena.kubelet_plugin.prepare.mps_faults import (
    ToldFault,
    decode_told,
    encode_told,
    fault_words,
    pods_to_tell,
)
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.kubelet_plugin.upkeep.device_watch import TellUsers
from dracaena.kubelet_plugin.worker import Worker, WorkerService
from dracaena.process.clock import Clock

LOOK_EVERY_S: Final = 5.0
"""As often as the supervisor checks its running servers. A look reads one small file per share."""

TOLD: Final = "told-mps-faults.json"
"""File that records which fault of each share was told last."""

Shares = Mapping[str, tuple[PreparedClaim, Effect]]
"""Name of an MPS share → the prepared claim that has it, and its effect."""

log = structlog.get_logger()


class MpsFaultWatch(WorkerService):
    """Looks in a thread of its own. Only that thread calls look(), or a test in its place."""

    def __init__(
        self,
        *,
        shares: MpsShares,
        claims: NodeClaims,
        users_known: Callable[[], bool],
        pods_of: Callable[[PreparedClaim], Sequence[Pod]],
        files: DocumentStore,
        tell: TellUsers,
        clock: Clock,
    ) -> None:
        """`pods_of` returns all pods that use a claim now, including those that the watch of pods has not shown yet,
        since each fault is told once. It is called without the lock, only for faults not told yet, and raises
        DracaenaError if the pods are not known. They are not before `users_known`: after a start it takes the plugin a
        moment to learn which pods came to a claim after it was prepared. `files` is for TOLD."""
        self._shares = shares
        self._claims = claims
        self._users_known = users_known
        self._pods_of = pods_of
        self._files = files
        self._tell = tell
        self._told: Mapping[str, ToldFault] = {}
        """What this instance knows to be told: even if the file could not be written, no fault is told again."""
        self._saved = False
        """Whether the file agrees."""
        self._complaint = ""
        self._worker = Worker("mps-faults", self._run, clock)

    def look(self) -> None:
        """Look once. Raises DracaenaError if something could not be read or written, once everything has been told."""
        if not self._users_known():
            return  # each fault is told once, so wait until its pods are known
        prepared = self._claims.prepared()
        shares = {gpu_and_part(e.thing)[1]: (p, e) for p in prepared for e in p.wants if e.kind == MPS_SHARE}
        faults, problems = self._faults(shares)
        if not self._saved or _now(shares, self._told, faults) != self._told:
            pods, more_problems = self._pods_to_tell(shares, faults)
            problems += more_problems
            self._settle(shares, {name: fault for name, fault in faults.items() if name in pods}, pods)
        for problem in problems:
            raise problem

    def _faults(self, shares: Shares) -> tuple[dict[str, MpsFault], list[DracaenaError]]:
        """Return the last fault of each share that had one, and the errors of shares that could not be read."""
        found: dict[str, MpsFault] = {}
        problems: list[DracaenaError] = []
        for name in shares:
            try:
                fault = self._shares.fault(name)
            except DracaenaError as error:
                problems.append(error)
                continue
            if fault is not None:
                found[name] = fault
        return found, problems

    def _pods_to_tell(
        self, shares: Shares, faults: Mapping[str, MpsFault]
    ) -> tuple[Mapping[str, Sequence[Pod]], list[DracaenaError]]:
        """Return the pods that each fault concerns (none if it was told), and the errors where they are not known."""
        protocol, anyones = self._shares.protocol(), self._read_told()
        found: dict[str, Sequence[Pod]] = {}
        problems: list[DracaenaError] = []
        for name, fault in faults.items():
            try:
                new = self._is_new(name, fault, anyones)
                found[name] = pods_to_tell(fault, self._pods_of(shares[name][0]), protocol) if new else ()
            except DracaenaError as error:
                problems.append(error)
        return found, problems

    def _is_new(self, name: str, fault: MpsFault, anyones: Mapping[str, ToldFault]) -> bool:
        return ToldFault.of(fault) not in (self._told.get(name), anyones.get(name))

    def _settle(self, shares: Shares, faults: Mapping[str, MpsFault], pods: Mapping[str, Sequence[Pod]]) -> None:
        """Tell what no instance has told yet, under the lock that the instances of the plugin share."""
        with self._claims.hold():
            anyones = self._read_told()
            for name, fault in faults.items():
                if self._is_new(name, fault, anyones):
                    claim, effect = shares[name]
                    self._tell(claim.claim, pods[name], *fault_words(fault, str(effect.parameters["gpu"])))
            self._told, self._saved = _now(shares, {**anyones, **self._told}, faults), False
            if self._told:
                self._files.write_if_changed(TOLD, encode_told(self._told))
            else:
                self._files.remove(TOLD)
            self._saved = True

    def _read_told(self) -> Mapping[str, ToldFault]:
        try:
            data = self._files.read(TOLD)
            return {} if data is None else decode_told(data)
        except DracaenaError as error:
            log.warning("record of reported MPS faults is lost, some may be reported again", error=str(error))
            return {}

    def _run(self) -> None:
        while self._worker.wait(within_s=LOOK_EVERY_S):
            try:
                self.look()
                self._complaint = ""
            except DracaenaError as error:
                if str(error) != self._complaint:
                    log.warning("some faults of MPS servers may not have been reported yet, retrying", error=str(error))
                self._complaint = str(error)
            except Exception:
                # The thread's outermost loop: a bug must not end it for the life of the process.
                log.exception("look at faults of MPS servers failed")


def _now(shares: Shares, told: Mapping[str, ToldFault], faults: Mapping[str, MpsFault]) -> Mapping[str, ToldFault]:
    """Return what has been told once these faults are; a share whose status cannot be read keeps its earlier record."""
    return {
        **{name: told[name] for name in shares if name in told},
        **{name: ToldFault.of(fault) for name, fault in faults.items()},
    }
