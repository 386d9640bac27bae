from __future__ import annotations

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.decision import Decision, encode_decision
from dracaena.api.names import decision_annotation
from dracaena.api.objects import ConsumerReference, Pod, ResourceClaim
from dracaena.controller import take_back
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.nomination import Nomination
from dracaena.controller.take_back import TakeBack, was_allocated_by_us
from dracaena.kube.errors import ApiUnavailableError, ConflictError, InvalidError
from support.allocation import DRIVER, claim, holding, pod
from support.claim_api import FakeClaims
from support.clock import FakeClock

POD = pod("p", "c")
OTHER = pod("q", "c")
BOUND = pod("p", "c", nodeName="node-a")


def reserved(item: ResourceClaim, *pods: Pod) -> ResourceClaim:
    users = [ConsumerReference("pods", user.metadata.name, user.metadata.uid) for user in pods]
    return msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, reserved_for=users))


HELD = reserved(holding(claim("c"), "node-a", "gpu-1"), POD)


class Bench:
    def __init__(self, held: ResourceClaim = HELD) -> None:
        self.api = FakeClaims(POD, held)
        self.clock = FakeClock()
        self.registry = CollectorRegistry()
        self.assumed = {"uid-c"}
        self.kept: list[str] = []
        metrics = ControllerMetrics(self.registry)
        nomination = Nomination(self.api, lambda: 1, metrics, above_nodes=0)
        self.take_back = TakeBack(
            DRIVER,
            self.api,
            self.api,
            nomination,
            self.assumed.remove,
            lambda claim: self.kept.append(claim.metadata.uid),
            self.clock,
            metrics,
            unbound_wait_s=2.0,
        )
        self.take_back.begin(POD, [held], "refused")

    def advance(self) -> float | None:
        return self.take_back.advance("default/p")

    @property
    def claim(self) -> ResourceClaim:
        return self.api.claims["default/c"]

    def ended(self, how: str) -> bool:
        labels = {"reason": "refused", "end": how}
        count = self.registry.get_sample_value("dracaena_controller_take_backs_total", labels)
        is_told = (self.assumed, self.kept) == (({"uid-c"}, ["uid-c"]) if how == "kept" else (set(), []))
        return count == 1 and self.advance() is None and is_told


def test_the_reservation_goes_first_and_the_allocation_only_after_the_wait() -> None:
    bench = Bench()
    assert bench.advance() == 2.0
    assert bench.claim.status.reserved_for == []
    assert bench.claim.status.allocation is not None
    bench.clock.advance(1.5)
    assert bench.advance() == 0.5
    assert bench.claim.status.allocation is not None
    assert bench.assumed
    bench.clock.advance(0.5)
    assert bench.advance() is None
    assert bench.api.writes == [("reserve", "default/c"), ("deallocate", "default/c")]
    cleared = bench.claim
    assert cleared.status.allocation is None
    assert bench.ended("cleared")


def test_a_pod_that_was_bound_before_keeps_all() -> None:
    bench = Bench()
    bench.api.pods["default/p"] = BOUND
    assert bench.advance() is None
    assert bench.api.writes == []
    assert bench.ended("kept")


def test_a_pod_that_was_bound_meanwhile_keeps_its_devices_and_gets_its_reservation_back() -> None:
    bench = Bench()
    bench.advance()
    bench.api.pods["default/p"] = BOUND
    bench.clock.advance(2)
    assert bench.advance() is None
    assert bench.claim.status.allocation is not None
    assert [user.uid for user in bench.claim.status.reserved_for] == ["uid-p"]
    assert bench.ended("kept")


def test_a_claim_that_somebody_reserved_meanwhile_is_left_to_them() -> None:
    bench = Bench()
    bench.advance()
    bench.api.put(reserved(bench.claim, OTHER))
    bench.clock.advance(2)
    assert bench.advance() is None
    assert bench.claim.status.allocation is not None
    assert bench.ended("kept")


def test_a_reservation_for_the_same_pod_begins_the_wait_anew() -> None:
    """kube-scheduler's PreBind reserved, and the bind failed after it."""
    bench = Bench()
    bench.advance()
    bench.api.put(reserved(bench.claim, POD))
    bench.clock.advance(2)
    assert bench.advance() == 2.0
    bench.clock.advance(2)
    assert bench.advance() is None
    assert bench.ended("cleared")


def test_a_change_at_the_last_moment_is_a_conflict_and_begins_the_wait_anew() -> None:
    bench = Bench()
    bench.advance()
    bench.clock.advance(2)

    def reserve_now(verb: str, key: str) -> None:
        bench.api.before = lambda verb, key: None
        if verb == "deallocate":
            bench.api.put(reserved(bench.claim, POD))

    bench.api.before = reserve_now
    assert bench.advance() == 0.0
    assert bench.claim.status.allocation is not None
    assert bench.advance() == 2.0


@pytest.mark.parametrize("what", ["gone", "made again", "cleared"])
def test_a_claim_that_is_free_already_ends_the_matter(what: str) -> None:
    bench = Bench()
    if what == "gone":
        bench.api.remove("default/c")
    else:
        bench.api.put(claim("c", uid="another" if what == "made again" else "uid-c"))
    assert bench.advance() is None
    assert bench.api.writes == []
    assert bench.ended("gone")


def test_the_devices_of_a_pod_that_is_gone_are_cleared() -> None:
    bench = Bench()
    del bench.api.pods["default/p"]
    bench.advance()
    bench.clock.advance(2)
    assert bench.advance() is None
    assert bench.claim.status.allocation is None


def test_what_a_killed_controller_began_is_waited_for_from_now_on() -> None:
    """Only the first write was made: without a reservation the wait begins when we see it."""
    bench = Bench(reserved(HELD))
    assert bench.advance() == 2.0
    assert bench.api.writes == []
    bench.clock.advance(2)
    assert bench.advance() is None
    assert bench.api.writes == [("deallocate", "default/c")]


def test_a_server_that_does_not_answer_leaves_the_task() -> None:
    bench = Bench()

    def fail(verb: str, key: str) -> None:
        raise ApiUnavailableError("PATCH", None, "", "no answer")

    bench.api.before = fail
    with pytest.raises(ApiUnavailableError):
        bench.advance()
    bench.api.before = lambda verb, key: None
    assert bench.advance() == 2.0


def test_a_claim_is_taken_back_once_however_often_it_is_asked_for() -> None:
    bench = Bench()
    bench.take_back.begin(POD, [HELD], "refused")
    bench.advance()
    bench.clock.advance(2)
    bench.advance()
    assert bench.ended("cleared")


def test_where_there_is_nothing_to_take_back_nothing_begins() -> None:
    bench = Bench()
    assert not bench.take_back.begin(OTHER, [], "lost-write")
    assert not bench.take_back.has("default/q")


def test_a_state_that_was_dealt_with_is_not_taken_back_again_while_the_watch_still_shows_it() -> None:
    """Else one pod would ask the server without a pause until the watch has caught up."""
    bench = Bench()
    bench.api.pods["default/p"] = BOUND
    assert bench.advance() is None
    assert not bench.take_back.begin(POD, [HELD], "refused")
    assert not bench.take_back.has("default/p")
    newer = bench.api.put(HELD)
    assert bench.take_back.begin(POD, [newer], "refused")


def test_a_conflict_when_giving_the_reservation_back_is_tried_again() -> None:
    bench = Bench(reserved(HELD))
    bench.api.pods["default/p"] = BOUND

    def conflict(verb: str, key: str) -> None:
        bench.api.before = lambda verb, key: None
        raise ConflictError("PATCH", 409, "Conflict", "changed")

    bench.api.before = conflict
    assert bench.advance() == 0.0
    assert bench.advance() is None
    assert [user.uid for user in bench.claim.status.reserved_for] == ["uid-p"]


def decided(*devices: str, cut: bool = False) -> dict[str, str]:
    decision = Decision(node="node-a", devices=devices, links="", score=(), pod_devices=len(devices), cut=cut)
    return {decision_annotation(DRIVER): encode_decision(decision)}


@pytest.mark.parametrize(
    ("item", "ours"),
    [
        (holding(claim("c", annotations=decided("gpu-1")), "node-a", "gpu-1"), True),
        (holding(claim("c", annotations=decided("gpu-2")), "node-a", "gpu-1"), False),
        (holding(claim("c", annotations=decided("gpu-1")), "node-a", "gpu-1", driver="nic.example.com"), False),
        (holding(claim("c", annotations={decision_annotation(DRIVER): "{"}), "node-a", "gpu-1"), False),
        (holding(claim("c"), "node-a", "gpu-1"), False),
        (holding(claim("c", annotations=decided("gpu-2", cut=True)), "node-a", "gpu-1"), False),  # runner-up cut
        (holding(claim("c", annotations=decided("gpu-1", cut=True)), "node-a", "gpu-1"), True),
        (holding(claim("c", annotations=decided(cut=True)), "node-a", "gpu-1"), True),
        (claim("c", annotations=decided("gpu-1")), False),
    ],
)
def test_an_allocation_is_ours_when_the_decision_tells_of_it(item: ResourceClaim, ours: bool) -> None:
    assert was_allocated_by_us(item, DRIVER) is ours


def test_a_write_that_validation_refuses_is_not_tried_again_at_once() -> None:
    bench = Bench()

    def refuse(verb: str, key: str) -> None:
        raise InvalidError(f"PATCH {key}", 422, "Invalid", "spec: field is immutable")

    bench.api.before = refuse
    assert bench.advance() == 30.0
    bench.api.before = lambda verb, key: None
    assert bench.advance() == 2.0
    bench.clock.advance(2)
    bench.api.before = refuse
    assert bench.advance() == 30.0
    bench.api.before = lambda verb, key: None
    assert bench.advance() is None
    assert bench.ended("cleared")


def test_a_claim_that_was_made_again_under_its_name_is_left_alone() -> None:
    bench = Bench()
    bench.api.put(msgspec.structs.replace(HELD, metadata=msgspec.structs.replace(HELD.metadata, uid="made-again")))
    assert bench.advance() is None
    assert bench.api.writes == []
    assert bench.ended("gone")


def test_a_later_pod_of_the_same_name_that_is_bound_keeps_nothing_of_the_first() -> None:
    bench = Bench()
    bench.api.pods["default/p"] = msgspec.structs.replace(
        BOUND, metadata=msgspec.structs.replace(BOUND.metadata, uid="made-again")
    )
    assert bench.advance() == 2.0
    bench.clock.advance(2)
    assert bench.advance() is None
    assert bench.ended("cleared")


def test_the_wait_begins_when_the_first_write_was_answered_however_long_it_took() -> None:
    bench = Bench()
    bench.api.after = lambda verb, key: bench.clock.advance(9)
    assert bench.advance() == 2.0
    bench.clock.advance(1.5)
    assert bench.advance() == 0.5
    assert bench.claim.status.allocation is not None


def test_of_thousands_of_ends_a_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(take_back, "MAX_ENDED", 3)
    bench = Bench()
    bench.api.claims.clear()
    for number in range(20):
        bench.assumed.add(f"uid-{number}")
        gone = holding(claim(f"c{number}", uid=f"uid-{number}"), "node-a", "gpu-1")
        bench.take_back.begin(POD, [gone], "refused")
        assert bench.advance() is None
        assert not bench.take_back.begin(POD, [gone], "refused"), "the watch may still show it"
        assert len(bench.take_back._ended) <= 3
