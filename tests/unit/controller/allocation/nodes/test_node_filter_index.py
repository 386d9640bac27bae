from __future__ import annotations

import random
from typing import Any

import pytest

from dracaena.controller.allocation.nodes import node_filter as module
from dracaena.controller.allocation.nodes.node_filter import MAX_LABEL_KEYS, PINNED_ELSEWHERE, NodeFilter, NodeIndex
from support.allocation import node, pod
from support.clusters import random_node, random_pod, random_selector
from support.node_fit import node_selector_matches, unfit_reason


def index_of(rng: random.Random) -> NodeIndex:
    index = NodeIndex()
    for number in rng.sample(range(12), rng.randint(0, 12)):
        index.put(random_node(rng, f"node-{number:02}"))
    return index


@pytest.mark.parametrize("few_values", [0, 1, module.FEW_VALUES])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_narrowed_down_holds_every_node_that_fits_and_the_filter_says_why_others_do_not(
    seed: int, few_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements that name no values narrow down as soon as they leave a node out, of labels with few values."""
    monkeypatch.setattr(module, "FEW_VALUES", few_values)
    monkeypatch.setattr(module, "FEW_LEFT", 1)
    rng = random.Random(seed)
    for _ in range(60):
        index = index_of(rng)
        asking = random_pod(rng)
        pins = [random_selector(rng) for _ in range(rng.choice([0, 0, 1, 2]))]
        nodes = NodeFilter(asking, pins)
        narrowed = nodes.narrowed(index)
        for name in index.names:
            item = index.get(name).node
            pinned_here = all(node_selector_matches(pin, item) for pin in pins)
            expected = unfit_reason(asking, item) if pinned_here else PINNED_ELSEWHERE
            assert nodes.reason(index.get(name)) == expected
            if expected is None and narrowed is not None:
                assert name in narrowed
        if narrowed is not None:
            assert narrowed <= set(index.names)
        index.check()


def test_a_label_is_indexed_when_it_is_asked_for_and_kept_up_to_date() -> None:
    index = NodeIndex()
    index.put(node("a", labels={"zone": "x"}))
    index.put(node("b", labels={"zone": "y"}))
    assert index.with_label("zone", ["x"]) == {"a"}
    assert index.with_label("zone", ["x", "y", "z"]) == {"a", "b"}
    assert index.with_label("zone", []) == set()
    index.put(node("b", labels={"zone": "x"}))
    index.put(node("c", labels={"zone": "x"}))
    index.remove("a")
    assert index.with_label("zone", ["x"]) == {"b", "c"}
    assert index.with_label("zone", ["y"]) == set()
    index.check()


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({"key": "zone", "operator": "DoesNotExist"}, {"z"}),
        ({"key": "zone", "operator": "NotIn", "values": ["x", "y"]}, {"z"}),
        ({"key": "rank", "operator": "Exists"}, {"n03"}),
        ({"key": "rank", "operator": "Gt", "values": ["6"]}, {"n03"}),
        ({"key": "rank", "operator": "Lt", "values": ["7"]}, set()),
        ({"key": "zone", "operator": "NotIn", "values": ["x"]}, None),
        ({"key": "zone", "operator": "Exists"}, None),
        ({"key": "host", "operator": "DoesNotExist"}, None),
    ],
)
def test_a_requirement_that_names_no_values_narrows_down_where_it_leaves_few_nodes(
    rule: dict[str, Any], left: set[str] | None
) -> None:
    """`host` has too many values to compare with."""
    index = NodeIndex()
    for number in range(module.FEW_VALUES + 1):
        rank = {"rank": "7"} if number == 3 else {}
        index.put(node(f"n{number:02}", labels={"zone": "xy"[number % 2], "host": str(number), **rank}))
    index.put(node("z"))
    assert NodeFilter(pod("p"), [{"nodeSelectorTerms": [{"matchExpressions": [rule]}]}]).narrowed(index) == left
    index.remove("z")
    index.put(node("n03", labels={"zone": "x", "host": "3"}))
    gone = None if left is None else left - {"z", "n03"}
    assert NodeFilter(pod("p"), [{"nodeSelectorTerms": [{"matchExpressions": [rule]}]}]).narrowed(index) == gone


def test_labels_not_asked_for_lately_are_not_kept() -> None:
    index = NodeIndex()
    index.put(node("a", labels={"zone": "x"}))
    index.with_label("zone", ["x"])
    for number in range(MAX_LABEL_KEYS):
        index.with_label(f"key-{number}", ["x"])
    assert "zone" not in index._by_label
    assert len(index._by_label) == MAX_LABEL_KEYS
    assert index.with_label("zone", ["x"]) == {"a"}


def test_nodes_that_are_alike_are_worked_out_once() -> None:
    index = NodeIndex()
    for number in range(20):
        index.put(node(f"n{number:02}", labels={"zone": "xy"[number % 2], "name": str(number)}))
    affinity = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["x"]}]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": affinity}
    nodes = NodeFilter(pod("p", affinity={"nodeAffinity": required}), [])
    reasons = [nodes.reason(index.get(name)) for name in index.names]
    assert reasons == ["not matching the pod's node affinity", None] * 10
    assert len(nodes._known) == 2


def test_selectors_with_values_that_are_no_texts_narrow_to_nothing_and_fail_nowhere() -> None:
    index = NodeIndex()
    index.put(node("a", labels={"zone": "x"}))
    odd = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [{"no": 1}, 3]}]}]}
    assert NodeFilter(pod("p"), [odd]).narrowed(index) == set()
