"""A claim is taken back from a server that does not answer, refuses, or tells late."""

from __future__ import annotations

import pytest

from dracaena.controller.lifecycle.claim_record import Doubt, PodIdentity
from dracaena.controller.lifecycle.phases import Phase
from dracaena.controller.write.claim_tender import REFUSED_S
from dracaena.kube.errors import ApiUnavailableError, InvalidError, KubeError, error_for
from support.reconciling import SEEN_S
from support.taking_back import dropped, ended, ready, writes

SETTLE = int(SEEN_S)
P = PodIdentity("default/p", "uid-p")

NO_ANSWERS = [
    ApiUnavailableError("PATCH", None, "", "no answer"),
    ApiUnavailableError("PATCH", 500, "InternalError", "failed calling webhook"),
    error_for("PATCH", 429, b'{"reason":"TooManyRequests"}'),
]


@pytest.mark.parametrize("error", NO_ANSWERS, ids=["no answer", "500", "429"])
@pytest.mark.parametrize("failing", ["reserve", "probe", "deallocate"])
def test_a_server_that_does_not_serve_us_is_asked_again_without_a_hot_loop(failing: str, error: KubeError) -> None:
    bench = ready()
    down = [True]
    tries: list[str] = []

    def fail(verb: str, key: str) -> None:
        if verb == failing:
            tries.append(verb)
            if down[0]:
                raise error

    bench.api.before = fail
    bench.pass_time(SETTLE + 1)
    bench.say_again("p")
    bench.pass_time(10)
    bench.say("p", "0/1 nodes are available: something new.")
    bench.pass_time(10)
    assert 1 <= len(tries) <= 20
    down[0] = False
    bench.pass_time(120)
    bench.say("p", "0/1 nodes are available: something newer.")
    bench.pass_time(120)
    assert bench.on_node("c") is None or bench.users("c") == ["p"]
    assert bench.metric("take_backs_total", reason="refused", end="cleared") == 1


@pytest.mark.parametrize("verb", ["reserve", "deallocate"])
def test_a_write_that_landed_without_an_answer_is_known_from_the_watch(verb: str) -> None:
    bench = ready()
    lost = [ApiUnavailableError("PATCH", None, "", "no answer")]

    def lose(seen: str, key: str) -> None:
        if seen == verb and lost:
            raise lost.pop()

    bench.api.after = lose
    bench.pass_time(SETTLE + 2)
    bench.say_again("p")
    bench.pass_time(5)
    assert [seen for seen in writes(bench) if seen != "probe"] == ["reserve", "deallocate"]
    assert bench.on_node("c") is None


def test_a_write_that_validation_refuses_is_tried_again_after_a_while() -> None:
    bench = ready()
    tries: list[float] = []

    def refuse(verb: str, key: str) -> None:
        tries.append(bench.clock.monotonic())
        raise InvalidError("PATCH", 422, "Invalid", "spec: field is immutable")

    bench.api.before = refuse
    bench.run()
    bench.pass_time(2 * int(REFUSED_S))
    assert tries == [0.0, REFUSED_S, 2 * REFUSED_S]
    assert bench.record("c").doubts == (Doubt(P, 2.0 * REFUSED_S),), "one of them may have landed without an answer"


def test_a_conflict_when_giving_the_reservation_back_is_tried_again() -> None:
    bench = dropped()

    def conflict(verb: str, key: str) -> None:
        bench.api.before = lambda verb, key: None
        bench.api.put(bench.api.claims["default/c"])

    bench.api.before = conflict
    bench.bind("p", "a")
    bench.run()
    assert bench.users("c") == ["p"]


def test_the_watch_that_is_behind_lets_nothing_be_asked_twice() -> None:
    """What the server answered is known; what the watch shows late is older."""
    bench = ready()
    kept = bench.hold_the_watch()
    bench.pass_time(SETTLE + 2)
    bench.say_again("p")
    bench.run()
    assert ended(bench, "cleared")
    before = list(bench.api.writes)
    bench.show(kept)
    bench.show(kept)  # and once more: events may come twice
    bench.pass_time(30)
    assert bench.api.writes == before
    assert bench.record("c").phase is Phase.FREE
