"""The supervisor on a node that keeps to NVIDIA's documentation: shares come, are ready, and leave nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dracaena.api import mps
from dracaena.api.mps import MpsFaultKind, MpsPhase
from dracaena.host.adapters.files import whole_files
from dracaena.mps.planning.state import ComputeMode, MpsProcess, Role
from dracaena.mps.protocol.v3 import create_server, server_name
from support.mps_model import CLIENTS_R590, MAX_CLIENTS_REACHED, NOT_PERMITTED, OK
from support.mps_node import BOTH, GPUS, MpsNode, join, model_of
from support.mps_oracle import Asked, differences


@BOTH
def test_a_share_is_ready_and_leaves_nothing(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    status = node.statuses()[share]
    assert (status.phase, status.message) == (MpsPhase.READY, "")
    assert status.server_pid in {process.pid for process in node.world.find() if process.role is Role.SERVER}
    assert node.world.modes[GPUS[0]] is ComputeMode.EXCLUSIVE_PROCESS
    assert differences(node, {share: Asked(GPUS[0])}) == []
    node.withdraw(share)
    node.settle()
    assert node.left() == []


def test_with_protocol_3_a_container_sees_its_namespace_alone(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    status = node.statuses()[share]
    assert status.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}
    assert [(mount.host_path, mount.container_path) for mount in status.mounts] == [
        (f"{tmp_path}/pipe/{server_name(GPUS[0])}/{share}", "/tmp/nvidia-mps")
    ]


def test_with_protocol_2_limits_are_in_the_environment_below_those_of_the_daemon(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    share = node.ask(0, "a", percentage=30, memory=2048)
    node.ask(0, "b", percentage=60, memory=1024)
    node.settle()
    status = node.statuses()[share]
    assert status.environment == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{GPUS[0]}=2048M",
    }
    assert [mount.container_path for mount in status.mounts] == ["/tmp/nvidia-mps", "/dev/shm"]
    (server,) = model_of(node).servers.values()
    assert (server.limits.percentage, server.limits.memory) == (60.0, {GPUS[0]: "2048M"})


@BOTH
def test_limits_follow_the_shares_as_they_come_and_go(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    asked = {node.ask(0, "a", percentage=20): Asked(GPUS[0], 20)}
    node.settle()
    wider = node.ask(0, "b", percentage=60)
    node.settle()
    assert differences(node, {**asked, wider: Asked(GPUS[0], 60)}) == []
    node.withdraw(wider)
    node.settle()
    assert differences(node, asked) == []


@BOTH
def test_a_namespace_or_environment_is_told_only_when_the_limits_hold(tmp_path: Path, protocol: int) -> None:
    """Whatever is said at whatever moment: a share that is said to be ready has its limits."""
    node = MpsNode(tmp_path, protocol)
    asked: dict[str, Asked] = {}

    def look(_what: str) -> None:
        ready = {name for name, status in node.statuses().items() if status.phase is MpsPhase.READY}
        for name in ready & asked.keys():
            model = model_of(node)
            if join(node, name, 77) == OK:
                limit = model.memory_mib(77, GPUS[0])
                assert limit is not None
                assert limit >= (asked[name].memory or 0)
                model.disconnect(77)

    node.world.effect = look
    for number, memory in enumerate((1024, 4096, 512)):
        asked[node.ask(0, f"s{number}", memory=memory)] = Asked(GPUS[0], 50, memory)
        node.settle()
    assert differences(node, asked) == []


@BOTH
def test_a_server_that_starts_slowly_is_waited_for(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    node.world.slow_start = True
    share = node.ask(0, "a")
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.PENDING
    status = node.statuses()[share]
    assert "being made ready" in status.message
    assert (status.environment, status.mounts) == ({}, ())
    model_of(node).finish_starting()
    node.settle()
    assert node.phase(share) is MpsPhase.READY


@BOTH
def test_a_share_is_ready_once_no_step_is_left_however_few_are_done_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    monkeypatch.setattr("dracaena.mps.supervisor.MOST_ROUNDS", 1)
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    while node.phase(share) is not MpsPhase.READY:
        node.supervisor.step()
        assert node.supervisor.due_s <= node.clock.monotonic() or node.phase(share) is MpsPhase.READY
    assert differences(node, {share: Asked(GPUS[0])}) == []


def test_a_driver_without_mps_is_said_and_nothing_is_done(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.world.has_mps = False
    share = node.ask(0, "a")
    node.settle()
    status = node.statuses()[share]
    assert status.phase is MpsPhase.REFUSED
    assert "no nvidia-cuda-mps-control" in status.message
    assert node.world.modes[GPUS[0]] is ComputeMode.DEFAULT
    said = node.files.read_node()
    assert said is not None
    assert (said.protocol, said.message) == (0, status.message)
    node.world.has_mps = True
    node.settle()
    assert node.phase(share) is MpsPhase.READY, "the driver came later"


def test_a_prohibited_gpu_is_left_so(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.world.modes[GPUS[0]] = ComputeMode.PROHIBITED
    share = node.ask(0, "a")
    node.settle(rounds=2)
    assert "PROHIBITED" in node.statuses()[share].message
    assert node.world.modes[GPUS[0]] is ComputeMode.PROHIBITED


@BOTH
@pytest.mark.parametrize("mode", [ComputeMode.DEFAULT, ComputeMode.PROHIBITED])
def test_a_mode_that_somebody_sets_beside_running_shares_is_set_back(
    tmp_path: Path, protocol: int, mode: ComputeMode
) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    node.world.modes[GPUS[0]] = mode
    node.settle()
    assert differences(node, {share: Asked(GPUS[0])}) == []


def test_a_mode_that_an_admin_had_set_is_kept(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.world.modes[GPUS[0]] = ComputeMode.EXCLUSIVE_PROCESS
    share = node.ask(0, "a")
    node.settle()
    node.withdraw(share)
    node.settle()
    assert node.left() == [f"{GPUS[0]} EXCLUSIVE_PROCESS"]


@BOTH
def test_a_driver_that_is_not_there_yet_fails_shares_and_is_waited_for(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    node.world.has_mps = node.world.has_driver = False
    share = node.ask(0, "a")
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.FAILED
    node.world.has_mps = node.world.has_driver = True
    node.settle()
    assert node.phase(share) is MpsPhase.READY


@BOTH
@pytest.mark.parametrize("has_mps", [False, True])
def test_a_node_without_shares_says_what_its_driver_can(tmp_path: Path, protocol: int, has_mps: bool) -> None:
    node = MpsNode(tmp_path, protocol)
    node.world.has_mps = has_mps
    for _ in range(2):
        node.supervisor.step()
        said = node.files.read_node()
        assert said is not None
        assert (said.protocol, bool(said.message)) == ((protocol, False) if has_mps else (0, True))
    assert len(node.world.commands) <= 1, "the driver is asked once"
    node.world.has_mps = False
    node.supervisor.step()
    assert node.files.read_node().protocol == 0, "the driver was removed"  # type: ignore[union-attr]


def test_the_first_share_finds_out_that_the_driver_was_updated(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    node.supervisor.step()
    node.world.protocol = 3
    node.ask(0, "a")
    node.settle()
    assert node.files.read_node().protocol == 3  # type: ignore[union-attr]


@BOTH
def test_ready_is_said_only_by_a_supervisor_that_has_looked(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    ready = node.statuses()[share]
    node.start()
    held = node.statuses()[share]
    assert (held.phase, held.environment, held.mounts) == (MpsPhase.PENDING, {}, ())
    node.start()
    node.settle()
    assert node.statuses()[share] == ready
    assert node.registry.get_sample_value("dracaena_mps_share_ready_seconds_count") == 0, "it was not made"
    node.world.kill_all()
    node.start()
    node.start()
    phases = set()

    def effect(what: str) -> None:
        if not what.startswith("write"):
            phases.add(node.phase(share))

    node.world.effect = effect
    node.settle()
    assert phases == {MpsPhase.PENDING}
    fault = node.statuses()[share].fault
    assert fault is not None, "two restarts in a row forget no server"
    assert fault.kind is MpsFaultKind.DAEMON_DIED


@BOTH
def test_a_share_that_is_taken_back_is_not_ready_meanwhile(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    seen = []
    node.withdraw(share)

    def effect(what: str) -> None:
        if not what.startswith("write") and "status" not in what:
            seen.append(node.statuses()[share])

    node.world.effect = effect
    node.settle()
    assert {(status.phase, status.message) for status in seen} == {(MpsPhase.PENDING, "it is being taken back")}
    assert node.left() == []


@BOTH
@pytest.mark.parametrize("restarted", [False, True])
def test_a_refused_share_of_another_user_never_ends_one_that_runs(
    tmp_path: Path, protocol: int, restarted: bool
) -> None:
    node = MpsNode(tmp_path, protocol, multi_user=False)
    lowest, *_, highest = sorted("abcdefgh", key=lambda each: mps.share_name(GPUS[0], f"claim-{each}", each))
    served = node.ask(0, highest, uid=2000)
    node.settle()
    server_pid = node.statuses()[served].server_pid
    refused = node.ask(0, lowest, uid=1000)
    for _ in range(3):
        node.supervisor.step()
        assert (node.phase(served), node.phase(refused)) == (MpsPhase.READY, MpsPhase.REFUSED)
        if restarted:
            node.start()
    node.supervisor.step()
    assert node.statuses()[served].server_pid == server_pid


@BOTH
def test_a_share_is_not_gone_because_another_of_its_gpu_is_refused(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    node.boot = "boot-0"
    refused = node.ask(0, "b")
    node.boot = "boot-1"
    node.withdraw(share)

    def effect(_what: str) -> None:
        if any(process.role is Role.SERVER for process in node.world.find()):
            assert node.phase(share) is not None, "its server runs"

    node.world.effect = effect
    node.world.refuses = "quit" if protocol == 2 else "server delete"
    node.supervisor.step()
    assert node.phase(share) is not None
    node.world.refuses = ""
    node.settle(rounds=5)
    assert node.statuses().keys() == {refused}
    node.withdraw(refused)
    node.settle()
    assert node.left() == []


def test_after_a_reboot_the_journal_says_nothing(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    share = node.ask(0, "a")
    node.settle()
    node.world.reload_driver()
    node.world.modes[GPUS[0]] = ComputeMode.EXCLUSIVE_PROCESS  # somebody has set it in the new boot
    node.boot = "boot-2"
    node.start()
    assert node.statuses() == {}, "what was said of another boot holds for none"
    node.settle()
    status = node.statuses()[share]
    assert (status.phase, status.fault) == (MpsPhase.REFUSED, None)
    assert "earlier boot" in status.message
    node.withdraw(share)
    node.settle()
    assert node.left() == [f"{GPUS[0]} EXCLUSIVE_PROCESS"]


@BOTH
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not decode"),
        (b"\xff\xfe", "does not decode"),
        (b"[" * 100_000, "does not decode"),
        (b'{"boot_id":"boot-1","gpu":"0","claim_uid":"c"}', "expected a GPU's UUID"),
        (f'{{"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":""}}'.encode(), "claim_uid is empty"),
        (f'{{"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":"c","thread_percentage":0}}'.encode(), "1 to 100"),
        (f'{{"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":"c","thread_percentage":101}}'.encode(), "1 to 100"),
        (f'{{"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":"c","pinned_memory_mib":0}}'.encode(), "at least 1"),
        (f'{{"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":"c","pinned_memory_mib":1.5}}'.encode(), "got `float`"),
        (f'{{"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":"c","client_uid":-1}}'.encode(), "expected a user id"),
        (f'{{"format":2,"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":"c"}}'.encode(), "newer than this one"),
        (f'{{"boot_id":"boot-1","gpu":"{GPUS[0]}","claim_uid":"c"}}'.encode(), "in the file of another share"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_words_and_hurts_no_other(
    tmp_path: Path, protocol: int, content: bytes, words: str
) -> None:
    node = MpsNode(tmp_path, protocol)
    good, bad = node.ask(0, "a"), "s_0000000000000000"
    node.write(bad, content)
    node.settle()
    assert node.phase(good) is MpsPhase.READY
    status = node.statuses()[bad]
    assert status.phase is MpsPhase.REFUSED
    assert words in status.message
    assert status.request == mps.digest(content)
    node.withdraw(bad)
    node.settle()
    assert differences(node, {good: Asked(GPUS[0])}) == []


def test_files_of_other_names_are_nobodys_share(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    for name in ("notes", "s_0", "..s_0000000000000000"):
        node.write(name, b"x")
    node.settle()
    assert node.statuses() == {}


@BOTH
def test_the_server_of_another_user_makes_room_for_the_one_of_the_next(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol, multi_user=False)
    first = node.ask(0, "a", uid=1000)
    node.settle()
    node.withdraw(first)
    second = node.ask(0, "b", uid=2000)
    node.settle()
    assert [process.uid for process in node.world.find() if process.role is Role.SERVER] == [2000]
    assert node.phase(second) is MpsPhase.READY


@BOTH
def test_without_multi_user_mode_one_user_has_a_gpu(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol, multi_user=False)
    first = node.ask(0, "a", uid=1000)
    node.settle()
    assert join(node, first, 11, uid=1000) == OK
    if protocol == 3:
        assert join(node, first, 12, uid=0) == NOT_PERMITTED
    second, unknown = node.ask(0, "b", uid=2000), node.ask(0, "c")
    node.settle()
    assert node.phase(first) is MpsPhase.READY
    assert "this GPU serves the clients of user 1000" in node.statuses()[second].message
    assert "not known which user" in node.statuses()[unknown].message
    model_of(node).disconnect(11)
    node.withdraw(first)
    node.settle()
    assert node.phase(second) is MpsPhase.READY
    assert join(node, second, 13, uid=2000) == OK


@BOTH
def test_in_multi_user_mode_clients_of_all_users_share(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    assert [join(node, share, pid, uid=pid) for pid in (11, 12)] == [OK, OK]


@BOTH
def test_more_clients_than_the_driver_serves_get_its_own_error(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    codes = [join(node, share, 100 + number) for number in range(CLIENTS_R590 + 1)]
    assert codes == [OK] * CLIENTS_R590 + [MAX_CLIENTS_REACHED]
    node.supervisor.step()
    assert node.phase(share) is MpsPhase.READY


def test_protocol_2_cannot_take_a_memory_limit_off_and_says_so(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    limited = node.ask(0, "a", memory=1024)
    node.settle()
    free = node.ask(0, "b", memory=None)
    node.settle()
    assert node.phase(limited) is MpsPhase.READY
    assert node.phase(free) is MpsPhase.REFUSED
    node.withdraw(limited)
    node.settle()
    assert differences(node, {free: Asked(GPUS[0], 50, None)}) == []


def test_a_change_of_limits_reaches_the_namespace_before_it_is_said(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a", memory=1024)
    node.settle()
    before = node.statuses()[share].request
    node.ask(0, "a", memory=None, percentage=None)
    node.settle()
    assert node.statuses()[share].request != before
    assert differences(node, {share: Asked(GPUS[0], None, None)}) == []


def test_a_request_that_comes_changes_or_goes_is_noticed_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_files, "TICK_NS", -(10**15))  # nothing counts as written just now
    node = MpsNode(tmp_path)
    asked: list[str] = []
    changes: list[Callable[[], None]] = [
        lambda: asked.append(node.ask(0, "a")),
        lambda: asked.append(node.ask(0, "a", percentage=20)),
        lambda: node.withdraw(asked[0]),
    ]
    for change in changes:
        node.settle()
        assert not node.supervisor.changed()
        change()
        assert node.supervisor.changed()
    node.ask(0, "a")
    node.settle()
    node.world.kill_daemons()
    assert node.supervisor.changed(), "so is the end of a process"


def test_what_is_settled_costs_no_call_of_the_control_program(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    node.ask(0, "a")
    node.settle()
    calls = len(node.world.commands)
    assert not any(node.supervisor.changed() for _ in range(5)) or len(node.world.commands) == calls
    assert len(node.world.commands) == calls


def test_limits_that_only_we_change_are_read_once(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 2)
    node.ask(0, "a")
    node.settle()
    node.world.commands.clear()
    node.supervisor.step()
    assert node.world.commands
    assert [command for command in node.world.commands if "percentage" in command or "limit" in command] == []


def test_metrics_count_shares_and_faults(tmp_path: Path) -> None:
    node = MpsNode(tmp_path)
    value = node.registry.get_sample_value
    assert [value("dracaena_mps_faults_total", {"kind": kind.value}) for kind in MpsFaultKind] == [0] * 4
    share = node.ask(0, "a")
    node.settle()
    node.world.end(node.statuses()[share].server_pid)
    node.settle()
    assert value("dracaena_mps_shares", {"phase": "Ready"}) == 1
    assert value("dracaena_mps_faults_total", {"kind": "ServerDied"}) == 1
    assert value("dracaena_mps_gpus_held") == 1
    assert value("dracaena_mps_protocol") == 3
    assert value("dracaena_mps_daemon_starts_total") == 1


@BOTH
def test_without_shares_the_driver_is_not_asked_for_compute_modes(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    for _ in range(3):
        node.supervisor.step()
        node.clock.advance(5.0)
    share = node.ask(0, "a")
    node.settle()
    assert node.world.asked == {GPUS[0]}
    node.withdraw(share)
    node.settle()
    node.world.asked.clear()
    node.settle()
    assert node.world.asked == set()


@pytest.mark.parametrize("left", ["folder", "tmpfs", "process"])
def test_whatever_is_left_on_a_gpu_is_removed_without_a_question_to_the_driver(tmp_path: Path, left: str) -> None:
    node = MpsNode(tmp_path, 2)
    pipes = node.places.pipes_of(GPUS[1])
    if left == "folder":
        Path(pipes).mkdir()
    elif left == "tmpfs":
        node.world.tmpfs[pipes] = 1
    else:
        node.world.processes[99] = MpsProcess(99, 1, Role.SERVER, 0, server_name(GPUS[1]))
    assert node.left() != []
    node.supervisor.step()
    assert (node.left(), node.world.asked) == ([], set())


def test_a_server_of_ours_that_nobody_asked_for_is_stopped(tmp_path: Path) -> None:
    node = MpsNode(tmp_path, 3)
    share = node.ask(0, "a")
    node.settle()
    assert model_of(node).command(list(create_server(GPUS[1], 0).arguments), "")[0] == 0
    node.settle()
    assert differences(node, {share: Asked(GPUS[0])}) == []


RELEASED = "the NVIDIA driver is released, as requested on this node: update"


@BOTH
def test_while_the_driver_is_released_nothing_is_started_and_shares_say_who_asked(
    tmp_path: Path, protocol: int
) -> None:
    node = MpsNode(tmp_path, protocol)
    node.world.released = RELEASED
    share = node.ask(0, "a")
    node.settle(rounds=3)
    assert (node.phase(share), node.statuses()[share].message) == (MpsPhase.FAILED, RELEASED)
    assert (node.world.commands, node.world.find()) == ([], ())
    node.world.released = None
    node.settle()
    assert differences(node, {share: Asked(GPUS[0])}) == []


@BOTH
def test_a_release_leaves_running_shares_alone_and_is_no_lost_gpu(tmp_path: Path, protocol: int) -> None:
    node = MpsNode(tmp_path, protocol)
    share = node.ask(0, "a")
    node.settle()
    before = node.world.find()
    node.world.released = RELEASED
    late = node.ask(1, "b")
    node.settle(rounds=3)
    assert node.world.find() == before
    assert node.statuses()[share].fault is None
    assert node.phase(late) is MpsPhase.FAILED
    node.withdraw(share)
    node.withdraw(late)
    node.settle()
    assert node.world.find() == (), "a server would hold the driver"
    assert node.statuses() == {}
    assert node.world.modes[GPUS[0]] is ComputeMode.EXCLUSIVE_PROCESS, "it cannot be restored yet"
    node.world.released = None
    node.settle()
    assert node.left() == []
