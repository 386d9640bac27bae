"""Which steps follow from what was seen: the order that keeps every crash harmless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.mps.planning.plan import obstacle, plan_gpu, plan_node
from dracaena.mps.planning.shm import ShmState
from dracaena.mps.planning.state import (
    NOTHING,
    V2,
    V3,
    ComputeMode,
    ModeJournal,
    MpsProcess,
    PipesState,
    Role,
    SeenGpu,
    StepKind,
    WantedGpu,
)
from dracaena.mps.protocol.seen import ServerSeen, ServerState, ShareLimits

GPU = "GPU-11111111-2222-3333-4444-555555555555"
LIMITS = ShareLimits(30, 1024)
WANTED = WantedGpu({"s_a": LIMITS})
JOURNAL = ModeJournal(GPU, "b", ComputeMode.DEFAULT)
SERVER = ServerSeen(7, ServerState.READY, "Ready", 0)
BARE = SeenGpu(ComputeMode.DEFAULT)
HELD = SeenGpu(
    ComputeMode.EXCLUSIVE_PROCESS, journal=JOURNAL, daemon=True, server=SERVER, folder=True, shm=ShmState.MOUNTED
)
MADE = {
    V2: replace(HELD, defaults=LIMITS, of_server=LIMITS, pipes=PipesState.KEPT),
    V3: replace(HELD, namespaces={"s_a": LIMITS}),
}
CONTROL = MpsProcess(5, 1, Role.CONTROL, 0, "")
ORPHAN = MpsProcess(7, 1, Role.SERVER, 0, "")


def kinds(wanted: WantedGpu, seen: SeenGpu, protocol: int) -> list[StepKind]:
    return [step.kind for step in plan_gpu(GPU, wanted, seen, protocol)]


@pytest.mark.parametrize("protocol", [V2, V3])
def test_nothing_is_done_where_all_is_as_wanted(protocol: int) -> None:
    assert kinds(WANTED, MADE[protocol], protocol) == []
    assert kinds(NOTHING, BARE, protocol) == []


@pytest.mark.parametrize("protocol", [V2, V3])
def test_a_mode_is_journalled_before_it_is_set_and_forgotten_after_it_was_put_back(protocol: int) -> None:
    steps = plan_gpu(GPU, WANTED, BARE, protocol)
    assert [step.kind for step in steps[:2]] == [StepKind.JOURNAL_MODE, StepKind.SET_MODE]
    assert (steps[0].mode, steps[1].mode) == (ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS)
    bare = replace(HELD, server=None, daemon=False, folder=False, shm=ShmState.NONE)
    assert kinds(NOTHING, bare, protocol) == [StepKind.RESTORE_MODE, StepKind.FORGET_MODE]


@pytest.mark.parametrize("protocol", [V2, V3])
def test_the_mode_is_put_back_only_when_no_process_is_left(protocol: int) -> None:
    for seen in (HELD, replace(HELD, daemon=False, server=None, processes=(ORPHAN,))):
        assert StepKind.RESTORE_MODE not in kinds(NOTHING, seen, protocol)


def test_a_mode_that_somebody_has_changed_since_is_theirs() -> None:
    seen = SeenGpu(ComputeMode.PROHIBITED, journal=JOURNAL)
    assert kinds(NOTHING, seen, V3) == [StepKind.FORGET_MODE]
    exclusive = SeenGpu(ComputeMode.EXCLUSIVE_PROCESS, journal=replace(JOURNAL, previous=ComputeMode.EXCLUSIVE_PROCESS))
    assert kinds(NOTHING, exclusive, V3) == [StepKind.FORGET_MODE]


def test_a_gpu_that_does_not_answer_keeps_its_journal_and_gets_nothing() -> None:
    lost = SeenGpu(None, "lost", journal=JOURNAL)
    assert kinds(NOTHING, lost, V3) == []
    assert kinds(WANTED, lost, V3) == []
    assert obstacle(WANTED, lost, 2) == "lost"


def test_limits_of_protocol_2_stand_before_its_server_starts() -> None:
    assert kinds(WANTED, BARE, V2)[2:] == [
        StepKind.MAKE_FOLDERS, StepKind.MOUNT_SHM, StepKind.START_DAEMON, StepKind.SET_DEFAULTS, StepKind.START_SERVER,
    ]  # fmt: skip


def test_servers_without_a_daemon_end_before_another_daemon_starts() -> None:
    seen = replace(HELD, daemon=False, server=None, processes=(MpsProcess(5, 1, Role.CONTROL, 0, "g"), ORPHAN))
    steps = plan_gpu(GPU, WANTED, seen, V2)
    assert [step.kind for step in steps[:3]] == [StepKind.KILL, StepKind.KILL, StepKind.START_DAEMON]
    assert [step.number for step in steps[:2]] == [7, 5]
    left = replace(HELD, server=None, processes=(ORPHAN,))
    assert kinds(WANTED, left, V3) == [StepKind.KILL, StepKind.START_SERVER]


def test_a_namespace_gets_its_limits_right_after_it_was_made() -> None:
    seen = replace(HELD, namespaces={"s_z": LIMITS})
    assert kinds(WANTED, seen, V3) == [StepKind.DELETE_NAMESPACE, StepKind.CREATE_NAMESPACE, StepKind.LIMIT_NAMESPACE]


def test_no_namespace_is_made_in_a_server_that_is_not_ready() -> None:
    starting = replace(HELD, server=ServerSeen(7, ServerState.STARTING, "Initializing", 0))
    assert kinds(WANTED, starting, V3) == []
    assert kinds(WANTED, replace(MADE[V2], server=starting.server, of_server=None), V2) == [], "nor are limits set"


def test_the_nodes_daemon_comes_with_the_first_prepared_gpu_and_goes_with_the_last_server() -> None:
    def node(wanted: WantedGpu, seen: SeenGpu, processes: tuple[MpsProcess, ...], *, answers: bool) -> list[StepKind]:
        return [step.kind for step in plan_node({GPU: wanted}, {GPU: seen}, processes, answers=answers)]

    prepared = replace(HELD, daemon=False, server=None)
    assert node(WANTED, BARE, (), answers=False) == []
    assert node(WANTED, prepared, (), answers=False) == [StepKind.START_DAEMON]
    assert node(WANTED, prepared, (ORPHAN,), answers=False) == [StepKind.KILL, StepKind.START_DAEMON]
    assert node(WANTED, replace(prepared, processes=(ORPHAN,)), (), answers=False)[0] is StepKind.KILL
    assert node(WANTED, HELD, (CONTROL,), answers=True) == []
    assert node(NOTHING, HELD, (CONTROL,), answers=True) == [], "its server goes first"
    assert node(NOTHING, BARE, (CONTROL,), answers=True) == [StepKind.STOP_DAEMON]
    assert node(NOTHING, BARE, (CONTROL,), answers=False) == [StepKind.KILL]


def test_a_daemon_whose_sockets_somebody_has_changed_is_not_ended() -> None:
    """Its clients are well, and so is it."""
    changed = replace(HELD, daemon=False, server=None, processes=(CONTROL, ORPHAN), pipes=PipesState.CHANGED)
    assert kinds(WANTED, changed, V2) == [StepKind.RESTORE_PIPES]
    assert kinds(NOTHING, changed, V2) == [StepKind.KILL, StepKind.KILL]


def test_new_containers_wait_where_somebody_has_unmounted_the_shared_memory_of_a_running_server() -> None:
    for state in (ShmState.NONE, ShmState.FOLDER):
        unmounted = replace(MADE[V2], shm=state)
        assert kinds(WANTED, unmounted, V2) == []
        assert "somebody has unmounted the shared memory" in str(obstacle(WANTED, unmounted, V2))
    assert obstacle(WANTED, replace(MADE[V3], shm=ShmState.NONE), V3) is None


def test_shared_memory_is_mounted_after_the_last_process_and_unmounted_then() -> None:
    orphans = replace(HELD, daemon=False, server=None, processes=(ORPHAN,), shm=ShmState.FOLDER)
    assert kinds(WANTED, orphans, V2)[:3] == [StepKind.KILL, StepKind.MOUNT_SHM, StepKind.START_DAEMON]
    assert kinds(NOTHING, orphans, V2) == [StepKind.KILL]
    for state in (ShmState.MOUNTED, ShmState.FOLDER):
        left = SeenGpu(ComputeMode.DEFAULT, shm=state)
        for protocol in (V2, V3):
            assert kinds(NOTHING, left, protocol) == [StepKind.UNMOUNT_SHM]
        assert left.holds_anything
