"""Two replicas of the controller on the real API server: hand-over, a crash, and a leader that is cut off."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.control_plane import DRACAENA_CONTROLLER
from e2e.gpu_pods import seen_inside
from e2e.installation import DRIVER
from e2e.pods import Pod, claim_spec, create_pod, create_template
from e2e.processes import Program
from e2e.waiting import eventually
from support.proxy import Proxy
from support.readiness import metric, readiness

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LEASE = f"controller.{DRIVER}"
DURATION_S = 14

HAND_OVER_S = 20.0
TAKE_OVER_S = 60.0
"""The lease's duration, 10 s in which writes of the old leader may land, and a loaded machine."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One controller process."""

    name: str
    program: Program
    port: int

    def leads(self) -> bool:
        """Whether it says so."""
        return metric(self.port, "dracaena_controller_leader") == 1.0

    def state(self) -> str:
        """What /readyz says when it is ready."""
        status, text = readiness(self.port)
        return text.strip() if status == 200 else ""

    def logged(self, event: str) -> bool:
        """Whether it logged this."""
        return f'"event": "{event}"' in self.program.log.read_text(encoding="utf-8")


@pytest.fixture
def proxy(installed: Cluster) -> Iterator[Proxy]:
    with Proxy(installed.control_plane.url) as running:
        yield running


@pytest.fixture
def replicas(installed: Cluster, proxy: Proxy, tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """Put two replicas in the place of the one controller: the leader, behind the proxy, and a stand-by."""
    direct = installed.control_plane.kubeconfig(DRACAENA_CONTROLLER)
    document = json.loads(direct.read_text(encoding="utf-8"))
    document["clusters"][0]["cluster"]["server"] = proxy.url
    behind = tmp_path / "behind.kubeconfig"
    behind.write_text(json.dumps(document), encoding="utf-8")
    installed.installation.controller.stop()
    # As a leader that ended left it: without one the first replica would wait for a leader that nobody knows of.
    spec = {"renewTime": "2026-01-01T00:00:00.000000Z"}
    made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec}
    installed.api.create(LEASES, made)
    with ExitStack() as ends:
        ends.callback(installed.installation.wait_ready)
        ends.callback(installed.installation.controller.start)
        ends.callback(installed.api.delete, f"{LEASES}/{LEASE}")
        leader = start("leader", behind, 8091, tmp_path, ends)
        eventually(leader.leads, "the first replica leads", within_s=HAND_OVER_S, programs=(leader.program,))
        stand_by = start("stand-by", direct, 8092, tmp_path, ends)
        eventually(stand_by.state, "the second is ready", within_s=HAND_OVER_S, programs=(stand_by.program,))
        yield leader, stand_by


def start(name: str, kubeconfig: Path, port: int, logs: Path, ends: ExitStack) -> Replica:
    command = [
        *(sys.executable, "-P", "-m", "dracaena.cli.main", "controller"),
        f"--kubeconfig={kubeconfig}",
        f"--http-address=127.0.0.1:{port}",
        f"--lease-identity={name}",
        f"--lease-duration-s={DURATION_S}",
    ]
    program = Program(f"controller-{name}", command, logs)
    ends.callback(program.stop)
    program.start()
    return Replica(name, program, port)


@pytest.fixture(scope="module", autouse=True)
def template(installed: Cluster) -> Iterator[None]:
    path = create_template(installed.api, "led", claim_spec(2))
    yield
    installed.api.delete(path)


def run_pod(cluster: Cluster, name: str) -> frozenset[int]:
    """Run a pod and return the numbers of the GPUs that it can really open."""
    pod = Pod(name, templates={"gpus": "led"})
    create_pod(cluster.api, pod)
    return frozenset(seen_inside(cluster.api, pod).numbers)


def holder(cluster: Cluster) -> str:
    lease: Any = cluster.api.get(f"{LEASES}/{LEASE}")
    return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]


def test_a_leader_that_ends_hands_over_at_once(installed: Cluster, replicas: tuple[Replica, Replica]) -> None:
    leader, stand_by = replicas
    assert stand_by.state().startswith("ok: synced, standing by, leader_")
    first = run_pod(installed, "led-first")
    assert not stand_by.leads()
    leader.program.stop()
    eventually(stand_by.leads, "the second leads", within_s=HAND_OVER_S, programs=(stand_by.program,))
    second = run_pod(installed, "led-second")
    assert (len(first), len(second), first & second) == (2, 2, frozenset())


def test_a_killed_leader_is_replaced(installed: Cluster, replicas: tuple[Replica, Replica]) -> None:
    leader, stand_by = replicas
    first = run_pod(installed, "killed-first")
    leader.program.kill()
    begins = "decisions begin"
    eventually(lambda: stand_by.logged(begins), "the second begins", within_s=TAKE_OVER_S)
    second = run_pod(installed, "killed-second")
    assert (len(first), len(second), first & second) == (2, 2, frozenset())


def test_a_leader_that_is_cut_off_stops_before_the_next_one_begins(
    installed: Cluster, replicas: tuple[Replica, Replica], proxy: Proxy
) -> None:
    leader, stand_by = replicas
    first = run_pod(installed, "cut-first")
    proxy.hang()
    eventually(lambda: "not writing" in leader.state(), "the leader stops writing", within_s=HAND_OVER_S)
    assert holder(installed) == "leader", "it stopped only when somebody else could begin"
    eventually(lambda: holder(installed) == "stand-by", "the second takes the lease", within_s=TAKE_OVER_S)
    eventually(lambda: stand_by.logged("decisions begin"), "the second begins", within_s=TAKE_OVER_S)
    assert not leader.leads()
    second = run_pod(installed, "cut-second")
    proxy.flow()
    eventually(lambda: not leader.program.is_running, "the old leader hears of the new one and ends", within_s=40.0)
    assert leader.logged("leadership lost")
    third = run_pod(installed, "cut-third")
    assert [len(each) for each in (first, second, third)] == [2, 2, 2]
    assert len(first | second | third) == 6
