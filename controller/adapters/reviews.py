"""Asks the API server whose token one is, and whether its owner may list pods."""

from __future__ import annotations

from dataclasses import dataclass

from dracaena.api.review_objects import SubjectAccessReview, TokenReview
from dracaena.kube.client import KubeClient


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is to the API server."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class KubeReviews:
    """TokenReview and SubjectAccessReview. The token appears in no error and no log."""

    def __init__(self, client: KubeClient) -> None:
        """`client` writes whether this process leads or not: a review changes nothing."""
        self._client = client

    def identify(self, token: str) -> Identity | None:
        """Return the owner of a token, None where the server does not take it. Raises KubeError."""
        status = self._client.create(TokenReview, {"spec": {"token": token}}).status
        if not status.authenticated or not status.user.username:
            return None
        user = status.user
        extra = tuple(sorted(user.extra.items()))
        return Identity(user.username, user.uid, user.groups, extra)

    def may_list_pods(self, who: Identity, namespace: str) -> bool:
        """Return whether somebody may list the pods of a namespace, empty: of all. Raises KubeError."""
        spec = {
            "user": who.user,
            "uid": who.uid,
            "groups": list(who.groups),
            "extra": {name: list(values) for name, values in who.extra},
            "resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods", "namespace": namespace},
        }
        return self._client.create(SubjectAccessReview, {"spec": spec}).status.allowed
