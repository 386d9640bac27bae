from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.mps.planning.shm import ShmState
from dracaena.mps.planning.state import ComputeMode, ModeJournal, MpsProcess, Role, SeenGpu
from dracaena.mps.protocol.seen import ServerSeen, ServerState, ShareLimits

GPU = "GPU-11111111-2222-3333-4444-555555555500"
NOTHING_LEFT = SeenGpu(ComputeMode.DEFAULT)


@pytest.mark.parametrize(
    "left",
    [
        {"journal": ModeJournal(GPU, "boot-1", ComputeMode.DEFAULT)},
        {"server": ServerSeen(7, ServerState.READY, "Ready")},
        {"namespaces": {"s": ShareLimits()}},
        {"processes": (MpsProcess(7, 1, Role.SERVER, 0, ""),)},
        {"folder": True},
        {"shm": ShmState.FOLDER},
        {"shm": ShmState.MOUNTED},
    ],
    ids=lambda left: next(iter(left)),
)
def test_whatever_is_left_of_ours_holds_a_gpu(left: dict[str, object]) -> None:
    assert replace(NOTHING_LEFT, **left).holds_anything  # type: ignore[arg-type]


def test_what_is_not_ours_does_not() -> None:
    assert not NOTHING_LEFT.holds_anything
    assert not replace(NOTHING_LEFT, mode=ComputeMode.EXCLUSIVE_PROCESS, daemon=True).holds_anything
