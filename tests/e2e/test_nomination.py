"""status.nominatedNodeName, by which kube-scheduler looks at the right node first: a hint in large clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.made_up import FOUR, MadeUpCluster
from e2e.pods import Pod, claim_spec, create_pod, create_template
from support.write_proxy import Write


@pytest.fixture(autouse=True)
def always(made_up: MadeUpCluster) -> Iterator[None]:
    create_template(made_up.api, "one", claim_spec(1))
    with made_up.controller_with("--nominate-above-nodes=0"):
        yield


def nominations(cluster: MadeUpCluster) -> list[Write]:
    return [write for write in cluster.proxy.writes if write.kind == "pods/status"]


def test_the_hint_is_written_right_before_the_allocation_and_the_pod_is_bound_there(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", FOUR)
    pod = Pod("hinted", templates={"gpu": "one"})
    create_pod(made_up.api, pod)
    assert made_up.wait_bound(pod) == "a"
    kinds = [write.kind for write in made_up.proxy.writes]
    assert kinds == ["resourceclaims", "pods/status", "resourceclaims/status"]
    (hint,) = nominations(made_up)
    assert hint.body["status"] == {"nominatedNodeName": "a"}
    assert hint.body["metadata"]["resourceVersion"]
    made_up.check()


def test_a_hint_of_somebody_else_stays(made_up: MadeUpCluster) -> None:
    """Preemption leaves one; the pod is bound where its devices are all the same."""
    pod = Pod("theirs", templates={"gpu": "one"})
    with made_up.without_scheduler():
        create_pod(made_up.api, pod)
        made_up.api.patch(f"{pod.path}/status", {"status": {"nominatedNodeName": "elsewhere"}})
        made_up.add_node("a", FOUR)
        made_up.wait_allocated(pod)
        assert made_up.api.get(pod.path)["status"]["nominatedNodeName"] == "elsewhere"
    # One who does not see it yet, but the slice already, tries and is refused: the write names the pod's version.
    assert {write.status for write in nominations(made_up)} <= {409}
    assert made_up.wait_bound(pod) == "a"
    made_up.check()


def test_a_hint_that_cannot_be_written_holds_nothing_up(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", FOUR)
    made_up.proxy.before = lambda write: 500 if write.kind == "pods/status" else None
    pod = Pod("unhinted", templates={"gpu": "one"})
    create_pod(made_up.api, pod)
    assert made_up.wait_bound(pod) == "a"
    made_up.check()
