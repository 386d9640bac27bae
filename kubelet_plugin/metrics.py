"""What monitoring can see of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Sized

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 45.0)
"""Buckets in seconds, dense around the goal of 10 ms a call; 45 s is kubelet's own limit."""


class ClaimMetrics:
    """Kubelet's calls, and the claims that are prepared."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "dracaena_plugin_claim_duration_seconds",
            "Time to prepare or unprepare one claim, by result (ok, refused, failed, internal)",
            ["operation", "result"],
            buckets=CALL_SECONDS,
            registry=registry,
        )
        self.calls = Counter(
            "dracaena_plugin_claims_total",
            "Claims that kubelet asked to prepare or unprepare, by result (ok, refused, failed, internal)",
            ["operation", "result"],
            registry=registry,
        )
        self.prepared = Gauge(
            "dracaena_plugin_prepared_claims", "Claims that are prepared on this node", registry=registry
        )
        self.devices = Gauge(
            "dracaena_plugin_prepared_devices", "Devices of this node that prepared claims hold", registry=registry
        )
        self.set_aside = Gauge(
            "dracaena_plugin_claims_set_aside",
            "Prepared claims for which no container can be started: a device is gone, or its node belongs to another "
            "one",
            registry=registry,
        )
        self.moved = Gauge(
            "dracaena_plugin_claims_with_moved_devices",
            "Prepared claims whose running containers may have device nodes that now belong to other devices",
            registry=registry,
        )
        self.lost_mig = Gauge(
            "dracaena_plugin_claims_with_lost_mig_devices",
            "Prepared claims whose MIG devices were destroyed while in use",
            registry=registry,
        )


class DeviceMetrics:
    """This node's devices: how they are read, and what their health is."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.skipped = Gauge(
            "dracaena_plugin_skipped_devices",
            "Devices of this node that are not published because no claim could be prepared for them",
            registry=registry,
        )
        self.reading_stale = Gauge(
            "dracaena_plugin_reading_stale",
            "1 while the GPU driver gives no good reading: devices are those of the last good one, or not known yet",
            registry=registry,
        )
        self.nvml_errors = Counter(
            "dracaena_plugin_nvml_errors_total",
            "NVML calls that failed but could have succeeded, by call and error; not those that the hardware does not "
            "support",
            ["call", "error"],
            registry=registry,
        )
        self.by_health = Gauge(
            "dracaena_plugin_device_health",
            "Devices of this node by health (healthy, unhealthy, unknown); none while health is not watched",
            ["health"],
            registry=registry,
        )
        self.xids = Counter("dracaena_plugin_xids_total", "XIDs that the driver reported", ["xid"], registry=registry)
        self.health_errors = Counter(
            "dracaena_plugin_health_errors_total", "Failed health checks of the GPUs", registry=registry
        )


class PublishingMetrics:
    """What is published of this node's devices: to kubelet, in ResourceSlices, podlist.json and annotations."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registered = Gauge(
            "dracaena_plugin_registered", "1 if kubelet has accepted the plugin, 0 if it refused it", registry=registry
        )
        self.devices = Gauge(
            "dracaena_plugin_published_devices", "Devices in the ResourceSlices of this node", registry=registry
        )
        self.slice_writes = Counter(
            "dracaena_plugin_slice_writes_total",
            "ResourceSlices written, by operation (create, update, delete)",
            ["operation"],
            registry=registry,
        )
        self.errors = Counter(
            "dracaena_plugin_publish_errors_total", "Failed attempts to publish the ResourceSlices", registry=registry
        )
        self.taint_refused = Gauge(
            "dracaena_plugin_taint_refused",
            "1 while the API server drops taints or counters, so that this node withholds the devices that need them",
            registry=registry,
        )
        self.annotation_errors = Counter(
            "dracaena_plugin_annotation_errors_total", "Failed writes of pod annotations", registry=registry
        )
        self.podlist_age = Gauge(
            "dracaena_plugin_podlist_age_seconds",
            "Time since podlist.json was last found correct; a minute at most while all is well",
            registry=registry,
        )


class SweepMetrics:
    """Cleanup of what kubelet forgot."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sweeps = Counter(
            "dracaena_plugin_sweeps_total",
            "Sweeps for what kubelet forgot, by result (ok, failed)",
            ["result"],
            registry=registry,
        )
        self.swept = Counter(
            "dracaena_plugin_swept_total",
            "What was cleaned up without kubelet, by kind: claims unprepared (claim), files removed (spec, metadata), "
            "checkpoints rewritten (checkpoint), GPUs bound to VFIO for no claim (vfio-bind), partitions of Fabric "
            "Manager's that no claim has (fabric-partition), MPS shares of no claim (share), intervals of time slices "
            "of no claim (time-slice), MIG devices made for a claim that is gone (mig)",
            ["kind"],
            registry=registry,
        )
        self.orphaned_claims = Gauge(
            "dracaena_plugin_orphaned_claims",
            "Prepared claims that are gone from the API and not unprepared: held until kubelet is known to have "
            "released them",
            registry=registry,
        )


class NodeMetrics:
    """What is wrong on this node, and where its settings come from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.troubles = Gauge(
            "dracaena_plugin_troubles",
            "What is wrong with the driver and the GPUs of this node, by the reason of its Event on the node",
            ["reason"],
            registry=registry,
        )
        self.unreadable_objects = Gauge(
            "dracaena_plugin_unreadable_objects",
            "Objects of a resource that cannot be read, or whose last change was not applied; the log names them",
            ["resource"],
            registry=registry,
        )
        self.settings_section = Gauge(
            "dracaena_plugin_settings_section",
            "1 for the section of the settings file that the label of this node names; known is false if there is no "
            "such section",
            ["section", "known"],
            registry=registry,
        )
        self.mig_layout = Gauge(
            "dracaena_plugin_mig_layout",
            "1 for the MIG layout that this node is to have and its progress (Pending, Applied, Failed)",
            ["layout", "state"],
            registry=registry,
        )
        self.vgpu_layout = Gauge(
            "dracaena_plugin_vgpu_layout",
            "1 for the vGPU layout that this node is to have and its progress (Pending, Applied, Failed)",
            ["layout", "state"],
            registry=registry,
        )
        self.confidential_mode = Gauge(
            "dracaena_plugin_confidential_mode",
            "1 for the mode of confidential computing that the label of this node asks for, where the plugin changes "
            "modes, and its progress (Pending, Applied, Failed)",
            ["mode", "state"],
            registry=registry,
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
