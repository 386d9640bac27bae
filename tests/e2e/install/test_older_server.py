"""A control plane that answers as Kubernetes 1.35, as one does whose admin has not finished an upgrade.

kube-apiserver 1.36 with --emulated-version=1.35 serves what 1.35 served, and goes on to call itself v1.36.3 in
/version, which is all that helm compares (what helm says of an older version is in tests/unit/chart). So it is our
programs that have to see it. The kubelet beside it is that of the chart's cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e import isolation
from e2e.control_plane import ADMIN, START_S, ControlPlane, Ports
from e2e.install.chart_cluster import NODE_NAME, ChartCluster
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_claim
from e2e.processes import Program
from e2e.run import BINARIES, LOGS
from e2e.waiting import eventually
from support.readiness import readiness

PORTS = Ports(api=26443, etcd=22379, etcd_peer=22380)
CONTROLLER_PORT = 18101
DRIVER = "older.example.com"
"""Another one than the chart's, so that both plugins can be at the one kubelet."""

NEEDED = "the API server answers as Kubernetes 1.35 (by --emulated-version), and 1.36 or newer is needed"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SAID_S = 90.0


@pytest.fixture(scope="module")
def older() -> Iterator[ControlPlane]:
    binaries, logs = Path(os.environ[BINARIES]), Path(os.environ[LOGS])
    flags = {"kube-apiserver": ("--emulated-version=1.35",)}
    plane = ControlPlane(isolation.ROOT / "older", binaries, logs, (), ports=PORTS, suffix="-older", more_flags=flags)
    try:
        plane.start_server()
        namespace = lambda: plane.api().find("/api/v1/namespaces/default")  # noqa: E731
        eventually(namespace, "kube-apiserver makes the namespace", within_s=START_S, programs=plane.programs)
        plane.api().create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE_NAME}})
        yield plane
    finally:
        plane.stop()


def program(older: ControlPlane, verb: str, *flags: str) -> Program:
    """Return one of our programs, as somebody starts it by hand."""
    ours = (sys.executable, "-P", "-m", "dracaena.cli.main", verb, f"--driver-name={DRIVER}")
    command = [*ours, f"--kubeconfig={older.kubeconfig(ADMIN)}", *flags]
    return Program(f"dracaena-{verb}-older", command, Path(os.environ[LOGS]))


def test_controller_says_that_the_server_is_too_old_and_leaves_what_waits_as_it_is(older: ControlPlane) -> None:
    service_account: dict[str, Any] = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    older.api().create("/api/v1/namespaces/default/serviceaccounts", service_account)
    path = create_claim(older.api(), "waits", claim_spec(1))
    older.api().create(PODS, Pod("waits", claims={"gpu": "waits"}).document())
    before = older.api().get(path)
    http = f"--http-address=127.0.0.1:{CONTROLLER_PORT}"
    controller = program(older, "controller", http, "--leader-elect=false")
    controller.start()
    try:
        ready = lambda: readiness(CONTROLLER_PORT)[0] == 200  # noqa: E731
        eventually(ready, "it has seen everything", within_s=SAID_S, programs=(controller,))
        said = lambda: NEEDED in controller.log.read_text(encoding="utf-8")  # noqa: E731
        eventually(said, "it says so", within_s=SAID_S, programs=(controller,))
    finally:
        controller.stop()
    assert older.api().get(f"{CLAIMS}/waits") == before


def test_plugin_says_that_the_server_is_too_old_and_publishes_no_device(
    older: ControlPlane, bare: ChartCluster
) -> None:
    """1.35 has device taints off: devices without our taint would be kube-scheduler's to give."""
    plugin = program(
        older,
        "kubelet-plugin",
        f"--node-name={NODE_NAME}",
        f"--machine={bare.gpus.machine}",
        f"--kubelet-root={bare.node.kubelet_root}",
        f"--dev-root={bare.gpus.dev_root}",
        f"--driver-root={bare.gpus.driver_root}",
    )
    plugin.start()
    try:
        told = lambda: [  # noqa: E731
            event["message"]
            for event in older.api().items("/api/v1/namespaces/default/events")
            if (event["involvedObject"].get("name"), event["reason"]) == (NODE_NAME, "DevicesNotPublished")
        ]
        (message,) = eventually(told, "the node has an Event", within_s=SAID_S, programs=(plugin,))
        assert message.startswith(NEEDED)
        assert "DRADeviceTaints" in message
        eventually(lambda: pool(older), "the empty pool is complete", within_s=SAID_S, programs=(plugin,))
    finally:
        plugin.stop()
    assert pool(older) == [[]]


def pool(older: ControlPlane) -> list[list[Any]]:
    """Return the devices of each slice of the pool, nothing while slices are missing in it."""
    slices = older.api().items(SLICES)
    whole = [one for one in slices if one["spec"]["pool"]["resourceSliceCount"] == len(slices)]
    return [one["spec"].get("devices") or [] for one in whole]
