from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.device_id import DeviceId
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.state.node_state import HALF_LIFE_S, NOBODYS_GPUS, AskedSizes, Holdings

OURS = "gpu.dracaena.dev"

LOOKS = st.lists(
    st.tuples(
        st.sampled_from([1.0, 60.0, HALF_LIFE_S, 5 * HALF_LIFE_S]),
        st.dictionaries(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), st.integers(0, 64), max_size=4),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from([1, 2, 5, 8, 16]), max_size=3),
    ),
    max_size=6,
)
"""Seconds since the look before, GPUs held by the size of their holder, GPUs that each pod waits for."""


def test_nobody_asks_for_anything_in_an_empty_cluster() -> None:
    assert AskedSizes().shares({}, 0.0) == (0, 0, 0)


def test_the_first_pod_of_an_empty_cluster_changes_nothing() -> None:
    sizes = AskedSizes()
    sizes.shares({}, 0.0)
    assert sizes.shares({4: 4}, 1.0) == (0, 0, 0)


def test_the_first_look_finds_what_there_is_as_after_a_restart() -> None:
    sizes = AskedSizes()
    sizes.wait("ns/waits", 8)
    assert sizes.shares({8: 24, 4: 16, 1: 16}, 1_000.0) == (31, 15, 0)
    assert sizes.shares({8: 24, 4: 16, 1: 16}, 1_001.0) == (31, 15, 0)


@pytest.mark.parametrize(
    ("gpus", "shares"), [(1, (0, 0, 0)), (2, (0, 0, 32)), (3, (0, 32, 0)), (6, (32, 0, 0)), (16, (32, 0, 0))]
)
def test_a_size_between_counts_as_the_next_greater_one(gpus: int, shares: tuple[int, int, int]) -> None:
    assert AskedSizes().shares({gpus: NOBODYS_GPUS}, 0.0) == shares


def test_what_was_asked_for_fades_by_half_in_an_hour() -> None:
    sizes = AskedSizes()
    assert sizes.shares({8: 80_000}, 0.0) == (63, 0, 0)
    assert sizes.shares({2: 80_000}, HALF_LIFE_S) == (31, 0, 31)
    assert sizes.shares({2: 80_000}, 2 * HALF_LIFE_S) == (15, 0, 47)
    assert sizes.shares({}, 40 * HALF_LIFE_S) == (0, 0, 0)


def test_a_pod_that_waits_no_more_is_not_counted() -> None:
    sizes = AskedSizes()
    sizes.wait("ns/a", 8)
    sizes.wait("ns/a", 4)
    sizes.wait("ns/b", 2)
    sizes.leave("ns/b")
    sizes.leave("ns/never")
    assert sizes.shares({}, 0.0) == (0, 42, 0)


@given(LOOKS)
def test_the_record_is_the_weighed_sum_of_all_looks(looks: list[tuple[float, dict[int, int], dict[str, int]]]) -> None:
    sizes = AskedSizes()
    now_s = 0.0
    seen: list[tuple[float, Counter[int]]] = []
    for after_s, held, waiting in looks:
        now_s += after_s
        for key in ("a", "b", "c"):
            sizes.leave(key)
        for key, gpus in waiting.items():
            sizes.wait(key, gpus)
        asked: Counter[int] = Counter()
        for size, gpus in (*held.items(), *((gpus, gpus) for gpus in waiting.values())):
            asked[8 if size > 4 else 4 if size > 2 else size] += gpus
        seen.append((now_s, asked))
        shares = sizes.shares(held, now_s)
        weighed = dict.fromkeys((8, 4, 2, 1), 0.0)
        for place, (at_s, counts) in enumerate(seen):
            weight = (1.0 if place == 0 else 1 - 0.5 ** ((at_s - seen[place - 1][0]) / HALF_LIFE_S)) * 0.5 ** (
                (now_s - at_s) / HALF_LIFE_S
            )
            for size in weighed:
                weighed[size] += weight * counts[size]
        total = sum(weighed.values()) + NOBODYS_GPUS
        expected = [64 * weighed[size] / total for size in (8, 4, 2)]
        assert sum(shares) <= 64
        assert all(abs(share - exact) <= 1 for share, exact in zip(shares, expected, strict=True))


def test_whole_devices_are_counted_by_what_their_holder_holds() -> None:
    def ids(*names: str) -> frozenset[DeviceId]:
        return frozenset(DeviceId(OURS, "n", name) for name in names)

    holdings = Holdings(OURS, ())
    holdings.hold("one", ids("a"), frozenset())
    holdings.hold("pair", ids("b", "c"), frozenset())
    assert holdings.by_size == {1: 1, 2: 2}
    holdings.hold("one", ids("a", "d"), frozenset())
    assert holdings.by_size == {2: 4}
    holdings.hold("pair", ids(), frozenset())
    assert holdings.by_size == {2: 2}
    holdings.check()


@given(
    st.lists(st.tuples(st.sampled_from("uvwx"), st.frozensets(st.sampled_from("abcd"))), max_size=12),
)
def test_a_device_that_several_share_counts_once_for_the_holder_with_most(
    changes: list[tuple[str, frozenset[str]]],
) -> None:
    holdings, held = Holdings(OURS, ()), dict[str, frozenset[str]]()
    for holder, names in changes:
        devices = frozenset(DeviceId(OURS, "n", name) for name in names)
        shares = frozenset(Holding(holder, device, f"{holder}-{device.device}") for device in devices)
        holdings.hold(holder, devices, shares)
        held[holder] = names
        holdings.check()
        sizes = {
            name: max(len(one) for one in held.values() if name in one) for name in frozenset().union(*held.values())
        }
        assert holdings.by_size == Counter(sizes.values())
        assert set(holdings.taken("n")) == set(sizes)


def test_many_shares_of_one_gpu_are_one_gpu() -> None:
    holdings, device = Holdings(OURS, ()), DeviceId(OURS, "n", "g")
    for number in range(70):
        holdings.hold(f"c{number}", frozenset({device}), frozenset({Holding(f"u{number}", device, "s")}))
    assert holdings.by_size == {1: 1}


class TestWholeBesideShares:
    GPU: Final = DeviceId(OURS, "n", "g")
    WHOLE: Final = Holding("", GPU)

    def share(self, holder: str, share_id: str = "s") -> Holding:
        return Holding(holder, self.GPU, share_id, (("memory", 1),), "none")

    def test_who_has_a_device_whole_is_told_beside_a_share_of_it(self) -> None:
        for order in (("whole", "part"), ("part", "whole")):
            holdings = Holdings(OURS, ())
            for name in order:
                beside = frozenset({self.share(name)} if name == "part" else ())
                holdings.hold(name, frozenset({self.GPU}), beside)
            assert set(holdings.in_pool(self.GPU.pool_id)) == {self.WHOLE, self.share("part")}
            holdings.check()
            holdings.hold("whole", frozenset(), frozenset())
            assert holdings.in_pool(self.GPU.pool_id) == [self.share("part")]
            holdings.hold("part", frozenset({self.GPU}), frozenset())
            assert holdings.in_pool(self.GPU.pool_id) == [self.WHOLE]
            holdings.check()

    def test_two_shares_of_one_holder_do_not_hide_who_has_it_whole(self) -> None:
        holdings = Holdings(OURS, ())
        pair = frozenset({self.share("part", "s"), self.share("part", "t")})
        holdings.hold("part", frozenset({self.GPU}), pair)
        assert set(holdings.in_pool(self.GPU.pool_id)) == pair
        holdings.hold("whole", frozenset({self.GPU}), frozenset())
        assert set(holdings.in_pool(self.GPU.pool_id)) == {self.WHOLE, *pair}
        holdings.check()
