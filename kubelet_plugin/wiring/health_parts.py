"""Builds what watches the health of this node's GPUs, and wires its results: taints, Events, reports to kubelet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from dracaena.api import limits
from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.adapters.kubelet.health_streams import HealthStreams
from dracaena.kubelet_plugin.discovery.health.device_health import DeviceHealth
from dracaena.kubelet_plugin.discovery.health.gpu_health import Fault, Rules, taints
from dracaena.kubelet_plugin.node.devices import NodeDevices
from dracaena.kubelet_plugin.node.health_monitor import HealthListeners, HealthMonitor, HealthSource
from dracaena.kubelet_plugin.ports import Ask
from dracaena.kubelet_plugin.settings import CONTROLLER, PluginSettings
from dracaena.kubelet_plugin.wiring.from_settings import health_rules
from dracaena.kubelet_plugin.wiring.parts import NodeParts


def health_parts(
    node: NodeParts, source: HealthSource, ask: Ask, devices: NodeDevices
) -> tuple[HealthMonitor, HealthStreams]:
    """Return what reads the health through `source`, and what reports it to kubelet. `ask` runs a call where the driver
    may be called; faults become taints of `devices`.
    """
    settings = node.settings
    rules = health_rules(settings)
    monitor: HealthMonitor

    def device_health() -> Sequence[DeviceHealth]:
        return monitor.devices()

    streams = HealthStreams(settings.node_name, device_health, node.clock)
    monitor = HealthMonitor(
        source,
        ask,
        node.clock,
        rules,
        node.metrics,
        node_faults=partial(_node_faults, node),
        listeners=HealthListeners(
            faults=partial(_publish_taints, devices, settings, rules),
            status=node.events.health_changed,
            news=streams.changed,
            troubles=partial(node.troubles.update, "health"),
        ),
    )
    return monitor, streams


def _node_faults(node: NodeParts) -> tuple[Fault, ...]:
    """Return the faults that all devices of this node have at once."""
    fault = node.release.fault()
    if fault is None and node.installation is not None:
        fault = node.installation.fault()
    return () if fault is None else (fault,)


def _publish_taints(
    devices: NodeDevices, settings: PluginSettings, rules: Rules, faults: Mapping[DeviceName, Sequence[Fault]]
) -> None:
    room = limits.DEVICE_TAINTS - (settings.allocator == CONTROLLER)  # all devices have the controller's taint already
    devices.take_taints(
        {device: taints(found, settings.driver_name, rules, room=room) for device, found in faults.items()}
    )
