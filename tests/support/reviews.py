"""Answers about tokens and rights that a test decides."""

from __future__ import annotations

from dracaena.controller.adapters.reviews import Identity
from dracaena.kube.errors import ApiUnavailableError


class ScriptedReviews:
    """Implements access.Reviews: tokens, and who may list the pods of which namespaces."""

    def __init__(self) -> None:
        self.tokens: dict[str, Identity] = {}
        self.rights: set[tuple[str, str]] = set()
        """User and namespace; an empty one: all."""
        self.is_down = False
        self.identified: list[str] = []
        self.asked: list[tuple[str, str]] = []

    def identify(self, token: str) -> Identity | None:
        self.identified.append(token)
        self._check()
        return self.tokens.get(token)

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        self.asked.append((who.user, namespace))
        self._check()
        return (who.user, namespace) in self.rights

    def _check(self) -> None:
        if self.is_down:
            raise ApiUnavailableError("POST reviews", None, "", "connection refused")
