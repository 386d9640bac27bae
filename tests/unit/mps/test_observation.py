"""What is remembered from one look to the next."""

from __future__ import annotations

from pathlib import Path

from dracaena.mps.planning.state import PipesState, SeenGpu
from dracaena.mps.protocol.seen import ShareLimits
from support.mps_model import MpsModel
from support.mps_node import GPUS, MpsNode, model_of

LIMITS = ShareLimits(50, 1024)


def look(node: MpsNode) -> SeenGpu:
    return node.supervisor._observer.look(GPUS[:1], node.world.find(), 2, ()).gpus[GPUS[0]]


def test_limits_of_a_server_that_the_daemon_started_itself_are_read(tmp_path: Path) -> None:
    """As it does for the first client after a server has died."""
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    node.world.end(node.statuses()[share].server_pid)
    model_of(node).command([], "start_server -uid 0\n")
    (server,) = model_of(node).servers.values()
    server.limits.percentage = 100
    seen = look(node)
    assert seen.of_server is not None
    assert (seen.defaults, seen.of_server.thread_percentage) == (LIMITS, 100)


def test_limits_that_an_impostor_told_are_not_remembered_when_the_sockets_are_back(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    pid = node.statuses()[share].server_pid
    node.world.impostor = MpsModel(2, visible=GPUS, present=lambda: set(GPUS), spawn=lambda _: pid, reap=lambda _: None)
    node.world.impostor.command([], "start_server -uid 0\n")
    control, away = (Path(node.places.pipes_of(GPUS[0]), name) for name in ("control", "away"))

    def replace_socket(_command: str) -> None:
        if not away.exists():
            control.rename(away)
            control.touch()

    node.supervisor._observer.forget(GPUS[0])
    node.world.asking = replace_socket
    assert look(node).pipes is PipesState.CHANGED
    node.world.asking = lambda _command: None
    away.replace(control)
    seen = look(node)
    assert (seen.pipes, seen.defaults, seen.of_server) == (PipesState.KEPT, LIMITS, LIMITS)
