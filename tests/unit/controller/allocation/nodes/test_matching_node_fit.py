from __future__ import annotations

from typing import Any

import pytest

from dracaena.api.objects import Taint, Toleration
from dracaena.controller.allocation.nodes.matching import tolerates
from support.allocation import node, pod
from support.node_fit import node_selector_matches, unfit_reason

NODE = node("node-a", labels={"zone": "x", "gpus": "8"})


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, None),
        ({"nodeName": "node-a"}, None),
        ({"nodeName": "node-b"}, "not named by the pod"),
        ({"nodeSelector": {"zone": "x"}}, None),
        ({"nodeSelector": {"zone": "y"}}, "not matching the pod's nodeSelector"),
        ({"nodeSelector": {"rack": ""}}, "not matching the pod's nodeSelector"),
        ({"affinity": {"podAntiAffinity": {}}}, None),
        ({"affinity": {"nodeAffinity": None}}, None),
    ],
)
def test_name_and_selector_are_honoured(spec: dict[str, Any], reason: str | None) -> None:
    assert unfit_reason(pod("p", **spec), NODE) == reason


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("rules", "fits"),
    [
        ([rule("zone", "In", "y", "x")], True),
        ([rule("zone", "In", "y")], False),
        ([rule("rack", "In", "")], False),
        ([rule("zone", "NotIn", "y")], True),
        ([rule("zone", "NotIn", "x")], False),
        ([rule("rack", "NotIn", "1")], True),
        ([rule("zone", "Exists")], True),
        ([rule("rack", "Exists")], False),
        ([rule("rack", "DoesNotExist")], True),
        ([rule("zone", "DoesNotExist")], False),
        ([rule("gpus", "Gt", "7")], True),
        ([rule("gpus", "Gt", "8")], False),
        ([rule("gpus", "Lt", "9")], True),
        ([rule("gpus", "Lt", "8")], False),
        ([rule("zone", "Gt", "1")], False),
        ([rule("rack", "Lt", "1")], False),
        ([rule("gpus", "Gt", "007")], True),
        ([rule("gpus", "Gt", "7"), rule("gpus", "Lt", "9")], True),
        ([rule("zone", "In", "x"), rule("gpus", "In", "4")], False),
        ([], False),
    ],
)
def test_every_operator_of_node_affinity(rules: list[dict[str, Any]], fits: bool) -> None:
    reason = unfit_reason(pod("p", affinity=affinity({"matchExpressions": rules})), NODE)
    assert reason == (None if fits else "not matching the pod's node affinity")


@pytest.mark.parametrize(
    "unreadable",
    [
        rule("gpus", "Gt", "1", "2"),
        rule("gpus", "Gt", "-1"),
        rule("gpus", "Lt", "99999999999999999999"),
        rule("zone", "Matches", "x"),
        rule("zone", "In"),
        rule("zone", "NotIn"),
        rule("zone", "In", "x", "no value!"),
        rule("zone", "Exists", "x"),
        rule("no key!", "Exists"),
        {"key": "zone", "operator": "In", "values": [1]},
        {"key": "zone", "operator": "In", "values": "x"},
        {"operator": "Exists"},
        "zone",
    ],
)
def test_a_term_that_cannot_be_read_matches_nothing_and_the_other_terms_count(unreadable: Any) -> None:
    broken, good = {"matchExpressions": [unreadable]}, {"matchExpressions": [rule("zone", "In", "x")]}
    reason = unfit_reason(pod("p", affinity=affinity(broken)), NODE)
    assert reason is not None
    assert "cannot be read" in reason
    assert unfit_reason(pod("p", affinity=affinity(broken, good)), NODE) is None


@pytest.mark.parametrize(
    "document",
    [
        {"nodeAffinity": "x"},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": ["x"]}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": {"a": 1}}}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [1]}}},
        affinity({"matchFields": [rule("metadata.name", "In", "node-a", "node-b")]}),
        affinity({"matchFields": [rule("metadata.name", "Exists")]}),
    ],
)
def test_an_affinity_of_another_shape_is_a_reason_and_no_failure(document: dict[str, Any]) -> None:
    reason = unfit_reason(pod("p", affinity=document), NODE)
    assert reason is not None
    assert reason.startswith("not matching the pod's node affinity, which cannot be read whole: ")


def test_one_matching_term_is_enough_and_no_term_matches_nothing() -> None:
    wrong, right = {"matchExpressions": [rule("zone", "In", "y")]}, {"matchExpressions": [rule("zone", "In", "x")]}
    assert unfit_reason(pod("p", affinity=affinity(wrong, right)), NODE) is None
    assert unfit_reason(pod("p", affinity=affinity()), NODE) is not None


def test_a_field_rule_means_the_node_name() -> None:
    term = {"matchFields": [rule("metadata.name", "In", "node-a")]}
    assert node_selector_matches({"nodeSelectorTerms": [term]}, NODE)
    assert not node_selector_matches({"nodeSelectorTerms": [term]}, node("node-b"))


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    cordoned = node("node-a", unschedulable=True)
    assert unfit_reason(pod("p"), cordoned) == "cordoned"
    toleration = {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}
    assert unfit_reason(pod("p", tolerations=[toleration]), cordoned) is None


def test_a_taint_keeps_pods_away_and_a_preference_does_not() -> None:
    tainted = node("node-a", taints=[Taint(key="soft", effect="PreferNoSchedule"), Taint("gpu", "yes", "NoSchedule")])
    assert unfit_reason(pod("p"), tainted) == "with taint gpu that the pod does not tolerate"
    assert unfit_reason(pod("p", tolerations=[{"key": "gpu", "value": "yes"}]), tainted) is None


def test_a_pod_that_names_its_node_is_past_taints_and_cordon() -> None:
    tainted = node("node-a", unschedulable=True, taints=[Taint(key="gpu", effect="NoSchedule")])
    assert unfit_reason(pod("p", nodeName="node-a"), tainted) is None


TAINT = Taint(key="k", value="v", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        (Toleration(key="k", value="v"), True),
        (Toleration(key="k", operator="", value="v"), True),
        (Toleration(key="k", value="w"), False),
        (Toleration(key="k", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(value="v"), True),
        (Toleration(value="w"), False),
        (Toleration(key="k", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="k", operator="Exists", effect="NoSchedule"), True),
        (Toleration(key="k", operator="Like", value="v"), False),
        (Toleration(key="k", operator="Gt", value="1"), False),
    ],
)
def test_tolerations_cover_taints_as_kubernetes_says(toleration: Toleration, covers: bool) -> None:
    assert tolerates([toleration], TAINT) is covers
