"""Refusals: every answer that is not success is a Kubernetes ``Status`` object, built here and raised as `ApiError`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dracaena.demo.apiserver.fields import FieldError, aggregate

MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(frozen=True, slots=True)
class Qualified:
    """A resource or kind name with its API group; printed as in ``leases.coordination.k8s.io``."""

    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.name}.{self.group}" if self.group else self.name


@dataclass(slots=True)
class ApiError(Exception):
    """One refusal. `details` is None where Kubernetes leaves the field out, {} where it sends an empty one."""

    code: int
    reason: str
    message: str
    details: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.message

    def status(self) -> dict[str, Any]:
        """The ``Status`` document, keys in the order in which Kubernetes writes them."""
        document: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            document["reason"] = self.reason
        if self.details is not None:
            document["details"] = self.details
        return document | {"code": self.code}


def _about(what: Qualified, name: str) -> dict[str, Any]:
    about = {"name": name, "group": what.group, "kind": what.name}
    return {key: value for key, value in about.items() if value}


def not_found(what: Qualified, name: str) -> ApiError:
    """404 for one object."""
    return ApiError(404, "NotFound", f'{what} "{name}" not found', _about(what, name))


def no_such_path() -> ApiError:
    """404 for a resource that the group does not have."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> ApiError:
    """405: the path exists, the verb does not."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


def already_exists(what: Qualified, name: str) -> ApiError:
    """409 at create."""
    return ApiError(409, "AlreadyExists", f'{what} "{name}" already exists', _about(what, name))


def conflict(what: Qualified, name: str, why: str) -> ApiError:
    """409: a guarded write met another state than it expected."""
    return ApiError(409, "Conflict", f'Operation cannot be fulfilled on {what} "{name}": {why}', _about(what, name))


def forbidden(what: Qualified, name: str, why: str, causes: Sequence[dict[str, str]] = ()) -> ApiError:
    """403 by an admission rule."""
    details = _about(what, name) | ({"causes": list(causes)} if causes else {})
    return ApiError(403, "Forbidden", f'{what} "{name}" is forbidden: {why}', details)


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def invalid(kind: Qualified, name: str, errors: Sequence[FieldError]) -> ApiError:
    """422 with one cause per field error."""
    causes = [{"reason": e.breach.value, "message": e.body(), "field": e.field} for e in errors]
    details = _about(kind, name) | {"causes": causes}
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {aggregate(errors)}', details)


def expired(message: str) -> ApiError:
    """410: the history that the request needs is gone."""
    return ApiError(410, "Expired", message)


def too_large_version(asked: int, current: int) -> ApiError:
    """504: a resourceVersion that this server has not reached."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return ApiError(504, "Timeout", message, details, {"Retry-After": "1"})


def not_implemented(what: str) -> ApiError:
    """501: Kubernetes does this, the embedded server does not. `what` names it."""
    return ApiError(501, "NotImplemented", f"the embedded API server does not implement {what}", {})


def unsupported_media_type(message: str) -> ApiError:
    """415 for request bodies."""
    return ApiError(415, "UnsupportedMediaType", message)


def not_acceptable(available: str) -> ApiError:
    """406 for Accept headers that leave nothing."""
    message = f"406: Not Acceptable\n\nAvailable representations: {available}"
    return ApiError(406, "NotAcceptable", message, {})
