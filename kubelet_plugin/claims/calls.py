"""Kubelet's two calls, for many claims at once: one result per claim, never all or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import structlog

from dracaena.api.errors import DracaenaError, PermanentError
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.claims.device_state import SETTLE_S, DeviceState
from dracaena.kubelet_plugin.node.context import NodeContext
from dracaena.kubelet_plugin.ports import ClaimFailure
from dracaena.kubelet_plugin.prepare.prepared_claim import ClaimReference, PreparedClaim

T = TypeVar("T")

ANSWER_RESERVE_S = 10.0
"""Time kept in reserve when waiting ends: for the API read, the disk and the answer after a late unprepare."""

MAX_WAIT_S = 30.0
"""Longest wait when a caller allows more time than kubelet does (45 s), so that no worker is tied up for longer."""

log = structlog.get_logger()


class ClaimCalls:
    """Answers kubelet. Safe from many threads."""

    def __init__(self, context: NodeContext, state: DeviceState) -> None:
        self._state = state
        self._clock, self._metrics = context.clock, context.metrics
        self._calls = itertools.count(1)

    def prepare_claims(
        self, references: Iterable[ClaimReference], *, within_s: float = 0.0
    ) -> Mapping[ClaimUid, PreparedClaim | ClaimFailure]:
        """Prepare each claim; the answer has exactly the requested UIDs.

        within_s is the time left for the call: for that long it may wait for devices that are about to become free.
        """
        began_s = self._clock.monotonic()
        deadline_s = began_s + min(within_s - ANSWER_RESERVE_S, MAX_WAIT_S)

        def prepare(reference: ClaimReference) -> PreparedClaim:
            left_s = max(0.0, deadline_s - self._clock.monotonic())
            return self._state.prepare(reference, within_s=left_s, settle_by_s=began_s + SETTLE_S)

        return self._each("prepare", references, prepare)

    def unprepare_claims(self, references: Iterable[ClaimReference]) -> Mapping[ClaimUid, ClaimFailure | None]:
        """Unprepare each claim; None: done."""
        unprepare = partial(self._state.unprepare, settle_by_s=self._clock.monotonic() + SETTLE_S)
        return self._each("unprepare", references, unprepare)

    def _each(
        self, operation: str, references: Iterable[ClaimReference], work: Callable[[ClaimReference], T]
    ) -> Mapping[ClaimUid, T | ClaimFailure]:
        call = next(self._calls)
        wanted = {reference.uid: reference for reference in references}
        results: dict[ClaimUid, T | ClaimFailure] = {}
        for uid, reference in wanted.items():
            with structlog.contextvars.bound_contextvars(
                call=f"{operation}-{call}", claim=str(reference), claim_uid=uid
            ):
                results[uid] = self._one(operation, reference, work)
        return results

    def _one(self, operation: str, reference: ClaimReference, work: Callable[[ClaimReference], T]) -> T | ClaimFailure:
        began_s = self._clock.monotonic()
        try:
            result: T | ClaimFailure = work(reference)
            outcome = "ok"
        except DracaenaError as error:
            log.warning("claim failed", operation=operation, error=str(error))
            outcome = "refused" if isinstance(error, PermanentError) else "failed"
            result = ClaimFailure(str(error))
        except Exception as error:
            # The outermost loop of a call: a bug that hits one claim must not fail the others.
            log.exception("claim failed: internal error of the plugin", operation=operation)
            outcome = "internal"
            result = ClaimFailure(f"internal error of the plugin ({type(error).__name__}), see its log")
        self._metrics.claims.seconds.labels(operation, outcome).observe(self._clock.monotonic() - began_s)
        self._metrics.claims.calls.labels(operation, outcome).inc()
        return result
