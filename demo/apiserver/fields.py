"""Field errors: what is wrong with which field of an object, typed as in Kubernetes' ``details.causes``.

Types and fields are Kubernetes' own, the words are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dracaena.validation.findings import Breach, listed, show

IMMUTABLE: Final = "field is immutable"

_TITLES: Final = {
    Breach.DUPLICATE: "Duplicate value",
    Breach.FORBIDDEN: "Forbidden",
    Breach.INVALID: "Invalid value",
    Breach.NOT_FOUND: "Not found",
    Breach.NOT_SUPPORTED: "Unsupported value",
    Breach.REQUIRED: "Required value",
    Breach.TOO_LONG: "Too long",
    Breach.TOO_MANY: "Too many",
}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One cause. `field` is a path such as ``spec.devices[0].name``, `detail` says what was seen and expected."""

    breach: Breach
    field: str
    detail: str = ""

    def body(self) -> str:
        """The message without the field's path."""
        title = _TITLES[self.breach]
        return f"{title}: {self.detail}" if self.detail else title

    def __str__(self) -> str:
        return f"{self.field}: {self.body()}"


def aggregate(errors: Sequence[FieldError]) -> str:
    """All messages in order, each once; in brackets when there are several."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def required(path: str, detail: str = "") -> FieldError:
    """The field is required."""
    return FieldError(Breach.REQUIRED, path, detail)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """The value breaks a rule."""
    return FieldError(Breach.INVALID, path, f"{show(value)}: {detail}")


def duplicate(path: str, value: Any) -> FieldError:
    """The value is a duplicate."""
    return FieldError(Breach.DUPLICATE, path, show(value))


def forbidden(path: str, detail: str) -> FieldError:
    """The field may not be set now."""
    return FieldError(Breach.FORBIDDEN, path, detail)


def not_supported(path: str, value: Any, supported: Sequence[str]) -> FieldError:
    """The value is none of the known ones."""
    return FieldError(Breach.NOT_SUPPORTED, path, f"{show(value)}: supported values: {listed(map(show, supported))}")


def too_long(path: str, limit_bytes: int) -> FieldError:
    """The text is over its limit."""
    return FieldError(Breach.TOO_LONG, path, f"may not be more than {limit_bytes} bytes")
