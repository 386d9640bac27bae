"""How far a node's MIG layout is, by its label and the condition of its plugin."""

from __future__ import annotations

import pytest

from dracaena.api.mig_layout import (
    CONDITION,
    ConditionedNode,
    ConditionedStatus,
    MigLayoutStatus,
    mig_layout_document,
    mig_layout_status,
)
from dracaena.api.objects import ObjectMeta, PodCondition
from support.allocation import DRIVER, node

KEY = f"{DRIVER}/mig-layout"
HELD = "MIG layout mixed: claim default/c (UID u) has gpu-1 or a part of it"


def found(label: str | None, reason: str = "", message: str = "") -> MigLayoutStatus | None:
    """What is known of a node with this label, and with a condition where a reason is given."""
    ready = PodCondition(type="Ready", status="True", reason="KubeletReady", message="MIG layout mixed: not ours")
    told = PodCondition(type=CONDITION, status="False", reason=reason, message=message)
    labels = {} if label is None else {KEY: label}
    status = ConditionedStatus(conditions=(ready, told) if reason else (ready,))
    return mig_layout_status(DRIVER, ConditionedNode(metadata=ObjectMeta(name="n", labels=labels), status=status))


def test_what_the_plugin_tells_of_the_chosen_layout_is_reported() -> None:
    status = found("mixed", "Pending", HELD)
    assert status == MigLayoutStatus("mixed", "Pending", HELD)
    assert str(status) == f"MigLayoutPending: {HELD}"
    assert mig_layout_document(status) == {"chosen": "mixed", "state": "Pending", "message": HELD}


def test_a_layout_of_the_settings_is_reported_without_a_label() -> None:
    assert found(None, "Failed", "MIG layout all-9g: no") == MigLayoutStatus(None, "Failed", "MIG layout all-9g: no")


@pytest.mark.parametrize(
    ("reason", "message"), [("Applied", "MIG layout mix: all GPUs have it"), ("NoLayout", "no layout is chosen")]
)
def test_a_condition_of_before_the_label_says_nothing_about_what_it_names(reason: str, message: str) -> None:
    status = found("mixed", reason, message)
    assert status == MigLayoutStatus("mixed", None, "MIG layout mixed: its plugin has not taken it up yet")
    assert "Applied" not in str(status)


def test_without_a_condition_only_the_label_is_known() -> None:
    assert str(found("mixed")) == "MIG layout mixed: Events of the Node say how far it is"


def test_a_gpu_that_is_finished_after_the_label_was_emptied_is_reported() -> None:
    assert str(found("", "Pending", "MIG layout of before: GPU 0")) == "MigLayoutPending: MIG layout of before: GPU 0"


@pytest.mark.parametrize("label", [None, ""])
def test_nothing_is_reported_where_nothing_is_chosen(label: str | None) -> None:
    assert found(label) is None
    assert found(label, "NoLayout", "no layout is chosen") is None


@pytest.mark.parametrize("reason", ["Applied", "Failed", "Pending"])
def test_an_emptied_label_is_not_reported_as_the_layout_of_before(reason: str) -> None:
    assert found("", reason, HELD) is None


def test_nothing_learns_of_a_node_without_its_conditions() -> None:
    assert mig_layout_status(DRIVER, node("n", labels={KEY: "mixed"})) is None
    bare = ConditionedNode(metadata=ObjectMeta(name="n", labels={KEY: "mixed"}))
    assert str(mig_layout_status(DRIVER, bare)) == "MIG layout mixed: Events of the Node say how far it is"
