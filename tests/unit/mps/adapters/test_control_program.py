"""The control program as a process. MpsControl's promises, on the fake; tests/device has them for the real one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.mps.adapters.control_program import ControlProgram
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import Role
from dracaena.mps.ports import ControlError, ControlSilentError, DaemonGoneError
from dracaena.mps.protocol import v2, v3
from dracaena.mps.protocol.seen import ControlCommand, ServerState, ShareLimits
from support.fake_mps import FakeCudaClient, FakeMps
from support.mps_node import GPUS

SHARE = "s_0123456789abcdef"


class Ground:
    def __init__(self, root: Path, short: str) -> None:
        self.places = MpsPlaces(short)
        for folder in (
            self.places.pipes,
            self.places.logs,
            self.places.pipes_of(GPUS[0]),
            self.places.logs_of(GPUS[0]),
        ):
            Path(folder).mkdir(parents=True, exist_ok=True)
        self.fake = FakeMps(root / "driver", GPUS)
        self.table = ProcProcessTable(self.places.pipes)
        self.control = ControlProgram(str(self.fake.root), self.places.root, answer_s=20.0)


def answer(control: ControlProgram, command: ControlCommand, pipes: str) -> str:
    """Ask until the daemon that was started listens."""
    for _ in range(200):
        with contextlib.suppress(DaemonGoneError):
            return control.run(command, pipes)
    raise AssertionError("the daemon does not come up")


@pytest.fixture
def short() -> Iterator[str]:
    """pytest's own folders are too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        yield folder


@pytest.fixture
def ground(tmp_path: Path, short: str) -> Iterator[Ground]:
    ground = Ground(tmp_path, short)
    yield ground
    for process in sorted(ground.table.find(), key=lambda each: each.role is Role.CONTROL):
        ground.table.kill(process)
    assert ground.table.find() == ()


def test_protocol_3_from_start_to_quit(ground: Ground) -> None:
    control, pipes = ground.control, ground.places.pipes
    assert v3.knows_protocol_3(control.run(v3.ask_help(), pipes))
    with pytest.raises(DaemonGoneError):
        control.run(v3.list_servers(), pipes)
    control.start(v3.start_daemon(multi_user=True), pipes, ground.places.logs, "")
    assert v3.read_servers(answer(control, v3.list_servers(), pipes)) == {}
    control.run(v3.create_server(GPUS[0], 0), pipes)
    seen = v3.read_servers(control.run(v3.list_servers(), pipes))[GPUS[0]]
    assert seen.state is ServerState.READY
    control.run(v3.create_namespace(GPUS[0], SHARE), pipes)
    with pytest.raises(ControlError, match="already exists"):
        control.run(v3.create_namespace(GPUS[0], SHARE), pipes)
    limits = ShareLimits(25, 3000)
    control.run(v3.limit_namespace(GPUS[0], SHARE, limits), pipes)
    assert v3.read_namespaces(control.run(v3.list_namespaces(), pipes)) == {(GPUS[0], SHARE): limits}
    client = FakeCudaClient(ground.places.client_pipes(GPUS[0], SHARE, 3), 4711)
    assert client.code == 0
    ((found,),) = v3.read_clients(control.run(v3.list_clients(), pipes)).values()
    assert (found.pid, found.namespace) == (4711, SHARE)
    roles = {(process.role, process.folder) for process in ground.table.find()}
    assert roles == {(Role.CONTROL, ""), (Role.SERVER, "")}
    control.run(v3.delete_namespace(GPUS[0], SHARE), pipes)
    control.run(v3.delete_server(GPUS[0]), pipes)
    control.run(v3.quit_daemon(), pipes)
    client.close()


def test_protocol_2_from_start_to_quit(ground: Ground) -> None:
    control, pipes = ground.control, ground.places.pipes_of(GPUS[0])
    control.start(v2.start_daemon(multi_user=True), pipes, ground.places.logs_of(GPUS[0]), GPUS[0])
    assert v2.read_servers(answer(control, v2.list_servers(), pipes)) == ()
    limits = ShareLimits(40, 2048)
    for command in v2.set_defaults(GPUS[0], limits):
        control.run(command, pipes)
    control.run(v2.start_server(0), pipes)
    (pid,) = v2.read_servers(control.run(v2.list_servers(), pipes))
    assert v2.read_status(pid, control.run(v2.server_status(pid), pipes)).state is ServerState.READY
    for percentage, memory in (v2.ask_defaults(GPUS[0]), v2.ask_of_server(pid, GPUS[0])):
        assert v2.read_percentage(percentage, control.run(percentage, pipes)) == 40
        assert v2.read_memory_mib(memory, control.run(memory, pipes)) == 2048
    client = FakeCudaClient(pipes, 4711)
    assert v2.read_clients(pid, control.run(v2.list_clients(pid), pipes)) == (4711,)
    client.close()
    control.run(v2.quit_daemon(), pipes)


def test_a_program_that_hangs_is_ended_and_said(ground: Ground) -> None:
    ground.fake.set(mode="hang")
    control = ControlProgram(str(ground.fake.root), ground.places.root, answer_s=0.3)
    with pytest.raises(ControlSilentError, match="does not answer `server list"):
        control.run(v3.list_servers(), ground.places.pipes)
    with pytest.raises(ControlSilentError, match="does not start within"):
        control.start(v3.start_daemon(multi_user=True), ground.places.pipes, ground.places.logs, "")
    assert ground.table.find() == (), "nothing of what hangs is left"


def test_a_start_that_is_refused_is_said_with_the_programs_words(ground: Ground) -> None:
    ground.fake.set(mode="refuses")
    with pytest.raises(ControlError, match="already running"):
        ground.control.start(v3.start_daemon(multi_user=True), ground.places.pipes, ground.places.logs, "")


def test_the_last_words_of_a_daemon_that_dies_are_read(ground: Ground) -> None:
    ground.fake.set(mode="dies")
    ground.control.start(v3.start_daemon(multi_user=True), ground.places.pipes, ground.places.logs, "")
    for _ in range(2000):
        if ground.control.last_words(ground.places.logs):
            break
        os.sched_yield()
    assert ground.control.last_words(ground.places.logs) == "Failed to initialise: out of luck"


def test_rubbish_is_no_answer_that_can_be_read(ground: Ground) -> None:
    ground.fake.set(mode="rubbish")
    with pytest.raises(Exception, match="expected"):
        v3.read_servers(ground.control.run(v3.list_servers(), ground.places.pipes))


def test_a_driver_without_the_program_is_said(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    control = ControlProgram(str(tmp_path), str(tmp_path / "m"))
    assert "has no nvidia-cuda-mps-control" in (control.missing() or "")
    with pytest.raises(ControlError, match="has no nvidia-cuda-mps-control"):
        control.run(v3.list_servers(), str(tmp_path))


def test_the_program_gets_nothing_of_our_environment(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1")
    program = ground.fake.root / "usr" / "bin" / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/bash\nexport\n")
    text = ground.control.run(v3.list_servers(), ground.places.pipes)
    assert "CUDA_MPS_PIPE_DIRECTORY" in text
    assert "THREAD_PERCENTAGE" not in text


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_a_driver_root_that_sees_our_folder_is_entered(tmp_path: Path) -> None:
    """The driver's programs run with the driver's own C library. The root of this machine stands for such a root."""
    program = tmp_path / "usr" / "bin" / "nvidia-cuda-mps-control"
    root = tmp_path / "link-to-root"
    root.symlink_to("/")
    assert not program.exists()
    control = ControlProgram(str(root), str(tmp_path))
    assert control._same_folder_inside()
    assert not ControlProgram(str(tmp_path), str(tmp_path / "nowhere"))._same_folder_inside()
