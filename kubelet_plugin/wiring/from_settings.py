"""Builds the parts of the plugin that depend on settings alone."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from dracaena.api.machine import Machine
from dracaena.kube.client import KubeClient
from dracaena.kube.transport import Transport
from dracaena.kubelet_plugin.adapters.gpu_driver.device_nodes import HOST, DeviceNodes, DevRoot, make_capability_node
from dracaena.kubelet_plugin.adapters.gpu_driver.files import Kernel
from dracaena.kubelet_plugin.adapters.recorded.machine import RecordedMachine
from dracaena.kubelet_plugin.discovery.confidential import ConfidentialState
from dracaena.kubelet_plugin.discovery.gpu_list import GpuRole
from dracaena.kubelet_plugin.discovery.health.gpu_health import Rules
from dracaena.kubelet_plugin.discovery.vm.vgpus import TypesOfGpus
from dracaena.kubelet_plugin.gpu_driver.installation import GpuDriverInstallation, GpuDriverPlaces
from dracaena.kubelet_plugin.gpu_driver.release import GpuDriverRelease
from dracaena.kubelet_plugin.metrics import PluginMetrics
from dracaena.kubelet_plugin.node.health_monitor import HealthSource
from dracaena.kubelet_plugin.node.live_machine import ReadingSource
from dracaena.kubelet_plugin.node.troubles import NodeTroubles
from dracaena.kubelet_plugin.ports import MigControl, ReadClaimNodes
from dracaena.kubelet_plugin.settings import ALL, PluginSettings

USER_AGENT = "dracaena-plugin"

NODE_USER_PREFIX = "system:node:"
"""kubelet's user name, before the node's."""


class NodeSource(ReadingSource, HealthSource, Protocol):
    """Reads a node's GPUs and their health, and limits their memory. Called in the driver's thread."""

    def opened(self) -> int:
        """Return how often the driver was opened. From any thread."""
        ...

    def confidential(self) -> ConfidentialState:
        """Return the state of confidential computing of all GPUs. Raises DracaenaError; may hang."""
        ...

    def limit_memory(self, gpu: str, cgroup: str, limit_bytes: int | None) -> None:
        """Limit how much of a GPU's memory a cgroup may take; see ports.LimitMemory."""
        ...

    def mig_control(self) -> MigControl | None:
        """Return what changes the division of its GPUs, for the same thread; None: nothing does."""
        ...

    def vgpu_types(self) -> TypesOfGpus:
        """Return the vGPU types that sysfs knows by number, as the driver last reported them. From any thread."""
        ...

    def access_minors(self, gpu_minor: int, gpu_instance_id: int, compute_instance_id: int) -> tuple[int, int] | None:
        """Return the numbers of the nodes that open a MIG device, None if they are not known. From any thread."""
        ...


def health_rules(settings: PluginSettings) -> Rules:
    """Return what makes a device unhealthy."""
    return Rules(
        ignored_xids=_xids(settings.ignored_xids),
        ignore_all=settings.ignored_xids == ALL,
        fatal_xids=_xids(settings.fatal_xids),
        all_fatal=settings.fatal_xids == ALL,
        fabric=settings.watch_fabric,
        evict=settings.evict_from_lost,
    )


def _xids(text: str) -> frozenset[int]:
    return frozenset(int(word) for word in text.split(",")) if text and text != ALL else frozenset()


def installation(
    settings: PluginSettings, release: GpuDriverRelease, troubles: NodeTroubles, sys_root: str
) -> GpuDriverInstallation | None:
    """Return the driver installation for containers. A recorded machine has one only if its settings name it."""
    if settings.machine and not settings.driver_root:
        return None
    places = GpuDriverPlaces(
        seen_driver_root(settings), settings.driver_root or "/", seen_host_root(settings), settings.hook_tool
    )
    return GpuDriverInstallation(
        places,
        required=not settings.machine,
        kernel=Kernel(sys_root),
        refusal=release.refusal,
        on_troubles=partial(troubles.update, "installation"),
    )


def seen_driver_root(settings: PluginSettings) -> str:
    """Return where this process sees the driver's root."""
    return settings.driver_root_mount or settings.driver_root or "/"


def seen_host_root(settings: PluginSettings) -> str:
    """Return where this process sees the root of the host."""
    is_host = settings.driver_root in ("", "/")
    return settings.host_root_mount or (seen_driver_root(settings) if is_host else "/")


def claim_nodes(settings: PluginSettings) -> ReadClaimNodes:
    """Return where device nodes come from: a driver container may keep the driver's nodes in a /dev of its own.
    VFIO nodes always come from the host, whatever the settings say.
    """
    host = settings.driver_root or "/"
    if settings.dev_root:
        roots = [DevRoot(settings.dev_root, settings.dev_root)]
    else:
        own = [DevRoot(settings.driver_root_mount or host, host)] if host != "/" else []
        roots = [*own, HOST]
    return DeviceNodes(roots, required=not settings.machine, make=make_capability_node).of_claim


def recorded_machine(settings: PluginSettings) -> Machine | None:
    """Return the recorded machine that replaces this node's GPUs, None if there is none. Raises BadInputError."""
    if not settings.machine:
        return None
    return RecordedMachine(settings.machine).read()


def nvml_source(settings: PluginSettings, metrics: PluginMetrics, release: GpuDriverRelease) -> NodeSource:
    """Return what queries this node's driver through NVML."""
    from dracaena.kubelet_plugin.adapters.nvml.machine import NvmlMachine  # pynvml is for nodes with a driver

    return NvmlMachine.of_this_node(
        settings.node_name,
        gpu_driver_root=seen_driver_root(settings),
        on_error=lambda call, error: metrics.devices.nvml_errors.labels(call, error).inc(),
        permission=release,
        listens=settings.watch_health,
        mig_profiles=settings.gpus.has(GpuRole.MIG, GpuRole.LAYOUT),
        passthrough=settings.gpus.has(GpuRole.PASSTHROUGH),
        gpu_list=settings.gpus,
        vgpus=settings.gpus.has(GpuRole.VGPU),
        module_ids=settings.fabric_partitions,
    )


def node_view(settings: PluginSettings, client: KubeClient) -> KubeClient:
    """Return the client for reading pods and the Node; if the settings allow it, it only sees those of this node.

    RBAC has no field selectors, so the right to list pods covers the pods of all nodes with their environment. For
    `system:node:<name>` the node authorizer decides, which knows which node a pod is on.
    """
    if not settings.read_as_node:
        return client
    user = f"{NODE_USER_PREFIX}{settings.node_name}"
    return KubeClient(Transport.from_kubeconfig(settings.kubeconfig or None, user_agent=USER_AGENT, impersonated=user))
