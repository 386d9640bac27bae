"""Interleavings that once gave a device twice, or a pod without its devices, told step by step: none does any more, and
each does with its fault put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from support.interleaver import faults
from support.interleaver.checks import check_collisions, check_step
from support.interleaver.process import stepping
from support.interleaver.scenario import Scenario
from support.interleaver.search import come_to_rest, end
from support.interleaver.world import ViolationError, World

NOBODY = frozenset[tuple[str, str]]()


class Story:
    """One controller p0 with workers w0 and w1. Each step has to be possible, and is checked."""

    def __init__(self, scenario: Scenario) -> None:
        self.world = World(scenario)

    def take(self, *steps: str) -> None:
        for step in steps:
            assert self.world.take(step), step
            check_step(self.world)

    def until(self, worker: str, text: str) -> None:
        """Let a worker go on until it says something."""
        while text not in self.world.said[-1]:
            self.take(f"p0 {worker} goes on")

    def decide(self, worker: str, pod: str) -> None:
        """Let a worker take work until it has this pod; what comes before it is carried out."""
        self.take(f"p0 {worker} takes work")
        while f"takes default/{pod}:" not in self.world.said[-1]:
            self.finish(worker)
            self.take(f"p0 {worker} takes work")

    def finish(self, worker: str) -> None:
        self.until(worker, "is done")

    def see(self) -> None:
        """Let the controller see all there is."""
        process = self.world.processes["p0"]
        assert process is not None
        for cache in (process.claims, process.pods):
            while cache.is_behind:
                self.take(f"p0 sees {cache.resource}")

    def work(self) -> None:
        """Let the controller do all there is to do now."""
        process = self.world.processes["p0"]
        assert process is not None
        while process.has_ready_work():
            self.take("p0 w0 takes work")
            self.finish("w0")
            self.see()


def an_old_decision_ends_while_a_new_one_is_written() -> None:
    """The claim of a decision is made again and decided for anew; the end of the first decision frees nothing."""
    with told(Scenario((1,), {"s": 1, "c": 1}, {"a": ("s",), "b": ("s",), "c": ("c",)}, {}, NOBODY)) as story:
        story.take("users create claim s", "users create pod a")
        story.see()
        story.decide("w0", "a")
        story.until("w0", "is about to send: mark of ResourceClaim s")
        story.take("users delete pod a", "users delete claim s", "users create claim s", "users create pod b")
        story.take("users create claim c", "users create pod c")
        story.see()
        story.decide("w1", "b")
        story.until("w1", "is about to send: allocation of ResourceClaim s")
        story.finish("w0")
        story.decide("w0", "c")
        story.finish("w0")


def a_write_is_in_doubt_since_it_was_given_up() -> None:
    """Writes take 4 s each, so the last one is sent long after the decision, and lands long after, too."""
    scenario = Scenario((2,), {"d": 1, "e": 1, "f": 1}, {"p": ("d", "e"), "q": ("f",)}, {"q": 10}, NOBODY)
    with told(scenario) as story:
        story.take("users create claim d", "users create claim e", "users create pod p")
        story.see()
        story.decide("w0", "p")
        for sent in ("mark of ResourceClaim d", "mark of ResourceClaim e", "allocation of ResourceClaim d"):
            story.until("w0", f"is about to send: {sent}")
            story.take("4.0 s pass")
        story.until("w0", "is about to send: allocation of ResourceClaim e")
        story.take("p0 w0 gets no answer, and it may be done later")
        story.take("users create claim f", "users create pod q", "0.4 s pass")
        story.see()
        story.work()
        story.take("a late write lands")


def a_bind_takes_longer_than_any_fixed_wait() -> None:
    """kube-scheduler is binding a pod when its allocation is taken back: it keeps it until the bind is over."""
    with told(Scenario((1,), {"b": 1, "c": 1}, {"b": ("b",), "c": ("c",)}, {}, NOBODY)) as story:
        story.take("users create claim b", "users create pod b", "users create claim c", "users create pod c")
        story.see()
        story.work()
        story.take("2.5 s pass", "31.0 s pass", "kube-scheduler tries b", "kube-scheduler goes on with b")
        story.work()
        for _ in range(3):
            story.take("6.0 s pass")
            story.see()
            story.work()
        story.take("kube-scheduler goes on with b", "kube-scheduler goes on with b")


def the_earlier_of_two_gives_way_when_the_later_one_is_bound() -> None:
    """kube-scheduler allocates a device that we allocated a moment ago, and binds its pod: ours gives way."""
    with told(Scenario((1,), {"c": 1, "d": 1}, {"p": ("c",), "q": ("d",)}, {}, NOBODY, frozenset({"d"}))) as story:
        story.take("users create claim c", "users create pod p")
        story.see()
        story.decide("w0", "p")
        story.take("users create claim d", "users create pod q", "2.5 s pass")
        story.until("w0", "is about to send: allocation of ResourceClaim c")
        story.take("kube-scheduler tries q", "kube-scheduler goes on with q")
        story.finish("w0")
        story.take("2.5 s pass", *["kube-scheduler goes on with q"] * 3)
        story.see()
        story.work()
        process = story.world.processes["p0"]
        assert process is not None
        check_collisions(story.world, process)


def test_a_pod_that_was_bound_while_another_had_its_claim_cleared_gets_it_back_first() -> None:
    """The claim is dropped while b is being bound with it, and kube-scheduler clears it for a, which shares it and
    fits on another node: a would take it there, and b would never have its devices."""
    with told(Scenario((1, 2), {"c": 1, "d": 1}, {"a": ("c", "d"), "b": ("c",)}, {}, NOBODY)) as story:
        story.take("users create claim c", "users create pod a", "users create pod b")
        story.see()
        story.work()
        story.take("2.5 s pass", "kube-scheduler tries b", "kube-scheduler goes on with b", "users create claim d")
        story.see()
        story.take("31.0 s pass")
        story.work()
        story.take("kube-scheduler goes on with b", "kube-scheduler goes on with b")
        story.take("2.5 s pass", "kube-scheduler tries a", *["kube-scheduler goes on with a"] * 2)
        assert "clears c" in "".join(story.world.said)


@contextmanager
def told(scenario: Scenario) -> Iterator[Story]:
    with stepping():
        story = Story(scenario)
        try:
            yield story
            come_to_rest(story.world)
        finally:
            end(story.world)


STORIES = [
    pytest.param(an_old_decision_ends_while_a_new_one_is_written, faults.acts_by_claim, id="by-claim"),
    pytest.param(a_write_is_in_doubt_since_it_was_given_up, faults.doubts_since_the_decision, id="doubt"),
    pytest.param(a_bind_takes_longer_than_any_fixed_wait, faults.clears_after_two_seconds, id="slow-bind"),
    pytest.param(
        the_earlier_of_two_gives_way_when_the_later_one_is_bound, faults.only_the_later_gives_way, id="collision"
    ),
]


@pytest.mark.parametrize(("story", "fault"), STORIES)
def test_no_story_ends_badly(story: Callable[[], None], fault: faults.Fault) -> None:
    story()


@pytest.mark.parametrize(("story", "fault"), STORIES)
def test_each_ends_badly_with_its_fault_put_back(story: Callable[[], None], fault: faults.Fault) -> None:
    with fault(), pytest.raises(ViolationError):
        story()
