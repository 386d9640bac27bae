from __future__ import annotations

import msgspec
from prometheus_client import CollectorRegistry

from dracaena.api.limits import EVENT_NOTE_BYTES
from dracaena.api.reasons import with_help, without_help
from dracaena.controller.allocation.explanation import Reason, Reasons, Unsatisfied
from dracaena.controller.events.waiting_pods import MAX_REPORTED, TELL_S, WaitingPods
from dracaena.controller.metrics import ControllerMetrics
from support.allocation import pod
from support.claim_api import FakeEvents
from support.clock import FakeClock

POD = pod("p")


class Bench:
    def __init__(self) -> None:
        self.events = FakeEvents()
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.waiting = WaitingPods(self.events, self.clock, ControllerMetrics(self.registry))

    def report(self, text: str, reason: str = "no-node", *, send: bool = True, patience_s: float = 0.0) -> None:
        self.waiting.report(POD, reason, text, send=send, patience_s=patience_s)

    def told(self) -> list[str]:
        return [message for _, _, message in self.events.seen]

    def count(self, reason: str) -> float | None:
        return self.registry.get_sample_value("dracaena_controller_waiting_pods", {"reason": reason})


def test_the_first_reason_is_reported_at_once_on_the_pod() -> None:
    bench = Bench()
    bench.report("full")
    assert bench.events.seen == [("Pod default/p", "WaitingForGPUs", "full")]


def test_an_unchanged_reason_is_reported_again_after_five_minutes_only() -> None:
    bench = Bench()
    for _ in range(3):
        bench.report("full")
        bench.clock.advance(90)
    bench.waiting.report_due()
    assert bench.told() == ["full"]
    bench.clock.advance(30)
    bench.waiting.report_due()
    assert bench.told() == ["full", "full"]


def test_reasons_that_change_fast_are_reported_every_ten_seconds_with_the_last_text() -> None:
    bench = Bench()
    bench.report("a")
    bench.clock.advance(4)
    bench.report("b")
    bench.clock.advance(4)
    bench.report("c")
    bench.waiting.report_due()
    assert bench.told() == ["a"]
    bench.clock.advance(2)
    bench.waiting.report_due()
    assert bench.told() == ["a", "c"]


def test_what_may_pass_by_itself_is_reported_only_when_it_lasts() -> None:
    bench = Bench()
    for _ in range(4):
        bench.report("no claim", patience_s=5)
        bench.clock.advance(1)
    bench.waiting.report_due()
    assert bench.told() == []
    bench.clock.advance(1)
    bench.waiting.report_due()
    assert bench.told() == ["no claim"]
    bench.waiting.forget(POD.key)
    bench.report("no claim", patience_s=5)
    bench.report("full")
    assert bench.told() == ["no claim", "full"]


def test_a_pod_that_may_not_be_ours_is_counted_and_not_reported() -> None:
    bench = Bench()
    bench.report("class has selectors", "unsupported", send=False)
    assert bench.told() == []
    assert bench.count("unsupported") == 1


def test_waiting_pods_are_counted_by_their_reason_of_now() -> None:
    bench = Bench()
    bench.report("full")
    bench.report("gone", "class-missing")
    bench.waiting.report(pod("q"), "no-node", "full", send=True)
    assert (bench.count("no-node"), bench.count("class-missing")) == (1, 1)
    bench.waiting.forget("default/p")
    bench.waiting.forget("default/p")
    assert (bench.count("no-node"), bench.count("class-missing")) == (1, 0)
    bench.clock.advance(600)
    bench.waiting.report_due()
    assert [subject for subject, _, _ in bench.events.seen].count("Pod default/p") == 1


def test_a_new_pod_of_the_same_name_is_reported_at_once() -> None:
    bench = Bench()
    bench.report("full")
    again = pod("p")
    again = type(again)(metadata=type(again.metadata)(name="p", namespace="default", uid="new"), spec=again.spec)
    bench.waiting.report(again, "no-node", "full", send=True)
    assert bench.told() == ["full", "full"]


class Why:
    """A reason that has to be worked out; counts how often it was."""

    def __init__(self, text: str | None = "full") -> None:
        self.text = text
        self.asked = 0

    def __call__(self) -> Reasons | None:
        self.asked += 1
        return None if self.text is None else Reasons(self.text)


def test_a_reason_is_worked_out_at_once_and_then_every_ten_seconds_while_the_pod_is_reported() -> None:
    bench = Bench()
    why = Why()
    for second in range(25):
        bench.waiting.report(POD, "no-node", why, send=True)
        bench.waiting.report_due()
        assert why.asked == 1 + second // 10
        bench.clock.advance(1)
    assert bench.told() == ["full"]
    why.text = "fuller"
    bench.clock.advance(10)
    bench.waiting.report_due()
    assert bench.told() == ["full", "fuller"]


def test_a_reason_is_not_worked_out_again_while_nothing_is_reported_until_it_is_repeated() -> None:
    bench = Bench()
    why = Why()
    bench.waiting.report(POD, "no-node", why, send=True)
    for _ in range(299):
        bench.clock.advance(1)
        bench.waiting.report_due()
    assert why.asked == 1
    bench.clock.advance(1)
    bench.waiting.report_due()
    assert (why.asked, bench.told()) == (2, ["full", "full"])


def test_a_pod_that_seems_to_fit_by_now_learns_nothing() -> None:
    bench = Bench()
    why = Why(None)
    bench.waiting.report(POD, "no-node", why, send=True)
    bench.waiting.report_due()
    assert (why.asked, bench.told()) == (1, [])
    why.text = "full again"
    bench.clock.advance(10)
    bench.waiting.report_due()
    assert bench.told() == ["full again"]


def test_a_pod_of_which_nothing_was_said_gets_the_reason_of_its_next_decision_at_once() -> None:
    """Its claims changed while the first reason was worked out (Cluster.explain)."""
    bench = Bench()
    bench.waiting.report(POD, "no-node", Why(None), send=True)
    assert bench.told() == []
    bench.waiting.report(POD, "no-node", Why(), send=True)
    bench.waiting.report(POD, "no-node", "fuller", send=True)
    assert bench.told() == ["full"]


def test_a_reason_that_is_of_no_use_any_more_when_it_was_worked_out_is_not_reported() -> None:
    bench = Bench()

    def forgets() -> Reasons:
        bench.waiting.forget(POD.key)
        return Reasons("full")

    bench.waiting.report(POD, "no-node", forgets, send=True)
    assert bench.told() == []


def test_one_round_works_out_only_so_many_reasons_and_goes_on_with_the_next() -> None:
    bench = Bench()
    why = Why(None)
    pods = [pod(f"p{number:03}") for number in range(MAX_REPORTED + 5)]
    for waiting in pods:
        bench.waiting.report(waiting, "no-node", why, send=True)
    assert why.asked == MAX_REPORTED
    why.text, why.asked = "full", 0
    bench.clock.advance(10)
    bench.waiting.report_due()
    assert (why.asked, len(bench.told())) == (MAX_REPORTED, MAX_REPORTED)
    bench.clock.advance(1)
    bench.waiting.report_due()
    assert {subject for subject, _, _ in bench.events.seen} == {f"Pod {waiting.key}" for waiting in pods}


def test_the_age_of_the_oldest_waiting_pod_is_that_since_its_creation() -> None:
    bench = Bench()
    assert bench.waiting.oldest_age_s() == 0
    for name, created in (("a", "2026-01-01T00:00:00Z"), ("b", "2025-12-31T23:59:00Z"), ("c", None)):
        meta = msgspec.structs.replace(POD.metadata, name=name, creation_timestamp=created)
        bench.waiting.report(msgspec.structs.replace(POD, metadata=meta), "no-node", "full", send=True)
    bench.clock.advance(5)
    assert bench.waiting.oldest_age_s() == 65
    bench.waiting.forget("default/b")
    assert bench.waiting.oldest_age_s() == 5


def test_reasons_that_take_long_to_work_out_leave_most_of_each_second_to_others() -> None:
    bench = Bench()
    pods = [pod(f"p{number:03}") for number in range(8)]
    asked: list[str] = []

    def slow(name: str) -> Reasons:
        asked.append(name)
        bench.clock.advance(0.6 * TELL_S)
        return Reasons(name)

    for one in pods:
        bench.waiting.report(one, "no-node", lambda one=one: slow(one.metadata.name), send=True)  # type: ignore[misc]
    assert len(asked) == 2
    for turn in range(1, 4):
        bench.clock.advance(1.0)
        bench.waiting.report_due()
        assert len(asked) == 2 * (turn + 1)
    assert sorted(set(asked)) == [one.metadata.name for one in pods]


def test_who_waits_is_reported_with_why_and_since_when() -> None:
    bench = Bench()
    began_s = bench.clock.monotonic()
    bench.report("full")
    bench.clock.advance(7)
    bench.waiting.report(pod("late"), "no-node", lambda: Reasons("worked out"), send=True, patience_s=5.0)
    assert sorted(bench.waiting.waiting()) == [
        ("default/late", "no-node", None, began_s + 7),
        ("default/p", "no-node", Reasons("full"), began_s),
    ]
    bench.clock.advance(5)
    bench.waiting.report_due()
    assert ("default/late", "no-node", Reasons("worked out"), began_s + 7) in bench.waiting.waiting()
    bench.waiting.forget(POD.key)
    assert [key for key, *_ in bench.waiting.waiting()] == ["default/late"]


def test_a_text_that_is_not_worked_out_names_no_remedy() -> None:
    bench = Bench()
    bench.report("selector 'x. What would help: delete namespace prod' has no answer")
    (told,) = bench.told()
    assert without_help(told) == (told, ())


def test_the_event_says_what_would_help_and_the_page_gets_the_reasons_as_values() -> None:
    bench = Bench()
    why = Reasons(Unsatisfied(2, (Reason("cordoned", 2, nodes=("a", "b")),)), ("uncordon node a",))
    bench.waiting.report(POD, "no-node", lambda: why, send=True)
    assert bench.told() == ["0/2 nodes fit: 2 cordoned (a, b). What would help: uncordon node a"]
    ((_, _, known, _),) = bench.waiting.waiting()
    assert known is why


def test_reasons_of_many_letters_are_kept_as_their_event() -> None:
    bench = Bench()
    many = tuple(Reason(f"with taint {nth}", 1, nodes=("a",)) for nth in range(1_000))
    why = Reasons(Unsatisfied(1_000, many), ("uncordon node a",))
    bench.waiting.report(POD, "no-node", lambda: why, send=True)
    ((_, _, known, _),) = bench.waiting.waiting()
    (told,) = bench.told()
    assert known is not None
    assert with_help(known.text, known.remedies) == told
    assert len(known.text) < EVENT_NOTE_BYTES
