from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from dracaena.api.decision import read_decision
from dracaena.api.names import DELETE_PROTECTION_FINALIZER
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.allocator import Allocator
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.cache.claims import kept_claim
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.simulation import make_inventory
from dracaena.controller.write.claim_writer import MAX_ATTEMPTS, ClaimWriter, Lost, Written
from dracaena.kube.errors import ApiUnavailableError, ForbiddenError, InvalidError
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    pod,
    pool_slice,
    request,
)
from support.claim_api import FakeClaims
from support.clock import FakeClock

MACHINE = machine("m", blocks(4, inside="PIX", outside="PIX"))
POD = pod("p", "x", "y")
X, Y = claim("x", request(count=2)), claim("y", request(count=1))


class Bench:
    """A writer over a fake API, with one decision for two claims."""

    def __init__(self, x: ResourceClaim = X, y: ResourceClaim = Y, *, stored: ResourceClaim | None = None) -> None:
        """`stored`: x as the server has it, if less of it is kept."""
        self.api = FakeClaims(POD, stored or x, y)
        self.registry = CollectorRegistry()
        self.shown: list[ResourceClaim] = []
        self.asked: list[tuple[str, str]] = []
        self.is_ours = True
        self.writer = ClaimWriter(
            self.api,
            FakeClock(),
            ControllerMetrics(self.registry),
            shown=self.shown.append,
            may_send=self.may_send,
        )
        slices = [pool_slice("n", MACHINE)]
        inventory = make_inventory(DRIVER, nodes=[node("n")], slices=slices, classes=[device_class()])
        decision = Allocator().allocate(inventory, POD, [x, y])
        assert isinstance(decision, Allocation)
        self.decision = decision

    def may_send(self, item: ResourceClaim, decision_id: str) -> bool:
        self.asked.append((item.key, decision_id))
        return self.is_ours

    def write(self) -> Written | Lost:
        marked = self.writer.mark(self.decision)
        return marked if isinstance(marked, Lost) else self.writer.allocate(self.decision, marked, POD, "id")

    def once_before(self, verb: str, key: str, act: Callable[[], object]) -> None:
        """Do something right before the first write of this verb and claim."""
        pending = [act]

        def before(seen_verb: str, seen_key: str) -> None:
            if (seen_verb, seen_key) == (verb, key) and pending:
                pending.pop()()

        self.api.before = before

    def touch(self, key: str) -> ResourceClaim:
        """Change something of a claim that does not matter."""
        stored = self.api.claims[key]
        labels = {**stored.metadata.labels, "touched": stored.metadata.resource_version}
        return self.api.put(
            msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, labels=labels))
        )


def devices(item: ResourceClaim) -> list[str]:
    assert item.status.allocation is not None
    return [result.device for result in item.status.allocation.devices.results]


def test_all_finalizers_come_before_the_first_allocation() -> None:
    bench = Bench()
    assert isinstance(bench.write(), Written)
    assert bench.api.writes == [
        ("mark", "default/x"),
        ("mark", "default/y"),
        ("allocate", "default/x"),
        ("allocate", "default/y"),
    ]


def protected(item: ResourceClaim) -> ResourceClaim:
    """A claim as the admission policy of the chart has it made."""
    metadata = msgspec.structs.replace(item.metadata, finalizers=[DELETE_PROTECTION_FINALIZER])
    return msgspec.structs.replace(item, metadata=metadata)


def test_claims_that_are_made_with_the_finalizer_take_one_write_each() -> None:
    bench = Bench(protected(X), protected(Y))
    assert isinstance(bench.write(), Written)
    assert bench.api.writes == [("allocate", "default/x"), ("allocate", "default/y")]


def test_a_finalizer_that_went_after_the_decision_is_written_before_the_allocation() -> None:
    """kube-controller-manager takes it off a claim that nobody uses any more; our watch may lag."""
    bench = Bench(protected(X), protected(Y))
    stored = bench.api.claims["default/y"]
    bench.api.put(msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, finalizers=[])))
    assert isinstance(bench.write(), Written)
    assert [verb for verb, key in bench.api.writes if key == "default/y"] == ["mark", "allocate"]


def test_a_claim_whose_parameters_are_not_kept_is_read_and_not_written_before() -> None:
    parameters = {"any": "thing"}
    config = {"opaque": {"driver": "other.example.com", "parameters": parameters}}
    whole = protected(ResourceClaim.from_json(msgspec.json.encode(claim("x", request(count=2), configs=[config]))))
    bench = Bench(kept_claim(DRIVER)(whole), protected(Y), stored=whole)
    assert isinstance(bench.write(), Written)
    assert [verb for verb, _ in bench.api.writes] == ["allocate", "allocate"]
    allocation = bench.api.claims["default/x"].status.allocation
    assert allocation is not None
    (first, _) = allocation.devices.config
    assert first.opaque is not None
    assert msgspec.json.decode(first.opaque.parameters) == parameters


def test_a_written_claim_carries_finalizer_decision_timestamp_and_reservation() -> None:
    bench = Bench()
    assert isinstance(bench.write(), Written)
    written = bench.api.claims["default/x"]
    assert DELETE_PROTECTION_FINALIZER in written.metadata.finalizers
    decision = read_decision(written, DRIVER)
    assert decision is not None
    assert (decision.node, decision.pod_devices) == ("n", 3)
    assert written.metadata.annotations == {}
    assert devices(written) == [device_name(MACHINE, 0), device_name(MACHINE, 1)]
    assert devices(bench.api.claims["default/y"]) == [device_name(MACHINE, 2)]
    assert written.status.allocation is not None
    assert written.status.allocation.allocation_timestamp == "2026-01-01T00:00:00Z"
    assert [(user.resource, user.name, user.uid) for user in written.status.reserved_for] == [("pods", "p", "uid-p")]


def test_other_finalizers_stay() -> None:
    mine = msgspec.structs.replace(X.metadata, finalizers=["example.com/keep"])
    bench = Bench(msgspec.structs.replace(X, metadata=mine), Y)
    bench.write()
    assert "example.com/keep" in bench.api.claims["default/x"].metadata.finalizers


@pytest.mark.parametrize("verb", ["mark", "allocate"])
def test_a_conflict_is_completed_as_long_as_the_claim_is_free(verb: str) -> None:
    bench = Bench()
    bench.once_before(verb, "default/y", lambda: bench.touch("default/y"))
    assert isinstance(bench.write(), Written)
    assert devices(bench.api.claims["default/y"]) == [device_name(MACHINE, 2)]
    assert bench.registry.get_sample_value("dracaena_controller_write_conflicts_total") == 1


def test_a_finalizer_that_vanished_is_written_again_before_the_allocation() -> None:
    bench = Bench()

    def strip() -> None:
        stored = bench.api.claims["default/y"]
        bench.api.put(msgspec.structs.replace(stored, metadata=msgspec.structs.replace(stored.metadata, finalizers=[])))

    bench.once_before("allocate", "default/y", strip)
    assert isinstance(bench.write(), Written)
    assert DELETE_PROTECTION_FINALIZER in bench.api.claims["default/y"].metadata.finalizers


def test_a_claim_that_somebody_else_allocated_is_lost_and_what_was_written_stays() -> None:
    bench = Bench()
    bench.once_before("allocate", "default/y", lambda: bench.api.put(holding(Y, "other", "gpu-z")))
    outcome = bench.write()
    assert isinstance(outcome, Lost)
    assert (outcome.claim_key, outcome.why) == ("default/y", "is allocated by another program")
    (decided, _) = bench.decision.claims
    assert devices(bench.api.claims["default/x"]) == [result.device for result in decided.results]
    assert bench.registry.get_sample_value("dracaena_controller_lost_writes_total") == 1


def test_nothing_is_allocated_when_a_claim_is_lost_before() -> None:
    bench = Bench()
    bench.once_before("mark", "default/y", lambda: bench.api.put(holding(Y, "other", "gpu-z")))
    outcome = bench.write()
    assert isinstance(outcome, Lost)
    assert bench.api.claims["default/x"].status.allocation is None


def deleted(item: ResourceClaim) -> ResourceClaim:
    meta = msgspec.structs.replace(item.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return msgspec.structs.replace(item, metadata=meta)


@pytest.mark.parametrize("verb", ["mark", "allocate"])
@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda api: api.remove("default/y"), "is gone"),
        (lambda api: api.put(claim("y", uid="another")), "was deleted and made again"),
        (lambda api: api.put(deleted(Y)), "is being deleted"),
    ],
)
def test_a_claim_that_goes_away_is_lost(verb: str, act: Callable[[FakeClaims], object], why: str) -> None:
    bench = Bench()
    bench.once_before(verb, "default/y", lambda: act(bench.api))
    outcome = bench.write()
    assert isinstance(outcome, Lost)
    assert outcome.why == why


def test_an_answer_that_got_lost_before_a_conflict_is_recognised_as_our_own_write() -> None:
    bench = Bench()

    def land_and_conflict() -> None:
        stored = bench.api.claims["default/y"]
        bench.api.put(holding(stored, "n", device_name(MACHINE, 2)))

    bench.once_before("allocate", "default/y", land_and_conflict)
    assert isinstance(bench.write(), Written)


def test_a_claim_that_changes_all_the_time_is_given_up() -> None:
    bench = Bench()

    def always(verb: str, key: str) -> None:
        if key == "default/x":
            bench.touch(key)

    bench.api.before = always
    outcome = bench.write()
    assert isinstance(outcome, Lost)
    assert outcome.why == f"changed {MAX_ATTEMPTS} times while it was written"


@pytest.mark.parametrize("refused_verb", ["mark", "allocate"])
def test_a_write_that_validation_refuses_is_given_up_at_once_with_the_servers_words(refused_verb: str) -> None:
    bench = Bench()
    tries: list[str] = []

    def refuse(verb: str, key: str) -> None:
        if verb == refused_verb:
            tries.append(key)
            raise InvalidError(f"PATCH {key}", 422, "Invalid", "status: must be round")

    bench.api.before = refuse
    outcome = bench.write()
    assert isinstance(outcome, Lost)
    assert outcome.refused
    assert outcome.why == "is refused by the API server: status: must be round"
    assert len(tries) == 1


def test_an_invalid_write_of_a_claim_that_changed_meanwhile_is_tried_on_the_new_state() -> None:
    bench = Bench()

    def refuse_once(verb: str, key: str) -> None:
        if verb == "allocate" and not bench.api.claims[key].metadata.labels:
            bench.api.put(labelled(bench.api.claims[key]))
            raise InvalidError(f"PATCH {key}", 422, "Invalid", "no")

    bench.api.before = refuse_once
    assert isinstance(bench.write(), Written)


def labelled(claim: ResourceClaim) -> ResourceClaim:
    metadata = msgspec.structs.replace(claim.metadata, labels={"seen": "true"})
    return msgspec.structs.replace(claim, metadata=metadata)


@pytest.mark.parametrize("error", [ApiUnavailableError, ForbiddenError])
def test_a_server_that_does_not_serve_us_is_the_callers_trouble(error: type[Exception]) -> None:
    bench = Bench()

    def fail(verb: str, key: str) -> None:
        raise error(f"PATCH {key}", None, "", "no answer")

    bench.api.before = fail
    with pytest.raises(error):
        bench.write()


def test_every_state_that_the_server_answers_with_is_shown_in_its_order() -> None:
    bench = Bench()
    bench.once_before("allocate", "default/y", lambda: bench.touch("default/y"))
    assert isinstance(bench.write(), Written)
    seen = [(item.key, item.status.allocation is not None) for item in bench.shown]
    assert seen == [
        ("default/x", False),
        ("default/y", False),
        ("default/x", True),
        ("default/y", False),  # read after the conflict
        ("default/y", True),
    ]
    versions = [int(item.metadata.resource_version) for item in bench.shown]
    assert versions == sorted(versions)


def test_each_allocation_is_asked_for_by_its_decision_right_before_it_is_sent_and_again_after_a_conflict() -> None:
    bench = Bench()
    bench.once_before("allocate", "default/y", lambda: bench.touch("default/y"))
    bench.write()
    assert bench.asked == [("default/x", "id"), ("default/y", "id"), ("default/y", "id")]


def test_a_claim_that_is_not_the_decisions_any_more_gets_no_allocation() -> None:
    bench = Bench()
    bench.is_ours = False
    outcome = bench.write()
    assert isinstance(outcome, Lost)
    assert (outcome.why, outcome.refused) == ("changed before it was written", False)
    assert [verb for verb, _ in bench.api.writes] == ["mark", "mark"]


def test_a_claim_that_changed_since_it_was_decided_for_is_written_as_it_is_now() -> None:
    """Somebody labelled it, and the watch showed that before the write."""
    bench = Bench()
    stale: list[str] = []

    def only_the_newest(item: ResourceClaim, decision_id: str) -> bool:
        newest = bench.api.claims[item.key].metadata.resource_version
        if item.metadata.resource_version != newest:
            stale.append(item.key)
        return item.metadata.resource_version == newest

    bench.writer._may_send = only_the_newest
    marked = bench.writer.mark(bench.decision)
    assert not isinstance(marked, Lost)
    bench.touch("default/y")
    assert isinstance(bench.writer.allocate(bench.decision, marked, POD, "id"), Written)
    assert stale == ["default/y"]
    assert devices(bench.api.claims["default/y"]) == [device_name(MACHINE, 2)]


def test_a_claim_that_has_what_was_decided_by_then_needs_no_write() -> None:
    """An earlier write of the same allocation had no answer, and landed late."""
    bench = Bench()
    devices_of_x = [device_name(MACHINE, 0), device_name(MACHINE, 1)]

    def landed(item: ResourceClaim, decision_id: str) -> bool:
        if item.key == "default/x":
            bench.api.put(holding(bench.api.claims["default/x"], "n", *devices_of_x))
            return False
        return True

    bench.writer._may_send = landed
    assert isinstance(bench.write(), Written)
    assert [verb for verb, _ in bench.api.writes] == ["mark", "mark", "allocate"]


def test_a_pod_reference_is_that_of_a_core_pod() -> None:
    bench = Bench()
    bench.write()
    consumer = bench.api.claims["default/x"].status.reserved_for[0]
    assert isinstance(POD, Pod)
    assert consumer.api_group == ""
