"""Section: how much memory and time the controller takes to start in a large cluster, until its first decision.

The real program in a process of its own, over HTTP; the API server in another (http_api). A pod waits for a GPU from
the beginning, as when a controller is replaced: the start is over when its claim is allocated. Then all watches end as
too old, so that everything is listed a second time. Run alone with
`PYTHONPATH=tests python -P -m bench.controller_start`; `bench.run` calls rows().
"""

from __future__ import annotations

import json
import os
import subprocess  # memory is measured in processes of their own
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from typing import IO, Any, Final

import msgspec

from bench.cluster.processes import Memory, cpu_s, memory
from bench.decision import KINDS, SliceTemplate, containers, node_document
from bench.garbage import look_seldom
from bench.http_api import served
from bench.in_memory_api import InMemoryApi
from bench.report import Floor, Progress, Row, Section, as_text, floors_as_text
from dracaena.api.decision import Decision, RunnerUp
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, claim, decided, holding, request
from support.hostile_objects import fat_claim

NODES: Final = 5_000
"""Of 8 GPUs: on each three pods with claims for two of them run."""

MORE_NODES: Final = 10_000
PODS: Final = 50_000
"""Of all kinds: those with claims are among them."""

FAT_CLAIMS: Final = 1_000
"""Of 330 KB each, nearly the most that the API takes: 32 configs of 10 KiB for another driver. No pod uses them."""

FLOOR_MIB: Final = 500.0
GOAL_MIB: Final = 350.0
GOAL_OF_MORE_MIB: Final = 600.0
PATIENCE_S: Final = 240.0
"""For a start, and for the API server to be filled."""

SETTLE_S: Final = 2.0
"""Between the first decision and the look at the memory: what follows the start counts too."""

POLL_S: Final = 0.05

WAITING: Final = "waiting"
EXPIRE: Final = "expire"
LISTED: Final = "listed"

TOLERATIONS: Final = [{"key": "nvidia.com/gpu", "operator": "Exists"}]


@dataclass(frozen=True, slots=True)
class Size:
    """How large a cluster is."""

    nodes: int
    pods: int
    fat_claims: int


@dataclass(frozen=True, slots=True)
class Start:
    """What one start took, from the beginning of the process to its first allocation."""

    wall_s: float
    cpu_s: float
    memory: Memory
    """SETTLE_S later."""
    listed_anew: Memory
    """When everything was listed a second time, as after a break of the watches, and SETTLE_S later."""


def rows(progress: Progress, *, long: bool = False) -> Section:
    """Measure a start: a minute. In the long form a second one, with more nodes."""
    starts = []
    for nodes in (NODES, MORE_NODES) if long else (NODES,):
        progress(f"start: {nodes:,} nodes, {PODS:,} pods, {FAT_CLAIMS:,} fat claims")
        starts.append(measured(Size(nodes, PODS, FAT_CLAIMS)))
    one = starts[0]
    title = f"start with {PODS:,} pods and {FAT_CLAIMS:,} fat claims"
    return Section(
        title="The controller's start",
        rows=(
            Row(f"{title}, {NODES:,} nodes x 8 GPUs: peak memory (RSS)", one.memory.peak, unit="MiB"),
            Row("the same, memory after it", one.memory.now, unit="MiB"),
            Row("the same, peak when all is listed a second time", one.listed_anew.peak, unit="MiB"),
            Row("the same, time until the first allocation", one.wall_s, unit="s"),
            Row("the same, CPU time of the process", one.cpu_s, unit="s"),
            *(row for more in starts[1:] for row in _rows_of_more(title, one, more)),
        ),
        floors=(
            Floor(
                f"{title}, then all lists again, {NODES:,} nodes: peak memory",
                one.listed_anew.peak,
                FLOOR_MIB,
                "MiB",
                goal=GOAL_MIB,
            ),
        ),
        notes=(
            f"A fat claim has {len(fat_claim(0).body) / 1000:.0f} KB. On each node three pods hold two GPUs each.",
            "The API server hands on bytes, over HTTP, from a process of its own: it decodes and checks nothing.",
        ),
    )


def _rows_of_more(title: str, one: Start, more: Start) -> tuple[Row, ...]:
    """Return the rows of the larger cluster beside the other one."""
    fewer = f"{NODES:,} nodes"
    return (
        Row(
            f"{title}, {MORE_NODES:,} nodes: peak memory (RSS)",
            more.memory.peak,
            one.memory.peak,
            "MiB",
            against=fewer,
        ),
        Row("the same, memory after it", more.memory.now, one.memory.now, "MiB", against=fewer),
        Row(
            "the same, peak when all is listed a second time",
            more.listed_anew.peak,
            one.listed_anew.peak,
            "MiB",
            against=fewer,
            note=f"goal {GOAL_OF_MORE_MIB:.0f}",
        ),
        Row("the same, time until the first allocation", more.wall_s, one.wall_s, "s", against=fewer),
        Row("the same, CPU time of the process", more.cpu_s, one.cpu_s, "s", against=fewer),
    )


def measured(size: Size) -> Start:
    """Start a controller over a cluster of that size and measure it until it has decided."""
    with TemporaryDirectory() as folder, _api(size) as (said, command_to):
        kubeconfig, log = Path(folder, "kubeconfig"), Path(folder, "log")
        kubeconfig.write_text(_next(said), encoding="utf-8")  # JSON is YAML as well
        command = [sys.executable, "-P", "-m", "dracaena.cli.main", "controller", "--kubeconfig", str(kubeconfig)]
        with log.open("wb") as stream:
            began_s = time.monotonic()
            process = subprocess.Popen([*command, "--leader-elect=false"], stdout=stream, stderr=stream)
            try:
                allocated = _next(said)
                wall_s, spent_s = time.monotonic() - began_s, cpu_s(process.pid)
                time.sleep(SETTLE_S)
                started = memory(process.pid)
                print(EXPIRE, file=command_to, flush=True)
                assert _next(said) == LISTED
                time.sleep(SETTLE_S)
                taken = Start(wall_s, spent_s, started, memory(process.pid))
            except Empty:
                end = log.read_text(encoding="utf-8", errors="replace")[-2_000:]
                raise RuntimeError(f"the controller did nothing more for {PATIENCE_S:.0f} s: {end}") from None
            finally:
                process.kill()
                process.wait()
    assert allocated == f"default/{WAITING}", allocated
    return taken


@contextmanager
def _api(size: Size) -> Iterator[tuple[SimpleQueue[str], IO[str]]]:
    """Run the API server in a process of its own; yield what it says (serve), and its input."""
    command = [sys.executable, "-P", "-m", "bench.controller_start", "--serve"]
    command += map(str, (size.nodes, size.pods, size.fat_claims))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, encoding="utf-8"
    )
    assert process.stdout is not None
    assert process.stdin is not None
    said: SimpleQueue[str] = SimpleQueue()
    Thread(target=_read, args=(process.stdout, said), name="api-says", daemon=True).start()
    try:
        yield said, process.stdin
    finally:
        process.kill()
        process.communicate()


def _read(stream: IO[str], said: SimpleQueue[str]) -> None:
    for line in stream:
        said.put(line.strip())


def _next(said: SimpleQueue[str]) -> str:
    return said.get(timeout=PATIENCE_S)


# The process of the API server


def serve(size: Size) -> None:
    """Serve a cluster until the input ends; print the kubeconfig, then the key of each claim that is allocated.

    At each line of input all watches end as too old; LISTED is printed when all that was watched is watched again.
    """
    look_seldom()
    api = InMemoryApi(lambda key: print(key, flush=True))
    fill(api, size)
    with served(api) as kubeconfig:
        print(json.dumps(kubeconfig), flush=True)
        for _ in sys.stdin:
            before = api.watched
            api.expire()
            while not api.watched >= before:
                time.sleep(POLL_S)
            print(LISTED, flush=True)


def fill(api: InMemoryApi, size: Size) -> None:
    """Store a cluster: nodes and slices, running pods with claims and without, fat claims, a pod that waits."""
    templates = [(kind, SliceTemplate(read_machine(kind))) for kind in KINDS]
    api.put("deviceclasses", "DeviceClass", {"name": DRIVER})
    pods = 0
    for number in range(size.nodes):
        kind, template = templates[number % len(templates)]
        name = node_name(number)
        _put(api, "nodes", "Node", node_document(name, kind, number))
        published = json.loads(template.text(name, number))
        _put(api, "resourceslices", "ResourceSlice", published)
        devices = [device["name"] for device in published["spec"]["devices"]]
        for place in range(0, 6, 2):
            _put_job(api, f"job-{number}-{place}", name, devices[place : place + 2])
            pods += 1
    for number in range(size.pods - pods - 1):
        _put(api, "pods", "Pod", plain_pod(number, node_name(number % size.nodes)))
    for number in range(size.fat_claims):
        fat = fat_claim(number)
        api.put("resourceclaims", "ResourceClaim", {"namespace": "others", **fat.metadata}, fat.spec)
    asked = msgspec.to_builtins(claim(WAITING, request(count=2)))
    _put(api, "resourceclaims", "ResourceClaim", asked)
    _put(api, "pods", "Pod", pod_document(WAITING, [WAITING], "", containers(2), "Pending"))


def node_name(number: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{number:05}.example.com"


def _put_job(api: InMemoryApi, name: str, node: str, devices: list[str]) -> None:
    """Store a pod that runs, and its claim as our controller wrote it."""
    decision = Decision(
        node=node,
        links="1 pair NV12",
        score=tuple((f"part_{place}_gb_s", 100 + place) for place in range(12)),
        pod_devices=len(devices),
        runner_up=RunnerUp(node, "1 pair NV12", "bandwidth_gb_s", tuple(devices)),
    )
    held = decided(holding(claim(name, request(count=len(devices))), node, *devices), decision)
    stored = msgspec.json.decode(msgspec.json.encode(held))
    stored["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": f"uid-{name}"}]
    _put(api, "resourceclaims", "ResourceClaim", stored)
    _put(api, "pods", "Pod", pod_document(name, [name], node, containers(len(devices)), "Running"))


def plain_pod(number: int, node: str) -> dict[str, Any]:
    """A pod that asks for no devices, one of a deployment: some 4 KB, as a list of a real cluster has them."""
    name = f"web-{number // 20}-{number:06}"
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}}
    both = [
        {
            "name": part,
            "image": f"registry.example.com/team/{part}:1.{number % 7}",
            "resources": resources,
            "ports": [{"containerPort": 8080, "protocol": "TCP"}],
            "env": [{"name": f"SETTING_{place}", "value": f"value {place} of {part}"} for place in range(8)],
            "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
            "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10},
        }
        for part in ("main", "proxy")
    ]
    document = pod_document(name, [], node, both, "Running")
    document["metadata"] |= {
        "namespace": f"team-{number % 50}",
        "labels": {"app": f"web-{number // 20}", "pod-template-hash": f"{number // 20:x}", "tier": "front"},
        "annotations": {f"example.com/note-{place}": f"what somebody noted, number {place} " * 4 for place in range(3)},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"web-{number // 20}", "uid": f"rs-{number // 20}"}
        ],
        "managedFields": [{"manager": "kubelet", "fieldsV1": {f"f:field-{place}": {} for place in range(30)}}],
    }
    return document


def pod_document(name: str, claims: list[str], node: str, parts: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    """A pod with claims of these names, as its list shows it."""
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready") if node else ()
    spec = {
        "nodeName": node,
        "containers": parts,
        "tolerations": TOLERATIONS,
        "resourceClaims": [{"name": f"gpu-{place}", "resourceClaimName": key} for place, key in enumerate(claims)],
        "schedulerName": "default-scheduler",
        "priority": 0,
    }
    status = {
        "phase": phase,
        "conditions": [{"type": kind, "status": "True"} for kind in conditions],
        "containerStatuses": [{"name": part["name"], "ready": True, "restartCount": 0} for part in parts if node],
    }
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": spec, "status": status}


def _put(api: InMemoryApi, resource: str, kind: str, document: dict[str, Any]) -> None:
    given = {key: value for key, value in document["metadata"].items() if value and key != "resourceVersion"}
    spec, status = (json.dumps(document.get(part, {})).encode() for part in ("spec", "status"))
    api.put(resource, kind, given, spec, status)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(Size(*map(int, sys.argv[2:5])))
    else:
        section = rows(lambda text: print(text, file=sys.stderr))
        print(as_text(section))
        print(floors_as_text(section.floors))
