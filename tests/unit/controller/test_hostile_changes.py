"""What changes cost that one tenant makes over and over, counted in work: never in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION
from dracaena.api.objects import ObjectMeta, PersistentVolumeClaim, Pod, StorageClass, VolumeClaimSpec
from dracaena.api.resource_objects import ResourceClaim, ResourceClaimStatus
from dracaena.controller.lifecycle import proof
from dracaena.controller.lifecycle.pod_record import PodRecord
from dracaena.controller.lifecycle.tending import PROBED_AT_ONCE
from dracaena.controller.queue.work import claim_of_work
from dracaena.controller.state.cluster import FEW_PODS, MANY_PAUSE_S, MANY_WAKES
from dracaena.controller.state.records import Records
from dracaena.kube.errors import ForbiddenError, InvalidError, KubeError
from support.allocation import blocks, claim, machine, pod, request
from support.group_world import member
from support.queues import take_ready
from support.reconciling import Bench

EIGHT = machine("eight", blocks(4, 4, inside="PIX", outside="SYS"))
PODS = 60

Item = TypeVar("Item", Pod, ResourceClaim)


class Crowd(Bench):
    """Pods of one namespace that name one claim, which no node can serve, and what each of them was looked at for."""

    def __init__(self, pods: int = PODS) -> None:
        super().__init__(**{f"n{number}": EIGHT for number in range(4)})
        self.planned: Counter[str] = Counter()
        plan = self.reconciler.plan

        def counted(key: str) -> object:
            self.planned[key] += 1
            return plan(key)

        self.reconciler.plan = counted  # type: ignore[method-assign, assignment]
        self.add(of("tenant", claim("s", request(count=9))))
        for number in range(pods):
            self.add(of("tenant", pod(f"p{number:03}", "s")))
        self.run()
        self.planned.clear()

    def patch(self, annotations: dict[str, str] | None = None) -> None:
        """Let the tenant change labels of its claim, of which nothing is kept, and perhaps annotations."""
        known = self.api.claims["tenant/s"]
        metadata = msgspec.structs.replace(known.metadata, annotations=annotations or {})
        self.api.put(msgspec.structs.replace(known, metadata=metadata))


def of(namespace: str, item: Item) -> Item:
    """The object in a namespace."""
    metadata = msgspec.structs.replace(
        item.metadata, namespace=namespace, uid=f"{namespace}-{item.metadata.uid}", creation_timestamp="2026-01-01"
    )
    return msgspec.structs.replace(item, metadata=metadata)


def looks_at_all_pods(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the claims of which all pods are looked at from now on."""
    looks: list[str] = []

    def noted(look: Callable[[Records, str], Any]) -> Callable[[Records, str], Any]:
        def looking(records: Records, claim_key: str) -> Any:
            looks.append(claim_key)
            return look(records, claim_key)

        return looking

    for name in ("naming", "pods_of"):
        monkeypatch.setattr(Records, name, noted(getattr(Records, name)))
    return looks


def test_a_change_that_says_nothing_new_wakes_no_pod_however_many_pods_name_the_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = Crowd()
    looks = looks_at_all_pods(monkeypatch)
    for _ in range(50):
        crowd.patch()
        crowd.run()
    assert not crowd.planned
    assert not looks


def test_what_a_tenant_changes_many_times_before_its_turn_wakes_its_pods_once() -> None:
    crowd = Crowd()
    for number in range(50):
        crowd.patch({EXTENDED_RESOURCE_ANNOTATION: "x"} if number % 2 else {})
    crowd.run()
    assert set(crowd.planned.values()) == {1}
    assert len(crowd.planned) == PODS


def test_what_a_tenant_changes_all_the_time_wakes_its_many_pods_a_few_times_a_second() -> None:
    crowd = Crowd()
    for number in range(250):
        crowd.patch({EXTENDED_RESOURCE_ANNOTATION: "x"} if number % 2 else {})
        crowd.advance(0.01)
    (woken,) = set(crowd.planned.values())
    assert woken == 3 * MANY_WAKES
    crowd.advance(MANY_PAUSE_S)
    assert set(crowd.planned.values()) == {woken + 1}  # the last change counts, too
    crowd.advance(10 * MANY_PAUSE_S)
    assert set(crowd.planned.values()) == {woken + 1}


def test_many_pods_that_share_a_new_claim_get_their_devices_without_a_pause() -> None:
    """Workers that decide for all of them before the first write has succeeded."""
    bench = Bench(n0=machine("big", blocks(8, 8, inside="PIX", outside="SYS")))
    names = [f"p{number:02}" for number in range(FEW_PODS + 4)]
    for name in names:
        bench.add(claim(f"own-{name}", request()), pod(name, "shared", f"own-{name}"))
    bench.run()
    bench.add(claim("shared", request()))
    while bench.queue._ready:
        taken = []
        while bench.queue._ready:
            key = take_ready(bench.queue) or ""
            claim_key = claim_of_work(key)
            taken.append((key, claim_key, None if claim_key is not None else bench.reconciler.plan(key)))
        for key, claim_key, step in taken:
            if claim_key is not None:
                bench.tender.tend(claim_key)
            else:
                assert step is not None
                bench.reconciler.carry_out(key, step)
            bench.queue.done(key)
    assert [name for name in names if bench.held(f"own-{name}") is None] == []


def test_a_pod_of_others_comes_before_the_pods_that_a_claim_wakes() -> None:
    crowd = Crowd()
    crowd.patch({EXTENDED_RESOURCE_ANNOTATION: "x"})
    crowd.step()  # the claim has its turn
    crowd.add(claim("honest", request()), pod("honest", "honest", creationTimestamp="2026-02-01"))
    steps = 0
    while crowd.held("honest") is None:
        crowd.step()
        steps += 1
    assert steps <= 2


def test_few_pods_of_a_claim_are_woken_by_the_event_itself() -> None:
    crowd = Crowd(FEW_PODS)
    crowd.patch({EXTENDED_RESOURCE_ANNOTATION: "x"})
    assert len(crowd.queue._ready) >= FEW_PODS


def test_a_decision_looks_at_none_of_the_other_pods_of_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or all of them together would cost the square of their number."""
    crowd = Crowd()
    looks = looks_at_all_pods(monkeypatch)
    for key in list(crowd.api.pods):
        crowd.queue.add(key)
    crowd.run()
    assert len(crowd.planned) == PODS
    assert not looks


def test_each_pod_of_a_claim_that_is_cleared_is_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they all once had may bind any of them late: each of them has to be asked about, and none for each other."""
    crowd = Bench(n0=EIGHT, n1=EIGHT)
    crowd.add(claim("s", request()), pod("first", "s"))
    crowd.run()
    crowd.bind("first", crowd.on_node("s") or "")
    for number in range(PODS):
        crowd.add(pod(f"p{number}", "s"))
        crowd.say(f"p{number}", "0/2 nodes are available: 2 Insufficient cpu.")
    crowd.run()
    looks: Counter[str] = Counter()
    is_proven = proof._is_proven

    def noted(one: PodRecord, *rest: Any) -> bool:
        looks[one.key] += 1
        return is_proven(one, *rest)

    monkeypatch.setattr(proof, "_is_proven", noted)
    crowd.remove_pod("default/first")
    free = msgspec.structs.replace(crowd.api.claims["default/s"], status=ResourceClaimStatus())
    crowd.api.put(free)
    crowd.run()
    for _ in range(4):
        crowd.advance(1.0)
    for number in range(PODS):
        crowd.say_again(f"p{number}")
    crowd.run()
    assert crowd.held("s") is not None
    steps = PODS / PROBED_AT_ONCE + 8  # once for each that are asked about together, and once for each second
    assert max(looks.values()) <= 3 * steps


def test_a_pod_that_is_attended_costs_no_look_at_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(n0=EIGHT)
    for number in range(PODS):
        bench.add(claim(f"p{number}", request()), member(f"p{number}", "g", 1))
    bench.run()
    bench.cluster.review_groups(bench.clock.monotonic())
    served = [one for key, one in bench.api.pods.items() if bench.api.claims[key].status.allocation is not None]
    looks: list[str] = []
    pod_of = Records.pod

    def noted(records: Records, key: str) -> Pod | None:
        looks.append(key)
        return pod_of(records, key)

    monkeypatch.setattr(Records, "pod", noted)
    for one in served:
        bench.cluster.attend(one)
    assert len(served) == len(EIGHT.gpus)
    assert len(looks) <= len(served)


def test_who_waits_for_storage_is_asked_once_however_often_its_claim_changes_before_the_turn_comes() -> None:
    bench = Bench(n=EIGHT)

    def change(number: int) -> None:
        bench.cluster.intake.volume_claim_changed(
            None, PersistentVolumeClaim(ObjectMeta(name="data", namespace="default", resource_version=str(number)))
        )

    change(0)
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    for number in range(PODS):  # each in a line of its own
        bench.add(claim(f"c{number}", request()))
        bench.add(pod(f"p{number}", f"c{number}", volumes=[volume], nodeSelector={"n": str(number)}))
    bench.run()
    asked: list[str] = []
    ask = bench.queue.add_again
    bench.queue.add_again = lambda key: (asked.append(key), ask(key))[1]  # type: ignore[method-assign, func-returns-value]
    for number in range(1, 50):
        change(number)
    assert len(asked) == PODS
    bench.run()
    change(50)
    assert len(asked) == 2 * PODS


@pytest.mark.parametrize(
    "first", ["it waited for the change", "another was asked because of the change", "it was served"]
)
def test_a_pod_that_becomes_the_first_of_its_line_misses_no_change(first: str) -> None:
    """Which of the equal pods waits for storage differs from moment to moment: the line waits for all of them."""
    bench = Bench(n=EIGHT)
    delayed = StorageClass(ObjectMeta(name="delayed"), provisioner="p", volume_binding_mode="WaitForFirstConsumer")
    bench.cluster.intake.storage_class_changed(None, delayed)

    def change(storage_class: str) -> None:
        spec = VolumeClaimSpec(storage_class_name=storage_class)
        bench.cluster.intake.volume_claim_changed(
            None, PersistentVolumeClaim(ObjectMeta(name="data", namespace="default"), spec=spec)
        )

    def come(name: str, created: str) -> None:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        bench.add(claim(f"c-{name}", request()))
        bench.add(pod(name, f"c-{name}", volumes=[volume], creationTimestamp=created))
        bench.run()

    change("unknown")
    dates = {"early": "2026-01-01", "late": "2026-02-01"}
    for name in sorted(dates, reverse=first == "another was asked because of the change"):
        come(name, dates[name])
    if first == "it was served":
        change("delayed")
        bench.work(take_ready(bench.queue) or "")
        assert bench.held("c-early") is not None
        change("unknown")
    elif first == "another was asked because of the change":
        change("still-unknown")
        bench.run()
        bench.remove_pod("default/early")
    else:
        bench.remove_pod("default/early")
    change("delayed")
    bench.run()
    assert bench.held("c-late") is not None


@pytest.mark.parametrize("error", [InvalidError, ForbiddenError])
def test_what_a_person_has_to_change_is_hardly_tried_again(error: type[KubeError]) -> None:
    bench = Bench(**{f"n{number}": EIGHT for number in range(4)})
    tries: list[str] = []

    def refuse(verb: str, key: str) -> None:
        if verb == "mark":
            tries.append(key)
            raise error("PATCH", 422, "Invalid", "no")

    bench.api.before = refuse
    for number in range(20):
        bench.add(claim(f"c{number}", request()), pod(f"p{number}", f"c{number}"))
    bench.pass_time(600)
    tries.clear()
    bench.pass_time(600)
    assert len(tries) <= 20 * 4
    bench.api.before = lambda verb, key: None
    for number in range(20):  # each claim is made again
        bench.claim_changed(bench.api.claims.pop(f"default/c{number}"), None)
        bench.add(claim(f"c{number}", request(), uid="again"))
    bench.run()
    assert all(bench.held(f"c{number}") for number in range(20))


def test_of_many_pods_of_a_claim_that_cannot_be_written_one_tries() -> None:
    bench = Bench(n=EIGHT)
    tries: list[str] = []

    def refuse(verb: str, key: str) -> None:
        if verb == "mark":
            tries.append(key)
            raise InvalidError("PATCH", 422, "Invalid", "no")

    bench.api.before = refuse
    bench.add(claim("s", request()))
    for number in range(PODS):
        bench.add(pod(f"p{number}", "s"))
    bench.pass_time(20)
    assert len(tries) == 1
    assert bench.metric("waiting_pods", reason="refused-write") == PODS
