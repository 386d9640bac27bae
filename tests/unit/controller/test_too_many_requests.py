"""429 is an answer: nothing is in doubt after it, and the server is left alone for as long as it asks."""

from __future__ import annotations

import pytest

from dracaena.kube.errors import error_for
from support.allocation import blocks, claim, machine, pod, request
from support.reconciling import Bench

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))


class Refusals:
    """The server refuses a kind of write some times, or until further notice, and notes when it was asked."""

    def __init__(self, bench: Bench, verb: str, status: int, retry_after: str | None, times: float) -> None:
        self.bench, self.verb, self.status, self.times = bench, verb, status, times
        self.headers = {} if retry_after is None else {"Retry-After": retry_after}
        self.at_s: list[float] = []
        bench.api.before = self

    def __call__(self, verb: str, key: str) -> None:
        if verb != self.verb:
            return
        self.at_s.append(self.bench.clock.monotonic())
        if len(self.at_s) <= self.times:
            raise error_for(f"PATCH {key}", self.status, b"", self.headers)


def asking(count: int = 1) -> Bench:
    bench = Bench(n=FOUR)
    bench.add(claim("c", request(count=count)), pod("p", "c"))
    return bench


def until_allocated(bench: Bench, at_most_s: float = 60.0) -> float:
    began_s = bench.clock.monotonic()
    bench.run()
    while bench.held("c") is None and bench.clock.monotonic() - began_s < at_most_s:
        bench.advance(0.1)
    return bench.clock.monotonic() - began_s


@pytest.mark.parametrize("verb", ["mark", "allocate"])
def test_one_429_costs_no_rest_of_the_devices(verb: str) -> None:
    bench = asking()
    Refusals(bench, verb, 429, None, times=1)
    assert until_allocated(bench) < 1.0


def test_after_a_429_the_devices_are_at_once_free_for_others() -> None:
    bench = asking(count=4)
    Refusals(bench, "allocate", 429, "30", times=1)
    bench.run()
    assert bench.held("c") is None
    bench.add(claim("other", request(count=4)), pod("q", "other"))
    bench.run()
    assert bench.held("other") == (0, 1, 2, 3)


@pytest.mark.parametrize(("status", "verb"), [(429, "mark"), (429, "allocate"), (503, "mark")])
def test_a_pod_is_tried_again_when_the_server_asked_for_it_and_not_before(status: int, verb: str) -> None:
    bench = asking()
    refusals = Refusals(bench, verb, status, "5", times=3)
    bench.run()
    for _ in range(40):  # what others change meanwhile does not wake it
        bench.add(claim("unrelated"))
        bench.change_pod("p", lambda old: old)
        bench.advance(0.5)
    assert refusals.at_s == [0.0, 5.0, 10.0, 15.0]
    assert bench.held("c") is not None


def test_a_503_is_a_doubt_although_it_says_when_to_ask_again() -> None:
    bench = asking(count=4)
    Refusals(bench, "allocate", 503, "1", times=1)
    bench.run()
    bench.add(claim("other", request(count=4)), pod("q", "other"))
    bench.advance(5.0)
    assert bench.held("other") is None, "the write may land yet"
    bench.pass_time(30)
    assert (bench.held("c") is None) != (bench.held("other") is None)


@pytest.mark.parametrize("status", [403, 429, 503])
def test_a_write_that_keeps_failing_is_tried_ever_more_rarely(status: int) -> None:
    bench = asking()
    refusals = Refusals(bench, "allocate", status, None, times=10**9)
    bench.pass_time(60)
    assert 3 <= len(refusals.at_s) <= 15


@pytest.mark.parametrize("retry_after", ["7", None])
def test_a_claim_that_is_tended_to_is_tried_again_after_waits_and_not_at_once(retry_after: str | None) -> None:
    """What ends a write of ours changes the claim's record, which queues the claim: it was asked for without end."""
    bench = asking()
    bench.run()
    assert bench.held("c") is not None
    refusals = Refusals(bench, "reserve", 429, retry_after, times=10**9)
    bench.pass_time(10)
    bench.say("p", "0/1 nodes are available: 1 Insufficient cpu.")

    def stop(verb: str, key: str) -> None:
        assert len(refusals.at_s) < 100, f"asked 100 times within {bench.clock.monotonic() - refusals.at_s[0]} s"
        refusals(verb, key)

    bench.api.before = stop
    bench.pass_time(60)
    gaps = [after - before for before, after in zip(refusals.at_s, refusals.at_s[1:], strict=False)]
    assert gaps, "the reservation is to be dropped"
    if retry_after is not None:
        assert set(gaps) == {7.0}
    else:
        assert len(refusals.at_s) <= 20
