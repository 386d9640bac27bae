"""The control program as a process. MpsControl's promises, on the fake; tests/device has them for the real one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from dracaena.mps.adapters.control_program import ControlProgram
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import Role
from dracaena.mps.ports import ControlError, ControlSilentError, DaemonGoneError
from dracaena.mps.protocol import v2, v3
from dracaena.mps.protocol.seen import ControlCommand
from support.fake_mps import FakeCudaClient, FakeMps
from support.mps_contract import make_folders, speaks_protocol_2, speaks_protocol_3
from support.mps_mounts import share_memory, unmount_all
from support.mps_node import GPUS


def untouched(_gpu: str, _root: str) -> None:
    raise AssertionError("nothing is started here")


class Ground:
    def __init__(self, root: Path, short: str) -> None:
        self.places = MpsPlaces(short)
        self.shm = share_memory(self.places)
        make_folders(self.places, GPUS[0])
        self.fake = FakeMps(root / "driver", GPUS)
        self.table = ProcProcessTable(self.places.pipes)
        self.control = ControlProgram(str(self.fake.root), self.places.root, self.shm.enter, answer_s=20.0)


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
    unmount_all(ground.places)


def runs(ground: Ground, script: str) -> None:
    """Put a program of the test in the place of the driver's."""
    (ground.fake.root / "usr" / "bin" / "nvidia-cuda-mps-control").write_text(f"#!/bin/bash\n{script}\n")


@pytest.mark.parametrize("protocol", [2, 3])
def test_the_contract_holds_on_the_fake(ground: Ground, protocol: int) -> None:
    clients = []

    def connect(pipes: str) -> int:
        clients.append(FakeCudaClient(pipes, 4711))
        assert clients[0].code == 0
        return 4711

    if protocol == 2:
        speaks_protocol_2(ground.control, ground.places, ground.shm, GPUS[0], connect)
    else:
        speaks_protocol_3(ground.control, ground.places, GPUS[0], connect)
    clients[0].close()


def test_a_program_that_hangs_is_ended_and_said(ground: Ground) -> None:
    ground.fake.set(mode="hang")
    control = ControlProgram(str(ground.fake.root), ground.places.root, ground.shm.enter, answer_s=0.3)
    with pytest.raises(ControlSilentError, match="does not answer `server list"):
        control.run(v3.list_servers(), ground.places.pipes)
    with pytest.raises(ControlSilentError, match="does not start within"):
        control.start(v3.start_daemon(multi_user=True), ground.places.pipes, ground.places.logs, "")
    assert ground.table.find() == (), "nothing of what hangs is left"


def test_a_daemon_that_is_told_to_quit_has_the_time_that_its_servers_need(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.fake.set(mode="hang")
    monkeypatch.setattr("dracaena.mps.adapters.control_program.QUIT_S", 0.3)
    control = ControlProgram(str(ground.fake.root), ground.places.root, ground.shm.enter, answer_s=0.1)
    for command, limit in ((v2.quit_daemon(), "0.3"), (v3.quit_daemon(), "0.3"), (v2.list_servers(), "0.1")):
        with pytest.raises(ControlSilentError, match=f"within {limit} s"):
            control.run(command, ground.places.pipes)


def test_what_a_silent_program_has_started_ends_with_it(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    runs(ground, f'sleep 1000 &\necho $! > "{started}.half"\nmv "{started}.half" "{started}"\nwait')

    def silent(process: subprocess.Popen[bytes], _given: bytes | None, timeout: float) -> NoReturn:
        while not started.exists():
            os.sched_yield()
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", silent)
    with pytest.raises(ControlSilentError):
        ground.control.run(v3.list_servers(), ground.places.pipes)
    while ground.table._start_ticks(int(started.read_text())) is not None:
        os.sched_yield()


def test_an_answer_of_more_than_a_mebibyte_is_none(ground: Ground) -> None:
    runs(ground, "head -c 1100000 /dev/zero")
    with pytest.raises(ControlError, match="with 1100000 bytes, expected at most 1048576"):
        ground.control.run(v3.list_servers(), ground.places.pipes)


@pytest.mark.timeout(40)
def test_a_program_that_hangs_in_the_kernel_is_left_behind(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL does not end it: here because none is sent."""
    ground.fake.set(mode="hang")
    control = ControlProgram(str(ground.fake.root), ground.places.root, ground.shm.enter, answer_s=0.1, kill_s=0.1)
    left: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda group, _signal: left.append(group))
        patch.setattr(subprocess.Popen, "kill", lambda process: left.append(process.pid))
        with pytest.raises(ControlSilentError, match=r"server list.* hangs in the kernel"):
            control.run(v3.list_servers(), ground.places.pipes)
        with pytest.raises(ControlSilentError, match=r"does not start .* hangs in the kernel"):
            control.start(v3.start_daemon(multi_user=True), ground.places.pipes, ground.places.logs, "")
    assert len(left) == len(control._hung) == 2
    for process in control._hung:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
    ground.fake.set(mode="works")
    control._answer_s = 30.0  # a busy machine may take longer to start a program than what one that hangs is given
    with pytest.raises(DaemonGoneError):
        control.run(v3.list_servers(), ground.places.pipes)
    assert control._hung == []


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
    library = tmp_path / "usr" / "lib64" / "libcuda.so.1"
    library.parent.mkdir(parents=True)
    control = ControlProgram(str(tmp_path), str(tmp_path / "m"), untouched)
    missing = control.missing()
    assert missing is not None
    assert missing.passes
    assert missing.message.startswith("waiting for the NVIDIA driver: no libcuda.so.1")
    library.touch()
    missing = control.missing()
    assert missing is not None
    assert not missing.passes
    with pytest.raises(ControlError, match="has no nvidia-cuda-mps-control"):
        control.run(v3.list_servers(), str(tmp_path))


def test_the_program_gets_nothing_of_our_environment(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "1")
    runs(ground, "export")
    text = ground.control.run(v3.list_servers(), ground.places.pipes)
    assert "CUDA_MPS_PIPE_DIRECTORY" in text
    assert "THREAD_PERCENTAGE" not in text


def test_a_daemon_of_one_gpu_sees_no_other(ground: Ground, tmp_path: Path) -> None:
    seen_by_it = tmp_path / "environment"
    runs(ground, f'export > "{seen_by_it}"')
    control = ControlProgram(str(ground.fake.root), ground.places.root, lambda *_: None, answer_s=20.0)
    for gpu in (GPUS[1], ""):
        control.start(v2.start_daemon(multi_user=True), ground.places.pipes, ground.places.logs, gpu)
        assert (f'CUDA_VISIBLE_DEVICES="{gpu}"' in seen_by_it.read_text()) is bool(gpu)


def says(ground: Ground, text: str, code: int) -> None:
    runs(ground, f"printf {shlex.quote(text)}\nexit {code}")


def seen(ground: Ground, command: ControlCommand) -> type[ControlError] | None:
    """Return how a command fails, None when it does not."""
    try:
        ground.control.run(command, ground.places.pipes)
    except ControlError as error:
        return type(error)
    return None


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("words", ["connection refused", "Cannot find MPS control daemon process"])
def test_what_a_clients_command_line_says_is_not_said_by_the_daemon(ground: Ground, code: int, words: str) -> None:
    says(ground, f"{words}\n7,gpu_1,0,s_1,python {words}\n", code)
    assert seen(ground, v3.list_clients()) is (ControlError if code else None)


@pytest.mark.parametrize(
    ("text", "code", "gone"),
    [
        ("Cannot find MPS control daemon process\n", 0, True),
        ("Cannot find MPS control daemon process\n", 1, True),
        ("Error: connection refused\n", 1, True),
        ("a,0,7,Ready,/run/connection refused,-,-\n", 0, False),
        ("server 'x' is not known\n", 1, False),
    ],
)
def test_that_no_daemon_listens_is_known_by_the_programs_own_words(
    ground: Ground, text: str, code: int, gone: bool
) -> None:
    says(ground, text, code)
    assert (seen(ground, v3.list_servers()) is DaemonGoneError) is gone


def test_a_driver_root_is_entered_only_if_it_is_a_whole_one(tmp_path: Path) -> None:
    """The driver's programs run with the driver's own C library, if that is there."""
    fake = FakeMps(tmp_path, GPUS)
    control = ControlProgram(str(fake.root), "/run", untouched)
    outside, _ = control._call(v3.list_servers())
    assert outside[0] == f"{fake.root}/usr/bin/nvidia-cuda-mps-control"
    (fake.root / "bin").mkdir()
    (fake.root / "bin" / "sh").touch()
    inside, _ = control._call(v3.list_servers())
    assert inside[:3] == ["chroot", str(fake.root), "/usr/bin/nvidia-cuda-mps-control"]
