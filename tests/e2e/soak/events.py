"""What the checker is told: one state of one object, in the order in which the server stored them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class What(Enum):
    """What is known of an object from a version on."""

    IS = "is"
    GONE = "gone"
    UNKNOWN = "unknown"
    """A watch broke: states were missed, until the next event about this object."""


@dataclass(frozen=True, slots=True)
class Event:
    """One step of one object."""

    kind: str
    """Plural, as in the API: pods, resourceclaims, resourceslices, nodes."""
    what: What
    object: Mapping[str, Any]
    """As the API gave it; for GONE and UNKNOWN its last known state."""
    version: int
    """The server's resourceVersion of this state: one order for all kinds (etcd's revision)."""
    seen_s: float
    """Steady time at which the checker saw it."""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name`."""
        meta = self.object["metadata"]
        return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
