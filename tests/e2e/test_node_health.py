"""A GPU breaks and recovers: its taint, what kubelet and the pod say, who is sent away, who gets it again.

The faults are those of a recorded machine, from a file; from there on all is real: kubelet's health stream and pod
status, kube-controller-manager's eviction by device taints, our controller's choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import NODE_NAME, Cluster
from e2e.gpu_pods import claimed, delete_gpu_pod, gpu_numbers, seen_inside
from e2e.gpus import GPU_COUNT
from e2e.installation import DRIVER
from e2e.pods import Pod, claim_spec, container_id, create_pod, create_template, wait_gone, wait_pending
from e2e.waiting import eventually, never

SEEN_S = 40.0
"""A poll comes every 15 s, kubelet writes a pod's status within some seconds."""

CLEARED_S = 110.0
"""Four good polls, 60 s, one more at the beginning, and a loaded machine."""

HELD_S = 20.0
"""After the first good poll at the latest: a fault that is cleared so soon has no hysteresis."""

EVENTS = "/api/v1/events"


@pytest.fixture
def faults(installed: Cluster, tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Run the plugin with health watched and lost GPUs cleared of pods; give what sets the faults, by GPU UUID."""
    path = tmp_path / "faults.json"

    def put(faults: dict[str, Any]) -> None:
        path.with_suffix(".new").write_text(json.dumps(faults), encoding="utf-8")
        path.with_suffix(".new").replace(path)

    put({})
    with installed.installation.plugin.restarted_with(f"--faults={path}", "--evict-from-lost=true"):
        installed.installation.wait_ready()
        yield put
    installed.installation.wait_ready()


@pytest.fixture(scope="module", autouse=True)
def templates(installed: Cluster) -> Iterator[None]:
    paths = [create_template(installed.api, f"health-{count}", claim_spec(count)) for count in (1, GPU_COUNT)]
    yield
    for path in paths:
        installed.api.delete(path)


def uuid_of(cluster: Cluster, number: int) -> str:
    attributes = [device["attributes"] for device in cluster.installation.devices()]
    return next(str(each["uuid"]["string"]) for each in attributes if each["index"]["int"] == number)


def taints(cluster: Cluster, uuid: str) -> dict[str, tuple[str, str]]:
    """Return the taints of a GPU beside the one that all have: key below the driver's name → value and effect."""
    (device,) = [d for d in cluster.installation.devices() if d["attributes"]["uuid"]["string"] == uuid]
    found = {t["key"].removeprefix(f"{DRIVER}/"): (t.get("value", ""), t["effect"]) for t in device["taints"]}
    assert found.pop("controller-allocated") == ("true", "NoSchedule")
    return found


def told(cluster: Cluster, pod: Pod) -> dict[str, str]:
    """Return the health of each device of a pod as its status has it, its message behind it."""
    statuses = cluster.api.get(pod.path)["status"]["containerStatuses"][0].get("allocatedResourcesStatus") or ()
    return {
        resource["resourceID"]: " ".join(filter(None, (resource["health"], resource.get("message", ""))))
        for status in statuses
        for resource in status["resources"]
        if status["name"].startswith("claim:")
    }


def node_events(cluster: Cluster, reason: str) -> list[str]:
    found = cluster.api.items(EVENTS)
    return [
        e["message"]
        for e in found
        if (e["involvedObject"].get("kind"), e["involvedObject"].get("name"), e.get("reason"))
        == ("Node", NODE_NAME, reason)
    ]


def test_a_gpu_that_breaks_keeps_its_pod_and_a_lost_one_is_cleared_until_both_are_well(
    installed: Cluster, faults: Callable[[dict[str, Any]], None]
) -> None:
    broken, lost = (Pod(name, templates={"gpu": "health-1"}) for name in ("on-broken", "on-lost"))
    uuids = {}
    for pod in (broken, lost):
        create_pod(installed.api, pod)
        (number,) = seen_inside(installed.api, pod).usable
        uuids[pod.name] = uuid_of(installed, number)
    container = container_id(installed.api, broken)
    eventually(
        lambda: [text.split()[0] for text in told(installed, broken).values()] == ["Healthy"],
        "kubelet says that the GPU is well",
        within_s=SEEN_S,
    )

    faults({
        uuids["on-broken"]: {"xids": [48], "recovery_action": 1},
        uuids["on-lost"]: {"lost": "fell off the bus"},
    })  # fmt: skip
    eventually(lambda: "xid" in taints(installed, uuids["on-broken"]), "the broken GPU is tainted", within_s=SEEN_S)
    assert taints(installed, uuids["on-broken"]) == {
        "xid": ("48", "NoSchedule"),
        "recovery-action": ("gpu-reset", "NoSchedule"),
    }
    wait_gone(installed.api, lost)  # kube-controller-manager deletes it at once, with the grace of any pod
    assert taints(installed, uuids["on-lost"]) == {"gpu-lost": ("", "NoExecute")}
    said = eventually(
        lambda: [text for text in told(installed, broken).values() if text.startswith("Unhealthy")],
        "the pod's status says that its GPU is broken",
        within_s=SEEN_S,
    )
    assert "XID 48" in said[0]
    assert container_id(installed.api, broken) == container
    eventually(lambda: len(node_events(installed, "GpuUnhealthy")) >= 2, "the node has its Events", within_s=SEEN_S)

    delete_gpu_pod(installed, broken)
    every = Pod("on-all", templates={"gpu": f"health-{GPU_COUNT}"})
    create_pod(installed.api, every)
    wait_pending(installed.api, every, "cannot allocate all claims")
    faults({})
    never(lambda: not taints(installed, uuids["on-broken"]), "the taint is taken back at once", for_s=HELD_S)
    assert claimed(installed, every) == frozenset()
    eventually(
        lambda: not any(taints(installed, uuid) for uuid in uuids.values()), "both are well again", within_s=CLEARED_S
    )
    assert seen_inside(installed.api, every).usable == frozenset(range(GPU_COUNT))
    eventually(
        lambda: [text.split()[0] for text in told(installed, every).values()] == ["Healthy"] * GPU_COUNT,
        "kubelet says that all GPUs are well",
        within_s=SEEN_S,
    )
    assert gpu_numbers(installed).of_uuids(uuids.values()) <= claimed(installed, every)
    delete_gpu_pod(installed, every)
