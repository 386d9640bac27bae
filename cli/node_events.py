"""The Events of a node, for `dracaena status NODE`: what happened to its GPUs within the hour that Events are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dracaena.kube.client import KubeClient
    from dracaena.kube.events import Event

MOST_EVENTS: Final = 10
"""The newest: as many as GPUs that fail together, and a layout."""

OURS: Final = "dracaena-"
"""Beginning of the names of our components."""


@dataclass(frozen=True)
class NodeEvents:
    """Our Events about one node, the newest first; None: they may not be read."""

    events: Sequence[Event] | None

    def lines(self) -> Sequence[str]:
        """Return them as lines below the tree of the node."""
        if self.events is None:
            return ("  its Events may not be read",)
        return [
            f"  {one.last_timestamp or 'unknown time'}  {one.reason}{_times(one.count)}: {one.message}"
            for one in self.events
        ]

    def document(self) -> list[dict[str, Any]] | None:
        """Return the JSON form; docs/reference/json.md promises it."""
        if self.events is None:
            return None
        return [
            {
                "type": one.type,
                "reason": one.reason,
                "message": one.message,
                "count": one.count,
                "last": one.last_timestamp,
            }
            for one in self.events
        ]


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def node_events(client: KubeClient, node: str) -> NodeEvents:
    """Read the Events of a node."""
    from dracaena.kube.errors import ForbiddenError
    from dracaena.kube.events import Event

    selector = f"involvedObject.kind=Node,involvedObject.name={node}"
    try:
        found = client.list(Event, namespace="default", field_selector=selector).items
    except ForbiddenError:
        return NodeEvents(None)
    ours = [one for one in found if one.source.component.startswith(OURS)]
    ours.sort(key=lambda one: (one.last_timestamp or "", one.metadata.name), reverse=True)
    return NodeEvents(ours[:MOST_EVENTS])
