"""What the Kubernetes API may answer instead of what we asked for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from dracaena.api.errors import TemporaryError
from dracaena.kube.retry_after import retry_after_s


class KubeError(TemporaryError):
    """The API refused or did not answer. `status` is the HTTP status, None when there was no answer.

    `reason` and `message` come from the Status object that the server sends. `retry_after_s` is how long it asks
    clients to stay away, None when it does not say (kube.retry_after).
    """

    def __init__(
        self, call: str, status: int | None, reason: str, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{call}: {message}" if status is None else f"{call}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def is_refusal(self) -> bool:
        """Whether the server said that it did not do what we asked: any 4xx, including 429. After a 5xx, a time-out
        (408) or no answer at all it may have done it, or may still do it."""
        return self.status is not None and 400 <= self.status < 500 and self.status != 408


class NotFoundError(KubeError):
    """404: the object, or the namespace, or the whole kind is not there."""


class AlreadyExistsError(KubeError):
    """409 AlreadyExists: an object of that name is there."""


class ConflictError(KubeError):
    """409 Conflict: the object changed since it was read, or a precondition does not hold."""


class GoneError(KubeError):
    """410: the resourceVersion is too old to watch or to page from; list again."""


class InvalidError(KubeError):
    """422: the server's validation refuses the object. Writing the same again will not help."""


class ForbiddenError(KubeError):
    """401 or 403: our identity may not do this; an admin must grant it."""


class TooManyRequestsError(KubeError):
    """429: the server is overloaded and did not do what we asked. Ask again after `retry_after_s`."""


class ApiUnavailableError(KubeError):
    """No answer, or 5xx: it is unknown whether the request took effect. Try again later."""


def error_for(call: str, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> KubeError:
    """Return the error for an unsuccessful answer. `call` says what was asked, for the message."""
    reason, message, details = _status_object(body)
    kind = _kind(status, reason)
    wait_s = retry_after_s(headers, details)
    return kind(call, status, reason or "Unknown", message or "the server sent no message", retry_after_s=wait_s)


def _kind(status: int, reason: str) -> type[KubeError]:
    if status == 409:
        return AlreadyExistsError if reason == "AlreadyExists" else ConflictError
    if status >= 500:
        return ApiUnavailableError
    return _KINDS.get(status, KubeError)


_KINDS: Mapping[int, type[KubeError]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


def _status_object(body: bytes) -> tuple[str, str, object]:
    """Return reason, message and details of a Status object; a proxy in between may send anything else."""
    try:
        document: Any = msgspec.json.decode(body)
    except Exception:  # noqa: BLE001 - anything at all may stand there
        return "", " ".join(body.decode("utf-8", "replace").split())[:300], None
    if not isinstance(document, dict):
        return "", "", None
    return str(document.get("reason") or ""), str(document.get("message") or ""), document.get("details")
