"""Withdraws shares by MPS of which nothing is left but what was asked of the supervisor.

A claim's checkpoint says what has to be undone when it ends. Where it broke, and the claim ended before it was rebuilt
from the API, nobody would withdraw its shares before the next boot: their GPU would stay exclusive to MPS, and no other
claim could use it whole.
"""

from __future__ import annotations

import structlog

from dracaena.api.errors import BadInputError
from dracaena.api.mps import SUFFIX, decode_request
from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.ports import DocumentStore
from dracaena.kubelet_plugin.store.claims import NodeClaims

log = structlog.get_logger()


class UnclaimedShares:
    """From any thread; holds nothing itself."""

    def __init__(self, requests: DocumentStore, claims: NodeClaims) -> None:
        """`requests` is the folder of the supervisor's."""
        self._requests = requests
        self._claims = claims

    def withdraw(self) -> int:
        """Withdraw the shares of claims that have neither a checkpoint nor a CDI spec; return how many. Raises
        DracaenaError.

        A share is journaled before it is asked for, and asked for until it is undone. So under the lock of the calls
        such a claim has ended: where only its checkpoint was lost, its containers may run, and its spec is there.
        """
        with self._claims.hold():
            known = {each.prepared.claim.uid for each in self._claims.current()}
            known |= {each.uid for each in self._claims.broken()}
            left = [name for name in self._requests.names(SUFFIX) if self._is_left(name, known)]
            for name in left:
                self._requests.remove(name)
        if left:
            log.warning("MPS shares that no claim has any more are withdrawn", shares=left)
        return len(left)

    def _is_left(self, name: str, known: set[ClaimUid]) -> bool:
        data = self._requests.read(name)
        try:
            uid = None if data is None else ClaimUid(decode_request(data).claim_uid)
        except BadInputError:
            return False  # whose it is nobody can tell, and the supervisor serves it to nobody
        # Without a spec of any driver: a second one may have shares in the same folder.
        return uid is not None and uid not in known and self._claims.is_without_spec(uid)
