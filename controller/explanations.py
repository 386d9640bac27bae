"""Reasons why pods fit nowhere, worked out once for all who ask the same at about the same time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

EXPLANATION_S: Final = 1.0
"""For so long a reason is told to all pods that ask for the same: each is told once in ten seconds at most."""

MAX_EXPLANATIONS: Final = 1_000
"""Remembered reasons, at most about 1 MB."""

Question = tuple[bytes, tuple[str, ...]]
"""What a pod asks for (allocation.shape), and the nodes that it must not use."""


@dataclass(frozen=True, slots=True)
class _Explanation:
    at_s: float
    text: str | None


class Explanations:
    """A part of its owner, under the owner's lock. Who asks the same is told the same, but for its own names."""

    def __init__(self) -> None:
        self._known: dict[Question, _Explanation] = {}

    def get(
        self, question: Question, names: Sequence[str], work_out: Callable[[], str | None], *, now_s: float
    ) -> str | None:
        """Return the answer to a question: that of at most EXPLANATION_S ago, else what `work_out` says now.

        `names` are what the answer may call pod and claims, in the same order whoever asks: those of who asked first
        are replaced by those of who asks now, which may be of another namespace.
        """
        known = self._known.get(question)
        if known is None or now_s - known.at_s >= EXPLANATION_S:
            text = work_out()
            if len(self._known) >= MAX_EXPLANATIONS:
                self._known.clear()
            known = self._known[question] = _Explanation(now_s, None if text is None else _without(text, names))
        return None if known.text is None else _with(known.text, names)


def _without(text: str, names: Sequence[str]) -> str:
    """Put marks in the place of names, where they stand alone: `dev/uuid` is no pod in `gpu.dracaena.dev/uuid`."""
    for place, name in enumerate(names):
        text = re.sub(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)", f"\0{place}\0", text)
    return text


def _with(text: str, names: Sequence[str]) -> str:
    for place, name in enumerate(names):
        text = text.replace(f"\0{place}\0", name)
    return text
