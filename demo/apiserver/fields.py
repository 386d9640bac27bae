"""Field errors: what is wrong with which field of an object, worded and typed as in Kubernetes' ``details.causes``.

Kubernetes 1.37 moved many rules from Go code into declarations next to the types. Such causes come last, in the order
of the types' fields, and some have other words. The checks give the causes of 1.36 in its order and note on each what
1.37 makes of it; ``declared`` converts them to its form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

IMMUTABLE: Final = "field is immutable"

_TITLES: Final = {
    "FieldValueNotFound": "Not found",
    "FieldValueRequired": "Required value",
    "FieldValueDuplicate": "Duplicate value",
    "FieldValueInvalid": "Invalid value",
    "FieldValueNotSupported": "Unsupported value",
    "FieldValueForbidden": "Forbidden",
    "FieldValueTooLong": "Too long",
    "FieldValueTooMany": "Too many",
}
# These kinds of error never show the value.
_WITHOUT_VALUE: Final = frozenset({"FieldValueRequired", "FieldValueForbidden", "FieldValueTooLong"})


@dataclass(frozen=True, slots=True)
class FieldError:
    """One cause. `field` is a path such as ``spec.devices[0].name``."""

    type: str
    field: str
    value: Any = None
    detail: str = ""
    is_declared: bool = False
    """In 1.37 the rule is declared."""
    newer: tuple[FieldError, ...] | None = None
    """What 1.37 says instead, if that differs."""
    is_new: bool = False
    """Only 1.37 finds it."""

    def body(self) -> str:
        """The message without the field's path."""
        text = _TITLES[self.type]
        if self.type not in _WITHOUT_VALUE:
            text = f"{text}: {_shown(self.value)}"
        return f"{text}: {self.detail}" if self.detail else text

    def __str__(self) -> str:
        return f"{self.field}: {self.body()}"


def _shown(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, str):
        return text
    # Kubernetes shows structures as its JSON encoder writes them, which escapes characters that are special in HTML.
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def aggregate(errors: Sequence[FieldError]) -> str:
    """All messages in order, each once; in brackets when there are several."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def required(path: str, detail: str = "") -> FieldError:
    """The field is required."""
    return FieldError("FieldValueRequired", path, "", detail)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """The value breaks a rule."""
    return FieldError("FieldValueInvalid", path, value, detail)


def duplicate(path: str, value: Any) -> FieldError:
    """The value is a duplicate."""
    return FieldError("FieldValueDuplicate", path, value)


def forbidden(path: str, detail: str) -> FieldError:
    """The field may not be set now."""
    return FieldError("FieldValueForbidden", path, "", detail)


def not_supported(path: str, value: Any, supported: Sequence[str]) -> FieldError:
    """The value is none of the known ones."""
    known = ", ".join(json.dumps(one) for one in supported)
    return FieldError("FieldValueNotSupported", path, value, f"supported values: {known}")


def too_long(path: str, limit_bytes: int) -> FieldError:
    """The text is over its limit."""
    unit = "byte" if limit_bytes == 1 else "bytes"
    return FieldError("FieldValueTooLong", path, "", f"may not be more than {limit_bytes} {unit}")


def too_long_in_characters(path: str, limit: int) -> FieldError:
    """The text is over its limit, in the words of those rules of 1.37 that count characters."""
    return FieldError("FieldValueTooLong", path, "", f"may not be more than {limit} characters")


def too_many(path: str, count: int, limit: int) -> FieldError:
    """The list or map is over its limit."""
    unit = "item" if limit == 1 else "items"
    return FieldError("FieldValueTooMany", path, count, f"must have at most {limit} {unit}")


def reworded(error: FieldError, newer: FieldError) -> FieldError:
    """A cause that 1.37 words differently."""
    return replace(error, newer=(newer,))


def declared(errors: Iterable[FieldError], newer: Sequence[FieldError] | None = None) -> list[FieldError]:
    """Mark causes whose rule is declared in 1.37; `newer` is what 1.37 says instead of all of them."""
    marked = [replace(error, is_declared=True) for error in errors]
    if newer is None:
        return marked
    if not marked:
        return [replace(error, is_declared=True, is_new=True) for error in newer]
    return [replace(error, newer=() if at else tuple(newer)) for at, error in enumerate(marked)]
