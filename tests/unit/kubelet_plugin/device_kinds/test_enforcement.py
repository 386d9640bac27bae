"""What holds a share to its part, for every strategy on every node."""

from __future__ import annotations

import itertools

import pytest

from dracaena.api.config.v1alpha1 import Enforcement, GpuSharing, SharingStrategy
from dracaena.kubelet_plugin.device_kinds.enforcement import Amounts, Enforcer, NodeEnforcement, share_enforcement
from dracaena.kubelet_plugin.device_kinds.mps_effect import NO_MPS, MpsOffer

BOTH = Amounts("10Gi of memory", "30 % of the cores")
MPS, SLICES = SharingStrategy.MPS, SharingStrategy.TIME_SLICING
SUPERVISED = MpsOffer(None, runs=True)


@pytest.mark.parametrize(
    ("strategy", "mps", "limits", "memory", "cores"),
    [
        (MPS, True, True, Enforcer.MEMORY_LIMIT, Enforcer.MPS),
        (MPS, True, False, Enforcer.MPS, Enforcer.MPS),
        (SLICES, True, True, Enforcer.MEMORY_LIMIT, None),
        (SLICES, True, False, None, None),
        (None, True, True, Enforcer.MEMORY_LIMIT, None),
        (None, True, False, None, None),
        (MPS, False, True, Enforcer.MEMORY_LIMIT, None),
    ],
)
def test_memory_is_held_by_the_drivers_limit_else_by_mps_and_cores_by_mps_alone(
    strategy: SharingStrategy | None, mps: bool, limits: bool, memory: Enforcer | None, cores: Enforcer | None
) -> None:
    node = NodeEnforcement(SUPERVISED if mps else NO_MPS, None, None if limits else "no limits")
    found = share_enforcement(BOTH, GpuSharing(strategy), node)
    assert (found.memory, found.cores) == (memory, cores)
    assert set(found.loose) == {amount for amount, by in ((BOTH.memory, memory), (BOTH.cores, cores)) if by is None}
    assert found.by_time_slices is (strategy is SLICES)


def test_each_strategy_that_is_not_to_be_had_says_why() -> None:
    node = NodeEnforcement(MpsOffer("no supervisor", runs=False), "no nvidia-smi", "no limits")
    assert share_enforcement(Amounts(), GpuSharing(MPS), node).no_strategy == "no supervisor"
    assert share_enforcement(Amounts(), GpuSharing(SLICES), node).no_strategy == "no nvidia-smi"
    assert share_enforcement(BOTH, GpuSharing(), node).loose == {
        BOTH.memory: "no limits, and without that strategy MPS alone does",
        BOTH.cores: "strategy MPS alone does",
    }


def test_nothing_is_lacking_exactly_where_everything_is_held() -> None:
    strategies = (None, MPS, SLICES)
    offers = (NO_MPS, SUPERVISED, MpsOffer(None, runs=False))
    problems = (None, "a problem")
    amounts = (Amounts(), Amounts("m", ""), Amounts("", "c"), Amounts("m", "c"))
    every = itertools.product(strategies, (None, *Enforcement), offers, problems, problems, amounts)
    for strategy, required, offer, slices, limits, wanted in every:
        found = share_enforcement(wanted, GpuSharing(strategy, required), NodeEnforcement(offer, slices, limits))
        assert (wanted.memory in found.loose) is (bool(wanted.memory) and found.memory is None)
        assert (wanted.cores in found.loose) is (bool(wanted.cores) and found.cores is None)
        assert not (found.by_mps and found.by_time_slices)
        assert found.cores is None or found.by_mps
        assert found.memory is not Enforcer.MPS or (found.by_mps and limits is not None)
        if strategy is not None and (required is not Enforcement.BEST_EFFORT or offer.runs):
            assert (found.no_strategy is None) is (found.by_mps or found.by_time_slices)
