"""One pod end to end: what is asked for, what is chosen, what the container has, what others are told."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.cluster import NODE_NAME, Cluster
from e2e.decisions import decision_in
from e2e.gpu_pods import annotated, claimed, delete_gpu_pod, delete_gpu_pods, listed, seen_inside
from e2e.gpus import CONTROL_MINORS, GPU_COUNT, LIBRARIES, LIBRARY_FOLDER, MAJOR
from e2e.installation import DRIVER, REPOSITORY
from e2e.kubernetes import IS_1_36
from e2e.pods import Pod, claim_spec, create_claim, create_pod, create_template, pod_claims, wait_phase
from e2e.waiting import eventually, never

BEST_PAIRS = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
"""Of the stand-in machine: the pairs with two NVLinks."""

BEST_FOURS = ((0, 1, 2, 3), (4, 5, 6, 7))
"""Its two fully linked halves."""

HEALTH_RETRY_S = 5
"""kubelet's pause between two tries to open a health stream."""

LISTED_S = 20.0
"""For podlist.json to follow a pod for which kubelet makes no call: within a second on a free machine."""

EXAMPLES = ("linked-gpus", "one-gpu", "shared-claim")
"""Of deploy/examples; the tests of the chart run them all."""


@pytest.fixture(scope="module")
def templates(installed: Cluster) -> Iterator[dict[int, str]]:
    """One ResourceClaimTemplate for each count."""
    paths = {count: create_template(installed.api, f"gpus-{count}", claim_spec(count)) for count in (1, 2, 4)}
    yield {count: f"gpus-{count}" for count in paths}
    for path in paths.values():
        installed.api.delete(path)


def test_devices_are_published_with_the_taint(installed: Cluster) -> None:
    devices = installed.installation.devices()
    assert len(devices) == GPU_COUNT
    taints = {(t["key"], t["value"], t["effect"]) for d in devices for t in d["taints"]}
    assert taints == {(f"{DRIVER}/controller-allocated", "true", "NoSchedule")}


def test_kubelet_finds_a_health_stream_that_stays_open(installed: Cluster) -> None:
    """Or it would log an error each time: kubelet 1.36 asks every driver for one, whatever it announced. From 1.37 on
    it asks only who announced one, which our plugin does only where it watches health (test_node_health.py)."""
    log = installed.node.kubelet.log
    opened = "Successfully started WatchResources health stream"
    if IS_1_36:
        eventually(lambda: opened in log.read_text(encoding="utf-8"), "kubelet opens it", within_s=HEALTH_RETRY_S)
    since = installed.node.kubelet.log_size()
    changed = "WatchResources health stream"
    never(lambda: changed in log.read_bytes()[since:].decode(), "a stream comes or ends", for_s=HEALTH_RETRY_S + 1)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_container_has_the_gpus_of_its_claim_and_no_other(
    installed: Cluster, templates: dict[int, str], count: int
) -> None:
    pod = Pod(f"gpus-{count}", templates={"gpus": templates[count]})
    create_pod(installed.api, pod)
    seen = seen_inside(installed.api, pod)
    given = claimed(installed, pod)
    assert len(given) == count
    assert seen.numbers == given
    assert seen.usable == given
    assert seen.majors == {MAJOR}
    assert set(seen.nodes) == {f"/dev/nvidia{number}" for number in given} | {f"/dev/{name}" for name in CONTROL_MINORS}
    assert seen.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    names = {name: file for file, further in LIBRARIES.items() for name in (file, *further)}
    assert seen.libraries == {f"{LIBRARY_FOLDER}/{name}": file for name, file in names.items()}
    delete_gpu_pod(installed, pod)


def test_chosen_gpus_are_linked_best(installed: Cluster, templates: dict[int, str]) -> None:
    pair, four = (Pod(f"best-{count}", templates={"gpus": templates[count]}) for count in (2, 4))
    for pod, best in ((four, BEST_FOURS), (pair, BEST_PAIRS)):
        create_pod(installed.api, pod)
        assert tuple(sorted(seen_inside(installed.api, pod).numbers)) in best
    assert not claimed(installed, pair) & claimed(installed, four)
    for pod in (pair, four):
        delete_gpu_pod(installed, pod)


def test_podlist_and_annotations_name_the_gpus(installed: Cluster, templates: dict[int, str]) -> None:
    pod = Pod("observed", templates={"gpus": templates[2]})
    create_pod(installed.api, pod)
    seen = seen_inside(installed.api, pod)
    assert listed(installed, pod) == seen.numbers
    assert annotated(installed, pod) == seen.numbers
    (entry,) = installed.installation.podlist()
    assert list(entry)[:4] == ["name", "namespace", "container", "gpu_list"]
    assert (entry["name"], entry["namespace"], entry["container"]) == ("observed", "default", "main")
    delete_gpu_pod(installed, pod)
    assert installed.installation.podlist() == []


def test_decision_is_on_the_claim(installed: Cluster, templates: dict[int, str]) -> None:
    pod = Pod("decided", templates={"gpus": templates[2]})
    create_pod(installed.api, pod)
    seen_inside(installed.api, pod)
    claim = pod_claims(installed.api, pod)["gpus"]
    decision = decision_in(claim)
    assert decision is not None
    assert len(json.dumps(decision, separators=(",", ":"))) <= 2048
    assert decision["node"] == NODE_NAME
    delete_gpu_pod(installed, pod)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run_as_they_are(installed: Cluster, example: str) -> None:
    folder = REPOSITORY / "deploy" / "examples" / example
    installed.control_plane.kubectl("apply", "--filename", folder)
    names = installed.control_plane.kubectl("get", "pods", "--output=name").split()
    pods = [Pod(name.removeprefix("pod/")) for name in names]
    assert pods
    for pod in pods:
        wait_phase(installed.api, pod, "Running")
        assert claimed(installed, pod)
    installed.control_plane.kubectl("delete", "--filename", folder, "--wait=true", "--grace-period=1")


def test_second_pod_on_a_prepared_claim_has_the_same_gpus(installed: Cluster) -> None:
    """kubelet makes no call for it; kube-scheduler reserves the claim for it, which needs our allocationTimestamp."""
    path = create_claim(installed.api, "shared", claim_spec())
    first, second = (Pod(f"sharing-{name}", claims={"gpu": "shared"}) for name in ("a", "b"))
    create_pod(installed.api, first)
    numbers = seen_inside(installed.api, first).numbers
    calls = installed.installation.prepare_calls()
    create_pod(installed.api, second)
    assert seen_inside(installed.api, second).numbers == numbers
    assert installed.installation.prepare_calls() == calls
    # No call of kubelet has waited for that: the plugin follows the second pod by its watch.
    eventually(lambda: listed(installed, second) == numbers, "the second pod is listed", within_s=LISTED_S)
    assert annotated(installed, second) == numbers
    reserved = installed.api.get(path)["status"]["reservedFor"]
    assert sorted(entry["name"] for entry in reserved) == ["sharing-a", "sharing-b"]
    delete_gpu_pods(installed, [first, second])
    installed.api.delete(path)
