"""How far a node's static MIG layout has been applied, as its plugin reports in a condition of the Node
(docs/mig.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dracaena.api.names import mig_layout_key
from dracaena.api.objects import Node, NodeStatus, PodCondition

CONDITION: Final = "MigLayoutApplied"
"""Type of the condition. Its reason is the state, its message begins as layout_prefix() says."""

LAYOUT_NAME: Final = "MIG layout"
"""How messages about one begin."""

NO_LAYOUT: Final = "NoLayout"
"""Reason when no layout is chosen."""


OF_BEFORE: Final = "of before"
"""What messages name instead of a layout when none is chosen and a change that was begun is being finished."""


class ConditionedStatus(NodeStatus, frozen=True):
    """node.status with conditions. Node leaves them out: Nodes are kept by the thousand and conditions change often."""

    conditions: tuple[PodCondition, ...] = ()


class ConditionedNode(Node, frozen=True):
    """A node with its conditions, for callers that read it once."""

    status: ConditionedStatus | None = None


@dataclass(frozen=True, slots=True)
class MigLayoutStatus:
    """What is known of a node's layout."""

    chosen: str | None
    """The layout by the node's label; None: there is no label, and the plugin's settings choose."""
    state: str | None
    """Applied, Pending or Failed (the plugin's LayoutState); None: the plugin has said nothing about `chosen`."""
    message: str

    def __str__(self) -> str:
        """Return the status in the words of the plugin's Events."""
        return self.message if self.state is None else f"MigLayout{self.state}: {self.message}"


def layout_prefix(layout: str, name: str = LAYOUT_NAME) -> str:
    """Return how messages about a layout begin: the condition may be about a former one."""
    return f"{name} {layout}: "


def mig_layout_status(driver: str, node: Node) -> MigLayoutStatus | None:
    """Return what a node's label and condition say; None if nothing is chosen, or conditions were not read."""
    if not isinstance(node, ConditionedNode):
        return None
    chosen = node.metadata.labels.get(mig_layout_key(driver))
    conditions = () if node.status is None else node.status.conditions
    known = next((each for each in conditions if each.type == CONDITION), None)
    of_chosen = known is not None and (
        chosen is None or known.message.startswith(layout_prefix(chosen or OF_BEFORE))  # "": no layout is wanted
    )
    if known is not None and of_chosen and known.reason != NO_LAYOUT:
        return MigLayoutStatus(chosen, known.reason, known.message)
    if not chosen:
        return None
    where = "Events of the Node say how far it is" if known is None else "its plugin has not taken it up yet"
    return MigLayoutStatus(chosen, None, f"{layout_prefix(chosen)}{where}")


def mig_layout_document(status: MigLayoutStatus) -> dict[str, Any]:
    """Return the JSON form; docs/explain.md promises it."""
    return {"chosen": status.chosen, "state": status.state, "message": status.message}
