"""No faster ring of the same bandwidth is missed: a seeded sample of states. All of them are in `make test-long`."""

from __future__ import annotations

import random

import pytest

from bench import ours
from bench.baselines.answer import Answer, Fault, Links, granted
from bench.dominance import all_states
from bench.machines import BenchMachine, all_machines, recorded
from bench.quality import LARGEST_WHOLE
from bench.rings import FEWEST, OURS, compare, is_mesh
from bench.worth import GpuSet, ring_gb_s
from support.seeds import in_tiers

MACHINES = [machine for machine in all_machines() if FEWEST <= machine.gpu_count <= LARGEST_WHOLE]
DGX_1V = recorded("dgx-1v")


@pytest.mark.parametrize("size", in_tiers(12, 120))
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_ours_misses_no_faster_ring_in_a_sample_of_states(machine: BenchMachine, size: int) -> None:
    states = [state for state in all_states(machine.gpu_count) if state[1] >= FEWEST]
    sample = random.Random(machine.name).sample(states, min(size, len(states)))
    assert compare(machine, {}, sample)[OURS].missed == []


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_ours_misses_no_faster_ring_in_any_state(machine: BenchMachine) -> None:
    assert compare(machine, {}, list(all_states(machine.gpu_count)))[OURS].missed == []


@pytest.mark.parametrize(
    ("gpus", "gb_s"),
    [((0,), 0), ((0, 3), 50), ((0, 3, 4), 9), ((0, 1, 3), 25), ((0, 2, 4, 6), 25), (tuple(range(8)), 50)],
)
def test_the_judge_knows_the_rings_of_a_dgx_1v(gpus: GpuSet, gb_s: int) -> None:
    assert ring_gb_s(DGX_1V, gpus) == gb_s


def test_meshes_are_machines_whose_nvlinks_join_a_gpu_with_several_without_switches() -> None:
    assert [is_mesh(recorded(name)) for name in ("dgx-1v", "hgx-h100", "h100-pcie-bridged-numa-3-5", "l40s-x4")] == [
        True, False, False, False
    ]  # fmt: skip


def test_a_chain_is_told_when_a_ring_of_the_same_bandwidth_was_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def chain(machine: BenchMachine, free: GpuSet, count: int) -> ours.OurChoice:
        return ours.OurChoice((0, 3, 4), ours.ENGINE.score(machine.box, 0b11011, 0b11001))

    def ring(links: Links, free: GpuSet, count: int) -> Answer:
        return granted((0, 1, 3))

    def refused(links: Links, free: GpuSet, count: int) -> Answer:
        return Answer(fault=Fault.REFUSED)

    monkeypatch.setattr(ours, "choose", chain)
    found = compare(DGX_1V, {"ring": ring, "refused": refused}, [((0, 1, 3, 4), 3), ((0, 3), 2)])
    assert found[OURS].missed == ["dgx-1v: free (0, 1, 3, 4), (0, 3, 4) taken: 9 GB/s around, not 25"]
    assert (found["ring"].states, found["ring"].missed, found["ring"].ratio_sum) == (1, [], 1.0)
    assert found["refused"].states == 0
    assert len(found["ring"].verdict.beaten) == 1
    assert "ring takes (0, 1, 3) with 25 GB/s around, ours (0, 3, 4) with 9" in found["ring"].verdict.beaten[0]
