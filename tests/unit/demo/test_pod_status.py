from __future__ import annotations

import pytest

from dracaena.demo.pod_status import BRIEF_S, ended_status, lasts_s, node_document, running_status

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


def test_a_pod_that_ends_by_itself_lasts_as_long_as_its_longest_sleep() -> None:
    sleeps = [{"command": ["sleep", "5"]}, {"command": ["/bin/sleep"], "args": ["7"]}]
    assert lasts_s({"restartPolicy": "Never", "containers": sleeps}) == 7
    assert lasts_s({"restartPolicy": "OnFailure", "containers": [{"command": ["train.py"]}]}) == BRIEF_S
    assert lasts_s({"restartPolicy": "Never", "containers": [{"image": "example/train:1.0"}]}) is None
    assert lasts_s({"restartPolicy": "Never", "containers": [{"image": "example/train:1.0"}]}, of_job=True) == BRIEF_S
    assert lasts_s({"restartPolicy": "Always", "containers": sleeps}) is None
    assert lasts_s({"containers": sleeps}) is None


def never_restarted(*arguments: str) -> float | None:
    return lasts_s({"restartPolicy": "Never", "containers": [{"command": ["sleep", *arguments]}]})


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (("5m",), 300),
        (("0.5",), 0.5),
        ((".5s",), 0.5),
        (("2h",), 7200),
        (("1d",), 86400),
        (("1m", "30"), 90),
        (("9999999999",), 9999999999),
    ],
)
def test_sleep_is_read_with_its_units(arguments: tuple[str, ...], seconds: float) -> None:
    assert never_restarted(*arguments) == seconds


@pytest.mark.parametrize("forever", ["infinity", "inf", "Infinity", "infinityd", "9" * 400, "9" * 5000 + "d"])
def test_a_sleep_without_an_end_runs_until_it_is_deleted(forever: str) -> None:
    assert never_restarted(forever) is None


@pytest.mark.parametrize(
    "arguments", [(), ("",), ("x",), ("5M",), ("-5",), ("nan",), ("5", "x"), ("\u0665",), ("1e3",)]
)
def test_a_sleep_that_cannot_be_read_is_brief(arguments: tuple[str, ...]) -> None:
    assert never_restarted(*arguments) == BRIEF_S


def test_a_pod_that_has_ended_says_when_its_containers_began_and_ended() -> None:
    spec = {"containers": [{"name": "main", "image": "busybox"}]}
    running = running_status(spec, {}, "2026-01-01T00:00:00Z")
    ended = ended_status(spec, running, "2026-01-01T00:01:00Z")
    assert ended["phase"] == "Succeeded"
    (container,) = ended["containerStatuses"]
    assert container["state"]["terminated"] == {
        "exitCode": 0,
        "reason": "Completed",
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:01:00Z",
    }
    ready = {one["type"]: one["status"] for one in ended["conditions"]}
    assert (ready["Ready"], ready["ContainersReady"], ready["Initialized"]) == ("False", "False", "True")
