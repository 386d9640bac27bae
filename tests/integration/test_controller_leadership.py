"""Two replicas as processes: one writes, the other waits for it to end, and nothing is ever given twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena.kube.client import KubeClient
from dracaena.kube.lease import Lease
from support.allocation import DRIVER, blocks, machine
from support.api_ground import ApiGround
from support.controller import NAMESPACE, allocated_all, ask, check_invariants, claims_by_name, publish, transport
from support.forked_programs import ForkedProgram
from support.kube import wait_for
from support.proxy import Proxy
from support.readiness import metric, readiness

EIGHT = machine("eight", blocks(4, 4, inside="PIX", outside="SYS"))
LEASE = f"controller.{DRIVER}"
DURATION_S = 14
"""The least that is taken: tests wait for it to run out."""

BEFORE = "2026-01-01T00:00:00.000000Z"

TAKE_OVER_S = 60.0
"""A lease's duration, the wait of a new leader, and a loaded machine."""


@dataclass(slots=True)
class Replica:
    """A `dracaena controller` process."""

    name: str
    process: ForkedProgram
    log: Path

    def entries(self, event: str) -> list[dict[str, Any]]:
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [line for line in lines if line.get("event") == event]

    @property
    def port(self) -> int:
        return int(wait_for(lambda: self.entries("started"), f"the start of {self.name}")[0]["http_port"])

    def state(self) -> str:
        status, text = readiness(self.port)
        return text if status == 200 else ""

    def leads(self) -> bool:
        return metric(self.port, "dracaena_controller_leader") == 1.0

    def decides(self) -> bool:
        return bool(self.entries("decisions begin"))


@contextmanager
def replicas(folder: Path, **configs: dict[str, Any]) -> Iterator[list[Replica]]:
    """Run replicas of these names with these kubeconfigs; the first is ready before the next one starts."""
    with ExitStack() as ends:
        running: list[Replica] = []
        for name, config in configs.items():
            path, log = folder / f"{name}.kubeconfig", folder / f"{name}.log"
            path.write_text(yaml.safe_dump(config))
            options = [f"--lease-identity={name}", f"--lease-duration-s={DURATION_S}"]
            process = ForkedProgram(("controller", f"--kubeconfig={path}", *options), log=log)
            ends.callback(process.wait)
            ends.callback(process.kill)
            replica = Replica(name, process, log)
            wait_for(replica.state, f"{name} to be ready", 20)
            if not running:
                wait_for(replica.leads, f"{name} to lead", 20)
            running.append(replica)
        yield running


@pytest.fixture
def client(server: ApiGround, tmp_path: Path) -> KubeClient:
    """A cluster of two nodes, and the Lease as a leader that ended left it."""
    made = KubeClient(transport(server, tmp_path))
    made.create(Lease, {"metadata": {"name": LEASE}, "spec": {"renewTime": BEFORE}}, namespace=NAMESPACE)
    publish(made, {"a": EIGHT, "b": EIGHT})
    return made


def lease(client: KubeClient) -> Lease:
    return client.get(Lease, LEASE, namespace=NAMESPACE)


def settled(client: KubeClient, count: int) -> None:
    """All claims are allocated, each device at most once."""
    wait_for(lambda: allocated_all(client), f"{count} claims", 30)
    assert len(claims_by_name(client)) == count
    check_invariants(client)


def versions(client: KubeClient) -> dict[str, str]:
    return {name: item.metadata.resource_version for name, item in claims_by_name(client).items()}


def test_a_leader_that_is_told_to_end_hands_over_at_once(server: ApiGround, client: KubeClient, tmp_path: Path) -> None:
    config = server.kubeconfig()
    with replicas(tmp_path, first=config, second=config) as (first, second):
        assert first.state() == "ok: synced, leading\n"
        # It may have synced before it has seen who leads.
        wait_for(lambda: second.state().startswith("ok: synced, standing by, first_"), "the second to see the first")
        assert not second.leads()
        ask(client, "p", {"x": 2, "y": 1})
        settled(client, 2)
        before = versions(client)
        first.process.send_signal(signal.SIGTERM)
        assert first.process.wait(20) == 0
        assert first.entries("lease given back")
        wait_for(second.decides, "the second to begin", 20)
        assert second.leads()
        assert second.entries("lease taken")[0]["begins_in_s"] == 0
        spec = lease(client).spec
        assert (spec.holder_identity or "").startswith("second_")
        assert spec.lease_transitions == 2
        ask(client, "q", {"z": 4})
        settled(client, 3)
        after = versions(client)
        assert {name: after[name] for name in before} == before, "what was right was written again"


def test_a_leader_that_is_killed_is_replaced_when_its_lease_has_run_out(
    server: ApiGround, client: KubeClient, tmp_path: Path
) -> None:
    config = server.kubeconfig()
    with replicas(tmp_path, first=config, second=config) as (first, second):
        for number in range(4):
            ask(client, f"p{number}", {f"x{number}": 1, f"y{number}": 2})
        first.process.kill()
        check_invariants(client)
        wait_for(second.decides, "the second to begin", TAKE_OVER_S)
        assert second.entries("lease taken")[0]["begins_in_s"] == 10
        settled(client, 8)


def test_a_leader_whose_connection_hangs_writes_no_more_and_ends_when_it_hears_of_another(
    server: ApiGround, client: KubeClient, tmp_path: Path
) -> None:
    config = server.kubeconfig()
    with Proxy(config["clusters"][0]["cluster"]["server"]) as proxy:
        behind = yaml.safe_load(yaml.safe_dump(config))
        behind["clusters"][0]["cluster"]["server"] = proxy.url
        with replicas(tmp_path, first=behind, second=config) as (first, second):
            ask(client, "p", {"x": 2})
            settled(client, 1)
            proxy.hang()
            ask(client, "q", {"y": 2})
            wait_for(lambda: "not writing" in first.state(), "the first to stop writing", 20)
            wait_for(second.decides, "the second to begin", TAKE_OVER_S)
            assert not first.leads()
            settled(client, 2)
            before = versions(client)
            proxy.flow()
            assert first.process.wait(40) == 1
            assert (first.entries("leadership lost")[0]["why"]).startswith("the Lease is held by second_")
            assert versions(client) == before
            ask(client, "r", {"z": 4})
            settled(client, 3)
