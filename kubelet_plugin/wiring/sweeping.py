"""Builds what cleans up behind kubelet, and behind claims of which nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from dracaena.api.objects import Pod
from dracaena.kube.reflector import Reflector
from dracaena.kubelet_plugin.adapters.kube import node_is_ready
from dracaena.kubelet_plugin.adapters.kubelet.pod_resources import SOCKET, PodResourcesWitness
from dracaena.kubelet_plugin.claims.device_state import DeviceState
from dracaena.kubelet_plugin.claims.recovery import ClaimRecovery
from dracaena.kubelet_plugin.pods.devices_reporter import PodDevicesReporter
from dracaena.kubelet_plugin.upkeep.sweeper import Sweeper
from dracaena.kubelet_plugin.wiring.parts import NodeParts


def build_sweeper(
    node: NodeParts,
    pods: Reflector[Pod],
    reporter: PodDevicesReporter,
    state: DeviceState,
    recovery: ClaimRecovery,
    unclaimed: Mapping[str, Callable[[], int]],
) -> Sweeper:
    """Return the sweeper of one node; `unclaimed` gives back what no claim has, by kind."""
    settings = node.settings
    is_ready = partial(node_is_ready, node.view, settings.node_name)
    return Sweeper(
        node,
        state=state,
        recovery=recovery,
        pods=pods,
        may_be_in_use=reporter.may_be_in_use,
        kubelet=PodResourcesWitness(node.paths.podlist / SOCKET, settings.driver_name, is_ready),
        unclaimed=unclaimed,
    )
