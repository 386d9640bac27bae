"""The label of a Node that names its MIG layout, and the condition that says how far that is."""

from __future__ import annotations

from typing import ClassVar

from dracaena.api.objects import KubeObject, Node, PodCondition, Wire
from support.plugin_world import DRIVER, NODE, World


class Conditions(Wire, frozen=True):
    conditions: tuple[PodCondition, ...] = ()


class NodeWithConditions(KubeObject, frozen=True):
    API_VERSION: ClassVar[str] = "v1"
    RESOURCE: ClassVar[str] = "nodes"
    KIND: ClassVar[str] = "Node"

    status: Conditions = Conditions()


def choose(world: World, layout: str | None) -> None:
    """Label the node; None takes the label away."""
    world.client.merge_patch(Node, NODE, {"metadata": {"labels": {f"{DRIVER}/mig-layout": layout}}})


def layout_condition(world: World) -> str:
    """Return status, reason and message, empty where there is no such condition."""
    found = world.client.get(NodeWithConditions, NODE).status.conditions
    told = [f"{each.status} {each.reason} {each.message}" for each in found if each.type == "MigLayoutApplied"]
    return told[0] if told else ""
