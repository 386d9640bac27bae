"""How far the static MIG layout of a node is, as its plugin says it in a condition of the Node (docs/mig.md)."""

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
"""Reason where no layout is chosen."""


OF_BEFORE: Final = "of before"
"""What messages name instead of a layout where none is chosen and a change that was begun is brought to its end."""


class ConditionedStatus(NodeStatus, frozen=True):
    """node.status with what Node leaves out, because Nodes are kept by the thousand and conditions change often."""

    conditions: tuple[PodCondition, ...] = ()


class ConditionedNode(Node, frozen=True):
    """A node with its conditions, for whoever reads it once."""

    status: ConditionedStatus | None = None


@dataclass(frozen=True, slots=True)
class MigLayoutStatus:
    """What is known of a node's layout."""

    chosen: str | None
    """By the label of the node; None: it has none, and the plugin's settings choose."""
    state: str | None
    """Applied, Pending or Failed (the plugin's LayoutState); None: the plugin has said nothing of `chosen`."""
    message: str

    def __str__(self) -> str:
        """Return it in the words of the plugin's Events."""
        return self.message if self.state is None else f"MigLayout{self.state}: {self.message}"


def layout_prefix(layout: str, name: str = LAYOUT_NAME) -> str:
    """Return how messages about a layout begin: the condition may be of a former one."""
    return f"{name} {layout}: "


def mig_layout_status(driver: str, node: Node) -> MigLayoutStatus | None:
    """Return what a node's label and condition say; None where nothing is chosen, or conditions were not read."""
    if not isinstance(node, ConditionedNode):
        return None
    chosen = node.metadata.labels.get(mig_layout_key(driver))
    conditions = () if node.status is None else node.status.conditions
    told = next((each for each in conditions if each.type == CONDITION), None)
    of_chosen = told is not None and (
        chosen is None or told.message.startswith(layout_prefix(chosen or OF_BEFORE))  # "": no layout is wanted
    )
    if told is not None and of_chosen and told.reason != NO_LAYOUT:
        return MigLayoutStatus(chosen, told.reason, told.message)
    if not chosen:
        return None
    where = "Events of the Node tell how far it is" if told is None else "its plugin has not taken it up yet"
    return MigLayoutStatus(chosen, None, f"{layout_prefix(chosen)}{where}")


def mig_layout_document(status: MigLayoutStatus) -> dict[str, Any]:
    """Return the JSON form; docs/explain.md promises it."""
    return {"chosen": status.chosen, "state": status.state, "message": status.message}
