"""The steps from the observed to the wanted state.

They are recomputed from each look at the node, so it does not matter which process died after which step. If a step
must be seen to have worked before the next, the plan ends with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dracaena.mps.planning.shm import ShmState
from dracaena.mps.planning.state import (
    NOTHING,
    V2,
    V3,
    ComputeMode,
    MpsProcess,
    MpsStep,
    PipesState,
    Role,
    SeenGpu,
    StepKind,
    WantedGpu,
    effective,
    serves,
    v2_admitted,
    v2_ceiling,
)
from dracaena.mps.protocol.seen import ShareLimits

EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


def obstacle(wanted: WantedGpu, seen: SeenGpu, protocol: int) -> str | None:
    """Return why nothing can be started on a GPU, None if it can."""
    if not wanted.shares:
        return None
    if seen.mode is None:
        return seen.trouble
    if seen.mode is ComputeMode.PROHIBITED and seen.journal is None:
        return (
            "its compute mode is PROHIBITED, which somebody has set: `nvidia-smi -i <GPU> -c DEFAULT` allows work again"
        )
    if protocol == V2 and seen.daemon and seen.shm is not ShmState.MOUNTED:
        return (
            "somebody has unmounted the shared memory of its server, which new containers would need: running "
            "containers go on, and new ones can start once all shares of this GPU have ended"
        )
    return None


def plan_gpu(gpu: str, wanted: WantedGpu, seen: SeenGpu, protocol: int) -> tuple[MpsStep, ...]:
    """Return the next steps of one GPU, in order; none if all is as wanted, or must be waited for."""
    if not wanted.shares:
        return tuple(_taken_back(gpu, seen, protocol))
    if obstacle(wanted, seen, protocol) is not None:
        return ()
    return tuple(_made(gpu, wanted, seen, protocol))


def plan_node(wanted: Mapping[str, WantedGpu], seen: Mapping[str, SeenGpu], daemons: tuple[MpsProcess, ...],
              *, answers: bool) -> tuple[MpsStep, ...]:  # fmt: skip
    """Return the next steps of the node's one daemon of protocol 3. `daemons` are its processes.

    It is started once the first GPU is prepared for its server, and stopped once no wanted server is left.
    """
    any_wanted = any(each.shares for each in wanted.values())
    if any_wanted and not answers:
        orphans = [process for gpu in sorted(seen) for process in seen[gpu].processes]
        ready = any(_prepared(wanted.get(gpu, NOTHING), each) for gpu, each in seen.items())
        kills = tuple(MpsStep(StepKind.KILL, "", process=each, number=each.pid) for each in (*orphans, *daemons))
        return (*kills, MpsStep(StepKind.START_DAEMON, "")) if ready else ()
    if not any_wanted and not any(each.server for each in seen.values()):
        if answers:
            return (MpsStep(StepKind.STOP_DAEMON, ""),)
        return tuple(MpsStep(StepKind.KILL, "", process=each, number=each.pid) for each in daemons)
    return ()


def _prepared(wanted: WantedGpu, seen: SeenGpu) -> bool:
    return bool(wanted.shares) and seen.mode is EXCLUSIVE


def _made(gpu: str, wanted: WantedGpu, seen: SeenGpu, protocol: int) -> Iterator[MpsStep]:
    if seen.journal is None:
        assert seen.mode is not None
        yield MpsStep(StepKind.JOURNAL_MODE, gpu, mode=seen.mode)
    if seen.mode is not EXCLUSIVE:
        yield MpsStep(StepKind.SET_MODE, gpu, mode=EXCLUSIVE)
    if protocol == V2 and not seen.folder:  # with protocol 3 the daemon makes them
        yield MpsStep(StepKind.MAKE_FOLDERS, gpu)
    yield from _v3_made(gpu, wanted, seen) if protocol == V3 else _v2_made(gpu, wanted, seen)


def _v2_made(gpu: str, wanted: WantedGpu, seen: SeenGpu) -> Iterator[MpsStep]:
    ceiling = v2_ceiling(v2_admitted(wanted.shares, seen))
    if seen.pipes is PipesState.CHANGED:  # the daemon, its server and their clients are well
        yield MpsStep(StepKind.RESTORE_PIPES, gpu)
        return
    if not seen.daemon:
        yield from _kills(gpu, seen)
        if seen.shm is not ShmState.MOUNTED:
            yield MpsStep(StepKind.MOUNT_SHM, gpu)
        yield MpsStep(StepKind.START_DAEMON, gpu)
        yield MpsStep(StepKind.SET_DEFAULTS, gpu, limits=ceiling)
        yield MpsStep(StepKind.START_SERVER, gpu, number=wanted.uid)
        return
    if _stale(ceiling, seen) or _of_another(wanted, seen):
        yield MpsStep(StepKind.STOP_DAEMON, gpu)
        return
    if seen.pipes is PipesState.UNKEPT:
        yield MpsStep(StepKind.KEEP_PIPES, gpu)
    if seen.defaults is None or effective(seen.defaults) != effective(ceiling):
        yield MpsStep(StepKind.SET_DEFAULTS, gpu, limits=ceiling)
    if seen.server is None:
        yield MpsStep(StepKind.START_SERVER, gpu, number=wanted.uid)
    elif serves(seen.server) and (seen.of_server is None or effective(seen.of_server) != effective(ceiling)):
        yield MpsStep(StepKind.SET_OF_SERVER, gpu, limits=ceiling, number=seen.server.pid)


def _stale(ceiling: ShareLimits, seen: SeenGpu) -> bool:
    """Whether the daemon has a memory limit that no share wants any more. No command removes it."""
    return ceiling.pinned_memory_mib is None and seen.defaults is not None and bool(seen.defaults.pinned_memory_mib)


def _of_another(wanted: WantedGpu, seen: SeenGpu) -> bool:
    """Whether the server's user differs from the one whose clients are expected: no share of the former is left."""
    return seen.server is not None and seen.server.uid is not None and seen.server.uid != wanted.uid


def _v3_made(gpu: str, wanted: WantedGpu, seen: SeenGpu) -> Iterator[MpsStep]:
    if not seen.daemon:
        return  # plan_node() starts it
    if seen.server is None:
        yield from _kills(gpu, seen)
        yield MpsStep(StepKind.START_SERVER, gpu, number=wanted.uid)
        return
    if _of_another(wanted, seen):
        yield MpsStep(StepKind.STOP_SERVER, gpu)
        return
    for share in sorted(seen.namespaces.keys() - wanted.shares.keys()):
        yield MpsStep(StepKind.DELETE_NAMESPACE, gpu, share)
    if not serves(seen.server):
        return
    for share, limits in wanted.shares.items():
        there = seen.namespaces.get(share)
        if there is not None and there.pinned_memory_mib is not None and limits.pinned_memory_mib is None:
            yield MpsStep(StepKind.DELETE_NAMESPACE, gpu, share)  # no command removes a memory limit
            there = None
        if there is None:
            yield MpsStep(StepKind.CREATE_NAMESPACE, gpu, share)
        if there is None or effective(there) != effective(limits):
            yield MpsStep(StepKind.LIMIT_NAMESPACE, gpu, share, limits)


def _taken_back(gpu: str, seen: SeenGpu, protocol: int) -> Iterator[MpsStep]:
    if protocol == V2 and seen.daemon:
        yield MpsStep(StepKind.STOP_DAEMON, gpu)
        return
    if protocol == V3 and seen.server is not None and seen.daemon:
        yield MpsStep(StepKind.STOP_SERVER, gpu)
        return
    if seen.processes:
        yield from _kills(gpu, seen)
        return
    if seen.shm is not ShmState.NONE:
        yield MpsStep(StepKind.UNMOUNT_SHM, gpu)
    if seen.folder:
        yield MpsStep(StepKind.REMOVE_FOLDERS, gpu)
    yield from _mode_put_back(gpu, seen)


def _mode_put_back(gpu: str, seen: SeenGpu) -> Iterator[MpsStep]:
    """Restore a mode that is still as we set it; keep one that somebody has changed since. A GPU that does not answer
    keeps its journal until it does, or until the next boot.
    """
    journal = seen.journal
    if journal is None or seen.mode is None:
        return
    if seen.mode is EXCLUSIVE and journal.previous is not EXCLUSIVE:
        yield MpsStep(StepKind.RESTORE_MODE, gpu, mode=journal.previous)
    yield MpsStep(StepKind.FORGET_MODE, gpu)


def _kills(gpu: str, seen: SeenGpu) -> Iterator[MpsStep]:
    """End processes without an answering daemon: servers first, so that none is left when a daemon's name is free."""
    for process in sorted(seen.processes, key=lambda each: (each.role is Role.CONTROL, each.pid)):
        yield MpsStep(StepKind.KILL, gpu, process=process, number=process.pid)
