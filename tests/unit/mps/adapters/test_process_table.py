"""Processes of MPS in a made-up /proc, and real ones that are ended."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.planning.state import MpsProcess, Role

PIPES = "/run/dracaena/mps/pipe"


def process(
    proc: Path,
    pid: int,
    program: str,
    pipes: str | None,
    ticks: int = 77,
    cgroup: str = "0::/",
    state: str = "S",
    arguments: str = "-d",
) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_bytes(f"{program}\0{arguments}\0".encode())
    environment = b"A=1\0" + (b"" if pipes is None else b"CUDA_MPS_PIPE_DIRECTORY=" + pipes.encode() + b"\0")
    (folder / "environ").write_bytes(environment)
    numbers = " ".join(str(number) for number in range(4, 22))
    (folder / "stat").write_text(f"{pid} (a) b) {state} {numbers} {ticks} 0 0\n")
    (folder / "cgroup").write_text(cgroup)


def test_ours_are_found_by_program_and_pipe_folder(tmp_path: Path) -> None:
    process(tmp_path, 30, "nvidia-cuda-mps-server", f"{PIPES}/gpu_1")
    process(tmp_path, 9, "/usr/bin/nvidia-cuda-mps-control", PIPES)
    process(tmp_path, 31, "nvidia-cuda-mps-server", "/tmp/nvidia-mps")  # somebody else's
    process(tmp_path, 32, "nvidia-cuda-mps-server", f"{PIPES}-other")
    process(tmp_path, 33, "nvidia-cuda-mps-server", None)
    process(tmp_path, 34, "python", f"{PIPES}/gpu_1")  # a client
    process(tmp_path, 35, "nvidia-cuda-mps-server", f"{PIPES}/gpu_1", state="Z")
    process(tmp_path, 37, "nvidia-cuda-mps-control", PIPES, arguments="server\0list")  # somebody asks
    process(tmp_path, 38, "nvidia-cuda-mps-control", f"{PIPES}/gpu_1", arguments="")
    (tmp_path / "self").mkdir()
    (tmp_path / "36").mkdir()  # ended while it was looked at
    uid = tmp_path.stat().st_uid
    assert ProcProcessTable(PIPES, str(tmp_path)).find() == (
        MpsProcess(9, 77, Role.CONTROL, uid, ""),
        MpsProcess(30, 77, Role.SERVER, uid, "gpu_1"),
    )


POD = "0::/kubepods.slice/kubepods-pod{}.slice/cri-containerd-0.scope"
OURS, ANOTHER = "11111111-2222-3333-4444-555555555555", "66666666-2222-3333-4444-555555555555"


@pytest.mark.parametrize("own", ["0::/", POD.format(OURS)])
def test_what_runs_in_a_pod_of_another_is_not_ours_whatever_it_says(tmp_path: Path, own: str) -> None:
    """With a cgroup namespace of our own we are at its root, and others are seen above it."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(own)
    above = "0::/../.." + POD.format(ANOTHER.replace("-", "_")).removeprefix("0::")
    process(tmp_path, 1, "nvidia-cuda-mps-control", PIPES, cgroup=above)
    process(tmp_path, 2, "nvidia-cuda-mps-server", f"{PIPES}/gpu_1", cgroup=POD.format(ANOTHER))
    process(tmp_path, 3, "nvidia-cuda-mps-control", PIPES, cgroup=own)
    process(tmp_path, 4, "nvidia-cuda-mps-server", f"{PIPES}/gpu_1", cgroup="0::/system.slice/x.service")
    assert [found.pid for found in ProcProcessTable(PIPES, str(tmp_path)).find()] == [3, 4]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_of_other_users_only_servers_beside_us_are_ours(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/ours")
    for pid, program, cgroup in (
        (1, "nvidia-cuda-mps-control", "0::/ours"),
        (2, "nvidia-cuda-mps-server", "0::/ours"),
        (3, "nvidia-cuda-mps-server", "0::/user.slice"),
    ):
        process(tmp_path, pid, program, f"{PIPES}/gpu_1", cgroup=cgroup)
        os.chown(tmp_path / str(pid), 65534, 65534)
    assert [found.pid for found in ProcProcessTable(PIPES, str(tmp_path)).find()] == [2]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts programs of others")
def test_a_program_of_nobody_that_takes_the_daemons_name_is_not_ours(tmp_path: Path) -> None:
    with subprocess.Popen(
        ["nvidia-cuda-mps-control", "-c", "echo ready; sleep 60; :", "-d"],
        executable="/bin/bash",
        env={"CUDA_MPS_PIPE_DIRECTORY": f"{tmp_path}/pipe"},
        user=65534,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as pretender:
        assert pretender.stdout is not None
        pretender.stdout.readline()
        found = ProcProcessTable(f"{tmp_path}/pipe").find()
        os.killpg(pretender.pid, signal.SIGKILL)
        assert found == ()


def test_a_pid_that_was_used_again_is_another_process(tmp_path: Path) -> None:
    process(tmp_path, 9, "nvidia-cuda-mps-control", PIPES, ticks=77)
    table = ProcProcessTable(PIPES, str(tmp_path))
    (found,) = table.find()
    assert table.is_alive(found)
    assert not table.is_alive(MpsProcess(9, 78, Role.CONTROL, 0, ""))


def test_only_the_process_that_is_meant_is_ended() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as sleeper:
        table = ProcProcessTable(PIPES)
        ticks = table._start_ticks(sleeper.pid)
        assert ticks is not None
        table.kill(MpsProcess(sleeper.pid, ticks + 1, Role.SERVER, 0, ""))
        assert sleeper.poll() is None
        table.kill(MpsProcess(sleeper.pid, ticks, Role.SERVER, 0, ""))
        assert sleeper.wait(timeout=10) == -15
        table.kill(MpsProcess(sleeper.pid, ticks, Role.SERVER, 0, ""))


def test_what_does_not_end_when_asked_is_killed() -> None:
    command = ["/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        table = ProcProcessTable(PIPES, term_s=0.1)
        ticks = table._start_ticks(stubborn.pid)
        assert ticks is not None
        table.kill(MpsProcess(stubborn.pid, ticks, Role.SERVER, 0, ""))
        assert stubborn.wait(timeout=10) == -9


def test_the_pod_of_a_client_is_in_its_cgroup(tmp_path: Path) -> None:
    uid = "11111111-2222-3333-4444-555555555555"
    under_systemd = f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/cri-containerd-0.scope"
    process(tmp_path, 1, "python", None, cgroup=under_systemd)
    process(tmp_path, 2, "python", None, cgroup=f"0::/kubepods/besteffort/pod{uid}/0123")
    process(tmp_path, 3, "python", None, cgroup="0::/user.slice")
    table = ProcProcessTable(PIPES, str(tmp_path))
    assert [table.pod_uid(pid) for pid in (1, 2, 3, 4)] == [uid, uid, "", ""]
