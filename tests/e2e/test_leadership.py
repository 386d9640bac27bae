"""Two replicas of the controller on the real API server: hand-over, crash, a cut line, a server that is away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.installation import DRIVER
from e2e.made_up import FOUR, START_S, MadeUpCluster, controller_command, devices_of
from e2e.pods import CLAIMS, Pod, claim_spec, create_claim, create_pod, create_template, wait_event
from e2e.processes import Program
from e2e.waiting import eventually, never
from support.proxy import Proxy
from support.readiness import metric, readiness
from support.write_proxy import Cut, Write, WriteProxy

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LEASE = f"controller.{DRIVER}"
DURATION_S = 14

HAND_OVER_S = 20.0
TAKE_OVER_S = 60.0
"""The lease's duration, 10 s in which writes of the old leader may land, and a loaded machine."""

HANG_S = 20.0
"""For how long the server stands still: longer than a lease of 14 s, a write's 10 s and a watch's silence."""

QUIET_S = 2.0
"""A new leader looks at all pods within a tenth of a second."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One controller process, and the proxy that its requests go through."""

    program: Program
    port: int
    proxy: WriteProxy

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


@dataclass(frozen=True, slots=True)
class Replicas:
    """The first leader with the line that can be cut, and the one that stands by."""

    leader: Replica
    line: Proxy
    stand_by: Replica


@pytest.fixture
def replicas(made_up: MadeUpCluster, tmp_path: Path) -> Iterator[Replicas]:
    """Put two replicas in the place of the one controller."""
    made_up.controller.stop()
    # As a leader that ended left it: without one the first replica would wait for a leader that nobody knows of.
    spec = {"renewTime": "2026-01-01T00:00:00.000000Z"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec}
    made_up.api.create(LEASES, lease)
    control_plane = made_up.control_plane
    with ExitStack() as ends:
        ends.callback(made_up.start_controller)
        ends.callback(made_up.api.delete, f"{LEASES}/{LEASE}")
        first, second = (ends.enter_context(WriteProxy(control_plane.url, control_plane.authority)) for _ in range(2))
        line = ends.enter_context(Proxy(first.url))
        leader = start("leader", made_up.behind(line.url), 8111, first, tmp_path, ends)
        eventually(leader.leads, "the first replica leads", within_s=START_S, programs=(leader.program,))
        stand_by = start("stand-by", made_up.behind(second.url), 8112, second, tmp_path, ends)
        stands_by = lambda: stand_by.state().startswith("ok: synced, standing by, leader_")  # noqa: E731
        eventually(stands_by, "the second has seen all, and who leads", within_s=START_S, programs=(stand_by.program,))
        yield Replicas(leader, line, stand_by)


def start(name: str, kubeconfig: Path, port: int, proxy: WriteProxy, logs: Path, ends: ExitStack) -> Replica:
    flags = (f"--lease-identity={name}", f"--lease-duration-s={DURATION_S}")
    program = Program(f"controller-{name}", controller_command(kubeconfig, port, *flags), logs)
    ends.callback(program.stop)
    program.start()
    return Replica(program, port, proxy)


@pytest.fixture(autouse=True)
def ground(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", FOUR)
    made_up.add_node("b", FOUR)
    create_template(made_up.api, "one", claim_spec(1))
    create_template(made_up.api, "five", claim_spec(5))


def run_pod(cluster: MadeUpCluster, name: str) -> None:
    """Run a pod with one GPU until it is bound; no device may be given twice by then."""
    pod = Pod(name, templates={"gpu": "one"})
    create_pod(cluster.api, pod)
    cluster.wait_bound(pod, within_s=TAKE_OVER_S)
    cluster.check()


def holder(cluster: MadeUpCluster) -> str:
    lease: Any = cluster.api.get(f"{LEASES}/{LEASE}")
    return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]


def test_a_leader_that_ends_hands_over_at_once(made_up: MadeUpCluster, replicas: Replicas) -> None:
    leader, stand_by = replicas.leader, replicas.stand_by
    run_pod(made_up, "first")
    assert not stand_by.leads()
    leader.program.stop()
    eventually(stand_by.leads, "the second leads", within_s=HAND_OVER_S, programs=(stand_by.program,))
    run_pod(made_up, "second")
    assert {write.name.partition("-")[0] for write in stand_by.proxy.writes} == {"second"}


def test_a_new_leader_writes_what_its_killed_predecessor_left_half_done_and_nothing_else(
    made_up: MadeUpCluster, replicas: Replicas
) -> None:
    """One pod is bound, one waits, one is allocated and not bound, one was killed in the middle."""
    leader, stand_by = replicas.leader, replicas.stand_by
    run_pod(made_up, "bound")
    large = Pod("large", templates={"gpus": "five"})
    create_pod(made_up.api, large)
    wait_event(made_up.api, large, "WaitingForGPUs", "0/2 nodes fit")
    made_up.control_plane.scheduler.kill()
    pending = Pod("pending", templates={"gpu": "one"})
    create_pod(made_up.api, pending)
    made_up.wait_allocated(pending)

    def kill(write: Write) -> None:
        # Of the pod before, the answer may still be on its way when the allocation can be seen.
        if write.kind == "resourceclaims/status" and write.name == "half-x":
            leader.program.kill()
            raise Cut

    leader.proxy.after = kill
    for name in ("half-x", "half-y"):
        create_claim(made_up.api, name, claim_spec(1))
    half = Pod("half", claims={"x": "half-x", "y": "half-y"})
    create_pod(made_up.api, half)
    eventually(lambda: stand_by.logged("decisions begin"), "the second begins", within_s=TAKE_OVER_S)
    made_up.wait_allocated(half)
    never(lambda: {write.name for write in stand_by.proxy.writes} - {"half-y"}, "it wrote more", for_s=QUIET_S)
    made_up.control_plane.scheduler.start()
    for pod in (pending, half):
        made_up.wait_bound(pod)
    made_up.check()


def test_a_leader_that_is_cut_off_stops_before_the_next_one_begins(made_up: MadeUpCluster, replicas: Replicas) -> None:
    leader, stand_by = replicas.leader, replicas.stand_by
    run_pod(made_up, "first")
    replicas.line.hang()
    eventually(lambda: "not writing" in leader.state(), "the leader stops writing", within_s=HAND_OVER_S)
    assert holder(made_up) == "leader", "it stopped only when somebody else could begin"
    eventually(lambda: holder(made_up) == "stand-by", "the second takes the lease", within_s=TAKE_OVER_S)
    eventually(lambda: stand_by.logged("decisions begin"), "the second begins", within_s=TAKE_OVER_S)
    assert not leader.leads()
    run_pod(made_up, "second")
    before = len(leader.proxy.writes)
    replicas.line.flow()
    eventually(lambda: not leader.program.is_running, "the old leader hears of the new one and ends", within_s=40.0)
    assert leader.logged("leadership lost")
    assert len(leader.proxy.writes) == before
    run_pod(made_up, "third")


def test_an_api_server_that_hangs_and_one_that_is_killed_are_survived(
    made_up: MadeUpCluster, replicas: Replicas
) -> None:
    """Pods are created in the moment before. Afterwards one replica leads, and all have their devices, each once."""
    both = (replicas.leader, replicas.stand_by)
    server = made_up.control_plane.apiserver
    hung, killed = ([Pod(f"{word}-{number}", templates={"gpu": "one"}) for number in range(3)] for word in "hk")
    for pod in hung:
        create_pod(made_up.api, pod)
    with server.paused():
        never(lambda: not replicas.leader.program.is_running, "the leader ends", for_s=HANG_S)
        assert not any(replica.leads() for replica in both), "nobody can know that it leads"
    for pod in hung:
        made_up.wait_bound(pod, within_s=TAKE_OVER_S)
    made_up.check()
    for pod in killed:
        create_pod(made_up.api, pod)
    server.kill()
    server.start()
    made_up.control_plane.wait_ready()
    for pod in killed:
        made_up.wait_bound(pod, within_s=TAKE_OVER_S)
    made_up.check()
    assert len({device for claim in made_up.api.items(CLAIMS) for device in devices_of(claim)}) == 6
    eventually(lambda: [r for r in both if r.leads()], "one leads again", within_s=TAKE_OVER_S)
    assert sum(replica.leads() for replica in both) == 1
