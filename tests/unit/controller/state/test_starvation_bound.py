"""A pod that waits only because devices are taken is served in time, however many pods come after it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from support.seeds import fewer_examples
from support.starving_world import World


def small_pods(rng: random.Random, longest_life_s: int) -> Iterator[tuple[str, int, int]]:
    number = 0
    while True:
        number += 1
        yield f"small-{number:05}", rng.choice((1, 1, 1, 2)), rng.randint(1, longest_life_s)


def one_by_one(life_s: int) -> Iterator[tuple[str, int, int]]:
    """Yield pods of one GPU that, on twelve GPUs, never end two in one second: whoever follows lives as long."""
    for number in range(12):
        yield f"first-{number:02}", 1, life_s - number
    for number in itertools.count():
        yield f"small-{number:05}", 1, life_s


def served_after(
    small: Iterator[tuple[str, int, int]], *, wait_s: int, longest_life_s: int, large: int, horizon_s: int
) -> list[int | None]:
    """Let small pods come for ever, so that some wait at any moment, and large ones of four GPUs beside them; return
    how many seconds after it came each of these was served.
    """
    world = World(wait_s)

    def go_on(seconds: int) -> None:
        for _ in range(seconds):
            while len(world.pods) - len(world.ends) < large + 4:  # whoever goes finds others waiting
                world.come(*next(small))
            world.step()

    go_on(longest_life_s)  # a cluster in the middle of its work
    began_s = world.now_s
    for number in range(large):
        world.come(f"large-{number}", 4, longest_life_s)
    go_on(horizon_s)
    world.cluster.check()
    found = [world.served_s.get(f"default/large-{number}") for number in range(large)]
    return [None if at is None else at - began_s for at in found]


def bound_s(place: int, wait_s: int, longest_life_s: int) -> int:
    """The bound of docs/design/queue-and-fairness.md for the pod at a place (from 1) among those that starve.

    Older small pods are all served within the wait here. One second until the overdue are looked at, and the longest
    life from then; the next is looked at a second after that.
    """
    return wait_s + place * (longest_life_s + 2)


@settings(max_examples=fewer_examples(5), derandomize=True)
@given(st.integers(0, 10_000), st.integers(5, 40), st.integers(1, 3))
def test_large_pods_are_served_within_the_bound_although_small_ones_come_for_ever(
    seed: int, longest_life_s: int, large: int
) -> None:
    wait_s = 2 * longest_life_s
    horizon_s = bound_s(large, wait_s, longest_life_s) + 1
    small = small_pods(random.Random(seed), longest_life_s)
    found = served_after(small, wait_s=wait_s, longest_life_s=longest_life_s, large=large, horizon_s=horizon_s)
    for place, seconds in enumerate(found, start=1):
        assert seconds is not None
        assert seconds <= bound_s(place, wait_s, longest_life_s)


def test_without_earmarks_the_same_large_pod_starves() -> None:
    life_s, wait_s = 24, 48
    within = bound_s(1, wait_s, life_s)
    (with_marks,) = served_after(one_by_one(life_s), wait_s=wait_s, longest_life_s=life_s, large=1, horizon_s=within)
    assert with_marks is not None
    assert wait_s < with_marks <= within
    without = served_after(one_by_one(life_s), wait_s=0, longest_life_s=life_s, large=1, horizon_s=10 * within)
    assert without == [None]
