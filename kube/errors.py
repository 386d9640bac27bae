"""What the Kubernetes API may answer instead of what was asked for."""

from __future__ import annotations

from typing import Any

import msgspec

from dracaena.api.errors import TemporaryError


class KubeError(TemporaryError):
    """The API refused or did not answer. `status` is the HTTP status, None when there was no answer.

    `reason` and `message` come from the Status object that the server sends.
    """

    def __init__(self, call: str, status: int | None, reason: str, message: str) -> None:
        super().__init__(f"{call}: {message}" if status is None else f"{call}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


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


class ApiUnavailableError(KubeError):
    """No answer, 429 or 5xx: try again later."""


def error_for(call: str, status: int, body: bytes) -> KubeError:
    """Return the error for an answer that is no success. `call` says what was asked, for the message."""
    reason, message = _status_object(body)
    kind = _kind(status, reason)
    return kind(call, status, reason or "Unknown", message or "the server sent no message")


def _kind(status: int, reason: str) -> type[KubeError]:
    if status == 409:
        return AlreadyExistsError if reason == "AlreadyExists" else ConflictError
    if status == 429 or status >= 500:
        return ApiUnavailableError
    known = {401: ForbiddenError, 403: ForbiddenError, 404: NotFoundError, 410: GoneError, 422: InvalidError}
    return known.get(status, KubeError)


def _status_object(body: bytes) -> tuple[str, str]:
    """Return reason and message of a Status object; a proxy in between may send anything else."""
    try:
        document: Any = msgspec.json.decode(body)
    except Exception:  # noqa: BLE001 - anything at all may stand there
        return "", " ".join(body.decode("utf-8", "replace").split())[:300]
    if not isinstance(document, dict):
        return "", ""
    return str(document.get("reason") or ""), str(document.get("message") or "")
