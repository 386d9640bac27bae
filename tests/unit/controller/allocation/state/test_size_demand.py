from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.controller.allocation.state.size_demand import HALF_LIFE_S, NOBODYS_GPUS, SizeDemand

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
    assert SizeDemand().shares({}, 0.0) == (0, 0, 0)


def test_the_first_pod_of_an_empty_cluster_changes_nothing() -> None:
    sizes = SizeDemand()
    sizes.shares({}, 0.0)
    assert sizes.shares({4: 4}, 1.0) == (0, 0, 0)


def test_the_first_look_finds_what_there_is_as_after_a_restart() -> None:
    sizes = SizeDemand()
    sizes.wait("ns/waits", 8)
    assert sizes.shares({8: 24, 4: 16, 1: 16}, 1_000.0) == (31, 15, 0)
    assert sizes.shares({8: 24, 4: 16, 1: 16}, 1_001.0) == (31, 15, 0)


@pytest.mark.parametrize(
    ("gpus", "shares"), [(1, (0, 0, 0)), (2, (0, 0, 32)), (3, (0, 32, 0)), (6, (32, 0, 0)), (16, (32, 0, 0))]
)
def test_a_size_between_counts_as_the_next_greater_one(gpus: int, shares: tuple[int, int, int]) -> None:
    assert SizeDemand().shares({gpus: NOBODYS_GPUS}, 0.0) == shares


def test_what_was_asked_for_fades_by_half_in_an_hour() -> None:
    sizes = SizeDemand()
    assert sizes.shares({8: 80_000}, 0.0) == (63, 0, 0)
    assert sizes.shares({2: 80_000}, HALF_LIFE_S) == (31, 0, 31)
    assert sizes.shares({2: 80_000}, 2 * HALF_LIFE_S) == (15, 0, 47)
    assert sizes.shares({}, 40 * HALF_LIFE_S) == (0, 0, 0)


def test_a_pod_that_waits_no_more_is_not_counted() -> None:
    sizes = SizeDemand()
    sizes.wait("ns/a", 8)
    sizes.wait("ns/a", 4)
    sizes.wait("ns/b", 2)
    sizes.leave("ns/b")
    sizes.leave("ns/never")
    assert sizes.shares({}, 0.0) == (0, 42, 0)


@given(LOOKS)
def test_the_record_is_the_weighed_sum_of_all_looks(looks: list[tuple[float, dict[int, int], dict[str, int]]]) -> None:
    sizes = SizeDemand()
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
