"""The soak's checker finds what is planted, and says nothing about a history in which all is well."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import pytest

from e2e.made_up_nodes import MadeUpNode
from e2e.soak.checker import FINALIZER, STALE_S, Checker
from e2e.soak.events import Event, What
from e2e.soak.rules import FRIEND, LONELY, NEEDY

HOPPER, VOLTA = MadeUpNode(0), MadeUpNode(1)
DRIVER = "gpu.dracaena.dev"


class History:
    """Tells a checker of objects, one version after the other."""

    def __init__(self) -> None:
        self.checker = Checker()
        self.now_s = 0.0
        self._versions: Iterator[int] = count(1)
        for node in (HOPPER, VOLTA):
            self.tell("nodes", node.document() | {"spec": {}})
            self.publish(node)

    def tell(self, kind: str, item: dict[str, Any], what: What = What.IS) -> None:
        self.now_s += 0.01
        self.checker.take(Event(kind, what, copy.deepcopy(item), next(self._versions), self.now_s))

    def publish(self, node: MadeUpNode, **how: Any) -> None:
        for document in node.slice_documents(**how):
            self.tell("resourceslices", document)

    @property
    def said(self) -> list[str]:
        return [violation.text for violation in self.checker.violations]

    @property
    def unsettled(self) -> list[str]:
        return [text for text, _ in self.checker.unsettled()]


@pytest.fixture
def history() -> History:
    return History()


def gpu(node: MadeUpNode, ordinal: int) -> str:
    return f"gpu-{node.number:08x}-0000-4000-8000-{ordinal:012x}"


def claim(name: str = "c", number: int = 1, **request: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": DRIVER, "count": number, **request}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "finalizers": [FINALIZER]},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}},
        "status": {},
    }


def allocated(
    base: dict[str, Any], node: MadeUpNode, *devices: str, user: str = "p", **result: object
) -> dict[str, Any]:
    results = [{"request": "gpus", "driver": DRIVER, "pool": node.name, "device": d, **result} for d in devices]
    rule = {"key": "metadata.name", "operator": "In", "values": [node.name]}
    status = {
        "allocation": {
            "allocationTimestamp": "2026-01-01T00:00:00Z",
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [rule]}]},
        },
        "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-{user}"}],
    }
    return {**base, "status": status}


def pod(name: str = "p", *claims: str, on: MadeUpNode | None = None, phase: str = "Pending") -> dict[str, Any]:
    entries = [{"name": f"n{place}", "resourceClaimName": key} for place, key in enumerate(claims or ("c",))]
    spec = {"resourceClaims": entries, **({"nodeName": on.name} if on else {})}
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


def test_a_pod_that_is_allocated_bound_and_deleted_is_no_violation(history: History) -> None:
    history.tell("resourceclaims", claim())
    history.tell("pods", pod())
    history.tell("resourceclaims", allocated(claim(), HOPPER, gpu(HOPPER, 0)))
    history.tell("pods", pod(on=HOPPER))
    assert history.unsettled == []
    history.tell("pods", pod(on=HOPPER), What.GONE)
    history.tell("resourceclaims", claim())
    history.tell("resourceclaims", claim(), What.GONE)
    assert (history.said, history.unsettled) == ([], [])
    assert (history.checker.counts.allocations, history.checker.counts.binds) == (1, 1)


def test_a_device_given_twice_is_told_with_the_history_of_both_claims(history: History) -> None:
    history.tell("resourceclaims", allocated(claim("a"), HOPPER, gpu(HOPPER, 3)))
    history.tell("resourceclaims", allocated(claim("b"), HOPPER, gpu(HOPPER, 3)))
    assert history.said == [f"device {HOPPER.name}/{gpu(HOPPER, 3)} is given to claim default/b and to default/a"]
    assert [line.split("resourceclaims ")[1].split()[0] for line in history.checker.violations[0].history] == [
        "default/b",
        "default/a",
    ]


def test_a_device_that_was_freed_may_be_given_again(history: History) -> None:
    history.tell("resourceclaims", allocated(claim("a"), HOPPER, gpu(HOPPER, 3)))
    history.tell("resourceclaims", claim("a"))
    history.tell("resourceclaims", allocated(claim("b"), HOPPER, gpu(HOPPER, 3)))
    assert history.said == []


def test_a_device_whose_holder_is_not_known_any_more_may_be_given_again(history: History) -> None:
    history.tell("resourceclaims", allocated(claim("a"), HOPPER, gpu(HOPPER, 3)))
    history.tell("resourceclaims", allocated(claim("a"), HOPPER, gpu(HOPPER, 3)), What.UNKNOWN)
    history.tell("resourceclaims", allocated(claim("b"), HOPPER, gpu(HOPPER, 3)))
    assert history.said == []
    history.tell("resourceclaims", allocated(claim("a"), HOPPER, gpu(HOPPER, 3)))
    assert len(history.said) == 1, "when it is known again, it counts again"


def test_access_of_an_admin_takes_nothing(history: History) -> None:
    history.tell("resourceclaims", allocated(claim("a"), HOPPER, gpu(HOPPER, 3)))
    history.tell("resourceclaims", allocated(claim("b"), HOPPER, gpu(HOPPER, 3), adminAccess=True))
    assert "is given to" not in "".join(history.said)


def shared_slice(node: MadeUpNode) -> dict[str, Any]:
    document = node.slice_documents(generation=2)[0]
    document["spec"]["devices"] = [
        {
            "name": "shared-0",
            "allowMultipleAllocations": True,
            "attributes": {"type": {"string": "mig"}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
    ]
    return document


def test_shares_within_the_capacity_are_no_violation_and_one_more_is(history: History) -> None:
    history.tell("resourceslices", shared_slice(HOPPER))
    for number in range(3):
        share: dict[str, Any] = {"shareID": f"share-{number}", "consumedCapacity": {"memory": "30Gi"}}
        base = claim(f"c{number}", deviceClassName="shared.dracaena.dev")
        assert history.said == []
        history.tell("resourceclaims", allocated(base, HOPPER, "shared-0", **share))
    assert len(history.said) == 1
    assert history.said[0].startswith(f"shares of {HOPPER.name}/shared-0 take ")


@pytest.mark.parametrize(
    ("claimed", "devices", "text"),
    [
        (claim(number=2), (0,), "request gpus wants 2 devices and got 1"),
        (claim(deviceClassName="shared.dracaena.dev"), (0,), "does not suit request gpus"),
        (
            claim(selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].architecture != "Hopper"'}}]),
            (0,),
            "does not suit request gpus",
        ),
    ],
)
def test_an_allocation_that_the_claim_did_not_ask_for_is_found(
    history: History, claimed: dict[str, Any], devices: tuple[int, ...], text: str
) -> None:
    history.tell("resourceclaims", allocated(claimed, HOPPER, *(gpu(HOPPER, ordinal) for ordinal in devices)))
    assert [text in said for said in history.said] == [True]


def test_a_broken_match_attribute_is_found(history: History) -> None:
    asked = claim(number=2)
    asked["spec"]["devices"]["constraints"] = [{"matchAttribute": "resource.kubernetes.io/numaNode"}]
    history.tell("resourceclaims", allocated(asked, VOLTA, gpu(VOLTA, 0), gpu(VOLTA, 1)))
    assert history.said == []
    history.tell("resourceclaims", claim())
    asked["metadata"]["name"] = "d"
    history.tell("resourceclaims", allocated(asked, VOLTA, gpu(VOLTA, 2), gpu(VOLTA, 7)))
    assert history.said == ["claim default/d: matchAttribute resource.kubernetes.io/numaNode does not hold: [0, 1]"]


def test_a_device_that_was_never_published_is_found(history: History) -> None:
    history.tell("resourceclaims", allocated(claim(), HOPPER, "gpu-of-somebody"))
    assert history.said == [f"claim default/c got {HOPPER.name}/gpu-of-somebody, which is not published"]


def test_a_device_that_has_just_gone_may_still_be_given_and_later_not(history: History) -> None:
    history.publish(HOPPER, generation=2, without=(3,))
    history.tell("resourceclaims", allocated(claim("a"), HOPPER, gpu(HOPPER, 3)))
    history.tell("resourceclaims", claim("a"))
    assert (history.said, history.checker.counts.stale) == ([], 1)
    history.now_s += STALE_S
    history.tell("resourceclaims", allocated(claim("b"), HOPPER, gpu(HOPPER, 3)))
    assert history.said == [f"claim default/b got {HOPPER.name}/{gpu(HOPPER, 3)}, which is not published"]


def test_while_a_generation_is_being_written_the_one_before_counts(history: History) -> None:
    history.tell("resourceslices", HOPPER.slice_documents(generation=2, pages=2)[0])
    history.tell("resourceclaims", allocated(claim(), HOPPER, gpu(HOPPER, 1)))
    assert (history.said, history.checker.counts.stale) == ([], 0)


def test_an_allocation_without_finalizer_or_timestamp_is_found(history: History) -> None:
    bare = allocated(claim(), HOPPER, gpu(HOPPER, 0))
    bare["metadata"] = {**bare["metadata"], "finalizers": []}
    del bare["status"]["allocation"]["allocationTimestamp"]
    history.tell("resourceclaims", bare)
    assert history.said == [
        "claim default/c is allocated without a finalizer",
        "claim default/c is allocated without a timestamp",
    ]


def test_an_allocation_for_another_node_than_its_devices_is_found(history: History) -> None:
    wrong = allocated(claim(), HOPPER, gpu(HOPPER, 0))
    terms = wrong["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    terms[0]["matchFields"][0]["values"] = [VOLTA.name]
    history.tell("resourceclaims", wrong)
    assert history.said == [f"claim default/c got devices of ['{HOPPER.name}'] for node {VOLTA.name}"]


def test_a_pod_bound_without_devices_is_found(history: History) -> None:
    history.tell("resourceclaims", claim())
    history.tell("pods", pod(on=HOPPER))
    assert history.said == [f"pod default/p is bound to {HOPPER.name} and claim default/c has no devices"]


def test_a_pod_bound_to_another_node_than_its_devices_is_found(history: History) -> None:
    history.tell("resourceclaims", allocated(claim(), VOLTA, gpu(VOLTA, 0)))
    history.tell("pods", pod(on=HOPPER))
    assert history.said == [f"pod default/p is bound to {HOPPER.name} and claim default/c is on {VOLTA.name}"]


def test_devices_taken_from_under_a_bound_pod_are_found(history: History) -> None:
    history.tell("resourceclaims", allocated(claim(), HOPPER, gpu(HOPPER, 0)))
    history.tell("pods", pod(on=HOPPER))
    history.tell("resourceclaims", claim())
    assert history.said == [f"pod default/p is bound to {HOPPER.name} and claim default/c has no devices"]


def test_a_claim_freed_after_its_pod_finished_is_no_violation(history: History) -> None:
    history.tell("resourceclaims", allocated(claim(), HOPPER, gpu(HOPPER, 0)))
    history.tell("pods", pod(on=HOPPER))
    history.tell("pods", pod(on=HOPPER, phase="Succeeded"))
    history.tell("resourceclaims", claim())
    assert (history.said, history.unsettled) == ([], [])


def test_what_must_not_last_is_named(history: History) -> None:
    history.tell("resourceclaims", allocated(claim("left"), HOPPER, gpu(HOPPER, 0), user="gone"))
    history.tell("resourceclaims", claim("wanted"))
    history.tell("pods", pod("waiting", "wanted"))
    unreserved = allocated(claim("mine"), HOPPER, gpu(HOPPER, 1))
    unreserved["status"]["reservedFor"] = []
    history.tell("resourceclaims", unreserved)
    history.tell("pods", pod("bound", "mine", on=HOPPER))
    assert history.said == []
    assert history.unsettled == [
        "claim default/left is reserved for gone, which is no more",
        "claim default/left keeps an allocation and no pod uses it",
        f"pod default/waiting waits although it fits on {HOPPER.name}",
        "pod default/bound is bound and claim default/mine is not reserved for it",
    ]


def test_a_pod_that_fits_nowhere_may_wait(history: History) -> None:
    history.tell("resourceclaims", claim(number=9))
    history.tell("pods", pod())
    assert history.unsettled == []


def test_a_pod_whose_claim_is_still_to_be_made_is_not_settled(history: History) -> None:
    early = pod()
    early["spec"]["resourceClaims"] = [{"name": "own", "resourceClaimTemplateName": "one"}]
    history.tell("pods", early)
    assert history.unsettled == ["pod default/p has no claim yet for own"]


def test_a_pod_may_wait_whose_claim_is_being_deleted(history: History) -> None:
    going = claim()
    going["metadata"] = {**going["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    history.tell("resourceclaims", going)
    history.tell("pods", pod())
    assert history.unsettled == []


def test_a_pod_may_wait_when_only_a_closed_node_has_room(history: History) -> None:
    for node in (HOPPER, VOLTA):
        history.tell("nodes", node.document() | {"spec": {"unschedulable": True}})
    history.tell("resourceclaims", claim())
    history.tell("pods", pod())
    assert history.unsettled == []


def test_a_violation_is_told_once(history: History) -> None:
    history.tell("resourceclaims", claim())
    history.tell("pods", pod(on=HOPPER))
    history.tell("pods", pod(on=HOPPER))
    assert len(history.said) == 1


def test_a_selector_that_the_checker_does_not_know_is_not_passed_over(history: History) -> None:
    asked = claim(selectors=[{"cel": {"expression": "true"}}])
    with pytest.raises(KeyError):
        history.tell("resourceclaims", allocated(asked, HOPPER, gpu(HOPPER, 0)))


def test_a_pod_that_stays_unbound_on_a_node_that_does_not_take_it_is_found_where_another_one_would(
    history: History,
) -> None:
    """An allocation that leads nowhere is no excuse: it could be taken back."""
    history.tell("nodes", HOPPER.document() | {"spec": {"unschedulable": True}})
    history.tell("resourceclaims", allocated(claim(), HOPPER, gpu(HOPPER, 0)))
    history.tell("pods", pod())
    assert history.unsettled == [f"pod default/p waits although it fits on {VOLTA.name}"]
    history.tell("nodes", VOLTA.document() | {"spec": {"unschedulable": True}})
    assert history.unsettled == []


def test_a_pod_may_wait_whose_claim_another_pod_keeps_on_a_node_that_does_not_take_it(history: History) -> None:
    history.tell("resourceclaims", allocated(claim(), HOPPER, gpu(HOPPER, 0), user="other"))
    history.tell("pods", pod("other", on=HOPPER))
    history.tell("nodes", HOPPER.document() | {"spec": {"unschedulable": True}})
    history.tell("pods", pod())
    assert history.unsettled == []


def labelled(item: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    return item | {"metadata": item["metadata"] | {"labels": dict(labels)}}


def lonely(item: dict[str, Any]) -> dict[str, Any]:
    return labelled(item, LONELY)


def test_a_pod_that_can_be_bound_nowhere_may_wait_until_a_friend_comes(history: History) -> None:
    history.tell("resourceclaims", allocated(claim(), HOPPER, gpu(HOPPER, 0)))
    history.tell("pods", labelled(pod(), NEEDY))
    assert history.unsettled == []
    friend = labelled({**pod("friend", on=VOLTA), "spec": {"nodeName": VOLTA.name}}, FRIEND)
    history.tell("pods", friend)
    assert history.unsettled == [f"pod default/p waits although it fits on {HOPPER.name}"]
    history.tell("pods", friend, What.GONE)
    history.tell("resourceclaims", claim())
    assert history.unsettled == []


def test_a_pod_that_wants_to_be_the_only_one_of_its_kind_fits_beside_others_only(history: History) -> None:
    for name in ("a", "b"):
        history.tell("resourceclaims", claim(f"of-{name}"))
    history.tell("pods", lonely(pod("a", "of-a", on=HOPPER)))
    history.tell("pods", pod("b", "of-b", on=VOLTA))
    history.tell("resourceclaims", claim())
    history.tell("pods", lonely(pod()))
    assert f"pod default/p waits although it fits on {VOLTA.name}" in history.unsettled
    history.tell("pods", lonely(pod("b", "of-b", on=VOLTA)))
    assert "pod default/p waits" not in "".join(history.unsettled)
    history.tell("pods", lonely(pod("a", "of-a", on=HOPPER, phase="Failed")))
    assert f"pod default/p waits although it fits on {HOPPER.name}" in history.unsettled


def test_free_shares_are_what_the_others_leave(history: History) -> None:
    history.tell("resourceslices", shared_slice(HOPPER))
    assert history.checker.shares_left() == {HOPPER.name: 2, VOLTA.name: 0}
    share: dict[str, Any] = {"shareID": "s", "consumedCapacity": {"memory": "30Gi"}}
    history.tell("resourceclaims", allocated(claim(deviceClassName="shared.dracaena.dev"), HOPPER, "shared-0", **share))
    assert history.checker.shares_left() == {HOPPER.name: 1, VOLTA.name: 0}
    history.tell("nodes", HOPPER.document() | {"spec": {"unschedulable": True}})
    assert history.checker.shares_left() == {VOLTA.name: 0}
