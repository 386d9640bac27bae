"""Effect means with a fault, for searches that have to find it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar


class Planted:
    """What a fault does not change goes to the real means, one effect at a time."""

    def __init__(self, means: Any) -> None:
        self.means = means

    def apply_noting(self, effect: Effect, others: Sequence[Effect], note: Any) -> Mapping[str, Scalar]:
        outcome: Mapping[str, Scalar] = self.means.apply_noting(effect, others, note)
        return outcome

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        self.means.undo(effect, others)


class JournalsAfterwards(Planted):
    def apply_noting(self, effect: Effect, others: Sequence[Effect], note: Any) -> Mapping[str, Scalar]:
        return super().apply_noting(effect, others, lambda _outcome: None)


class DoesNotUndo(Planted):
    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        pass
