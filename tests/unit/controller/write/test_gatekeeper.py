"""Pods at our scheduling gate: who passes it, when, and what a write that fails means for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION, allocation_gate
from dracaena.api.objects import Pod, SchedulingGate
from dracaena.controller.reconciler import LINE_AGAIN_S
from dracaena.kube.errors import ApiUnavailableError, ConflictError, ForbiddenError, InvalidError, KubeError
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, pod, request
from support.quota_world import moved, namespace
from support.reconciling import GATE_WAIT_S, PASSED_OVER_WAIT_S, Bench
from support.watched_cluster import WatchedCluster

TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
OURS = {"name": allocation_gate(DRIVER)}
THEIRS = {"name": "kueue.x-k8s.io/admission"}


def gated(name: str, *claims: str, gates: tuple[dict[str, str], ...] = (OURS,), **more: Any) -> Pod:
    return pod(name, *claims, schedulingGates=list(gates), **more)


def gates(bench: Bench, name: str) -> list[str]:
    return [gate.name for gate in bench.api.pods[f"default/{name}"].spec.scheduling_gates]


def ungated(bench: Bench, reason: str) -> float | None:
    return bench.metric("ungated_pods_total", reason=reason)


def test_a_pod_passes_the_gate_with_its_gpus_in_one_write_after_all_others() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", "c"), claim("c", request(count=2)))
    bench.run()
    assert bench.held("c") == (0, 1)
    assert gates(bench, "p") == []
    assert [verb for verb, _ in bench.api.writes] == ["mark", "allocate", "ungate"]
    assert ungated(bench, "allocated") == 1


def test_a_pod_at_the_gate_is_nominated_in_a_cluster_of_any_size() -> None:
    bench = Bench(WatchedCluster, 500, a=TWO)
    bench.add(gated("p", "c"), claim("c"), pod("q", "d"), claim("d"))
    bench.run()
    assert bench.api.pods["default/p"].status.nominated_node_name == "a"
    assert bench.api.pods["default/q"].status.nominated_node_name == ""


def test_nobody_is_nominated_where_nominations_are_off() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", "c"), claim("c"))
    bench.run()
    assert bench.api.pods["default/p"].status.nominated_node_name == ""


def test_a_pod_at_somebody_elses_gate_too_is_decided_for_when_that_is_gone() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", "c", gates=(THEIRS, OURS)), claim("c"))
    bench.run()
    assert bench.api.writes == []
    bench.change_pod("p", lambda old: msgspec.structs.replace(old, spec=gated("p", "c").spec))
    bench.run()
    assert (bench.held("c"), gates(bench, "p")) == ((0,), [])


def test_a_pod_that_fits_nowhere_passes_after_its_time_at_the_gate_and_not_before() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", "c"), claim("c", request(count=3)))
    bench.run()
    bench.pass_time(int(GATE_WAIT_S) - 1)
    assert gates(bench, "p") == [OURS["name"]]
    bench.pass_time(2)
    assert gates(bench, "p") == []
    assert ungated(bench, "fits-nowhere") == 1


def test_a_pod_behind_an_equal_one_passes_after_its_time_too() -> None:
    bench = Bench(a=TWO)
    for name in ("p", "q"):
        bench.add(gated(name, name), claim(name, request(count=3)))
    bench.run()
    bench.pass_time(int(GATE_WAIT_S) + 1)
    assert (gates(bench, "p"), gates(bench, "q")) == ([], [])


def test_room_that_comes_in_time_spares_the_pod_a_try_without_success() -> None:
    bench = Bench(a=TWO)
    bench.add(pod("first", "f"), claim("f", request(count=2)))
    bench.run()
    bench.add(gated("p", "c"), claim("c"))
    bench.pass_time(10)
    assert gates(bench, "p") == [OURS["name"]]
    bench.remove_pod("default/first")
    bench.api.remove("default/f")
    bench.run()
    assert (bench.held("c"), gates(bench, "p")) == ((0,), [])
    assert ungated(bench, "fits-nowhere") is None


def test_a_pod_that_a_person_has_to_mend_stays_and_learns_why() -> None:
    bench = Bench(a=TWO)
    broken = request(selectors=[{"cel": {"expression": f'device.driver == "{DRIVER}" && nonsense'}}])
    bench.add(gated("p", "c"), claim("c", broken))
    bench.pass_time(3 * int(GATE_WAIT_S))
    assert gates(bench, "p") == [OURS["name"]]
    assert len(bench.told()) == 1


def quota_of_default(bench: Bench, text: str) -> None:
    bench.cluster.intake.namespace_changed(None, namespace("default", text))


def test_pods_beyond_their_quota_stay_also_those_behind_an_equal_one_and_pass_when_only_room_is_missing() -> None:
    bench = Bench(a=TWO)
    bench.add(pod("first", "f"), claim("f"))
    bench.run()
    quota_of_default(bench, '{"gpus": 1}')
    for name in ("p", "q"):
        bench.add(gated(name, name), claim(name))
    bench.pass_time(3 * int(GATE_WAIT_S))
    assert (gates(bench, "p"), gates(bench, "q")) == ([OURS["name"]], [OURS["name"]])
    assert bench.metric("waiting_pods", reason="quota") == 2
    assert set(bench.told()) == {"namespace default may have 1 GPUs, holds 1, the pod wants 1"}
    other = device_name(TWO, 1 - (bench.held("f") or ())[0])
    bench.add(moved(holding(claim("other"), "a", other), "elsewhere"))
    quota_of_default(bench, '{"gpus": 99}')
    bench.run()
    bench.pass_time(int(LINE_AGAIN_S + GATE_WAIT_S) + 1)
    assert (gates(bench, "p"), gates(bench, "q")) == ([], [])
    assert bench.metric("waiting_pods", reason="no-node") == 2


def test_pods_beyond_their_quota_stay_also_while_the_cluster_is_full() -> None:
    bench = Bench(a=TWO)
    bench.add(pod("first", "f"), claim("f", request(count=2)))
    bench.run()
    quota_of_default(bench, '{"gpus": 2}')
    for name in ("p", "q"):
        bench.add(gated(name, name), claim(name))
    bench.pass_time(6 * int(GATE_WAIT_S))
    assert (gates(bench, "p"), gates(bench, "q")) == ([OURS["name"]], [OURS["name"]])
    assert set(bench.told()) == {"namespace default may have 2 GPUs, holds 2, the pod wants 1"}
    quota_of_default(bench, '{"gpus": 3}')
    bench.run()
    bench.pass_time(int(LINE_AGAIN_S + GATE_WAIT_S) + 1)
    assert gates(bench, "p") == []


def test_a_pod_for_another_driver_passes_at_once() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", "c"), claim("c", request(deviceClassName="nic.example.com")))
    bench.run()
    assert (gates(bench, "p"), ungated(bench, "not-ours")) == ([], 1)


def test_a_pod_with_a_claim_that_kube_scheduler_makes_for_itself_passes_at_once() -> None:
    bench = Bench(a=TWO)
    own = claim("c")
    metadata = msgspec.structs.replace(own.metadata, annotations={EXTENDED_RESOURCE_ANNOTATION: "true"})
    bench.add(gated("p", "c"), msgspec.structs.replace(own, metadata=metadata))
    bench.run()
    assert (gates(bench, "p"), ungated(bench, "not-ours")) == ([], 1)


def test_a_pod_without_claims_passes_at_once() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p"))
    bench.gatekeeper.see(bench.api.pods["default/p"])
    bench.run()
    assert (gates(bench, "p"), ungated(bench, "not-ours")) == ([], 1)


def test_a_pod_without_claims_passes_only_once_it_is_at_no_other_gate() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", gates=(THEIRS, OURS)))
    bench.gatekeeper.see(bench.api.pods["default/p"])
    bench.run()
    assert gates(bench, "p") == [THEIRS["name"], OURS["name"]]


def test_what_was_found_of_a_pod_is_nothing_to_the_next_of_its_name() -> None:
    """The first has its GPUs and cannot pass; the second fits nowhere, and must stay as long as any."""
    bench = Bench(a=TWO)
    is_down = True

    def fail(verb: str, key: str) -> None:
        if verb == "ungate" and is_down:
            raise ApiUnavailableError(f"PATCH {key}", None, "", "no")

    bench.api.before = fail
    bench.add(gated("p", "c"), claim("c"))
    bench.run()
    bench.remove_pod("default/p")
    second = gated("p", "d")
    metadata = msgspec.structs.replace(second.metadata, uid="second")
    bench.add(claim("d", request(count=3)))
    bench.api.put_pod(msgspec.structs.replace(second, metadata=metadata))
    is_down = False
    bench.clock.advance(1.0)
    bench.remove_gate()  # before anybody has decided for the second
    bench.pod_changed(None, bench.api.pods["default/p"])
    bench.pass_time(int(GATE_WAIT_S) - 2)
    assert gates(bench, "p") == [OURS["name"]]


def test_a_pod_of_a_claim_that_is_allocated_already_passes_at_once() -> None:
    bench = Bench(a=TWO)
    bench.add(pod("first", "c"), claim("c"))
    bench.run()
    bench.add(gated("p", "c"))
    bench.run()
    assert gates(bench, "p") == []


@pytest.mark.parametrize("error", [ApiUnavailableError, ForbiddenError])
def test_a_write_that_fails_is_tried_again_until_the_gate_is_gone(error: type[KubeError]) -> None:
    bench = Bench(a=TWO)
    failures = 5

    def fail(verb: str, key: str) -> None:
        nonlocal failures
        if verb == "ungate" and failures:
            failures -= 1
            raise error(f"PATCH {key}", 403 if error is ForbiddenError else None, "", "no")

    bench.api.before = fail
    bench.add(gated("p", "c"), claim("c"))
    bench.run()
    assert gates(bench, "p") == [OURS["name"]]
    bench.pass_time(30)
    assert (gates(bench, "p"), failures) == ([], 0)
    told = [text for _, reason, text in bench.events.seen if reason == "GateNotRemoved"]
    assert bool(told) is (error is ForbiddenError)
    assert all("an admin has to give it the right to patch pods" in text for text in told)


def test_devices_behind_a_gate_that_cannot_be_removed_go_to_others_who_wait() -> None:
    """As those of any pod that is not bound: who cannot be ungated must not keep GPUs idle for ever."""
    bench = Bench(a=TWO)

    def fail(verb: str, key: str) -> None:
        if verb == "ungate":
            raise ForbiddenError(f"PATCH {key}", 403, "Forbidden", "no")

    bench.api.before = fail
    bench.add(gated("p", "c"), claim("c", request(count=2)))
    bench.run()
    bench.add(pod("q", "d"), claim("d", request(count=2)))
    bench.pass_time(3 * int(PASSED_OVER_WAIT_S))
    assert bench.held("d") == (0, 1)


def test_another_pod_of_the_name_keeps_its_gate_until_it_has_its_own_gpus() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", "c"), claim("c"))
    seen = bench.api.pods["default/p"]

    def replaced(verb: str, key: str) -> None:
        if verb == "ungate" and bench.api.pods[key] is not None and bench.api.pods[key].metadata.uid != "other":
            metadata = msgspec.structs.replace(seen.metadata, uid="other", resource_version="999")
            bench.api.pods[key] = msgspec.structs.replace(seen, metadata=metadata)

    bench.api.before = replaced
    bench.run()
    assert gates(bench, "p") == [OURS["name"]]


def another(made: Pod) -> Pod:
    """The next pod of a name."""
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, uid="second"))


def test_a_pod_passes_though_an_earlier_one_of_its_name_was_about_to() -> None:
    bench = Bench(a=TWO)
    bench.api.before = fail_to_ungate
    bench.add(gated("p", "c"), claim("c"))
    bench.run()
    bench.api.before = lambda verb, key: None
    bench.remove_pod("default/p")
    bench.add(another(gated("p", "d")), claim("d"))
    bench.run()
    bench.pass_time(5)
    assert (bench.held("d") is not None, gates(bench, "p")) == (True, [])


def fail_to_ungate(verb: str, key: str) -> None:
    if verb == "ungate":
        raise ApiUnavailableError(f"PATCH {key}", None, "", "no")


def test_a_pod_stays_at_the_gate_for_as_long_as_any_though_an_earlier_one_of_its_name_waited_there() -> None:
    bench = Bench(a=TWO)
    bench.add(gated("p", "c"), claim("c", request(count=3)))
    bench.run()
    bench.pass_time(int(GATE_WAIT_S) - 1)
    bench.remove_pod("default/p")
    bench.add(another(gated("p", "c")))
    bench.run()
    bench.pass_time(int(GATE_WAIT_S) - 1)
    assert gates(bench, "p") == [OURS["name"]]
    bench.pass_time(2)
    assert gates(bench, "p") == []


def test_a_new_leader_removes_the_gate_of_a_pod_that_the_last_one_gave_its_gpus() -> None:
    bench = Bench(a=TWO)

    def fail(verb: str, key: str) -> None:
        if verb == "ungate":
            raise ApiUnavailableError(f"PATCH {key}", None, "", "the process ends")

    bench.api.before = fail
    bench.add(gated("p", "c"), claim("c"))
    bench.run()
    assert gates(bench, "p") == [OURS["name"]]
    bench.api.before = lambda verb, key: None
    after = bench.next_leader()
    after.run()
    assert gates(after, "p") == []


def test_the_gate_is_removed_once_although_the_watch_is_late() -> None:
    bench = Bench(a=TWO)
    late = bench.api.on_pod_change
    bench.api.on_pod_change = lambda old, new: None
    bench.add(gated("p", "c"), claim("c"))
    shown = bench.api.pods["default/p"]
    bench.gatekeeper._pod_of = lambda key: shown
    bench.run()
    bench.pass_time(60)
    assert [verb for verb, _ in bench.api.writes].count("ungate") == 1
    late(shown, bench.api.pods["default/p"])


def test_what_is_known_of_pods_at_the_gate_goes_with_them() -> None:
    bench = Bench(a=TWO)
    for number in range(4):
        bench.add(gated(f"p{number}", f"c{number}"), claim(f"c{number}", request(count=2)))
    bench.run()
    bench.pass_time(int(GATE_WAIT_S) + 5)
    bench.gatekeeper.forget_passed()
    assert bench.gatekeeper._known == {}


@given(st.lists(st.sampled_from([OURS["name"], THEIRS["name"], "example.com/quota"]), unique=True, max_size=3))
def test_a_gate_of_others_is_never_removed_and_ours_only_when_it_is_alone(names: list[str]) -> None:
    bench = Bench(a=TWO)
    item = pod("p", "c")
    spec = msgspec.structs.replace(item.spec, scheduling_gates=[SchedulingGate(name) for name in names])
    bench.add(msgspec.structs.replace(item, spec=spec), claim("c"))
    bench.pass_time(30)
    assert gates(bench, "p") == ([] if names == [OURS["name"]] else names)
    assert (bench.held("c") is not None) is (names in ([], [OURS["name"]]))


FITS, TOO_LARGE, NOT_OURS, PLAIN = "fits", "too large", "not ours", "plain"
KINDS = (FITS, TOO_LARGE, NOT_OURS, PLAIN)
LOST = "the answer is lost"
"""The gate is gone, and the controller does not hear of it."""
NEW_LEADER = "a new leader"
FAULTS: dict[str, type[KubeError]] = {
    "conflict": ConflictError,
    "invalid": InvalidError,
    "forbidden": ForbiddenError,
    "unavailable": ApiUnavailableError,
}


def create(bench: Bench, name: str, kind: str) -> None:
    if kind == PLAIN:
        bench.add(gated(name))
        bench.gatekeeper.see(bench.api.pods[f"default/{name}"])
        return
    more = {"deviceClassName": "nic.example.com"} if kind == NOT_OURS else {}
    bench.add(gated(name, name), claim(name, request(count=3 if kind == TOO_LARGE else 1, **more)))


@given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=2),
    st.lists(st.sampled_from([*FAULTS, LOST, NEW_LEADER, "ok"]), max_size=6),
)
@example([TOO_LARGE], ["conflict"])
@example([PLAIN], ["conflict"])
@example([FITS], [LOST, NEW_LEADER])
def test_whatever_becomes_of_the_writes_every_pod_passes_in_the_end(kinds: list[str], fates: list[str]) -> None:
    """The server refuses a patch without a resourceVersion too, when others write the pod all the time."""
    bench = Bench(a=TWO)
    left, changes_leader = list(fates), []

    def before(verb: str, key: str) -> None:
        fate = left.pop(0) if verb == "ungate" and left else "ok"
        changes_leader.extend([True] if fate == NEW_LEADER else [])
        if fate in FAULTS or fate == NEW_LEADER:
            raise FAULTS.get(fate, ApiUnavailableError)(f"PATCH {key}", None, "", fate)
        if fate == LOST:
            bench.api.after = after

    def after(verb: str, key: str) -> None:
        bench.api.after = lambda verb, key: None
        raise ApiUnavailableError(f"PATCH {key}", None, "", LOST)

    bench.api.before = before
    for number, kind in enumerate(kinds):
        create(bench, f"p{number}", kind)
    for _ in range(240):
        bench.pass_time(1)
        if changes_leader:
            changes_leader.clear()
            bench = bench.next_leader()
            for item in list(bench.api.pods.values()):
                bench.gatekeeper.see(item)
    assert {name: gates(bench, name) for name in (f"p{n}" for n in range(len(kinds)))} == {
        f"p{number}": [] for number in range(len(kinds))
    }
