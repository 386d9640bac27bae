from __future__ import annotations

from typing import Any

import pytest

from dracaena.api.objects import Node, NodeSpec, ObjectMeta, Pod, PodSpec, Taint, Toleration
from dracaena.demo.node_fit import misfit, selects

NODE = Node(metadata=ObjectMeta(name="n1", labels={"zone": "a", "gpus": "8"}))
TAINTED = Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(taints=[Taint("team", "x", "NoSchedule")]))
CORDONED = Node(metadata=ObjectMeta(name="n1"), spec=NodeSpec(unschedulable=True))


def pod(**spec: Any) -> Pod:
    return Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(**spec))


def term(key: str, operator: str, *values: str, place: str = "matchExpressions") -> dict[str, Any]:
    return {"nodeSelectorTerms": [{place: [{"key": key, "operator": operator, "values": list(values)}]}]}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (term("zone", "In", "a", "b"), True),
        (term("zone", "In", "b"), False),
        (term("rack", "In", "a"), False),
        (term("zone", "NotIn", "b"), True),
        (term("zone", "NotIn", "a"), False),
        (term("rack", "NotIn", "a"), True),
        (term("zone", "Exists"), True),
        (term("rack", "Exists"), False),
        (term("rack", "DoesNotExist"), True),
        (term("zone", "DoesNotExist"), False),
        (term("gpus", "Gt", "7"), True),
        (term("gpus", "Gt", "8"), False),
        (term("gpus", "Lt", "9"), True),
        (term("gpus", "Lt", "8"), False),
        (term("zone", "Gt", "1"), False),
        (term("zone", "Beside", "a"), False),
        (term("metadata.name", "In", "n1", place="matchFields"), True),
        (term("metadata.name", "In", "n2", place="matchFields"), False),
        ({"nodeSelectorTerms": [{}]}, False),
        ({"nodeSelectorTerms": [{}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}, True),
    ],
)
def test_node_selectors_match_as_core_v1_says(selector: dict[str, Any], matches: bool) -> None:
    assert selects(selector, NODE) is matches


def test_a_pod_without_wishes_fits_a_free_node() -> None:
    assert misfit(pod(), NODE) is None


def test_node_selector_and_required_affinity_keep_a_pod_away() -> None:
    words = "node(s) didn't match Pod's node affinity/selector"
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term("zone", "In", "b")}}
    assert misfit(pod(node_selector={"zone": "b"}), NODE) == words
    assert misfit(pod(affinity=affinity), NODE) == words
    assert misfit(pod(node_selector={"zone": "a"}), NODE) is None


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (Toleration(key="team", value="x"), True),
        (Toleration(key="team", value="y"), False),
        (Toleration(key="team", operator="Exists"), True),
        (Toleration(key="", operator="Exists"), True),
        (Toleration(key="team", value="x", effect="NoExecute"), False),
    ],
)
def test_taints_keep_a_pod_away_unless_tolerated(toleration: Toleration, fits: bool) -> None:
    assert misfit(pod(), TAINTED) == "node(s) had untolerated taint {team: x}"
    assert (misfit(pod(tolerations=[toleration]), TAINTED) is None) is fits


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    assert misfit(pod(), CORDONED) == "node(s) were unschedulable"
    assert (
        misfit(pod(tolerations=[Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")]), CORDONED)
        is None
    )
