"""What monitoring can see of the MPS supervisor."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry

from dracaena.api.mps import MpsFaultKind
from dracaena.process.metrics import MetricTable, counter, gauge, histogram

READY_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 45.0)
"""Buckets in seconds: a server starts in some tenths of a second to some seconds; 45 s is kubelet's own limit."""


class MpsMetrics(MetricTable):
    """Shares, servers, and what happened to them."""

    shares = gauge(
        "dracaena_mps_shares",
        "Shares that the plugin asks for, by phase",
        "phase",
    )
    gpus = gauge(
        "dracaena_mps_gpus_held",
        "GPUs that have something of the supervisor's: a server, or a compute mode to be restored",
    )
    protocol = gauge(
        "dracaena_mps_protocol",
        "Protocol of nvidia-cuda-mps-control that is in use, 0: none",
    )
    ready_seconds = histogram(
        "dracaena_mps_share_ready_seconds",
        "Time from seeing a request to its share being ready",
        buckets=READY_SECONDS,
    )
    faults = counter(
        "dracaena_mps_faults_total",
        "What hit the clients of a server (ServerFault, ServerDied, DaemonDied, GpuLost)",
        "kind",
    )
    starts = counter(
        "dracaena_mps_daemon_starts_total",
        "Control daemons started",
    )
    failures = counter(
        "dracaena_mps_failed_steps_total",
        "Steps and checks that failed and are retried",
    )

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__(registry)
        # A series that begins at 1 never shows an increase: alerts would miss the first fault.
        for kind in MpsFaultKind:
            self.faults.labels(kind.value)
