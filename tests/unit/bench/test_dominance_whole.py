"""No baseline beats our engine, in any state of any recorded machine.

DRACAENA_TOPOLOGIES=folder adds the machines of a folder of real `nvidia-smi topo -m` outputs.
"""

from __future__ import annotations

import pytest

from bench.baselines import BASELINES
from bench.dominance import compare
from bench.machines import BenchMachine, all_machines
from bench.quality import states_of


@pytest.mark.long
@pytest.mark.parametrize("machine", all_machines(), ids=lambda machine: machine.name)
def test_no_baseline_beats_ours_in_any_state(machine: BenchMachine) -> None:
    """All free sets and counts up to 8 GPUs, seeded ones of a larger machine (bench.quality)."""
    verdicts = compare(machine, BASELINES, states_of(machine))
    assert [text for verdict in verdicts.values() for text in verdict.beaten] == []
    assert all(verdict.states == len(states_of(machine)) for verdict in verdicts.values())
