"""Servers, daemons and GPUs that die, hang or say that they failed: what the supervisor does and tells."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import structlog

from dracaena.api.errors import TemporaryError
from dracaena.api.mps import NODE_STATUS, MpsClient, MpsFault, MpsFaultKind, MpsPhase
from dracaena.mps import supervisor as module
from dracaena.mps.planning.state import ComputeMode, Role
from dracaena.mps.ports import ControlError, ControlSilentError, DaemonGoneError
from dracaena.mps.protocol.seen import ControlCommand
from dracaena.mps.protocol.v3 import server_name
from dracaena.process.clock import rfc3339
from support.mps_model import OK, SERVER_NOT_READY, MpsModel
from support.mps_node import BOTH, GPUS, MpsNode, join, model_of
from support.mps_oracle import Asked, differences
from support.mps_world import FakeShm


def raising(error: Exception) -> Callable[..., NoReturn]:
    def call(*_: object) -> NoReturn:
        raise error

    return call


@BOTH
def test_a_fault_is_told_once_with_its_clients_and_ends_with_them(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    one, other = node.ask(0, "a"), node.ask(0, "b")
    node.settle()
    assert join(node, one, 11) == OK
    assert join(node, other, 12) == OK
    node.world.pods = {11: "pod-1", 12: "pod-2"}
    node.supervisor.step()
    model_of(node).fault(11)
    node.supervisor.step()
    node.supervisor.step()
    status = node.statuses()[other]
    assert status.phase is MpsPhase.FAILED
    assert "FAULT" in status.message
    assert status.fault is not None
    assert (status.fault.sequence, status.fault.kind) == (1, MpsFaultKind.SERVER_FAULT)
    both = (MpsClient(pid=11, pod_uid="pod-1"), MpsClient(pid=12, pod_uid="pod-2"))
    assert status.fault.clients == (both if protocol == 2 else both[1:])
    assert join(node, one, 13) == SERVER_NOT_READY
    model_of(node).disconnect(11)
    model_of(node).disconnect(12)
    node.settle()
    assert node.phase(other) is MpsPhase.READY
    assert join(node, one, 13) == OK
    model_of(node).fault(13)
    node.supervisor.step()
    assert [node.statuses()[name].fault.sequence for name in (one, other)] == [2, 2]  # type: ignore[union-attr]


@BOTH
@pytest.mark.parametrize("restarted", [False, True])
def test_a_dead_daemon_is_started_again_and_told(tmp_path: Path, protocol: int, restarted: bool) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    assert join(node, share, 11) == OK
    node.supervisor.step()
    node.world.kill_daemons()
    assert node.supervisor.changed()
    if restarted:
        node.start()
    node.settle()
    status = node.statuses()[share]
    assert status.phase is MpsPhase.READY
    assert status.fault is not None
    assert status.fault.kind is MpsFaultKind.DAEMON_DIED
    assert [client.pid for client in status.fault.clients] == ([] if restarted else [11])
    assert differences(node, {share: Asked(GPUS[0])}) == []


@BOTH
def test_a_dead_daemon_is_replaced_within_one_look(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.READY, "and a new one is made"
    node.world.kill_daemons()
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.READY
    assert node.supervisor.due_s == float("inf"), "what was done is not left to do"


@BOTH
def test_a_dead_server_is_started_again_with_its_limits(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a", percentage=20, memory=2048)
    node.settle()
    node.world.end(node.statuses()[share].server_pid)
    node.settle()
    fault = node.statuses()[share].fault
    assert fault is not None
    assert fault.kind is MpsFaultKind.SERVER_DIED
    assert differences(node, {share: Asked(GPUS[0], 20, 2048)}) == []


@BOTH
def test_a_lost_gpu_fails_its_shares_alone_and_is_put_back_later(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    one, other = node.ask(0, "a"), node.ask(1, "b")
    node.settle()
    node.world.lost = {GPUS[0]}
    node.settle(rounds=3)
    assert node.phase(one) is MpsPhase.FAILED
    assert "fallen off the bus" in node.statuses()[one].message
    assert node.statuses()[one].fault.kind is MpsFaultKind.GPU_LOST  # type: ignore[union-attr]
    assert node.phase(other) is MpsPhase.READY
    node.withdraw(one)
    node.settle(rounds=3)
    assert node.phase(one) is None, "the claim can go although the GPU is lost"
    node.world.lost = set()
    node.settle()
    assert node.world.modes[GPUS[0]] is ComputeMode.DEFAULT
    assert differences(node, {other: Asked(GPUS[1])}) == []


@BOTH
@pytest.mark.parametrize("how", ["hangs", "babbles"])
def test_a_daemon_that_gives_no_answer_is_ended_and_started_again(tmp_path: Path, protocol: int, how: str) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    pipes = node.places.pipes if protocol == 3 else node.places.pipes_of(GPUS[0])
    getattr(node.world, how).add(pipes)
    node.clock.advance(5)
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.FAILED
    began_s = node.clock.monotonic()
    node.settle()
    assert node.phase(share) is MpsPhase.READY
    assert node.clock.monotonic() - began_s <= 30, "kubelet gives a claim 45 s"
    assert differences(node, {share: Asked(GPUS[0])}) == []


@pytest.mark.parametrize("line", ["python -c a\nb", "a\n1,2,3", "\x00\x85,,,,\n²,gpu_1,0,s,x"])
def test_a_clients_command_line_ends_no_daemon(tmp_path: Path, line: str) -> None:
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    before = node.world.find()
    assert join(node, share, 11) == OK
    model_of(node).command_line = line
    for _ in range(6):
        node.clock.advance(30)
        node.supervisor.step()
        assert node.phase(share) is MpsPhase.READY
    assert node.world.find() == before
    model_of(node).fault(11)
    node.supervisor.step()
    fault = node.statuses()[share].fault
    assert fault is not None
    assert [client.pid for client in fault.clients] == [11]


@pytest.mark.parametrize(("protocol", "words"), [(2, "get_client_list"), (3, "client list")])
def test_a_client_list_that_cannot_be_had_ends_no_daemon(tmp_path: Path, protocol: int, words: str) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    before = node.world.find()
    node.world.refuses = words
    for _ in range(6):
        node.clock.advance(30)
        node.supervisor.step()
    assert node.phase(share) is MpsPhase.READY
    assert node.world.find() == before


def test_a_daemon_that_hangs_holds_up_no_other_gpu_of_protocol_2(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    node.ask(0, "a")
    node.settle()
    node.world.hangs.add(node.places.pipes_of(GPUS[0]))
    other = node.ask(1, "b")
    node.supervisor.step()
    assert node.phase(other) is MpsPhase.READY


@BOTH
def test_a_daemon_that_dies_in_start_is_tried_with_pauses_and_its_log_is_told(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    node.world.dies_at_start = True
    share = node.ask(0, "a")
    _stepped(node)
    status = node.statuses()[share]
    assert status.phase is MpsPhase.FAILED
    assert "ended right after its start; its log says: Failed to bind" in status.message
    starts = sum("list" in command for command in node.world.commands)
    for _ in range(20):
        node.supervisor.step()
    assert sum("list" in command for command in node.world.commands) == starts, "no try before the pause is over"
    node.world.dies_at_start = False
    node.settle()
    assert node.phase(share) is MpsPhase.READY
    node.withdraw(share)
    node.settle()
    assert node.left() == []


@BOTH
def test_a_daemon_may_take_five_seconds_to_answer(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    run, refused = node.world.run, 0

    def slow(command: ControlCommand, pipes: str) -> str:
        nonlocal refused
        if node.world.daemons and node.clock.monotonic() < answers_s:
            refused += 1
            raise DaemonGoneError("Cannot find MPS control daemon process")
        return run(command, pipes)

    node.world.run = slow  # type: ignore[method-assign]
    share, answers_s = node.ask(0, "a"), 4.9
    _stepped(node)
    assert node.phase(share) is MpsPhase.READY
    assert refused == pytest.approx(98, abs=1), "each 50 ms"
    answers_s += 10
    node.world.kill_daemons()
    began_s = node.clock.monotonic()
    _stepped(node)
    assert "ended right after its start" in node.statuses()[share].message
    assert node.clock.monotonic() - began_s == pytest.approx(5.0, abs=0.06)


def _stepped(node: MpsNode) -> None:
    """One step, while time goes by: the executor waits for the daemon's answer."""

    def pass_by(event: threading.Event, timeout_s: float) -> bool:
        node.clock.advance(timeout_s)
        return event.is_set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.clock, "sleep_until_set", pass_by)
        node.supervisor.step()


def test_a_control_program_that_hangs_before_anything_runs_is_said_and_tried_again(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.world.hangs.add(node.places.pipes)
    share = node.ask(0, "a")
    node.settle(rounds=3)
    status = node.statuses()[share]
    assert (status.phase, status.message) == (MpsPhase.FAILED, "no answer to `-p 3 -h`")
    assert node.registry.get_sample_value("dracaena_mps_failed_steps_total") == len(node.world.commands) > 0
    said = node.files.read_node()
    assert said is not None
    assert (said.protocol, said.message) == (0, status.message)
    assert node.world.modes[GPUS[0]] is ComputeMode.DEFAULT, "nothing is begun"
    node.world.hangs.clear()
    node.settle()
    assert node.phase(share) is MpsPhase.READY


def test_what_fails_is_tried_after_a_pause_and_not_before(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.ask(0, "a")
    node.settle()
    assert node.supervisor.due_s == float("inf"), "what is settled is looked at by the clock alone"
    node.world.hangs.add(node.places.pipes)
    pauses = []
    for _ in range(2):
        node.clock.advance(30)
        node.supervisor.step()
        pauses.append(node.supervisor.due_s - node.clock.monotonic())
    assert pauses == [0.5, 1.0]


@BOTH
@pytest.mark.parametrize("silent", [False, True])
def test_a_daemon_that_answers_all_but_a_stop_is_ended_by_force(tmp_path: Path, protocol: int, silent: bool) -> None:
    node = MpsNode(tmp_path, protocol)
    share, other = node.ask(0, "a"), node.ask(1, "b")
    node.settle()
    server_pid = node.statuses()[other].server_pid
    run = node.world.run

    def stubborn(command: ControlCommand, pipes: str) -> str:
        if str(command).startswith(("quit", "-q", "server delete")):
            raise ControlSilentError("no answer") if silent else ControlError("device is busy")
        return run(command, pipes)

    node.world.run = stubborn  # type: ignore[method-assign]
    node.withdraw(share)
    node.settle()
    assert differences(node, {other: Asked(GPUS[1])}) == []
    assert node.statuses()[other].server_pid == server_pid, "only the one GPU's server is ended"
    node.withdraw(other)
    node.settle()
    assert node.left() == []


def test_daemons_that_hang_are_asked_once_and_then_with_pauses(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    shares = [node.ask(number, "a") for number in range(3)]
    node.settle()
    node.world.hangs |= {node.places.pipes_of(GPUS[number]) for number in range(3)}
    asked: list[str] = []
    run = node.world.run

    def counted(command: ControlCommand, pipes: str) -> str:
        asked.extend([pipes] if pipes in node.world.hangs else [])
        return run(command, pipes)

    node.world.run = counted  # type: ignore[method-assign]
    other = node.ask(3, "b")
    node.supervisor.step()
    assert node.phase(other) is MpsPhase.READY
    assert len(asked) == 3, "one try each in all looks of this step"
    assert {node.phase(share) for share in shares} == {MpsPhase.FAILED}
    node.supervisor.step()
    assert len(asked) == 3, "no try before the pause is over"
    assert {node.statuses()[share].message for share in shares} == {"no answer to `get_server_list`"}
    node.settle()
    assert {node.phase(share) for share in shares} == {MpsPhase.READY}


@pytest.mark.parametrize("replace", [False, True])
def test_sockets_that_somebody_removes_or_replaces_are_put_back_and_nobody_loses_work(
    tmp_path: Path, replace: bool
) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    assert join(node, share, 11) == OK
    before = node.world.find()
    node.world.spoil_sockets(replace=replace)
    late = node.ask(0, "b")
    node.settle()
    assert node.world.find() == before
    assert [node.phase(name) for name in (share, late)] == [MpsPhase.READY] * 2
    assert node.statuses()[share].fault is None
    assert differences(node, {share: Asked(GPUS[0]), late: Asked(GPUS[0])}) == []
    assert not node.world.misled, "an impostor may say anything"


@pytest.mark.parametrize("how", ["removed", "replaced", "replaced by one that answers"])
def test_sockets_that_change_while_a_daemon_is_asked_say_nothing_about_it(tmp_path: Path, how: str) -> None:
    """Between any two commands of a look: what was answered then is nobody's word, and the daemon is not dead."""
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    assert join(node, share, 11) == OK
    before = node.world.find()
    if how == "replaced by one that answers":
        node.world.impostor = MpsModel(2, present=set, spawn=lambda _uid: 0, reap=lambda _pid: None)
    commands = _commands_of_a_look(node)
    assert commands > 1
    for number in range(commands):
        left = number

        def spoil(_command: str) -> None:
            nonlocal left
            if left == 0:
                node.world.spoil_sockets(replace=how != "removed")
            left -= 1

        node.supervisor._observer.forget(GPUS[0])
        node.world.asking = spoil
        node.supervisor.step()
        assert left < 0, "it was not asked so often"
        node.world.asking = lambda _command: None
        node.settle()
        assert node.world.find() == before
        assert (node.phase(share), node.statuses()[share].fault) == (MpsPhase.READY, None)
        assert differences(node, {share: Asked(GPUS[0])}) == []


def _commands_of_a_look(node: MpsNode) -> int:
    node.supervisor._observer.forget(GPUS[0])
    before = len(node.world.commands)
    node.supervisor.step()
    return len(node.world.commands) - before


def test_sockets_are_put_back_by_the_next_supervisor_too(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    before = node.world.find()
    node.world.spoil_sockets(replace=True)
    node.start()
    node.settle()
    assert node.world.find() == before
    node.withdraw(share)
    node.settle()
    assert node.left() == []


def test_a_daemon_that_dies_with_changed_sockets_is_reported_and_replaced(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    node.world.spoil_sockets(replace=True)
    node.world.kill_daemons()
    node.settle()
    fault = node.statuses()[share].fault
    assert fault is not None
    assert fault.kind is MpsFaultKind.DAEMON_DIED
    assert differences(node, {share: Asked(GPUS[0])}) == []


def test_pauses_grow_to_half_a_minute_and_no_further(tmp_path: Path) -> None:
    """Somebody who mends what is broken does not wait longer."""
    node = MpsNode(tmp_path, 3)
    node.ask(0, "a")
    node.world.refuses = "server create"
    pauses = []
    for _ in range(12):
        node.supervisor.step()
        pauses.append(max(tries.not_before_s for tries in node.supervisor._tries.values()) - node.clock.monotonic())
        node.clock.advance(60)
    assert pauses[:2] == [0.5, 1.0]
    assert pauses[-3:] == [30.0] * 3


@BOTH
def test_looks_within_a_pause_do_not_bring_a_silent_daemon_nearer_to_its_end(tmp_path: Path, protocol: int) -> None:
    """Requests of other shares make the supervisor look as often as they come."""
    node = MpsNode(tmp_path, protocol)
    node.ask(0, "a")
    node.settle()
    before = node.world.find()
    node.world.hangs.add(node.places.pipes if protocol == 3 else node.places.pipes_of(GPUS[0]))
    node.clock.advance(5)
    for _ in range(10):
        node.supervisor.step()
        node.clock.advance(0.04)
    assert node.world.find() == before, "0.4 s are not three tries with pauses between them"


def test_a_daemon_that_is_not_asked_within_its_pause_is_not_counted_silent_when_the_look_takes_longer(
    tmp_path: Path,
) -> None:
    node = MpsNode(tmp_path, 2)
    node.ask(0, "a")
    node.settle()
    before = node.world.find()
    node.world.hangs.add(node.places.pipes_of(GPUS[0]))
    node.clock.advance(5)
    read = node.world.read

    def slow(gpus: Collection[str]) -> Mapping[str, ComputeMode | str]:
        node.clock.advance(node.supervisor._tries[GPUS[0]].not_before_s - node.clock.monotonic() + 0.01)
        return read(gpus)

    node.supervisor.step()
    tries = node.supervisor._tries[GPUS[0]]
    assert (tries.silent, tries.count) == (1, 1)
    node.world.read = slow  # type: ignore[method-assign]
    node.supervisor.step()
    assert (tries.silent, tries.count) == (1, 1), "nobody has asked it"
    assert node.world.find() == before


def test_a_fault_within_the_pause_after_a_failed_step_is_reported_at_once(tmp_path: Path) -> None:
    """Only a daemon that gave no answer is left alone for a while."""
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a", percentage=20)
    node.settle()
    assert join(node, share, 11) == OK
    node.world.refuses = "set_active_thread_percentage"
    node.ask(0, "b", percentage=60)
    node.supervisor.step()
    assert "cannot set the limits" in node.statuses()[share].message
    model_of(node).fault(11)
    node.clock.advance(0.1)
    node.supervisor.step()
    fault = node.statuses()[share].fault
    assert fault is not None
    assert fault.kind is MpsFaultKind.SERVER_FAULT


@BOTH
def test_a_daemon_has_three_tries_in_a_row(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    node.ask(0, "a")
    node.settle()
    before = node.world.find()
    pipes = node.places.pipes if protocol == 3 else node.places.pipes_of(GPUS[0])

    def look(*, hangs: bool) -> bool:
        """Whether the same processes run after a look when all pauses are over."""
        (node.world.hangs.add if hangs else node.world.hangs.discard)(pipes)
        node.clock.advance(31)
        node.supervisor.step()
        return node.world.find() == before

    assert [look(hangs=hangs) for hangs in (True, True, False, True, True)] == [True] * 5
    assert not look(hangs=True)


def test_a_stop_has_three_tries_before_force(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    node.world.refuses = "quit"
    node.withdraw(share)
    alive = []
    for _ in range(4):
        node.supervisor.step()
        alive.append(bool(node.world.find()))
        node.clock.advance(31)
    assert alive == [True, True, True, False]


def test_a_pending_share_is_looked_at_again_at_once_and_its_wait_is_measured(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    node.world.slow_start = True
    node.ask(0, "a")
    for _ in range(3):
        node.supervisor.step()
        assert node.supervisor.due_s <= node.clock.monotonic()
        node.clock.advance(2)
    model_of(node).finish_starting()
    node.supervisor.step()
    assert node.registry.get_sample_value("dracaena_mps_share_ready_seconds_sum") == 6.0


def test_what_has_to_be_waited_for_is_due_at_the_end_of_the_first_pause(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    for number in range(2):
        node.ask(number, "a")
    node.settle()
    pauses = []
    for number in range(2):
        node.world.hangs.add(node.places.pipes_of(GPUS[number]))
        node.clock.advance(5)
        node.supervisor.step()
        pauses.append(node.supervisor.due_s - node.clock.monotonic())
    assert pauses == [0.5, 0.5], "the one that fails for the first time, beside one that has a pause of a second"


def test_a_daemon_of_the_node_that_does_not_start_is_due_at_the_end_of_its_pause(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    node.world.dies_at_start = True
    node.ask(0, "a")
    _stepped(node)
    assert node.supervisor.due_s == pytest.approx(node.clock.monotonic() + 0.5)


def test_a_daemon_is_asked_again_exactly_when_its_pause_is_over(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    node.ask(0, "a")
    node.settle()
    node.world.hangs.add(node.places.pipes_of(GPUS[0]))
    node.clock.advance(5)
    asked = []
    for _ in range(2):
        before = len(node.world.commands)
        node.supervisor.step()
        asked.append(len(node.world.commands) - before)
        node.clock.advance(node.supervisor.due_s - node.clock.monotonic())
    assert asked == [1, 1]


def test_steps_that_are_left_after_a_long_pass_are_due_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    monkeypatch.setattr(module, "MOST_ROUNDS", 1)
    node.withdraw(share)
    node.supervisor.step()
    assert node.world.tmpfs, "it is not all taken back"
    assert node.supervisor.due_s == node.clock.monotonic()


@BOTH
def test_a_server_that_was_stopped_with_its_last_share_is_no_fault_of_the_next_one(
    tmp_path: Path, protocol: int
) -> None:
    node = MpsNode(tmp_path, protocol)
    first = node.ask(0, "a")
    node.settle()
    node.withdraw(first)
    node.settle()
    second = node.ask(0, "b")
    node.settle()
    assert (node.phase(second), node.statuses()[second].fault) == (MpsPhase.READY, None)


@BOTH
def test_a_daemon_that_does_not_answer_once_has_cost_nobody_anything(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    assert join(node, share, 11) == OK
    pipes = node.places.pipes if protocol == 3 else node.places.pipes_of(GPUS[0])
    node.world.hangs.add(pipes)
    node.clock.advance(5)
    node.supervisor.step()
    assert node.statuses()[share].fault is None
    node.world.hangs.discard(pipes)
    node.clock.advance(5)
    node.settle()
    assert (node.phase(share), node.statuses()[share].fault) == (MpsPhase.READY, None)


def test_a_fault_is_reported_at_once_by_a_daemon_that_answers_again_although_a_step_failed(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a", percentage=20)
    node.settle()
    assert join(node, share, 11) == OK
    node.world.hangs.add(node.places.pipes_of(GPUS[0]))
    node.clock.advance(5)
    node.supervisor.step()
    node.world.hangs.clear()
    node.clock.advance(31)
    node.world.refuses = "set_active_thread_percentage"
    node.ask(0, "b", percentage=60)
    node.supervisor.step()
    assert "cannot set the limits" in node.statuses()[share].message
    model_of(node).fault(11)
    node.clock.advance(0.1)
    node.supervisor.step()
    assert node.statuses()[share].fault is not None


def test_a_daemon_that_would_not_stop_is_not_ended_once_it_is_wanted_again(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a", percentage=20)
    node.settle()
    before = node.world.find()
    node.world.refuses = "quit"
    node.withdraw(share)
    for _ in range(3):
        node.supervisor.step()
        node.clock.advance(31)
    later = node.ask(0, "b", percentage=60)
    node.supervisor.step()
    assert node.world.find() == before
    assert node.phase(later) is MpsPhase.READY


@BOTH
def test_of_a_daemon_that_gives_no_answer_the_server_is_ended_first(tmp_path: Path, protocol: int) -> None:
    """Once its name is free, a server that is left would be nobody's."""
    node = MpsNode(tmp_path, protocol)
    node.ask(0, "a")
    node.settle()
    node.world.hangs.add(node.places.pipes if protocol == 3 else node.places.pipes_of(GPUS[0]))
    ended: list[str] = []
    node.world.effect = lambda what: ended.append(what) if what.startswith("kill") else None
    node.settle()
    assert ended[0] == "kill nvidia-cuda-mps-server"


@BOTH
@pytest.mark.parametrize("silent", [(), (0, 1, 3, 4)])
def test_a_daemon_that_refuses_to_be_asked_is_not_ended_and_is_asked_with_pauses_that_grow(
    tmp_path: Path, protocol: int, silent: Collection[int]
) -> None:
    """It answers now and then: only three silences in a row, or as often rubbish, say that a daemon is dead."""
    node = MpsNode(tmp_path, protocol)
    node.ask(0, "a")
    node.settle()
    before = node.world.find()
    pauses = []
    for number in range(6):
        error: type[ControlError] = ControlSilentError if number in silent else ControlError
        node.world.run = raising(error(f"error {number}"))  # type: ignore[method-assign]
        node.clock.advance(31)
        node.supervisor.step()
        pauses.append(node.supervisor.due_s - node.clock.monotonic())
    assert node.world.find() == before
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]


def test_an_answer_within_a_pause_ends_the_silences_in_a_row(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    node.ask(0, "a")
    node.settle()
    before = node.world.find()
    node.world.hangs.add(node.places.pipes)
    for _ in range(2):
        node.clock.advance(31)
        node.supervisor.step()
    node.world.hangs.clear()
    node.ask(0, "b")
    node.supervisor.step()
    node.world.hangs.add(node.places.pipes)
    node.clock.advance(31)
    node.supervisor.step()
    assert node.world.find() == before


@BOTH
def test_a_fault_names_the_pod_that_a_process_is_of_now(tmp_path: Path, protocol: int) -> None:
    """Process ids come again."""
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    for pod in ("pod-1", "pod-2"):
        node.world.pods = {11: pod}
        assert join(node, share, 11) == OK
        node.supervisor.step()
        if pod == "pod-1":
            model_of(node).disconnect(11)
            node.supervisor.step()
    model_of(node).fault(11)
    node.supervisor.step()
    fault = node.statuses()[share].fault
    assert fault is not None
    assert fault.clients == (MpsClient(pid=11, pod_uid="pod-2"),)


def test_a_supervisor_that_finds_no_status_of_the_node_forgets_no_fault(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    share = node.ask(0, "a")
    node.settle()
    node.world.kill_daemons()
    node.settle()
    fault = node.statuses()[share].fault
    assert fault is not None
    (tmp_path / NODE_STATUS).unlink()
    node.start()
    node.settle()
    assert node.statuses()[share].fault == fault


def test_a_server_that_a_dead_daemon_left_does_not_say_which_protocol_comes_next(tmp_path: Path) -> None:
    """Its environment may name the folder of its GPU, which does not tell that its daemon was one of protocol 2."""
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    pid = node.statuses()[share].server_pid
    node.world.processes[pid] = replace(node.world.processes[pid], folder=server_name(GPUS[0]))
    node.world.kill_daemons()
    node.settle()
    assert {process.folder for process in node.world.find()} == {""}
    assert differences(node, {share: Asked(GPUS[0])}) == []


def test_a_stop_that_cannot_be_forced_is_tried_with_pauses_that_grow(tmp_path: Path) -> None:
    """As where the supervisor cannot see the server's process."""
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    find = node.world.find
    node.world.find = lambda: tuple(one for one in find() if one.role is Role.CONTROL)  # type: ignore[method-assign]
    node.world.refuses = "server delete"
    node.withdraw(share)
    pauses = []
    for _ in range(6):
        node.supervisor.step()
        pauses.append(node.supervisor.due_s - node.clock.monotonic())
        node.clock.advance(31)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]


@BOTH
def test_what_is_left_of_a_share_is_taken_back_although_the_driver_has_gone(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    node.world.kill_all()
    node.world.has_mps = node.world.has_driver = False
    node.withdraw(share)
    node.settle()
    assert node.left() == []


def test_limits_of_which_a_part_was_set_are_read_again(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a", percentage=20, memory=1024)
    node.settle()
    node.world.refuses = "set_default_device_pinned_mem_limit"
    wider = node.ask(0, "b", percentage=60, memory=2048)
    node.supervisor.step()
    node.world.refuses = ""
    node.withdraw(wider)
    node.settle()
    assert differences(node, {share: Asked(GPUS[0], 20, 1024)}) == []


def test_a_share_whose_namespace_is_removed_is_gone_at_once_although_the_next_step_fails(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share, _ = node.ask(0, "a"), node.ask(0, "b")
    node.settle()
    node.withdraw(share)
    node.world.refuses = "namespace create"
    failing = node.ask(0, "c")
    node.supervisor.step()
    assert (node.phase(share), node.phase(failing)) == (None, MpsPhase.FAILED)


def test_only_stops_that_fail_bring_a_daemon_nearer_to_force(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    shares = [node.ask(0, "a", percentage=20)]
    node.settle()
    node.world.refuses = "set_active_thread_percentage"
    shares.append(node.ask(0, "b", percentage=60))
    for _ in range(3):
        node.supervisor.step()
        node.clock.advance(31)
    before = node.world.find()
    node.world.refuses = "quit"
    for share in shares:
        node.withdraw(share)
    node.supervisor.step()
    assert node.world.find() == before


@pytest.mark.parametrize("refused", [2, 3])
def test_a_stop_that_worked_or_was_forced_leaves_the_next_daemon_its_three_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    node.world.refuses = "quit"
    node.withdraw(share)
    for _ in range(refused):
        node.supervisor.step()
        node.clock.advance(31)
    node.world.refuses = "" if refused < 3 else "quit"
    with monkeypatch.context() as patch:
        patch.setattr(FakeShm, "unmount", raising(TemporaryError("busy")))
        node.supervisor.step()
    assert node.world.find() == ()
    node.clock.advance(31)
    node.world.refuses = "start_server"
    later = node.ask(0, "b")
    node.supervisor.step()
    node.withdraw(later)
    node.world.refuses = "quit"
    for _ in range(2):
        node.clock.advance(31)
        node.supervisor.step()
        assert node.world.find() != ()


def test_an_error_is_counted_each_time_and_logged_once_until_it_is_another(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.ask(0, "a")
    with structlog.testing.capture_logs() as lines:
        for words in ("server create", "server create", "server list", "server list"):
            node.world.refuses = words
            node.supervisor.step()
            node.clock.advance(31)
    warned = [line["why"] for line in lines if line["event"] == "failed, and is retried"]
    assert len(warned) == 2
    assert ["server create" in warned[0], "server list" in warned[1]] == [True, True]
    assert node.registry.get_sample_value("dracaena_mps_failed_steps_total") == 4


@BOTH
def test_a_share_whose_daemon_can_no_longer_be_asked_has_failed_and_is_not_refused(
    tmp_path: Path, protocol: int
) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    node.world.has_mps = False
    node.world.run = raising(ControlError("no nvidia-cuda-mps-control"))  # type: ignore[method-assign]
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.FAILED


def test_a_share_that_comes_again_has_neither_the_fault_nor_the_wait_of_the_one_before(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    share = node.ask(0, "a")
    node.settle()
    node.world.kill_daemons()
    node.settle()
    assert node.statuses()[share].fault is not None
    node.withdraw(share)
    node.settle()
    node.clock.advance(100)
    node.ask(0, "a")
    node.settle()
    assert (node.phase(share), node.statuses()[share].fault) == (MpsPhase.READY, None)
    assert node.registry.get_sample_value("dracaena_mps_share_ready_seconds_sum") == 0


def test_a_wrong_request_is_refused_although_the_driver_may_still_come(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.world.has_mps = node.world.has_driver = False
    node.write("s_0000000000000000", b"")
    node.supervisor.step()
    assert node.phase("s_0000000000000000") is MpsPhase.REFUSED


@BOTH
def test_a_share_is_not_gone_while_its_daemon_gives_no_answer(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share, _ = node.ask(0, "a"), node.ask(0, "b")
    node.settle()
    node.world.hangs.add(node.places.pipes if protocol == 3 else node.places.pipes_of(GPUS[0]))
    node.withdraw(share)
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.PENDING


def test_a_share_is_not_gone_while_its_namespace_is_there(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share, _ = node.ask(0, "a"), node.ask(0, "b")
    node.settle()
    node.world.refuses = "namespace delete"
    node.withdraw(share)
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.PENDING


def test_a_share_of_a_released_driver_is_not_gone_while_its_server_runs(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    node.world.released = "an update"
    node.world.refuses = "server delete"
    node.withdraw(share)
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.PENDING


def test_a_share_is_not_gone_before_the_compute_mode_is_restored(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    node.withdraw(share)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.world, "set", raising(TemporaryError("busy")))
        node.supervisor.step()
    assert node.phase(share) is MpsPhase.PENDING
    node.settle()
    assert node.left() == []


def fault_of(node: MpsNode, share: str) -> MpsFault:
    fault = node.statuses()[share].fault
    assert fault is not None
    return fault


def test_a_gpu_that_is_lost_is_one_fault_although_its_server_still_answers(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    node.clock.advance(7)
    node.world.read = lambda gpus: dict.fromkeys(gpus, "it has fallen off the bus")  # type: ignore[method-assign]
    since = rfc3339(node.clock.now())
    for _ in range(3):
        node.supervisor.step()
        node.clock.advance(5)
    fault = fault_of(node, share)
    assert (fault.sequence, fault.kind, fault.since) == (1, MpsFaultKind.GPU_LOST, since)


def test_a_server_that_dies_as_soon_as_it_was_seen_is_a_fault_of_its_own(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    for _ in range(2):
        node.world.end(node.statuses()[share].server_pid)
        node.supervisor.step()
    assert fault_of(node, share).sequence == 2


@BOTH
def test_a_server_that_dies_before_it_takes_clients_is_no_fault_of_theirs(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    node.world.slow_start = True
    share = node.ask(0, "a")
    node.supervisor.step()
    (server,) = (process for process in node.world.find() if process.role is Role.SERVER)
    node.world.end(server.pid)
    node.supervisor.step()
    assert node.statuses()[share].fault is None


@pytest.mark.parametrize("silent", [False, True])
def test_a_fault_names_the_pods_of_clients_whose_processes_have_ended(tmp_path: Path, silent: bool) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a")
    node.settle()
    assert join(node, share, 11) == OK
    node.world.pods = {11: "pod-1"}
    node.supervisor.step()
    node.world.pods = {}
    if silent:
        node.world.hangs.add(node.places.pipes_of(GPUS[0]))
    node.supervisor.step()
    node.world.kill_daemons()
    node.supervisor.step()
    assert fault_of(node, share).clients == (MpsClient(pid=11, pod_uid="pod-1"),)
