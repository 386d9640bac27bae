"""Tells the users of shares that something does not hold them to their part."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import structlog

from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.upkeep.device_watch import TellUsers
from dracaena.kubelet_plugin.upkeep.told_users import ToldUsers

log = structlog.get_logger()


class ShareTroubles:
    """For one thread. A claim has one trouble at a time, told to each of its pods once however often it is found."""

    def __init__(self, tell: TellUsers, reason: str, summary: str) -> None:
        """`reason` is that of the Events, `summary` what the log says."""
        self._tell = tell
        self._reason = reason
        self._summary = summary
        self._told = ToldUsers()

    def keep(self, uids: Collection[ClaimUid]) -> None:
        """Forget all other claims: a later trouble of theirs is told again."""
        self._told.keep(uids)

    def is_new(self, claim: PreparedClaim, why: str) -> bool:
        """Whether a trouble was not the last that was told of a claim."""
        return not self._told.is_told(claim.claim.uid, why)

    def tell(self, claim: PreparedClaim, why: str, pods: Sequence[Pod], text: str) -> None:
        """Tell the claim and those of its pods that were not told. `why` is what makes it the same trouble or another,
        and follows `text`.
        """
        first = self.is_new(claim, why)
        if first:
            log.warning(self._summary, claim=str(claim.claim), reason=why)
        news = self._told.tell(claim.claim.uid, why, pods)
        if first or news:
            self._tell(claim.claim, news, self._reason, f"{text}: {why}")
