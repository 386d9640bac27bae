"""What we ask the API server about the owner of a token: authentication.k8s.io/v1, authorization.k8s.io/v1.

All are created and never stored: the answer is the object with its status.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dracaena.api.objects import KubeObject, ObjectMeta, Wire


class ReviewMeta(ObjectMeta, frozen=True):
    """metadata of an object that is not stored: it has no name."""

    name: str = ""


class UserInfo(Wire, frozen=True):
    """status.user of a TokenReview."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class TokenReviewStatus(Wire, frozen=True):
    """status of a TokenReview."""

    authenticated: bool = False
    user: UserInfo = UserInfo()
    error: str = ""


class TokenReview(KubeObject, frozen=True):
    """Asks who owns a token."""

    API_VERSION: ClassVar[str] = "authentication.k8s.io/v1"
    RESOURCE: ClassVar[str] = "tokenreviews"
    KIND: ClassVar[str] = "TokenReview"
    NAMESPACED: ClassVar[bool] = False

    metadata: ReviewMeta = ReviewMeta()
    status: TokenReviewStatus = TokenReviewStatus()


class SubjectAccessReviewStatus(Wire, frozen=True):
    """status of a SubjectAccessReview."""

    allowed: bool = False


class SubjectAccessReview(KubeObject, frozen=True):
    """Asks whether a user may do something."""

    API_VERSION: ClassVar[str] = "authorization.k8s.io/v1"
    RESOURCE: ClassVar[str] = "subjectaccessreviews"
    KIND: ClassVar[str] = "SubjectAccessReview"
    NAMESPACED: ClassVar[bool] = False

    metadata: ReviewMeta = ReviewMeta()
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class SelfSubjectAccessReview(SubjectAccessReview, frozen=True):
    """Asks whether whoever asks may do something."""

    RESOURCE: ClassVar[str] = "selfsubjectaccessreviews"
    KIND: ClassVar[str] = "SelfSubjectAccessReview"
