"""No baseline beats our engine: a seeded sample of states. All of them: test_dominance_whole.py."""

from __future__ import annotations

import pytest

from bench import ours
from bench.baselines import BASELINES
from bench.baselines.answer import Answer, Fault, Links, granted
from bench.dominance import Verdict, all_states, compare, random_states
from bench.machines import BenchMachine, all_machines, recorded
from bench.worth import GpuSet
from support.seeds import in_tiers


@pytest.mark.parametrize("size", in_tiers(12, 120))
@pytest.mark.parametrize("machine", all_machines(), ids=lambda machine: machine.name)
def test_no_baseline_beats_ours_in_a_sample_of_states(machine: BenchMachine, size: int) -> None:
    states = random_states(machine.gpu_count, size, seed=20_260_101)
    verdicts = compare(machine, BASELINES, states)
    assert [text for verdict in verdicts.values() for text in verdict.beaten] == []


def test_all_states_are_every_free_set_with_every_count() -> None:
    states = list(all_states(8))
    assert len(states) == len(set(states)) == 1024
    assert sum(count > 1 for _, count in states) == 769


def judged(
    monkeypatch: pytest.MonkeyPatch, mine: GpuSet, theirs: Answer, free: GpuSet, name: str = "dgx-1v"
) -> Verdict:
    """The verdict on one state in which ours takes what the test says."""
    machine = recorded(name)

    def choose(machine: BenchMachine, free: GpuSet, count: int) -> ours.OurChoice:
        mask, of = sum(1 << gpu for gpu in mine), sum(1 << gpu for gpu in free)
        return ours.OurChoice(mine, ours.ENGINE.score(machine.box, of, mask))

    def baseline(links: Links, free: GpuSet, count: int) -> Answer:
        return theirs

    monkeypatch.setattr(ours, "choose", choose)
    return compare(machine, {"theirs": baseline}, [(free, len(mine))])["theirs"]


def test_a_set_with_more_bandwidth_than_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = judged(monkeypatch, mine=(0, 1), theirs=granted((0, 3)), free=(0, 1, 3))
    assert len(verdict.beaten) == 1
    assert "theirs takes (0, 3) with 50 GB/s, ours (0, 1) with 25" in verdict.beaten[0]


def test_a_set_with_less_damage_than_ours_at_equal_bandwidth_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = judged(monkeypatch, mine=(2, 3), theirs=granted((0, 3)), free=(0, 1, 2, 3))
    assert len(verdict.beaten) == 1
    assert "damage (0, 100, 50, 25) GB/s, ours (2, 3) with (0, 100, 75, 25)" in verdict.beaten[0]


def test_less_bandwidth_more_damage_and_faults_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    worse = judged(monkeypatch, mine=(0, 3), theirs=granted((0, 1)), free=(0, 1, 3))
    assert (worse.lower_bandwidth, worse.mean_ratio, worse.lower_share) == (1, 0.5, 1.0)
    damaging = judged(monkeypatch, mine=(0, 3), theirs=granted((2, 3)), free=(0, 1, 2, 3))
    assert (damaging.more_damage, damaging.lower_bandwidth, damaging.beaten) == (1, 0, [])
    spread = judged(monkeypatch, mine=(0, 1), theirs=granted((0, 4)), free=(0, 1, 4), name="rtx4090-all-sys")
    assert (spread.more_numa_nodes, spread.more_damage) == (1, 0)
    refused = judged(monkeypatch, mine=(0, 3), theirs=Answer(fault=Fault.REFUSED), free=(0, 3))
    assert (refused.faults[Fault.REFUSED], refused.compared, refused.mean_ratio) == (1, 0, None)


def test_a_figure_of_the_engine_that_the_judge_does_not_share_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = recorded("dgx-1v")
    right = ours.choose(machine, (0, 3), 2)
    assert right is not None
    wrong = ours.OurChoice((0, 1), right.score)
    monkeypatch.setattr(ours, "choose", lambda *_: wrong)
    with pytest.raises(AssertionError, match="the engine says 50 GB/s of"):
        compare(machine, {}, [((0, 1, 3), 2)])
