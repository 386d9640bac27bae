"""Which server each GPU's clients are connected to, and its faults: reported once for each server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from dracaena.api.mps import MpsClient, MpsFault, MpsShareStatus
from dracaena.mps.metrics import MpsMetrics
from dracaena.mps.planning.report import what_happened
from dracaena.mps.planning.state import SeenGpu, serves
from dracaena.mps.ports import MpsProcessTable
from dracaena.mps.protocol.seen import ClientSeen
from dracaena.process.clock import Clock, rfc3339

log = structlog.get_logger()


@dataclass(slots=True)
class _Served:
    pid: int
    clients: tuple[ClientSeen, ...] = ()
    told: bool = False
    """Whether its fault was reported."""


class FaultLog:
    """Used by one thread. Reported faults outlive a restart of the supervisor in the statuses."""

    def __init__(self, processes: MpsProcessTable, clock: Clock, metrics: MpsMetrics) -> None:
        self._processes, self._clock, self._metrics = processes, clock, metrics
        self._served: dict[str, _Served] = {}
        self._pods: dict[int, str] = {}
        self._faults: dict[str, MpsFault] = {}

    def resume(self, statuses: Mapping[str, MpsShareStatus]) -> None:
        """Take over what an earlier supervisor of this boot has reported."""
        for share, status in statuses.items():
            if status.fault is not None:
                self._faults[share] = status.fault
            if status.server_pid:
                self._served[status.gpu] = _Served(status.server_pid)

    def of(self, share: str) -> MpsFault | None:
        """Return the last fault of a share."""
        return self._faults.get(share)

    def forget_share(self, share: str) -> None:
        """Drop what is known of a share that is gone."""
        self._faults.pop(share, None)

    def forget_gpu(self, gpu: str) -> None:
        """Expect no server any more: if it ends now, we ended it."""
        self._served.pop(gpu, None)

    def note(self, gpu: str, seen: SeenGpu, shares: tuple[str, ...]) -> None:
        """Record a look at a GPU with shares."""
        served = self._served.get(gpu)
        if served is not None:
            happened = what_happened(served.pid, len(served.clients), seen)
            if happened is not None and not served.told:
                served.told = True
                kind, message = happened
                self._metrics.faults.labels(kind.value).inc()
                log.error(
                    "clients of an MPS server were affected", gpu=gpu, kind=kind.value, shares=len(shares), why=message
                )
                for share in shares:
                    self._faults[share] = MpsFault(
                        sequence=self._faults[share].sequence + 1 if share in self._faults else 1,
                        kind=kind,
                        message=message,
                        since=rfc3339(self._clock.now()),
                        clients=self._named(served.clients, share),
                    )
            elif happened is None:
                served.told = False
        if seen.server is not None and serves(seen.server):
            told = served is not None and served.told and served.pid == seen.server.pid
            self._served[gpu] = _Served(seen.server.pid, self._remembered(seen.clients), told)

    def _remembered(self, clients: tuple[ClientSeen, ...]) -> tuple[ClientSeen, ...]:
        """Remember the pod of each client: when a fault is reported, its process may be gone."""
        for client in clients:
            if client.pid not in self._pods:
                self._pods[client.pid] = self._processes.pod_uid(client.pid)
        return clients

    def forget_pods_but(self, clients: frozenset[int]) -> None:
        """Forget processes that are no longer clients."""
        kept = clients | {client.pid for served in self._served.values() for client in served.clients}
        self._pods = {pid: uid for pid, uid in self._pods.items() if pid in kept}

    def _named(self, clients: tuple[ClientSeen, ...], share: str) -> tuple[MpsClient, ...]:
        return tuple(
            MpsClient(pid=client.pid, pod_uid=self._pods.get(client.pid, ""))
            for client in clients
            if client.namespace in ("", share)
        )
