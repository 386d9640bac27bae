"""Nodes."""

from __future__ import annotations

from transcripts.scenarios.documents import NODES, node
from transcripts.session import Session

PATH = f"{NODES}/node-a"


def node_life(api: Session) -> None:
    """A new node is tainted until somebody has seen it ready."""
    taints = [{"key": "a", "effect": "NoSchedule"}]
    status = {"capacity": {"cpu": "4", "memory": "8Gi"}, "conditions": [{"type": "Ready", "status": "True"}]}
    api.create("a node, with a status already", NODES, node("node-a", spec={"taints": taints}, status=status))
    api.create("a node without a spec", NODES, node("node-b"))
    ready = {"type": "Ready", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    api.strategic("its status", f"{PATH}/status", {"status": {"conditions": [ready], "addresses": [address]}})
    api.strategic("a second condition", f"{PATH}/status", {"status": {"conditions": [{"type": "X", "status": "True"}]}})
    api.merge("its status by the main path", PATH, {"status": {"capacity": {"cpu": "8"}}})
    api.merge("its taints go", PATH, {"spec": {"taints": None, "unschedulable": True}})
    bad = [
        {"key": "a", "effect": "Sometimes"},
        {"key": "b", "effect": "NoSchedule", "value": "@"},
        {"key": "b", "effect": "NoSchedule"},
    ]
    api.merge("bad taints", PATH, {"spec": {"taints": bad}})
    api.delete("its deletion", PATH)
