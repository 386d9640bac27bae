"""What the parts of one plugin have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dracaena.api.names import DeviceName, NodeName
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.events import NodeEvents
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from dracaena.kubelet_plugin.ports import ClaimReader, NodeLock
from dracaena.kubelet_plugin.store.claims import NodeClaims
from dracaena.process.clock import Clock


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Handed to each part as a whole, so that a part that needs one more of these needs no other parameter."""

    driver: str
    node_name: NodeName
    clock: Clock
    metrics: PluginMetrics
    api: ClaimReader
    claims: NodeClaims
    """Who has what on this node, with the lock that guards kubelet's calls and the id of the boot."""
    gpu_lock: Callable[[DeviceName], NodeLock]
    """Returns the lock of a GPU, the same one for the same name; it is taken before that of the calls."""
    events: NodeEvents
    troubles: NodeTroubles
