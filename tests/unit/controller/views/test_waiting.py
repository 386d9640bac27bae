"""Who waits, a row for each workload; and what a pod asks for, whatever its claim says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.objects import ObjectMeta, OwnerReference, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.explanation import Reason, Reasons, Unsatisfied
from dracaena.controller.views.names import MOST_LETTERS
from dracaena.controller.views.snapshot import WaitingPod
from dracaena.controller.views.waiting import MOST_GROUPS, MOST_OBSTACLES, MOST_PODS, asked_for, waiting
from dracaena.controller.views.workloads import Workload, workload_of
from support.allocation import claim, pod, request


def owned(name: str, kind: str, owner: str, labels: dict[str, str] | None = None) -> Pod:
    reference = OwnerReference(uid="u", kind=kind, name=owner, controller=True)
    meta = ObjectMeta(name, "team", owner_references=[reference], labels=labels or {})
    return msgspec.structs.replace(pod(name, "c"), metadata=meta)


def waits(name: str, since_s: float, namespace: str = "team", reason: str = "no-node") -> WaitingPod:
    return WaitingPod(namespace, name, reason, Reasons("w"), since_s)


def wait(name: str, since_s: float, why: Reasons | None) -> WaitingPod:
    return WaitingPod("team", name, "no-node", why, since_s)


def everything(_namespace: str) -> bool:
    return True


def grouped(pods: Sequence[WaitingPod], known: Sequence[Pod] = (), now_s: float = 100.0, **how: Any) -> dict[str, Any]:
    by_key = {f"team/{each.metadata.name}": each for each in known}
    return waiting(pods, how.get("sight", everything), now_s, by_key.get, lambda key: claim("c", request(count=4)))


def test_the_pods_of_one_deployment_that_wait_for_one_reason_are_one_row() -> None:
    known = [owned(f"web-7f-{nth}", "ReplicaSet", "web-7f", {"pod-template-hash": "7f"}) for nth in range(69)]
    pods = [waits(each.metadata.name, 10.0 + nth) for nth, each in enumerate(known)]
    found = grouped([*pods, waits("alone", 90.0), waits("other", 95.0, reason="quota")], known)
    assert (found["total"], found["hidden"], found["reasons"]) == (71, 0, {"no-node": 70, "quota": 1})
    first, *others = found["groups"]
    assert (first["kind"], first["name"], first["pods"], first["ask"]) == (
        "Deployment",
        "web",
        69,
        "4 × gpu.dracaena.dev",
    )
    assert (first["oldestSeconds"], first["newestSeconds"]) == (90, 22)
    assert first["first"] == [each.metadata.name for each in known[:MOST_PODS]]
    assert [(group["kind"], group["name"]) for group in others] == [("Pod", "alone"), ("Pod", "other")]


def test_the_reason_for_people_is_the_first_that_is_worked_out() -> None:
    known = [owned(name, "Job", "sweep") for name in ("a", "b")]
    (group,) = grouped([wait("a", 1.0, None), wait("b", 2.0, Reasons("0/3 nodes fit"))], known)["groups"]
    assert (group["why"], group["kind"], group["name"]) == ("0/3 nodes fit", "Job", "sweep")


def test_why_a_pod_waits_is_a_text_and_the_same_as_values() -> None:
    remedies = ("wait until pods leave node a, which can serve it then", "uncordon node b")
    busy, cordoned = (
        Reason("without a free GPU", 2, nodes=("a", "c")),
        Reason("cordoned", 1, nodes=("b",), lasting=True),
    )
    why = Unsatisfied(3, (busy, cordoned), "no node has 9 GPUs", ("no GPU has the attribute x",), ("a note",))
    (group,) = grouped([wait("a", 1.0, Reasons(why, remedies))], [owned("a", "Job", "sweep")])["groups"]
    assert group["why"] == (
        "0/3 nodes fit: no node has 9 GPUs; 2 without a free GPU (a, c); 1 cordoned (b); no GPU has the attribute x;"
        " a note"
    )
    assert group["help"] == [*remedies]
    assert (group["nodes"], group["moreObstacles"]) == (3, 0)
    assert group["obstacles"] == [
        {"text": "without a free GPU", "nodes": 2, "lasting": False, "examples": ["a", "c"]},
        {"text": "cordoned", "nodes": 1, "lasting": True, "examples": ["b"]},
    ]
    assert group["remarks"] == ["no node has 9 GPUs", "no GPU has the attribute x", "a note"]


def test_values_are_cut_and_stay_on_their_line() -> None:
    reasons = tuple(Reason(f"with taint {nth}\n", 1, nodes=("n",)) for nth in range(MOST_OBSTACLES + 5))
    (group,) = grouped([wait("a", 1.0, Reasons(Unsatisfied(25, reasons)))])["groups"]
    assert (len(group["obstacles"]), group["moreObstacles"]) == (MOST_OBSTACLES, 5)
    assert group["obstacles"][0]["text"] == "with taint 0\N{REPLACEMENT CHARACTER}"
    assert len(group["why"]) <= MOST_LETTERS


def test_a_reason_that_is_not_about_nodes_has_no_obstacles() -> None:
    (group,) = grouped([wait("a", 1.0, Reasons("claim team/c does not exist: create it"))])["groups"]
    assert (group["why"], group["obstacles"]) == ("claim team/c does not exist: create it", [])
    assert (group["nodes"], group["remarks"]) == (0, [])


def test_pods_that_may_not_be_named_are_counted_and_lists_are_cut() -> None:
    pods = [waits(f"p{nth}", float(nth), namespace="secret" if nth % 3 else "team") for nth in range(900)]
    found = grouped(pods, sight=lambda namespace: namespace == "team")
    assert (found["total"], found["hidden"]) == (900, 600)
    assert (len(found["groups"]), found["more"]) == (MOST_GROUPS, 300 - MOST_GROUPS)
    assert "secret" not in json.dumps(found)


def test_a_workload_is_what_people_call_it() -> None:
    assert workload_of(None, "p") == Workload("Pod", "p")
    assert workload_of(pod("p"), "p") == Workload("Pod", "p")
    assert workload_of(owned("p", "ReplicaSet", "web-7f"), "p") == Workload("ReplicaSet", "web-7f")
    assert workload_of(owned("p", "ReplicaSet", "web-7f", {"pod-template-hash": "8a"}), "p").kind == "ReplicaSet"
    assert workload_of(owned("p", "RayCluster", "ray"), "p") == Workload("RayCluster", "ray")


def test_what_a_pod_asks_for_is_said_by_class() -> None:
    def asked(*requests: dict[str, Any]) -> str:
        return asked_for(pod("p", "c"), lambda key: claim("c", *requests))

    assert (
        asked(request("a", 2), request("b", 2, "mig.gpu.dracaena.dev"))
        == "2 × gpu.dracaena.dev, 2 × mig.gpu.dracaena.dev"
    )
    assert asked({"name": "a", "exactly": {"deviceClassName": "x", "allocationMode": "All"}}) == "all of x"
    either = {"name": "a", "firstAvailable": [{"name": "h", "deviceClassName": "x", "count": 3}, {"name": "l"}]}
    assert asked(either) == "3 × x or another"
    assert asked_for(None, lambda key: None) == asked_for(pod("p", "c"), lambda key: None) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda each: (
        st.lists(each)
        | st.dictionaries(
            st.sampled_from(("devices", "requests", "exactly", "firstAvailable", "deviceClassName", "count")), each
        )
    ),
)


@given(JSON)
def test_no_spec_of_a_claim_breaks_the_page(spec: Any) -> None:
    whatever = ResourceClaim(
        metadata=ObjectMeta("c", "default"), spec=spec if isinstance(spec, dict) else {"devices": spec}
    )
    assert isinstance(asked_for(pod("p", "c"), lambda key: whatever), str)
