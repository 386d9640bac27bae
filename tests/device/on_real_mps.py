"""The driver's own nvidia-cuda-mps-control, held to what the fake is held to: `make device-test`.

It needs root, one GPU that nobody uses, and starts daemons in a folder of its own; it changes no compute mode.
"""
# ruff: noqa: T201 - what it prints is what it is run for

from __future__ import annotations

import json
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from device.containers import build_probe
from dracaena.mps.adapters.control_program import ControlProgram
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import Role
from dracaena.mps.ports import ControlError, ControlSilentError, DaemonGoneError
from dracaena.mps.protocol import v2, v3
from dracaena.mps.protocol.seen import ShareLimits
from support.mps_contract import PATIENCE_S, make_folders, speaks_protocol_2, speaks_protocol_3
from support.mps_mounts import needs_mounts, share_memory, unmount_all

pytestmark = pytest.mark.skipif(
    ControlProgram("/", "/", share_memory(MpsPlaces("/")).enter).missing() is not None,
    reason="no nvidia-cuda-mps-control on this machine",
)


@pytest.fixture
def places() -> Iterator[MpsPlaces]:
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        places = MpsPlaces(folder)
        yield places
        table = ProcProcessTable(places.pipes)
        for process in sorted(table.find(), key=lambda each: each.role is Role.SERVER):
            table.kill(process)
        unmount_all(places)


@pytest.fixture
def gpu() -> str:
    asked = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]


def test_protocol_2(places: MpsPlaces, gpu: str) -> None:
    make_folders(places, gpu)
    shm = share_memory(places)
    speaks_protocol_2(ControlProgram("/", places.root, shm.enter), places, shm, gpu, None)


def test_protocol_3(places: MpsPlaces, gpu: str) -> None:
    make_folders(places, gpu)
    control = ControlProgram("/", places.root, share_memory(places).enter)
    try:
        usage = control.run(v3.ask_help(), places.pipes)
    except ControlSilentError:
        raise  # a program that hangs is a finding, whatever protocol it speaks
    except ControlError as error:
        pytest.skip(f"an older driver refuses the flag of protocol 3: {error}")
    if not v3.knows_protocol_3(usage):
        pytest.skip("this driver has no protocol 3")
    speaks_protocol_3(control, places, gpu, None)


CLIENT = """
set -e
mount --make-rslave /
mount --bind "$PIPES" "$CUDA_MPS_PIPE_DIRECTORY"
mount -o "remount,bind,$ACCESS,nosuid,nodev,noexec" "$CUDA_MPS_PIPE_DIRECTORY"
mount --bind "$SHM" /dev/shm
exec "$@"
"""
"""What a runtime does for a container of a share, in a mount namespace of its own."""


@needs_mounts
@pytest.mark.parametrize("access", ["rw", "ro"])
def test_a_client_reaches_its_server_through_its_mounts(
    places: MpsPlaces, gpu: str, access: str, tmp_path: Path
) -> None:
    """With `ro` as containers have them (CLIENT_PIPES_ARE_READ_ONLY); if that one fails, `rw` says whether that is why.

    A quarter of the multiprocessors shows that it is a client: without its server it would have them all.
    """
    probe = build_probe(tmp_path)
    make_folders(places, gpu)
    shm = share_memory(places)
    shm.prepare()
    shm.mount(gpu)
    control, pipes = ControlProgram("/", places.root, shm.enter), places.pipes_of(gpu)
    control.start(v2.start_daemon(multi_user=True), pipes, places.logs_of(gpu), gpu)
    try:
        server_answers(control, pipes)
        for command in v2.set_defaults(gpu, ShareLimits(25, 8192)):
            control.run(command, pipes)
        control.run(v2.start_server(0), pipes)
        inside = tmp_path / "nvidia-mps"
        inside.mkdir()
        environment = {
            **os.environ, "PIPES": pipes, "SHM": places.shm_of(gpu), "ACCESS": access,
            "CUDA_MPS_PIPE_DIRECTORY": str(inside), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        }  # fmt: skip
        command_line = ["unshare", "--mount", "sh", "-c", CLIENT, "sh", str(probe), "1024", "2"]
        with subprocess.Popen(command_line, env=environment, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            line = client.stdout.readline()
            print(
                f"{access}: {line}", *listed(pipes), *listed(places.shm_of(gpu)), *listed(places.logs_of(gpu)), sep="\n"
            )
            (pid,) = v2.read_servers(control.run(v2.list_servers(), pipes))
            print("clients:", v2.read_clients(pid, control.run(v2.list_clients(pid), pipes)), "started:", client.pid)
        answer = json.loads(line)
        assert client.returncode == 0, line
        assert "error" not in answer
        assert answer["devices"][0]["multiprocessors"] <= 40, "it has the whole GPU, so it is no client"
    finally:
        control.run(v2.quit_daemon(), pipes)


def server_answers(control: ControlProgram, pipes: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            control.run(v2.list_servers(), pipes)
        except DaemonGoneError:
            assert time.monotonic() < until_s, "the daemon does not come up"
        else:
            return


def listed(folder: str) -> list[str]:
    """What there is in a folder, and whose: what clients make, and where logs go, is documented nowhere."""
    return [
        f"{path} {stat.filemode((found := path.lstat()).st_mode)} {found.st_uid} {found.st_size}"
        for path in sorted(Path(folder).iterdir())
    ]
