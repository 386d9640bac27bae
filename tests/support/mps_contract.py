"""What nvidia-cuda-mps-control must do for the supervisor, from start to quit: the fake, and the driver's own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.mps.adapters.control_program import ControlProgram
from dracaena.mps.adapters.process_table import ProcProcessTable
from dracaena.mps.adapters.share_memory import ShareMemory
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import Role
from dracaena.mps.ports import ControlError, DaemonGoneError
from dracaena.mps.protocol import v2, v3
from dracaena.mps.protocol.seen import ControlCommand, ServerSeen, ServerState, ShareLimits
from support.mps_mounts import why_no_mounts

SHARE = "s_0123456789abcdef"
PATIENCE_S = 60.0
"""A server makes a CUDA context before it is ready."""

Connect = Callable[[str], int]
"""Has a client connect through a pipe folder and stay; returns its pid."""


def speaks_protocol_3(control: ControlProgram, places: MpsPlaces, gpu: str, connect: Connect | None) -> None:
    pipes = places.pipes
    assert v3.knows_protocol_3(control.run(v3.ask_help(), pipes))
    with pytest.raises(DaemonGoneError):
        control.run(v3.list_servers(), pipes)
    control.start(v3.start_daemon(multi_user=True), pipes, places.logs, "")
    assert v3.read_servers(_answer(control, v3.list_servers(), pipes)) == {}
    control.run(v3.create_server(gpu, 0), pipes)
    _ready(lambda: v3.read_servers(control.run(v3.list_servers(), pipes)).get(gpu))
    control.run(v3.create_namespace(gpu, SHARE), pipes)
    with pytest.raises(ControlError):
        control.run(v3.create_namespace(gpu, SHARE), pipes)
    limits = ShareLimits(25, 3000)
    control.run(v3.limit_namespace(gpu, SHARE, limits), pipes)
    assert v3.read_namespaces(control.run(v3.list_namespaces(), pipes)) == {(gpu, SHARE): limits}
    if connect is not None:
        pid = connect(places.client_pipes(gpu, SHARE, 3))
        ((found,),) = v3.read_clients(control.run(v3.list_clients(), pipes)).values()
        assert (found.pid, found.namespace) == (pid, SHARE)
    assert v3.read_clients(control.run(v3.list_clients(), pipes)).keys() <= {gpu}
    roles = {process.role for process in ProcProcessTable(pipes).find()}
    assert roles == {Role.CONTROL, Role.SERVER}, "processes are found by the environment that they inherit"
    control.run(v3.delete_namespace(gpu, SHARE), pipes)
    control.run(v3.delete_server(gpu), pipes)
    assert v3.read_servers(control.run(v3.list_servers(), pipes)) == {}
    control.run(v3.quit_daemon(), pipes)
    _gone(pipes)


def speaks_protocol_2(
    control: ControlProgram, places: MpsPlaces, shm: ShareMemory, gpu: str, connect: Connect | None
) -> None:
    pipes, logs = places.pipes_of(gpu), places.logs_of(gpu)
    shm.prepare()
    shm.mount(gpu)
    control.start(v2.start_daemon(multi_user=True), pipes, logs, gpu)
    assert v2.read_servers(_answer(control, v2.list_servers(), pipes)) == ()
    _, unset = v2.ask_defaults(gpu)
    assert v2.read_memory_mib(unset, control.run(unset, pipes)) is None
    limits = ShareLimits(40, 2048)
    for command in v2.set_defaults(gpu, limits):
        control.run(command, pipes)
    control.run(v2.start_server(0), pipes)
    (pid,) = v2.read_servers(control.run(v2.list_servers(), pipes))
    _ready(lambda: v2.read_status(pid, control.run(v2.server_status(pid), pipes)))
    for process in () if why_no_mounts() else ProcProcessTable(places.pipes).find():
        own = Path(f"/proc/{process.pid}/root{shm.at}")
        assert own.samefile(places.shm_of(gpu)), f"{process.role.value} has another /dev/shm than its clients"
    for percentage, memory in (v2.ask_defaults(gpu), v2.ask_of_server(pid, gpu)):
        assert v2.read_percentage(percentage, control.run(percentage, pipes)) == limits.thread_percentage
        assert v2.read_memory_mib(memory, control.run(memory, pipes)) == limits.pinned_memory_mib
    for command in v2.set_of_server(pid, gpu, ShareLimits(60, 4096)):
        control.run(command, pipes)
    percentage, memory = v2.ask_of_server(pid, gpu)
    assert v2.read_percentage(percentage, control.run(percentage, pipes)) == 60
    assert v2.read_memory_mib(memory, control.run(memory, pipes)) == 4096
    clients = (connect(pipes),) if connect is not None else ()
    assert v2.read_clients(pid, control.run(v2.list_clients(pid), pipes)) == clients
    control.run(v2.quit_daemon(), pipes)
    _gone(places.pipes)
    shm.unmount(gpu)
    assert shm.seen() == {}


def _answer(control: ControlProgram, command: ControlCommand, pipes: str) -> str:
    """Ask until the daemon that was started listens."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        with contextlib.suppress(DaemonGoneError):
            return control.run(command, pipes)
    raise AssertionError("the daemon does not come up")


def _ready(look: Callable[[], ServerSeen | None]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while (seen := look()) is None or seen.state is not ServerState.READY:
        assert time.monotonic() < until_s, f"the server does not become ready: {seen}"
        time.sleep(0.02)


def _gone(pipes: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while found := ProcProcessTable(pipes).find():
        assert time.monotonic() < until_s, f"left after quit: {found}"
        time.sleep(0.02)


def make_folders(places: MpsPlaces, gpu: str) -> None:
    for folder in (places.pipes, places.logs, places.pipes_of(gpu), places.logs_of(gpu)):
        Path(folder).mkdir(parents=True, exist_ok=True)
