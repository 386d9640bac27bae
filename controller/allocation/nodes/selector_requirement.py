"""One requirement on a label, as in selectors of nodes and of pods.

Sources: core/v1 NodeSelectorRequirement, meta/v1 LabelSelectorRequirement; apimachinery, labels.Requirement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,63}", re.ASCII)
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SelectorRequirement:
    """One requirement. `key` is that of a label, or of a field if it is among matchFields."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, value: str | None) -> bool:
        """Return whether a value, None if there is none, meets the requirement."""
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        number, limit = integer(value), integer(self.values[0])
        if number is None or limit is None:
            return False
        return number > limit if self.operator == "Gt" else number < limit


def integer(text: str | None) -> int | None:
    """Read a number as Kubernetes does here: decimal, 64 bits."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None
