"""Keeps status.devices of the prepared claims up to date, which shows users and tools the GPUs of a claim."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.ports import ClaimGoneError, ClaimReader, ClaimStatusWriter
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.prepare.reports.device_status import with_our_devices

log = structlog.get_logger()


class DeviceStatuses:
    """Updates each claim once: reads it, and writes it if our entries differ. For one thread.

    After a restart each claim is read again. Entries need no removal: the API server drops those of devices that are no
    longer allocated.
    """

    def __init__(self, *, driver: str, claims: ClaimReader, writer: ClaimStatusWriter) -> None:
        self._driver = driver
        self._claims = claims
        self._writer = writer
        self._settled: dict[ClaimUid, PreparedClaim] = {}

    def reconcile(self, prepared: Sequence[PreparedClaim]) -> list[DracaenaError]:
        """Write what is not written yet; try all claims, and return the errors of those that could not be written."""
        uids = {p.claim.uid for p in prepared}
        self._settled = {uid: claim for uid, claim in self._settled.items() if uid in uids}
        failures: list[DracaenaError] = []
        for claim in prepared:
            settled = self._settled.get(claim.claim.uid)
            if settled is not None and settled.devices == claim.devices:
                continue  # consumers may come and go: status.devices does not contain them
            try:
                self._write(claim)
            except ClaimGoneError:
                log.debug("claim is gone, its status stays", claim=str(claim.claim))
            except PermanentError as error:
                log.warning("status.devices of the claim is not written", claim=str(claim.claim), error=str(error))
            except DracaenaError as error:
                failures.append(error)
                continue
            self._settled[claim.claim.uid] = claim
        return failures

    def _write(self, prepared: PreparedClaim) -> None:
        claim = self._claims.read_claim(prepared.claim)
        devices = with_our_devices(claim.status.devices, prepared, self._driver)
        if devices is not None and claim.status.allocation is not None:
            self._writer.set_devices(claim, devices)
