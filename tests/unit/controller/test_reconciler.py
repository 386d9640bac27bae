from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dracaena.api import reasons
from dracaena.api.config.v1alpha1 import API_VERSION
from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION
from dracaena.api.objects import ObjectMeta, Pod
from dracaena.api.resource_objects import (
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)
from dracaena.controller.lifecycle.phases import OURS
from dracaena.controller.reconciler import GENERATED_S, MISSING_CLAIM_S
from dracaena.kube.errors import ForbiddenError, InvalidError, KubeError
from support.allocation import (
    DRIVER,
    blockers,
    claim,
    device_class,
    device_name,
    holding,
    node,
    own_config,
    pod,
    request,
)
from support.reconciling import EXCLUSION_S, SEVEN, TWO, Bench
from support.watched_cluster import WatchedCluster


def test_a_pending_pod_gets_the_best_linked_gpus_and_both_are_reported() -> None:
    bench = Bench()
    bench.add(pod("p", "c"), claim("c", request(count=4)))
    bench.run()
    assert bench.held("c") == (3, 4, 5, 6)
    assert bench.users("c") == ["p"]
    assert [(subject, reason) for subject, reason, _ in bench.events.seen] == [
        ("Pod default/p", "GPUsAllocated"),
        ("ResourceClaim default/c", "GPUsAllocated"),
    ]
    for _, _, text in bench.events.seen:
        chosen, second = text.split("; ")
        assert chosen == "4 of the GPUs of n: 6 pairs PIX (bandwidth: 13 GB/s)"
        assert second == "next best: 3 pairs PIX, 3 pairs PHB on n, worse in bandwidth: 12 GB/s"
    assert bench.metric("decisions_total", result="allocated") == 1
    assert not bench.phases() & OURS


@pytest.mark.parametrize(
    ("count", "policy", "worst_link"), [(4, "BestEffort", "PIX"), (2, "PHB", "PIX"), (7, "PHB", "PHB")]
)
def test_what_was_achieved_is_counted_by_size_requirement_and_worst_link(
    count: int, policy: str, worst_link: str
) -> None:
    bench = Bench()
    config = own_config({"apiVersion": API_VERSION, "kind": "TopologyPolicy", "requirement": policy})
    bench.add(pod("p", "c"), claim("c", request(count=count), configs=[config]))
    bench.run()
    labels = {"gpus": str(count), "requirement": policy, "worst_link": worst_link}
    assert bench.metric("allocated_sets_total", **labels) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"phase": "Running"}},
        {"status": {"phase": "Succeeded"}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"spec": {"schedulingGates": [{"name": "wait"}]}},
    ],
)
def test_a_pod_that_does_not_wait_for_devices_is_left_alone(change: dict[str, dict[str, Any]]) -> None:
    bench = Bench()
    document = msgspec.to_builtins(pod("p", "c"))
    for part, fields in change.items():
        document[part] = {**document[part], **fields}
    bench.add(msgspec.convert(document, Pod), claim("c"))
    bench.run()
    assert bench.api.writes == []


def generated(name: str, *statuses: tuple[str, str]) -> Pod:
    document = msgspec.to_builtins(pod(name, templates=["t"]))
    entries = [{"name": entry, "resourceClaimName": claim_name} for entry, claim_name in statuses]
    return msgspec.convert({**document, "status": {"phase": "Pending", "resourceClaimStatuses": entries}}, Pod)


def test_a_generated_claim_is_waited_for_without_noise() -> None:
    bench = Bench()
    bench.add(generated("p"))
    bench.run()
    made = generated("p", ("t", "p-t-x"))
    bench.add(made)
    bench.run()
    assert bench.api.writes == []
    assert bench.events.seen == []
    bench.add(claim("p-t-x", owner=made))
    bench.run()
    assert bench.held("p-t-x") == (0,)


@pytest.mark.parametrize(
    ("waiting", "text"),
    [
        (pod("p", "typo"), "claim default/typo does not exist: create it"),
        (generated("p"), "ResourceClaimTemplate default/t does not exist: create it"),
    ],
)
def test_a_claim_that_is_not_there_is_reported_within_a_second_and_once(waiting: Pod, text: str) -> None:
    bench = Bench()
    bench.add(waiting)
    bench.run()
    bench.waiting.report_due()
    assert bench.told() == []
    assert bench.metric("waiting_pods", reason="claim-missing") == 1
    bench.advance(0.9)
    assert bench.told() == [text]
    bench.pass_time(200)
    assert bench.told() == [text]


def test_a_misspelt_template_is_reported_with_the_one_that_was_meant_and_the_namespace_is_listed_once() -> None:
    bench = Bench()
    listed: list[str] = []
    bench.template_api.before = lambda verb, key: listed.append(key) if verb == "list-names" else None
    for namespace, name in (("default", "two-gpus"), ("other", "two-gpsu-")):
        document = {"metadata": {"namespace": namespace, "name": name}, "spec": {"spec": {}}}
        bench.template_api.templates[f"{namespace}/{name}"] = msgspec.convert(document, ResourceClaimTemplate)
    bench.add(pod("p", templates=["two-gpsu"]), pod("q", templates=["two-gpsu"]))
    bench.run()
    bench.advance(0.9)
    text = "ResourceClaimTemplate default/two-gpsu does not exist: did you mean two-gpus?"
    assert bench.told() == [text, text]
    assert listed == ["default"]


def test_a_namespace_whose_templates_cannot_be_listed_gives_no_hint() -> None:
    bench = Bench()

    def refuse(verb: str, key: str) -> None:
        if verb == "list-names":
            raise ForbiddenError(f"GET {key}", 403, "Forbidden", "no")

    bench.template_api.before = refuse
    bench.add(generated("p"))
    bench.run()
    bench.advance(0.9)
    assert bench.told() == ["ResourceClaimTemplate default/t does not exist: create it"]


def test_a_claim_that_is_slow_to_be_made_from_its_template_is_reported_after_some_seconds() -> None:
    bench = Bench()
    bench.template_api.templates["default/t"] = ResourceClaimTemplate(
        ObjectMeta(name="t"), ResourceClaimTemplateSpec({})
    )
    bench.add(generated("p"))
    bench.run()
    bench.pass_time(int(GENERATED_S) - 1)
    bench.waiting.report_due()
    assert bench.told() == []
    bench.advance(1.0)
    bench.waiting.report_due()
    assert bench.told() == ["the claim for t is not generated from its template yet"]


def test_a_template_that_cannot_be_looked_up_is_not_said_to_be_missing() -> None:
    bench = Bench()

    def fail(verb: str, key: str) -> None:
        raise KubeError(f"{verb} {key}", 500, "InternalError", "down")

    bench.template_api.before = fail
    bench.add(generated("p"))
    bench.run()
    bench.pass_time(int(GENERATED_S) - 1)
    bench.waiting.report_due()
    assert bench.told() == []
    bench.advance(1.0)
    bench.waiting.report_due()
    assert bench.told() == ["the claim for t is not generated from its template yet"]


def test_pods_of_one_job_ask_once_whether_their_template_is_there() -> None:
    bench = Bench()
    bench.template_api.templates["default/t"] = ResourceClaimTemplate(
        ObjectMeta(name="t"), ResourceClaimTemplateSpec({})
    )
    asked: list[str] = []
    bench.template_api.before = lambda verb, key: asked.append(key)
    for number in range(8):
        bench.add(generated(f"p{number}"))
    bench.run()
    bench.pass_time(2)
    assert asked == ["default/t"]


def test_a_claim_that_comes_late_is_allocated_and_nothing_is_waited_for_any_more() -> None:
    bench = Bench()
    bench.add(pod("p", "c"))
    bench.run()
    bench.advance(MISSING_CLAIM_S + 1)
    bench.add(claim("c"))
    bench.run()
    assert bench.held("c") == (0,)
    assert bench.metric("waiting_pods", reason="claim-missing") == 0


def test_a_generated_name_that_another_pods_claim_has_is_not_taken() -> None:
    bench = Bench()
    bench.add(generated("p", ("t", "p-t-x")), claim("p-t-x", owner=pod("other")))
    bench.run()
    assert bench.api.writes == []


def test_a_claim_that_names_the_pod_as_an_owner_but_not_as_its_controller_is_not_taken() -> None:
    bench = Bench()
    made = generated("p", ("t", "p-t-x"))
    owned = claim("p-t-x", owner=made)
    owners = [msgspec.structs.replace(owner, controller=False) for owner in owned.metadata.owner_references]
    metadata = msgspec.structs.replace(owned.metadata, owner_references=owners)
    bench.add(made, msgspec.structs.replace(owned, metadata=metadata))
    bench.run()
    assert bench.api.writes == []


def test_a_claim_that_is_being_deleted_is_not_allocated() -> None:
    bench = Bench()
    bench.add(pod("p", "c", "d"), claim("c"), claim("d", deletion_timestamp="2026-01-01T00:00:00Z"))
    bench.run()
    assert bench.api.writes == []


def test_the_scheduler_that_a_pod_names_does_not_matter_nor_that_none_is_asked() -> None:
    bench = Bench(a=SEVEN, b=TWO)
    bench.add(pod("p", "c", schedulerName="other"), claim("c"))
    bench.add(pod("q", "d", nodeName="b"), claim("d"))
    bench.run()
    assert bench.held("c") is not None
    assert bench.on_node("d") == "b"


def test_pods_get_different_devices_also_while_the_watch_shows_nothing() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("p", "c"), claim("c"), pod("q", "d"), claim("d"), pod("r", "e"), claim("e"))
    kept = bench.hold_the_watch()
    bench.run()
    assert sorted([bench.held("c"), bench.held("d")], key=str) == [(0,), (1,)]
    assert bench.held("e") is None
    bench.show(kept)
    bench.run()
    assert bench.held("e") is None
    assert not bench.phases() & OURS


def test_a_pod_that_fits_nowhere_learns_why_and_gets_what_is_freed() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("p", "c"), claim("c", request(count=2)))
    bench.run()
    bench.add(pod("q", "d"), claim("d", request(count=2)))
    bench.run()
    why = "0/1 nodes fit: 1 with 2 or more GPUs, fewer than 2 of them free (n)"
    assert bench.told() == [f"{why}. What would help: wait until pods leave node n, which can serve it then"]
    assert bench.metric("waiting_pods", reason="no-node") == 1
    bench.api.remove("default/c")
    bench.run()
    assert bench.held("d") == (0, 1)
    assert bench.metric("waiting_pods", reason="no-node") == 0


def test_a_pod_waits_for_a_class_and_is_reported_at_once_whose_ever_it_is() -> None:
    bench = Bench()
    bench.add(pod("p", "c"), claim("c", request(device_class=f"{DRIVER}-big")))
    bench.add(pod("q", "d"), claim("d", request(device_class="nic.example.com")))
    bench.add(pod("r", "e"), claim("e", request(device_class="gpu.dracaena.dve")))
    bench.run()
    assert bench.told() == [
        f"claim default/c: DeviceClass {DRIVER}-big does not exist: did you mean {DRIVER}?",
        "claim default/d: DeviceClass nic.example.com does not exist: an admin has to create it",
        f"claim default/e: DeviceClass gpu.dracaena.dve does not exist: did you mean {DRIVER}?",
    ]
    assert bench.metric("waiting_pods", reason="class-missing") == 3
    bench.cluster.intake.class_changed(None, device_class(f"{DRIVER}-big"))
    bench.run()
    assert bench.held("c") is not None
    assert bench.held("d") is None


@pytest.mark.parametrize("count", [2, 3])
def test_what_a_pod_says_without_effect_is_reported_once_whether_it_is_served_or_waits(count: int) -> None:
    bench = Bench(n=TWO)
    other = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}
    container = {"name": "main", "resources": {"claims": [{"name": "c0", "request": "gpu"}]}}
    bench.add(pod("p", "c", containers=[container]), claim("c", request(count=count), configs=[other]))
    bench.run()
    for _ in range(3):
        bench.cluster.intake.node_changed(None, node("n", labels={"changed": "yes"}))
        bench.pass_time(20)
        bench.waiting.report_due()
    texts = [text for _, reason, text in bench.events.seen if reason == "ClaimPartsIgnored"]
    expected = (
        f"claim default/c: {reasons.foreign_config('gpu.nvidia.com', DRIVER)}",
        reasons.unknown_request("gpu", "c0", ["gpus"]),
        reasons.unused_request("gpus", "c0"),
    )
    assert texts == ["; ".join(expected)]
    assert (bench.held("c") is not None) == (count == 2)


def test_pods_that_use_one_request_each_of_a_claim_are_not_reported_of_the_other() -> None:
    bench = Bench(n=TWO)
    bench.add(claim("c", request("a"), request("b")))
    for name in ("a", "b"):
        container = {"name": "main", "resources": {"claims": [{"name": "c0", "request": name}]}}
        bench.add(pod(f"p-{name}", "c", containers=[container]))
    bench.run()
    assert bench.held("c") is not None
    assert [text for _, reason, text in bench.events.seen if reason == "ClaimPartsIgnored"] == []


def test_a_broken_config_is_reported_and_nothing_is_written() -> None:
    bench = Bench()
    bad = own_config({"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "requirement": "fast"})
    bench.add(pod("p", "c"), claim("c", configs=[bad]))
    bench.run()
    assert bench.api.writes == []
    assert "$.requirement: 'fast', expected one of" in bench.told()[0]
    assert bench.metric("waiting_pods", reason="config-broken") == 1


def test_a_second_pod_on_an_allocated_claim_needs_no_decision() -> None:
    bench = Bench()
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    writes = list(bench.api.writes)
    bench.add(pod("q", "c"))
    bench.run()
    assert bench.api.writes == writes
    assert bench.metric("decisions_total", result="settled") is not None
    assert bench.told() == []


def test_a_claim_that_two_entries_of_a_pod_name_is_allocated_once() -> None:
    bench = Bench()
    bench.add(pod("p", "c", "c"), claim("c", request(count=2)))
    bench.run()
    assert [verb for verb, _ in bench.api.writes] == ["mark", "allocate"]
    assert len(bench.held("c") or ()) == 2


def test_two_pods_on_one_new_claim_allocate_it_once() -> None:
    bench = Bench()
    bench.add(pod("p", "c"), pod("q", "c"), claim("c"))
    kept = bench.hold_the_watch()
    bench.run()
    bench.show(kept)
    bench.run()
    assert [verb for verb, _ in bench.api.writes] == ["mark", "allocate"]


class LateCluster(WatchedCluster):
    """Lets something happen right after the first decision was made."""

    happens: Callable[[], None] | None = None

    def decide(self, *args: Any, **kwargs: Any) -> Any:
        decided, happens = super().decide(*args, **kwargs), self.happens
        self.happens = None
        if happens is not None:
            happens()
        return decided


def test_a_change_between_decision_and_waiting_is_not_missed() -> None:
    bench = Bench(LateCluster, n=TWO)
    assert isinstance(bench.cluster, LateCluster)
    bench.add(*blockers("n", TWO, 0, 1), pod("p", "c"), claim("c"))
    bench.cluster.happens = lambda: bench.api.remove("default/blocker-0")
    bench.run()
    assert bench.held("c") == (0,)


def test_a_pod_that_is_gone_waits_no_more() -> None:
    bench = Bench(n=TWO)
    bench.add(pod("p", "c"), claim("c", request(count=3)))
    bench.run()
    bench.remove_pod("default/p")
    bench.run()
    assert bench.waiting.oldest_age_s() == 0


def test_claims_that_the_scheduler_makes_for_extended_resources_are_left_alone() -> None:
    """It makes, allocates and deletes them itself; no pod names them in its spec, but one that did changes nothing."""
    bench = Bench()
    made = claim("er", request(count=2), annotations={EXTENDED_RESOURCE_ANNOTATION: "true"})
    user = msgspec.to_builtins(pod("er-user"))
    user["status"] = {"phase": "Pending", "extendedResourceClaimStatus": {"resourceClaimName": "er"}}
    bench.add(msgspec.convert(user, Pod), pod("p", "er"), made)
    bench.run()
    assert bench.api.writes == []
    taken = holding(made, "n", device_name(SEVEN, 0))
    bench.add(taken, pod("q", "c"), claim("c"))
    bench.run()
    assert bench.held("c") == (1,)
    bench.pass_time(60)
    assert [key for _, key in bench.api.writes] == ["default/c", "default/c"]


def test_a_claim_that_goes_before_anything_was_written_leaves_nothing_to_take_back() -> None:
    bench = Bench()

    def delete_first(verb: str, key: str) -> None:
        bench.api.before = lambda verb, key: None
        bench.api.remove(key)

    bench.api.before = delete_first
    bench.add(pod("p", "c"), claim("c"))
    bench.run()
    assert bench.metric("lost_writes_total") == 1
    assert bench.cluster.record("default/c") is None
    assert bench.metric("take_backs_total", reason="half-written", end="cleared") is None
    bench.add(claim("c", uid="made-again"))
    bench.pass_time(2)
    assert bench.held("c") == (0,)


def test_a_write_that_validation_refuses_is_reported_to_the_user() -> None:
    bench = Bench()
    bench.add(pod("p", "c"), claim("c"))

    def refuse(verb: str, key: str) -> None:
        raise InvalidError(f"PATCH {key}", 422, "Invalid", "spec: field is immutable")

    bench.api.before = refuse
    bench.run()
    (text,) = bench.told()
    assert text.startswith("claim default/c is refused by the API server: spec: field is immutable")
    assert bench.metric("waiting_pods", reason="refused-write") == 1


def test_a_node_that_comes_back_between_a_decision_and_its_end_is_asked_about_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or nobody would ask again: nothing else changes."""
    bench = Bench()
    bench.add(pod("p", "c"), claim("c"))
    bench.leave_out("p", "n")
    step = bench.reconciler.plan("default/p")
    bench.clock.advance(EXCLUSION_S + 1)
    later: list[tuple[str, float]] = []
    monkeypatch.setattr(bench.queue, "add_after", lambda key, delay_s: later.append((key, delay_s)))
    assert bench.reconciler.carry_out("default/p", step)
    assert later == [("default/p", -1.0)]
