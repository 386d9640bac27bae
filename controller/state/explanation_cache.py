"""Reasons why pods fit nowhere, worked out once for all pods that ask for the same at about the same time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from dracaena.controller.allocation.explanation import Reasons

EXPLANATION_S: Final = 1.0
"""How long a reason is reused for pods that ask for the same; each pod gets it at most once in ten seconds."""

MAX_EXPLANATIONS: Final = 1_000
"""Remembered reasons, at most about 1 MB."""

Request = tuple[bytes, tuple[str, ...]]
"""What a pod asks for (walk.pod_demand.shape), and the nodes that it must not use."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod fits nowhere."""

    at_s: float
    reasons: Reasons | None
    """None: it seems to fit after all."""


class ExplanationCache:
    """Part of its owner, and used under the owner's lock. Pods that ask for the same get the same reasons with their
    own names."""

    def __init__(self) -> None:
        self._known: dict[Request, Explanation] = {}

    def get(self, request: Request, names: Sequence[str], *, now_s: float) -> Explanation | None:
        """Return the answer to a request that is at most EXPLANATION_S old; None when there is none.

        `names` are the names of the pod and its claims that the answer may contain, always in the same order. The names
        of the pod that asked first are replaced by those of the pod that asks now, which may be in another namespace.
        """
        known = self._known.get(request)
        if known is None or now_s - known.at_s >= EXPLANATION_S:
            return None
        reasons = known.reasons and known.reasons.with_texts(partial(_with, names=names))
        return Explanation(known.at_s, reasons)

    def put(self, request: Request, names: Sequence[str], reasons: Reasons | None, *, now_s: float) -> None:
        """Remember the answer to a request, which was worked out from `now_s` on."""
        if len(self._known) >= MAX_EXPLANATIONS:
            self._known.clear()
        self._known[request] = Explanation(now_s, reasons and reasons.with_texts(partial(_without, names=names)))


def _without(text: str, names: Sequence[str]) -> str:
    """Replace names by marks where they stand alone: `gpu.dracaena.dev/uuid` does not mean the pod `dev/uuid`."""
    for place, name in enumerate(names):
        text = re.sub(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)", f"\0{place}\0", text)
    return text


def _with(text: str, names: Sequence[str]) -> str:
    for place, name in enumerate(names):
        text = text.replace(f"\0{place}\0", name)
    return text
