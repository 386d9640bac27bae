"""Asks the API server who owns a token, and whether the owner may list pods."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.review_objects import SubjectAccessReview, TokenReview
from dracaena.kube.client import KubeClient


@dataclass(frozen=True, slots=True)
class Identity:
    """A user as the API server knows them."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class KubeReviews:
    """TokenReview and SubjectAccessReview. The token appears in no error and no log."""

    def __init__(self, client: KubeClient) -> None:
        """`client` writes even if this process does not lead: a review changes nothing."""
        self._client = client

    def identify(self, token: str) -> Identity | None:
        """Return the owner of a token; None if the server does not accept it. Raises KubeError."""
        status = self._client.create(TokenReview, {"spec": {"token": token}}).status
        if not status.authenticated or not status.user.username:
            return None
        user = status.user
        extra = tuple(sorted(user.extra.items()))
        return Identity(user.username, user.uid, user.groups, extra)

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        """Return whether a user may list the pods of a namespace; empty: of all namespaces. Raises KubeError."""
        spec = {
            "user": who.user,
            "uid": who.uid,
            "groups": list(who.groups),
            "extra": {name: list(values) for name, values in who.extra},
            "resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods", "namespace": namespace},
        }
        return self._client.create(SubjectAccessReview, {"spec": spec}).status.allowed
