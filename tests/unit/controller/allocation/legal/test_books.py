"""The books: committing and undoing, and what must always hold."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.device_id import DeviceId
from dracaena.api.objects import DeviceResult
from dracaena.controller.allocation.legal.books import Books, Holding, holdings_of
from dracaena.controller.allocation.legal.problem import Problem
from support.structured import World, consumes, device, published

GPU = DeviceId("driver-a", "pool-1", "gpu")

devices = st.builds(DeviceId, st.just("driver-a"), st.sampled_from(["pool-1", "pool-2"]), st.sampled_from("abc"))
amounts = st.dictionaries(st.sampled_from(["memory", "cores"]), st.integers(0, 3)).map(
    lambda d: tuple(sorted(d.items()))
)
whole = st.builds(Holding, st.sampled_from("xyz"), devices)
shares = st.builds(Holding, st.sampled_from("xyz"), devices, st.uuids().map(str), amounts)
holdings = st.lists(st.one_of(whole, shares), max_size=12)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(holdings, holdings, st.randoms(use_true_random=False))
def test_undo_is_the_exact_inverse_of_commit_in_any_order(
    before: list[Holding], added: list[Holding], random: Random
) -> None:
    books = Books(before)
    books.commit(added)
    books.undo(random.sample(added, len(added)))
    assert books == Books(before)
    for one in (*before, *added):
        assert books.is_held(one.device) == any(b.device == one.device and b.share_id is None for b in before)
        assert books.consumed(one.device) == Books(before).consumed(one.device)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(holdings)
def test_the_books_say_what_was_written_into_them(written: list[Holding]) -> None:
    books = Books(written)
    assert sorted(map(str, books)) == sorted(map(str, written))
    for one in written:
        said = [share for share in written if share.device == one.device and share.share_id is not None]
        total: dict[str, int] = {}
        for share in said:
            for name, amount in share.consumed:
                total[name] = total.get(name, 0) + amount
        assert books.consumed(one.device) == total
        assert books.is_shared(one.device) == bool(said)


def test_what_is_not_held_cannot_be_undone() -> None:
    books = Books([Holding("x", GPU)])
    with pytest.raises(KeyError, match="driver-a/pool-1/gpu is not held by claim y"):
        books.undo([Holding("y", GPU)])
    assert books == Books([Holding("x", GPU)])


def test_results_of_a_claim_are_holdings_unless_an_admin_has_them() -> None:
    results = [
        DeviceResult("a", *GPU),
        DeviceResult("b", *GPU, admin_access=True),
        DeviceResult("c", *GPU, share_id="s", consumed_capacity={"memory": "1k", "cores": "500m"}),
    ]
    assert list(holdings_of("uid", results)) == [
        Holding("uid", GPU),
        Holding("uid", GPU, "s", (("cores", 500_000_000), ("memory", 1000 * 10**9))),
    ]


def test_sound_books_have_nothing_to_say() -> None:
    other = DeviceId("driver-a", "pool-1", "other")
    assert Books([Holding("x", GPU), Holding("y", other, "s"), Holding("z", other, "t")]).check() == ()


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ([Holding("y", GPU), Holding("x", GPU)], "device driver-a/pool-1/gpu is held by claims x, y"),
        (
            [Holding("x", GPU), Holding("y", GPU, "s")],
            "device driver-a/pool-1/gpu is held whole by claim x and has shares too",
        ),
        ([Holding("x", GPU, "s"), Holding("y", GPU, "s")], "device driver-a/pool-1/gpu has two shares of one share id"),
    ],
)
def test_a_device_that_is_given_twice_is_named(written: list[Holding], line: str) -> None:
    assert Books(written).check() == (line,)


def test_more_than_there_is_of_capacities_and_counters_is_named() -> None:
    gpu = device(
        "gpu", allow_multiple_allocations=True, capacity={"memory": "4"}, consumes_counters=consumes("set", slots="1")
    )
    slices = [
        published("slice-1", gpu, device("part", consumes_counters=consumes("set", slots="2")), count=3),
        published("slice-2", device("far", consumes_counters=consumes("set", slots="1")), count=3, nodeName="node-2"),
        published("slice-3", counters={"set": {"slots": "3"}}, count=3),
    ]
    problem = World(slices).problem()
    assert isinstance(problem, Problem)
    part, far = DeviceId("driver-a", "pool-1", "part"), DeviceId("driver-a", "pool-1", "far")
    shares_of_gpu = [Holding("x", GPU, "s", (("memory", 2 * 10**9),)), Holding("y", GPU, "t", (("memory", 2 * 10**9),))]
    books = Books([*shares_of_gpu, Holding("z", part)])
    assert books.check(problem.pools) == ()
    books.commit([Holding("x", GPU, "u", (("memory", 1),)), Holding("w", far)])
    assert books.check(problem.pools) == (
        "device driver-a/pool-1/gpu: shares take more than there is of capacity memory",
        "pool driver-a/pool-1: held devices take more than there is of counter set/slots",
    )
