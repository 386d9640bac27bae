"""What monitoring can see of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.process.metrics import MetricTable, counter, gauge, histogram

CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 45.0)
"""Buckets in seconds, dense around the goal of 10 ms a call; 45 s is kubelet's own limit."""


class ClaimMetrics(MetricTable):
    """Kubelet's calls, and the claims that are prepared."""

    seconds = histogram(
        "dracaena_plugin_claim_duration_seconds",
        "Time to prepare or unprepare one claim, by result (ok, refused, failed, internal)",
        "operation",
        "result",
        buckets=CALL_SECONDS,
    )
    calls = counter(
        "dracaena_plugin_claims_total",
        "Claims that kubelet asked to prepare or unprepare, by result (ok, refused, failed, internal)",
        "operation",
        "result",
    )
    prepared = gauge(
        "dracaena_plugin_prepared_claims",
        "Claims that are prepared on this node",
    )
    devices = gauge(
        "dracaena_plugin_prepared_devices",
        "Devices of this node that prepared claims hold",
    )
    set_aside = gauge(
        "dracaena_plugin_claims_set_aside",
        "Prepared claims for which no container can be started: a device is gone, or its node belongs to another one",
    )
    moved = gauge(
        "dracaena_plugin_claims_with_moved_devices",
        "Prepared claims whose running containers may have device nodes that now belong to other devices",
    )
    lost_mig = gauge(
        "dracaena_plugin_claims_with_lost_mig_devices",
        "Prepared claims whose MIG devices were destroyed while in use",
    )


class DeviceMetrics(MetricTable):
    """This node's devices: how they are read, and what their health is."""

    skipped = gauge(
        "dracaena_plugin_skipped_devices",
        "Devices of this node that are not published because no claim could be prepared for them",
    )
    reading_stale = gauge(
        "dracaena_plugin_reading_stale",
        "1 while the GPU driver gives no good reading: devices are those of the last good one, or not known yet",
    )
    nvml_errors = counter(
        "dracaena_plugin_nvml_errors_total",
        "NVML calls that failed but could have succeeded, by call and error; not those that the hardware does not "
        "support",
        "call",
        "error",
    )
    by_health = gauge(
        "dracaena_plugin_device_health",
        "Devices of this node by health (healthy, unhealthy, unknown); none while health is not watched",
        "health",
    )
    xids = counter(
        "dracaena_plugin_xids_total",
        "XIDs that the driver reported",
        "xid",
    )
    health_errors = counter(
        "dracaena_plugin_health_errors_total",
        "Failed health checks of the GPUs",
    )


class PublishingMetrics(MetricTable):
    """What is published of this node's devices: to kubelet, in ResourceSlices, podlist.json and annotations."""

    registered = gauge(
        "dracaena_plugin_registered",
        "1 if kubelet has accepted the plugin, 0 if it refused it",
    )
    devices = gauge(
        "dracaena_plugin_published_devices",
        "Devices in the ResourceSlices of this node",
    )
    slice_writes = counter(
        "dracaena_plugin_slice_writes_total",
        "ResourceSlices written, by operation (create, update, delete)",
        "operation",
    )
    errors = counter(
        "dracaena_plugin_publish_errors_total",
        "Failed attempts to publish the ResourceSlices",
    )
    taint_refused = gauge(
        "dracaena_plugin_taint_refused",
        "1 while the API server drops taints or counters, so that this node withholds the devices that need them",
    )
    annotation_errors = counter(
        "dracaena_plugin_annotation_errors_total",
        "Failed writes of pod annotations",
    )
    podlist_age = gauge(
        "dracaena_plugin_podlist_age_seconds",
        "Time since podlist.json was last found correct; a minute at most while all is well",
    )


class SweepMetrics(MetricTable):
    """Cleanup of what kubelet forgot."""

    sweeps = counter(
        "dracaena_plugin_sweeps_total",
        "Sweeps for what kubelet forgot, by result (ok, failed)",
        "result",
    )
    swept = counter(
        "dracaena_plugin_swept_total",
        "What was cleaned up without kubelet, by kind: claims unprepared (claim), files removed (spec, metadata), "
        "checkpoints rewritten (checkpoint), and changes of the node that no claim has (fabric-partition, "
        "memory-limit, mig-instance, mig-off, mps-share, time-slice, vfio-bind)",
        "kind",
    )
    orphaned_claims = gauge(
        "dracaena_plugin_orphaned_claims",
        "Prepared claims that are gone from the API and not unprepared: held until kubelet is known to have "
        "released them",
    )


class NodeMetrics(MetricTable):
    """What is wrong on this node, and where its settings come from."""

    troubles = gauge(
        "dracaena_plugin_troubles",
        "What is wrong with the driver and the GPUs of this node, by the reason of its Event on the node",
        "reason",
    )
    unreadable_objects = gauge(
        "dracaena_plugin_unreadable_objects",
        "Objects of a resource that cannot be read, or whose last change was not applied; the log names them",
        "resource",
    )
    settings_section = gauge(
        "dracaena_plugin_settings_section",
        "1 for the section of the settings file that the label of this node names; known is false if there is no "
        "such section",
        "section",
        "known",
    )
    mig_layout = gauge(
        "dracaena_plugin_mig_layout",
        "1 for the MIG layout that this node is to have and its progress (Pending, Applied, Failed)",
        "layout",
        "state",
    )
    vgpu_layout = gauge(
        "dracaena_plugin_vgpu_layout",
        "1 for the vGPU layout that this node is to have and its progress (Pending, Applied, Failed)",
        "layout",
        "state",
    )
    confidential_mode = gauge(
        "dracaena_plugin_confidential_mode",
        "1 for the mode of confidential computing that the label of this node asks for, where the plugin changes "
        "modes, and its progress (Pending, Applied, Failed)",
        "mode",
        "state",
    )

    def watch_troubles(self, resource: str, troubles: Callable[[], Sized]) -> None:
        """Make the gauge of unreadable objects read from a cache."""
        self.unreadable_objects.labels(resource).set_function(lambda: len(troubles()))


class PluginMetrics:
    """All metrics of the plugin, by subject. One instance per registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.claims = ClaimMetrics(registry)
        self.devices = DeviceMetrics(registry)
        self.publishing = PublishingMetrics(registry)
        self.sweeping = SweepMetrics(registry)
        self.node = NodeMetrics(registry)


TABLES: Final = (ClaimMetrics, DeviceMetrics, PublishingMetrics, SweepMetrics, NodeMetrics)
