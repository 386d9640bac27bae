"""Remembers which pods of a claim were told of its trouble, so that each is told once, including later ones."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dracaena.api.names import ClaimUid
from dracaena.api.objects import Pod


class ToldUsers:
    """For one thread. A claim has one trouble at a time: a new one is told to all."""

    def __init__(self) -> None:
        self._told: dict[ClaimUid, tuple[str, frozenset[str]]] = {}  # trouble, UIDs of pods

    def keep(self, uids: Collection[ClaimUid]) -> None:
        """Forget all other claims: a later trouble of theirs is told again."""
        self._told = {uid: told for uid, told in self._told.items() if uid in uids}

    def is_told(self, uid: ClaimUid, trouble: str) -> bool:
        """Whether this trouble was the last that was told of the claim."""
        return uid in self._told and self._told[uid][0] == trouble

    def tell(self, uid: ClaimUid, trouble: str, pods: Sequence[Pod]) -> Sequence[Pod]:
        """Return those of a claim's pods that were not told of its trouble, and record them as told."""
        known = self._told[uid][1] if self.is_told(uid, trouble) else frozenset()
        news = [pod for pod in pods if pod.metadata.uid not in known]
        self._told[uid] = (trouble, known.union(pod.metadata.uid for pod in news))
        return news
