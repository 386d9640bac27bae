from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dracaena.cli.main import main

CLASSES = Path(__file__).parents[3] / "deploy" / "deviceclasses"

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process; the result has code, out and err."""

    def _run(*arguments: object) -> SimpleNamespace:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return _run


@pytest.fixture
def node(run: Run, tmp_path: Path) -> Callable[..., Path]:
    """Write the slices of a node with a recorded machine."""

    def _node(name: str, machine: str, *, with_object: bool = True) -> Path:
        text = run("topology", "show", "--machine", machine, "-o", "resourceslices", "--node", name).out
        if with_object:
            text += yaml.safe_dump(
                {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}, explicit_start=True
            )
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return _node


def claim(name: str, count: int, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": claim_spec(count),
    }


def claim_spec(count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.dracaena.dev", "count": count}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def template(name: str, count: int) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": claim_spec(count)},
    }


def pod(name: str, *entries: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"resourceClaims": list(entries), "containers": [{"name": "main"}], **spec},
    }


def named(claim_name: str) -> dict[str, str]:
    return {"name": "gpus", "resourceClaimName": claim_name}


def generated(template_name: str) -> dict[str, str]:
    return {"name": "gpus", "resourceClaimTemplateName": template_name}


def written(path: Path, *objects: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return path


def outcomes(run: Run, *paths: Path) -> list[dict[str, Any]]:
    options = [option for path in (CLASSES, *paths) for option in ("-f", path)]
    result = run("simulate", *options, "-o", "json")
    assert result.code == 0, result.err
    decided: list[dict[str, Any]] = json.loads(result.out)
    return decided


def devices(outcome: dict[str, Any]) -> set[str]:
    return {result["device"] for result in outcome["devices"]}


def test_a_pod_gets_the_best_linked_pair_of_its_node(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "pods.yaml", pod("train", generated("two")), template("two", 2))
    (outcome,) = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert (outcome["pod"], outcome["claim"], outcome["node"]) == ("default/train", "default/train-gpus", "worker-1")
    assert [result["request"] for result in outcome["devices"]] == ["gpus", "gpus"]
    assert {result["driver"] for result in outcome["devices"]} == {"gpu.dracaena.dev"}
    assert outcome["score"]["bandwidth_gb_s"] == 50  # two NVLinks of 25 GB/s: the best pair of a DGX-1V


def test_pods_are_decided_by_priority_then_as_they_stand(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    names = ("first", "second", "urgent")
    pods = [pod(name, generated("four"), priority=10 if name == "urgent" else 0) for name in names]
    files = written(tmp_path / "pods.yaml", template("four", 4), *pods)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [outcome["pod"] for outcome in decided] == ["default/urgent", "default/first", "default/second"]
    assert [outcome["node"] for outcome in decided] == ["worker-1", "worker-1", None]
    assert not devices(decided[0]) & devices(decided[1])


def test_what_does_not_fit_has_reasons_and_no_devices(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "claims.yaml", claim("nine", 9))
    (outcome,) = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert (outcome["pod"], outcome["node"], outcome["devices"], outcome["score"]) == (None, None, [], {})
    assert outcome["reason"] == "0/1 nodes fit: 1 with fewer than 9 free GPUs (worker-1)"


def test_a_claim_that_is_allocated_holds_its_devices(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    slices = node("worker-1", "dgx-1v")
    (first,) = outcomes(run, slices, written(tmp_path / "first.yaml", claim("first", 6)))
    taken = claim("first", 6) | {"status": {"allocation": {"devices": {"results": first["devices"]}}}}
    decided = outcomes(run, slices, written(tmp_path / "both.yaml", taken, claim("next", 2), claim("last", 1)))
    assert [outcome["claim"] for outcome in decided] == ["default/next", "default/last"]
    assert not devices(decided[0]) & devices(first)
    assert decided[1]["node"] is None


def test_pods_share_a_claim_and_only_the_first_is_decided(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "pods.yaml", claim("both", 2), pod("a", named("both")), pod("b", named("both")))
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [(outcome["pod"], outcome["claim"]) for outcome in decided] == [("default/a", "default/both")]


def test_two_claims_of_a_pod_are_decided_together(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    entries = [{"name": "one", "resourceClaimName": "one"}, {"name": "two", "resourceClaimName": "two"}]
    files = written(tmp_path / "pods.yaml", claim("one", 2), claim("two", 2), pod("a", *entries))
    one, two = outcomes(run, node("worker-1", "h100-pcie-bridges"), node("worker-2", "dgx-1v"), files)
    assert (one["claim"], two["claim"]) == ("default/one", "default/two")
    assert one["node"] == two["node"]
    assert one["score"] == two["score"]


def test_a_pod_that_the_controller_would_not_look_at_says_why(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    gated = pod("gated", generated("two"), schedulingGates=[{"name": "example.com/later"}])
    lost = pod("lost", named("missing"))
    bare = pod("bare", generated("missing"))
    files = written(tmp_path / "pods.yaml", template("two", 2), gated, lost, bare)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [(outcome["pod"], outcome["reason"]) for outcome in decided] == [
        ("default/gated", "the pod waits at its scheduling gate example.com/later"),
        ("default/lost", "claim default/missing does not exist"),
        ("default/bare", "ResourceClaimTemplate default/missing does not exist"),
    ]


def test_running_and_ended_pods_are_passed_over(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    pods = [pod(phase, generated("two")) | {"status": {"phase": phase}} for phase in ("Running", "Succeeded")]
    assert outcomes(run, node("worker-1", "dgx-1v"), written(tmp_path / "pods.yaml", template("two", 2), *pods)) == []


def test_the_table_shows_ordinals_and_the_reason_below(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    files = written(tmp_path / "pods.yaml", pod("train", generated("two")), template("two", 2), claim("nine", 9))
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", files)
    lines = result.out.splitlines()
    assert lines[0].split() == ["POD", "CLAIM", "NODE", "GPUS", "LINKS"]
    assert lines[1].split() == ["default/train", "default/train-gpus", "worker-1", "2,3", "1", "pair", "NV2"]
    assert lines[2].startswith("    2 of the GPUs of worker-1: 1 pair NV2 (bandwidth: 50 GB/s")
    assert "    0/1 nodes fit: 1 with fewer than 9 free GPUs (worker-1)" in lines
    assert lines[-1] == "1 of 2 claims get their devices"
    assert result.err == ""


def test_slices_without_their_node_are_taken_and_told(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    path = node("worker-1", "dgx-1v", with_object=False)
    result = run("simulate", "-f", CLASSES, "-f", path, "-f", written(tmp_path / "c.yaml", claim("two", 2)))
    assert (result.code, "1 of 1 claims" in result.out) == (0, True)
    assert "node worker-1 is not in the input: taken as one without labels and taints" in result.err


def test_a_broken_pool_is_named(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    path = node("worker-1", "dgx-1v")
    path.write_text(path.read_text(encoding="utf-8").replace("resourceSliceCount: 1", "resourceSliceCount: 2"))
    result = run("simulate", "-f", CLASSES, "-f", path, "-f", written(tmp_path / "c.yaml", claim("two", 2)))
    assert "pool worker-1 is left out of the choice: generation 1 has 1 of 2 slices" in result.err
    assert "1 without usable GPUs of gpu.dracaena.dev (worker-1)" in result.out


def test_nothing_to_decide_is_said(run: Run, node: Callable[..., Path]) -> None:
    result = run("simulate", "-f", node("worker-1", "dgx-1v"))
    assert result.out == "nothing to decide: the input holds no pending pod and no claim without devices\n"


def test_other_kinds_are_left_out_and_named(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
    result = run("simulate", "-f", node("worker-1", "dgx-1v"), "-f", written(tmp_path / "s.yaml", service))
    assert (result.code, result.err) == (0, f"dracaena: {tmp_path}/s.yaml:1: Service: plays no part in decisions\n")


def test_objects_come_from_standard_input(run: Run, node: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text = yaml.safe_dump(claim("two", 2)).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    result = run("simulate", "-f", CLASSES, "-f", node("worker-1", "dgx-1v"), "-f", "-", "-o", "json")
    assert json.loads(result.out)[0]["node"] == "worker-1"


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ([{"apiVersion": "v1", "kind": "Pod", "metadata": {}}], "Pod does not decode: Object missing required field"),
        ([claim("a", 1), claim("a", 2)], "ResourceClaim default/a stands in the input already"),
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


def test_the_same_input_gives_the_same_output(run: Run, node: Callable[..., Path], tmp_path: Path) -> None:
    pods = [pod(f"p{number}", generated("two")) for number in range(6)]
    files = written(tmp_path / "pods.yaml", template("two", 2), *pods)
    nodes = [node("worker-1", "dgx-1v"), node("worker-2", "h100-pcie-bridges")]
    assert outcomes(run, *nodes, files) == outcomes(run, files, *reversed(nodes))


def test_a_claim_that_its_template_has_made_is_decided_once_for_its_pod(
    run: Run, node: Callable[..., Path], tmp_path: Path
) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "u-1", "controller": True}
    annotations = {"resource.kubernetes.io/pod-claim-name": "gpus"}
    made = claim("train-gpus-x7k2p", 9, ownerReferences=[owner], annotations=annotations)
    train = pod("train", generated("nine")) | {"metadata": {"name": "train", "uid": "u-1"}}
    files = written(tmp_path / "pods.yaml", template("nine", 9), train, made)
    decided = outcomes(run, node("worker-1", "dgx-1v"), files)
    assert [(outcome["pod"], outcome["claim"]) for outcome in decided] == [
        ("default/train", "default/train-gpus-x7k2p")
    ]
