"""The plugin and `dracaena mps` as processes beside each other: kubelet asks for shares, a fake driver serves them."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dracaena.api import mps
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.events import Event
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.mps.planning.state import ComputeMode, Role
from support.api_ground import ApiGround
from support.forked_programs import ForkedProgram
from support.mps_model import OK
from support.mps_process import SupervisedNode, wait_for
from support.plugin import share_of, sharing_config
from support.plugin_world import CALL_S, World, start_process
from support.seeds import in_tiers
from support.sockets import short_folder

MACHINE = "hgx-h100"
GPUS = tuple(gpu.uuid for gpu in read_machine(MACHINE).gpus)

BOTH = pytest.mark.parametrize("protocol", [2, 3])
EITHER = pytest.mark.parametrize("protocol", in_tiers(3, 2))
"""How programs die and come back is looked at with the newer protocol in `make test`."""


@pytest.fixture
def world(server: ApiGround) -> Iterator[World]:
    with short_folder() as folder:
        yield World(server, folder)


@pytest.fixture
def node(tmp_path: Path, protocol: int) -> Iterator[SupervisedNode]:
    with tempfile.TemporaryDirectory(prefix="m") as short:  # pytest's own folders are too long for sockets
        node = SupervisedNode(short, tmp_path, protocol, GPUS, forked=True)
        try:
            yield node
        finally:
            node.kill_all()


@pytest.fixture
def plugin(world: World, node: SupervisedNode) -> Iterator[list[ForkedProgram]]:
    """The process that runs last; a test may start another one."""
    running = [started(world, node)]
    yield running
    running[-1].kill()
    running[-1].communicate()


def started(world: World, node: SupervisedNode) -> ForkedProgram:
    return start_process(world, more=[f"--mps-root={node.places.root}"], machine=MACHINE)


def share(world: World, name: str, gpu: int = 0, **sharing: str) -> ResourceClaim:
    """A claim for a share of a GPU, allocated as a controller does."""
    share_id = f"00000000-0000-4000-8000-{sum(name.encode()):012}"
    config = sharing_config(**{"strategy": "MPS", **sharing})
    device = gpu_device_name(GPUS[gpu])
    return world.allocated_claim(name, [], devices=[device], config=[config], **share_of("1Gi", 30, share_id=share_id))


def prepare(world: World, claim: ResourceClaim) -> str:
    return world.prepare(claim, timeout_s=3 * CALL_S)[claim.metadata.uid].error


def make_ready(world: World, claim: ResourceClaim) -> None:
    """Ask again as kubelet does: on a busy machine a share takes longer than one call."""
    said: list[str] = []

    def is_ready() -> bool:
        said[:] = [prepare(world, claim)]
        return said == [""]

    wait_for(is_ready, lambda: str(said))


def give_back(world: World, claim: ResourceClaim) -> None:
    """The same for the end of a claim."""
    said: list[str] = []

    def is_gone() -> bool:
        said[:] = [world.unprepare(claim)[claim.metadata.uid]]
        return said == [""]

    wait_for(is_gone, lambda: str(said))


def edits(world: World, claim: ResourceClaim) -> dict[str, Any]:
    """What the container runtime does for a container with the claim's share."""
    (device,) = json.loads(world.spec_text(claim))["devices"]
    found: dict[str, Any] = device["containerEdits"]
    return found


def pipes(world: World, claim: ResourceClaim) -> Path:
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits(world, claim)["mounts"]}
    return Path(mounts["/tmp/nvidia-mps"])


def requests(node: SupervisedNode) -> list[Path]:
    return list((Path(node.places.root) / mps.REQUESTS).glob(f"*{mps.SUFFIX}"))


def known(node: SupervisedNode) -> None:
    path = Path(node.places.root) / mps.NODE_STATUS
    wait_for(path.exists, lambda: f"no {path}")


@BOTH
def test_a_share_from_prepare_to_unprepare(
    world: World, node: SupervisedNode, plugin: list[ForkedProgram], protocol: int
) -> None:
    node.start()
    known(node)
    one, other = share(world, "one"), share(world, "other")
    for claim in (one, other):
        make_ready(world, claim)
    assert node.modes.all()[GPUS[0]] is ComputeMode.EXCLUSIVE_PROCESS
    environment = dict(entry.split("=", 1) for entry in edits(world, one)["env"])
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    assert environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") == ("30" if protocol == 2 else None)
    assert (pipes(world, one) == pipes(world, other)) is (protocol == 2)
    clients = [node.client(_status(node, claim), 500 + number) for number, claim in enumerate((one, other))]
    assert [client.code for client in clients] == [OK, OK]
    for client in clients:
        client.close()
    for claim in (one, other):
        give_back(world, claim)
    assert requests(node) == []
    node.gone()
    assert not list((world.folder / "cdi").iterdir())


def _status(node: SupervisedNode, claim: ResourceClaim) -> mps.MpsShareStatus:
    (result,) = claim.status.allocation.devices.results  # type: ignore[union-attr]
    status = node.status(mps.share_name(GPUS[0], claim.metadata.uid, result.share_id or ""))
    assert status is not None
    return status


@EITHER
def test_kill_9_of_the_supervisor_and_of_the_plugin_between_the_calls(
    world: World, node: SupervisedNode, plugin: list[ForkedProgram], protocol: int
) -> None:
    node.start()
    known(node)
    first, second = share(world, "first"), share(world, "second")
    make_ready(world, first)
    servers = [process for process in node.table.find() if process.role is Role.SERVER]
    node.end(signal.SIGKILL)
    assert "no MPS supervisor runs on this node" in prepare(world, second)
    assert len(requests(node)) == 2
    plugin[-1].kill()
    plugin[-1].communicate()
    plugin.append(started(world, node))
    node.start()
    make_ready(world, second)
    assert [process for process in node.table.find() if process.role is Role.SERVER] == servers
    node.end(signal.SIGKILL)
    assert "no MPS supervisor runs on this node" in world.unprepare(first)[first.metadata.uid]
    node.start()
    for claim in (first, second):
        give_back(world, claim)
    assert requests(node) == []
    node.gone()


@pytest.mark.parametrize("protocol", [3])
def test_without_a_supervisor_mps_is_refused_by_name_unless_best_effort(
    world: World, node: SupervisedNode, plugin: list[ForkedProgram], protocol: int
) -> None:
    required, allowed = share(world, "required"), share(world, "allowed", gpu=1, enforcement="BestEffort")
    error = prepare(world, required)
    assert f"GpuConfig requires sharing strategy MPS for {gpu_device_name(GPUS[0])}: no MPS supervisor" in error
    assert prepare(world, allowed) == ""
    assert "mounts" not in edits(world, allowed)
    assert requests(node) == []


def faults_told(world: World) -> list[tuple[str, str, str, int]]:
    """Reason, kind and name of the object, and count of each Event about a fault, sorted."""
    found = [event for event in world.client.list(Event).items if event.reason.startswith("Mps")]
    return sorted((e.reason, e.involved_object.kind, e.involved_object.name, e.count) for e in found)


@EITHER
def test_what_hits_the_clients_of_a_server_is_told_once_on_their_pods(
    world: World, node: SupervisedNode, plugin: list[ForkedProgram], protocol: int
) -> None:
    node.start()
    known(node)
    claims = [share(world, name) for name in ("one", "other")]
    for claim in claims:
        make_ready(world, claim)
        world.further_pod(f"pod-of-{claim.metadata.name}", claim)
    clients = [node.client(_status(node, claim), 500 + number) for number, claim in enumerate(claims)]
    assert [client.code for client in clients] == [OK, OK]
    subjects = [("Pod", "pod-of-one"), ("Pod", "pod-of-other"), ("ResourceClaim", "one"), ("ResourceClaim", "other")]
    first = [("MpsServerFault", *subject, 1) for subject in subjects]
    clients[0].fault()
    wait_for(lambda: faults_told(world) == first, lambda: str(faults_told(world)))

    plugin[-1].kill()
    plugin[-1].communicate()
    node.end(signal.SIGKILL)
    for client in clients:
        client.close()
    plugin.append(started(world, node))
    node.start()
    for claim in claims:
        wait_for(lambda at=claim: _status(node, at).phase is mps.MpsPhase.READY, lambda: "not ready")  # type: ignore[misc]
    (server,) = [process for process in node.table.find() if process.role is Role.SERVER]
    os.kill(server.pid, signal.SIGKILL)
    both = sorted(first + [("MpsServerDied", *subject, 1) for subject in subjects])
    wait_for(lambda: faults_told(world) == both, lambda: str(faults_told(world)))
    for claim in claims:
        give_back(world, claim)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("protocol", [3])
@pytest.mark.parametrize(
    "cycles", [pytest.param(10, marks=pytest.mark.search), pytest.param(1_000, marks=pytest.mark.long)]
)
def test_cycles_of_a_share_leave_nothing(
    world: World, node: SupervisedNode, plugin: list[ForkedProgram], protocol: int, cycles: int
) -> None:
    """One GPU keeps its server, because another share stays there, and one starts and stops it each time."""
    node.start()
    known(node)
    held, beside, alone = (share(world, name, gpu) for name, gpu in (("held", 0), ("beside", 0), ("alone", 1)))
    make_ready(world, held)

    def cycle(claim: ResourceClaim) -> None:
        make_ready(world, claim)
        give_back(world, claim)

    for claim in (beside, alone) * WARM_CYCLES:
        cycle(claim)
    before = used(world, node, plugin[-1])
    for number in range(cycles):
        cycle(alone if number % 10 == 0 else beside)

    def more() -> dict[str, int]:
        now = used(world, node, plugin[-1])
        return {name: now[name] - before[name] for name in now if now[name] - before[name] > SLACK.get(name, 0)}

    wait_for(lambda: not more(), lambda: f"more than before: {more()}")
    give_back(world, held)
    assert requests(node) == []
    node.gone()


WARM_CYCLES = 5
"""Until threads and connections are as many as they become, or nearly so."""

SLACK = {"descriptors of the plugin": 4, "threads of the plugin": 4}
"""Fewer than the cycles, so that one left by each is found: a worker of gRPC and a connection to the API may come late,
when two things are done at once."""


def used(world: World, node: SupervisedNode, plugin: ForkedProgram) -> dict[str, int]:
    """What there is now: files, processes, and descriptors and threads of both programs."""
    assert node.process is not None
    folders = world.folder, Path(node.places.root)
    found = {
        "files": sum(1 for folder in folders for path in folder.rglob("*") if path.suffix != ".log"),
        "processes of MPS": len(node.table.find()),
    }
    for name, process in (("plugin", plugin), ("supervisor", node.process)):
        proc = Path("/proc") / str(process.pid)
        found[f"descriptors of the {name}"] = len(list((proc / "fd").iterdir()))
        found[f"threads of the {name}"] = len(list((proc / "task").iterdir()))
        found[f"children of the {name}"] = sum(len(p.read_text().split()) for p in (proc / "task").glob("*/children"))
    return found
