"""What is wrong in the input of `dracaena simulate` is told in one line, with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.simulated import CLASSES, Run, claim, named, outcomes, pod, written


def test_null_is_the_same_as_nothing_but_not_in_opaque_parameters(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    bare = pod("a", named("plain"), tolerations=None, affinity=None, priority=None, nodeSelector=None)
    plain, broken = claim("plain", 2, creationTimestamp=None, labels=None), claim("broken", 2)
    policy = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "requirement": None}
    broken["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.dracaena.dev", "parameters": policy}}]
    decided = outcomes(run, node("worker-1", "dgx-1v"), written(tmp_path / "p.yaml", bare, plain, broken))
    assert [(outcome["claim"], outcome["node"]) for outcome in decided] == [
        ("default/plain", "worker-1"),
        ("default/broken", None),
    ]
    assert "$.requirement: nothing, expected one of 'BestEffort'" in decided[1]["reason"]


def test_what_the_server_would_refuse_is_reported_with_its_place(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    wrong = claim("wrong", 4)
    wrong["spec"]["devices"]["requests"][0]["exactly"]["cuont"] = 2
    path = written(tmp_path / "c.yaml", wrong)
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", path)
    assert result.code == 0
    assert f"dracaena: {path}:" in result.err
    assert "a mistake in ResourceClaim wrong, taken as far as it goes: spec.devices.requests[0].exactly.cuont" in (
        result.err
    )
    assert result.err.count("\n") == 1


def test_names_in_the_table_do_not_command_the_terminal(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    path = written(tmp_path / "c.yaml", claim("a\x1b[31mb", 9))
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", path)
    assert "default/a\\u001b[31mb" in result.out
    assert "\x1b" not in result.out + result.err


def test_of_many_mistakes_ten_are_named(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    path = written(tmp_path / "c.yaml", *(claim(f"c{number}", 1) | {"extra": 1} for number in range(13)))
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", path)
    lines = result.err.splitlines()
    assert len(lines) == 11
    assert all("unknown field: 1" in line for line in lines[:10])
    assert lines[10] == "dracaena: 3 more such mistakes: dracaena validate names them all"


@pytest.mark.parametrize(
    "selector",
    [
        [1],
        {"nodeSelectorTerms": {"a": "b"}},
        {"nodeSelectorTerms": [3]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": 3}]}]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": ["a"], "operator": "In", "values": ["x"]}]}]},
        {"nodeSelectorTerms": [{"matchFields": ["metadata.name"]}]},
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "in", "values": ["x"]}]}]},
    ],
)
def test_a_broken_node_selector_is_one_line_with_its_place(run: Run, tmp_path: Path, selector: object) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
    for wrong in (
        pod("a", named("b"), affinity={"nodeAffinity": required}),
        claim("b", 1) | {"status": {"allocation": {"nodeSelector": selector}}},
    ):
        path = written(tmp_path / "bad.yaml", wrong)
        result = run("simulate", "-f", path)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith(f"dracaena: {path}:")
        assert result.err.count("\n") == 1


def test_node_affinity_of_a_wrong_type_is_one_line(run: Run, tmp_path: Path) -> None:
    path = written(tmp_path / "bad.yaml", pod("a", named("b"), affinity={"nodeAffinity": [1]}))
    result = run("simulate", "-f", path)
    assert (result.code, result.out) == (2, "")
    assert "spec.affinity.nodeAffinity: wrong type: a list of 1, expected an object" in result.err


def test_a_mistake_in_a_pod_template_is_reported_with_its_path(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    wrong = pod("a", named("two"))["spec"] | {"containers": [{"name": "m", "resources": {"claims": [{"name": "gpu"}]}}]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": {"spec": wrong}}}
    result = run("simulate", "-f", CLASSES, "-f", node("w", "dgx-1v"), "-f", written(tmp_path / "j.yaml", job))
    assert "a mistake in Job j, taken as far as it goes: spec.template.spec.containers[0].resources.claims[0]" in (
        result.err
    )


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([{"apiVersion": "v1", "kind": "Pod", "metadata": {}}], "Pod does not decode: Object missing required field"),
        ([claim("a", 1), claim("a", 2)], "another ResourceClaim default/a is already in the input"),
        (
            [claim("a", 1) | {"apiVersion": "resource.k8s.io/v1beta1"}],
            "ResourceClaim has apiVersion resource.k8s.io/v1beta1, expected resource.k8s.io/v1",
        ),
        ([pod("a", named("b")) | {"spec": []}], "Pod does not decode: Expected `object`, got `array`"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_its_place(
    run: Run, tmp_path: Path, objects: list[dict[str, Any]], said: str
) -> None:
    path = written(tmp_path / "bad.yaml", *objects)
    result = run("simulate", "-f", path)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dracaena: {path}:")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_a_path_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    result = run("simulate", "-f", tmp_path / "none.yaml")
    assert (result.code, result.out) == (2, "")
    assert "none.yaml" in result.err
