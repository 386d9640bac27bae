"""`dracaena mps` as a process, over real processes of a fake driver: sockets, signals and kill -9 as on a node."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.mps import MpsFaultKind, MpsPhase
from dracaena.mps.planning.state import ComputeMode, Role
from support.mps_model import OK, SERVER_NOT_READY
from support.mps_mounts import needs_mounts
from support.mps_node import GPUS
from support.mps_process import PATIENCE_S, SupervisedNode, wait_for
from support.seeds import in_tiers

BOTH = pytest.mark.parametrize("protocol", [2, 3])
EITHER = pytest.mark.parametrize("protocol", in_tiers(3, 2))
"""How programs die and come back is looked at with the newer protocol in `make test`."""


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SupervisedNode]:
    with tempfile.TemporaryDirectory(prefix="m") as short:  # pytest's own folders are too long for sockets
        node = SupervisedNode(short, tmp_path, request.getfixturevalue("protocol"), forked=True)
        try:
            yield node
        finally:
            node.kill_all()


@BOTH
def test_shares_are_served_and_leave_nothing(node: SupervisedNode, protocol: int) -> None:
    node.start()
    one, other, third = node.ask(0, "a"), node.ask(0, "b", percentage=25), node.ask(1, "c")
    statuses = [node.ready(name) for name in (one, other, third)]
    assert node.modes.all()[GPUS[0]] is ComputeMode.EXCLUSIVE_PROCESS
    clients = [node.client(status, 500 + number) for number, status in enumerate(statuses)]
    assert [client.code for client in clients] == [OK, OK, OK]
    assert sum(process.role is Role.SERVER for process in node.table.find()) == 2
    assert node.page("/readyz") == "ok\n"
    assert 'dracaena_mps_shares{phase="Ready"} 3.0' in node.page("/metrics")
    assert f"dracaena_mps_protocol {protocol}.0" in node.page("/metrics")
    for client in clients:
        client.close()
    for name in (one, other, third):
        node.withdraw(name)
    node.gone()


@EITHER
def test_a_fault_reaches_the_status_of_all_shares_of_the_gpu_and_ends(node: SupervisedNode, protocol: int) -> None:
    node.start()
    one, other, third = node.ask(0, "a"), node.ask(0, "b"), node.ask(1, "c")
    status = node.ready(other)
    node.ready(third)
    client = node.client(node.ready(one), 500)
    client.fault()
    wait_for(lambda: getattr(node.status(other), "fault", None) is not None, lambda: str(node.status(other)))
    fault = node.status(other).fault  # type: ignore[union-attr]
    assert fault is not None
    assert fault.kind is MpsFaultKind.SERVER_FAULT
    assert node.client(status, 501).code == SERVER_NOT_READY
    assert node.status(third).phase is MpsPhase.READY  # type: ignore[union-attr]
    client.close()
    assert node.ready(other).server_pid == status.server_pid
    late = node.client(status, 502)
    assert late.code == OK
    late.close()


@EITHER
def test_kill_9_of_the_supervisor_leaves_servers_and_clients_alone(node: SupervisedNode, protocol: int) -> None:
    node.start()
    name = node.ask(0, "a")
    status = node.ready(name)
    client = node.client(status, 500)
    before = node.table.find()
    node.end(signal.SIGKILL)
    assert node.table.find() == before
    second = node.ask(0, "b")
    node.start()
    assert node.ready(second).server_pid == status.server_pid
    assert node.ready(name) == status
    client.close()
    node.withdraw(name)
    node.withdraw(second)
    node.gone()


@pytest.mark.parametrize(
    ("role", "protocol"),
    [
        (Role.CONTROL, 3),
        (Role.SERVER, 2),
        pytest.param(Role.CONTROL, 2, marks=pytest.mark.search),
        pytest.param(Role.SERVER, 3, marks=pytest.mark.search),
    ],
)
def test_kill_9_of_a_daemon_or_server_is_seen_and_repaired(node: SupervisedNode, protocol: int, role: Role) -> None:
    node.start()
    name = node.ask(0, "a")
    before = node.ready(name).server_pid
    for process in node.table.find():
        if process.role is role:
            os.kill(process.pid, signal.SIGKILL)
    status = node.ready(name, but=before)
    assert status.fault is not None
    assert status.fault.kind is (MpsFaultKind.DAEMON_DIED if role is Role.CONTROL else MpsFaultKind.SERVER_DIED)
    client = node.client(status, 500)
    assert client.code == OK
    client.close()
    node.withdraw(name)
    node.gone()


@EITHER
def test_an_end_by_sigterm_leaves_servers_to_their_clients(node: SupervisedNode, protocol: int) -> None:
    node.start()
    node.ready(node.ask(0, "a"))
    before = node.table.find()
    node.end(signal.SIGTERM)
    assert node.table.find() == before


@pytest.mark.parametrize("protocol", [3])
def test_a_second_supervisor_is_refused(node: SupervisedNode, protocol: int, tmp_path: Path) -> None:
    node.start()
    with node.begin(tmp_path / "second.log") as second:
        assert second.wait(timeout=PATIENCE_S) != 0
    assert "a supervisor is already running on this node" in (tmp_path / "second.log").read_text()


@EITHER
def test_rubbish_and_a_daemon_that_dies_in_start_end_in_words_and_then_in_a_share(
    node: SupervisedNode, protocol: int
) -> None:
    node.fake.set(mode="dies")
    node.start()
    name = node.ask(0, "a")

    def failed() -> bool:
        status = node.status(name)
        return status is not None and status.phase is MpsPhase.FAILED

    wait_for(failed, lambda: str(node.status(name)))
    assert "Failed to initialise: out of luck" in node.status(name).message  # type: ignore[union-attr]
    node.fake.set(mode="works")
    node.ready(name)
    node.fake.set(mode="rubbish")
    wait_for(failed, lambda: str(node.status(name)))
    node.fake.set(mode="works")
    node.ready(name)


@pytest.mark.parametrize("protocol", [3])
def test_a_gpu_that_is_not_there_fails_in_words(node: SupervisedNode, protocol: int) -> None:
    """With protocol 3 the daemon takes it without an error and the server ends without a word."""
    node.fake.set(gpus=GPUS[1:])
    node.start()
    name = node.ask(0, "a")
    log = Path(node.places.logs) / "control.log"
    wait_for(lambda: log.exists() and log.read_text().count(" exited ") >= 2, lambda: "not tried twice")
    wait_for(lambda: node.status(name) is not None, lambda: "no status")
    status = node.status(name)
    assert status is not None
    assert status.phase is not MpsPhase.READY
    node.fake.set(gpus=GPUS)
    node.ready(name)


@pytest.mark.search
@BOTH
def test_kills_by_chance_leave_nothing(node: SupervisedNode, protocol: int) -> None:
    chance = random.Random(protocol)
    node.start()
    names: dict[str, int] = {}
    for number in range(6):
        names[node.ask(number % 2, f"s{number}", percentage=chance.randint(1, 100))] = number % 2
        time.sleep(chance.random() * 0.4)
        victims = list(node.table.find())
        if chance.random() < 0.5:
            node.end(signal.SIGKILL)
        if victims and chance.random() < 0.7:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(victims).pid, signal.SIGKILL)
        if node.process is None:
            node.start()
        if chance.random() < 0.5:
            gone = chance.choice(sorted(names))
            del names[gone]
            node.withdraw(gone)
    for name in names:
        node.ready(name)
    assert sum(each.role is Role.SERVER for each in node.table.find()) == len(set(names.values()))
    for name in names:
        node.withdraw(name)
    node.gone()


@pytest.mark.parametrize("protocol", [3])
def test_the_command_itself_says_that_there_is_no_driver_and_ends_by_sigterm(
    node: SupervisedNode, protocol: int
) -> None:
    """With the real NVML adapter, on a driver root that has no NVML."""
    flags = ["--root", node.places.root, "--driver-root-mount", str(node.fake.root), "--http-address", ""]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "dracaena.cli.main", "mps", *flags, "--log-format", "text"],
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        name = node.ask(0, "a")

        def failed() -> bool:
            status = node.status(name)
            return status is not None and status.phase is MpsPhase.FAILED

        wait_for(failed, lambda: str(node.status(name)))
        assert "waiting for the NVIDIA driver: no libnvidia-ml.so.1" in node.status(name).message  # type: ignore[union-attr]
        node.withdraw(name)
        node.gone()
        command.send_signal(signal.SIGTERM)
        _, words = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 0, words
    assert "stopping" in words


@pytest.mark.parametrize("protocol", [2])
def test_a_socket_that_somebody_takes_away_or_replaces_is_put_back_and_clients_stay(
    node: SupervisedNode, protocol: int
) -> None:
    node.start()
    status = node.ready(node.ask(0, "a"))
    before = node.table.find()
    client = node.client(status, 500)
    assert client.code == OK
    control = Path(node.places.pipes_of(GPUS[0])) / "control"
    true = control.stat().st_ino
    control.unlink()
    wait_for(lambda: control.exists() and control.stat().st_ino == true, lambda: "not put back")
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(f"{control}.new")
        Path(f"{control}.new").rename(control)
        impostor.listen()
        assert node.ready(node.ask(0, "b")).server_pid == status.server_pid
        assert control.stat().st_ino == true
    assert node.table.find() == before
    late = node.client(status, 501)
    assert late.code == OK
    late.close()
    client.close()


@needs_mounts
@pytest.mark.parametrize("protocol", [2])
def test_each_gpu_has_a_tmpfs_which_goes_with_its_last_share(node: SupervisedNode, protocol: int) -> None:
    node.start()
    one, other, third = node.ask(0, "a"), node.ask(0, "b"), node.ask(1, "c")
    shm = [node.ready(name).mounts[1] for name in (one, other, third)]
    assert {mount.container_path for mount in shm} == {"/dev/shm"}
    assert [mount.host_path for mount in shm] == [node.places.shm_of(GPUS[n]) for n in (0, 0, 1)]
    assert len({Path(path).stat().st_dev for path in (*(mount.host_path for mount in shm), node.places.root)}) == 3
    (Path(shm[0].host_path) / "left behind").write_bytes(b"x")
    node.withdraw(one)
    node.end(signal.SIGKILL)
    node.start()
    node.ready(other)
    assert (Path(shm[0].host_path) / "left behind").exists(), "others may use it"
    node.withdraw(other)
    wait_for(lambda: not Path(shm[0].host_path).exists(), lambda: "the tmpfs is left")
    assert node.status(third).phase is MpsPhase.READY  # type: ignore[union-attr]
    node.withdraw(third)
    node.gone()
