from __future__ import annotations

from dracaena.demo.pod_status import node_document, running_status

NOW = "2026-01-01T00:00:00Z"


def test_running_keeps_conditions_of_others_and_reports_every_container_ready() -> None:
    spec = {"containers": [{"name": "a", "image": "i"}, {"name": "b"}], "initContainers": [{"name": "c"}]}
    before = {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]}
    status = running_status(spec, before, NOW)
    assert status["phase"] == "Running"
    assert [(one["type"], one["status"]) for one in status["conditions"]] == [
        ("PodScheduled", "True"),
        ("PodReadyToStartContainers", "True"),
        ("Initialized", "True"),
        ("Ready", "True"),
        ("ContainersReady", "True"),
    ]
    assert [(one["name"], one["image"], one["ready"]) for one in status["containerStatuses"]] == [
        ("a", "i", True),
        ("b", "", True),
    ]
    assert status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0


def test_a_node_is_ready_and_labelled_with_its_name() -> None:
    document = node_document("n1", {"rack": "r"}, NOW)
    assert document["metadata"]["labels"]["kubernetes.io/hostname"] == "n1"
    assert document["metadata"]["labels"]["rack"] == "r"
    assert document["status"]["conditions"][0]["type"] == "Ready"
