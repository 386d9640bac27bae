"""What a user sees: Events with kubectl, the decision on the claim, `dracaena explain` and `dracaena status`."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from typing import Any

from e2e.control_plane import ADMIN
from e2e.installation import DRIVER
from e2e.made_up import FOUR, MadeUpCluster, devices_of
from e2e.pods import EVENTS, Pod, claim_spec, create_claim, create_pod, wait_event
from e2e.waiting import eventually

TOLD_S = 20.0
"""Events are written beside the decisions, and at most every 10 s about one pod."""


def told(cluster: MadeUpCluster, kind: str, name: str, reason: str) -> list[dict[str, Any]]:
    found = cluster.api.items(EVENTS)
    return [
        e
        for e in found
        if (e["involvedObject"]["kind"], e["involvedObject"]["name"]) == (kind, name) and e["reason"] == reason
    ]


def dracaena(cluster: MadeUpCluster, *arguments: str) -> str:
    """Run our command as the administrator and return what it printed."""
    kubeconfig = f"--kubeconfig={cluster.control_plane.kubeconfig(ADMIN)}"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dracaena.cli.main", *arguments, kubeconfig],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_pod_with_devices_and_its_claim_say_what_was_chosen_and_why(made_up: MadeUpCluster) -> None:
    made_up.add_node("a", FOUR)
    path = create_claim(made_up.api, "three", claim_spec(3))
    pod = Pod("train", claims={"gpus": "three"})
    create_pod(made_up.api, pod)
    made_up.wait_bound(pod)
    for kind, name in (("Pod", "train"), ("ResourceClaim", "three")):
        look = partial(told, made_up, kind, name, "GPUsAllocated")
        (event,) = eventually(look, f"the {kind} is told", within_s=TOLD_S)
        assert event["type"] == "Normal"
        assert event["message"].startswith("3 of the GPUs of a: 3 pairs PIX")
    claim = made_up.api.get(path)
    (entry,) = claim["status"]["allocation"]["devices"]["config"]
    assert entry["opaque"]["driver"] == f"decision.{DRIVER}"
    assert entry["opaque"]["parameters"]["links"] == "3 pairs PIX"
    names = [device for _, device in devices_of(claim)]
    described = made_up.control_plane.kubectl("describe", "pod", "train")
    assert "GPUsAllocated" in described
    explained = json.loads(dracaena(made_up, "explain", "pod", "train", "-o", "json"))
    assert (explained["state"], explained["node"]) == ("bound", "a")
    assert [claim["devices"] for claim in explained["claims"]] == [[f"a/{name}" for name in names]]
    assert "3 pairs PIX" in dracaena(made_up, "explain", "claim", "three")
    status = json.loads(dracaena(made_up, "status", "-o", "json"))
    counts = {name: number for name, number in status["summary"].items() if number}
    assert counts == {"nodes": 1, "gpus": 4, "free": 1, "used": 3, "claims": 1}
    (node,) = status["nodes"]
    holders = {gpu["device"]: [by["pods"] for by in gpu["heldBy"]] for gpu in node["gpus"]}
    assert {device for device, pods in holders.items() if pods == [["train"]]} == set(names)


def test_a_pod_that_waits_is_told_counted_reasons_once_and_again_only_when_they_change(made_up: MadeUpCluster) -> None:
    pod = Pod("waits", claims={"gpus": "five"})
    # A controller that starts decides once it has seen all: each kind has a watch of its own, and a pod that it sees
    # sooner than a node before that is told twice.
    with made_up.without_controller():
        made_up.add_node("a", FOUR)
        made_up.add_node("b", FOUR)
        made_up.cordon("b")
        create_claim(made_up.api, "five", claim_spec(5))
        create_pod(made_up.api, pod)
    first = wait_event(made_up.api, pod, "WaitingForGPUs", "0/2 nodes fit")
    assert " has 5 GPUs, the largest has 4; " in first
    assert "1 with fewer than 5 GPUs (a)" in first
    assert "1 cordoned" in first
    explained = json.loads(dracaena(made_up, "explain", "pod", "waits", "-o", "json"))
    assert explained["state"] == "waiting"
    assert any("1 cordoned" in reason for reason in map(str, explained["reasons"]))
    # What wakes the pod and changes nothing about the reasons tells nothing.
    for _ in range(3):
        made_up.api.patch("/api/v1/nodes/a", {"metadata": {"labels": {"touched": "yes"}}})
        made_up.api.patch("/api/v1/nodes/a", {"metadata": {"labels": {"touched": None}}})
    made_up.cordon("b", closed=False)
    second = wait_event(made_up.api, pod, "WaitingForGPUs", "2 with fewer than 5 GPUs")
    events = told(made_up, "Pod", "waits", "WaitingForGPUs")
    assert sum(event.get("count", 1) for event in events) == 2
    assert second != first
