from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cel_expr_python import cel
from hypothesis import given
from hypothesis import strategies as st

from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.discovery.publish.node_label_patch import (
    ANNOTATION,
    NVIDIA_LABELS,
    OWN_LABELS,
    label_patch,
    may_write,
)
from dracaena.kubelet_plugin.discovery.publish.node_labels import MIG_STRATEGIES, LabelFacts, node_labels

DRIVER = "gpu.dracaena.dev"
RECORD = f"{DRIVER}/{ANNOTATION}"
POLICY = Path(__file__).parents[5] / "deploy" / "helm" / "dracaena" / "templates" / "node-labels.yaml"

MPS = "nvidia.com/mps.capable"
OURS = ["nvidia.com/gpu.count", "nvidia.com/gpu.product", f"{DRIVER}/topology"]
THEIRS = ["example.com/rack", "nvidia.com/gpu.present", f"{DRIVER}/settings", "kubernetes.io/hostname"]
VALUES = st.sampled_from(["a", "b"])


def applied(before: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    """Do what RFC 7386 says for a map of strings."""
    after = dict(before)
    for name, value in changes.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = value
    return after


class Node:
    def __init__(self, labels: dict[str, str], annotations: dict[str, str] | None = None) -> None:
        self.labels = labels
        self.annotations = annotations or {}

    def take(self, wanted: dict[str, str]) -> dict[str, Any] | None:
        patch = label_patch(wanted, self.labels, self.annotations, DRIVER)
        metadata = {} if patch is None else patch["metadata"]
        self.labels = applied(self.labels, metadata.get("labels", {}))
        self.annotations = applied(self.annotations, metadata.get("annotations", {}))
        return patch


MACHINES = st.dictionaries(st.sampled_from(OURS), VALUES)
RECORDS = st.lists(st.sampled_from([*OURS, *THEIRS, ""]), unique=True)


@given(st.dictionaries(st.sampled_from([*OURS, *THEIRS]), VALUES), RECORDS, MACHINES)
def test_whatever_a_node_has_ours_become_what_the_machine_says_and_the_others_stay(
    labels: dict[str, str], record: list[str], wanted: dict[str, str]
) -> None:
    node = Node(dict(labels), {RECORD: ",".join(record)} if record else {})
    node.take(wanted)
    ours = set(record) & set(OURS)
    kept = {name: value for name, value in labels.items() if name not in ours}
    assert node.labels == {**kept, **wanted}
    assert node.take(wanted) is None


SAYS = st.tuples(st.just("says"), MACHINES)
PLANTS = st.tuples(st.just("plants"), st.dictionaries(st.sampled_from([*OURS, *THEIRS]), VALUES, max_size=2))


@given(st.lists(st.one_of(SAYS, PLANTS), max_size=8))
def test_after_any_history_nothing_is_taken_away_but_what_we_wrote(
    steps: list[tuple[str, dict[str, str]]],
) -> None:
    node = Node({}, {"example.com/note": "1"})
    expected: dict[str, str] = {}
    written: set[str] = set()
    for who, labels in steps:
        if who == "plants":
            node.labels = {**node.labels, **labels}
            expected |= labels
            continue
        node.take(labels)
        expected = {name: value for name, value in expected.items() if name in labels or name not in written}
        written = {name for name in labels if name in written or expected.get(name) != labels[name]}
        expected |= labels
        assert node.labels == expected
        assert node.annotations.get(RECORD, "") == ",".join(sorted(written))
    assert node.annotations["example.com/note"] == "1"


def test_what_others_gave_under_a_name_of_ours_stays_when_we_do_not_say_it() -> None:
    node = Node({"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "right"})
    node.take({"nvidia.com/gpu.product": "right"})
    node.take({f"{DRIVER}/topology": "nvlink"})
    assert node.labels == {
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.product": "right",
        f"{DRIVER}/topology": "nvlink",
    }


@pytest.mark.parametrize("name", [*THEIRS, "nvidia.com/gpu.deploy.driver", "nvidia.com/mig.config", ""])
def test_an_annotation_that_was_written_over_takes_no_labels_of_others_away(name: str) -> None:
    node = Node({name: "x"}, {RECORD: f"{name},nvidia.com/gpu.count"})
    node.take({})
    assert node.labels == {name: "x"}
    assert node.annotations == {}


@pytest.mark.parametrize("machine", machine_names())
@pytest.mark.parametrize("strategy", MIG_STRATEGIES)
def test_whatever_a_machine_says_may_be_written(machine: str, strategy: Any) -> None:
    facts = LabelFacts(mig_strategy=strategy, timestamp_s=1)
    labels = node_labels(read_machine(machine), facts, DRIVER)
    assert labels
    assert [name for name in labels if not may_write(name, DRIVER)] == []


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu.deploy.driver", "nvidia.com/gpu.present", "nvidia.com/mig.config",
        "nvidia.com/gpu.workload.config",
        "nvidia.com/vgpu.host-driver-version", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "xnvidia.com/gpu.count",
        "nvidia.com/gpu.count.x", "nvidia.com/gpu.count\n", "nvidia.com/mig-1g/gpu.count", "nvidiaxcom/gpu.count",
        f"{DRIVER}/settings", f"{DRIVER}/release-driver", f"{DRIVER}/gate", "other.example.com/topology",
        "node-role.kubernetes.io/control-plane", "topology.kubernetes.io/zone",
    ],
)  # fmt: skip
def test_what_steers_others_may_not_be_written(name: str) -> None:
    assert not may_write(name, DRIVER)


def test_the_policy_of_the_chart_lets_the_same_labels_through() -> None:
    text = POLICY.read_text(encoding="utf-8")
    assert f"matches(r'{NVIDIA_LABELS}')" in text
    assert "[" + ", ".join(f'"{{{{ $driver }}}}/{name}"' for name in OWN_LABELS) + "]" in text
    assert f'"{{{{ $driver }}}}/{ANNOTATION}"' in text


@pytest.mark.parametrize(
    ("before", "after", "is_let_through"),
    [
        ({}, {MPS: "false"}, True), ({MPS: "true"}, {MPS: "false"}, True), ({MPS: "false"}, {}, True),
        ({MPS: "true"}, {MPS: "true", "nvidia.com/gpu.count": "8"}, True), ({}, {"nvidia.com/gpu.count": "8"}, True),
        ({}, {MPS: "true"}, False), ({MPS: "false"}, {MPS: "true"}, False), ({}, {MPS: ""}, False),
    ],
)  # fmt: skip
def test_the_policy_lets_nobody_start_the_mps_daemon_of_nvidia(
    before: dict[str, str], after: dict[str, str], is_let_through: bool
) -> None:
    """With CEL's own evaluation; `changed` is what the policy's variable of that name says."""
    lines = POLICY.read_text(encoding="utf-8").splitlines()
    (expression,) = (line.strip() for line in lines if "variables.changed.all" in line and f'"{MPS}"' in line)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    text = expression.replace("variables.changed", json.dumps(changed)).replace("variables.after", json.dumps(after))
    assert cel.NewEnv(variables={}).compile(text).eval(data={}).value() is is_let_through
