"""What sequences of hostile changes cost: another pod's delay, the controller's CPU, and its memory.

The program in a process of its own, over HTTP on the embedded API server. A tenant sends what it may write as fast as
CHANGES_A_SECOND while an honest pod comes each second. Run alone with `PYTHONPATH=tests python -P -m
bench.hostile_changes`; `bench.run` calls rows().
"""

from __future__ import annotations

import json
import random
import subprocess  # CPU and memory are measured in a process of their own
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Final

from bench.cluster.processes import cpu_s
from bench.report import Floor, Progress, Section, Table, as_text, floors_as_text
from dracaena.api.names import EXTENDED_RESOURCE_ANNOTATION
from dracaena.api.objects import Namespace, Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import KubeError
from dracaena.kube.transport import Transport
from support.allocation import blocks, machine, request
from support.api_ground import api_ground
from support.controller import create_pod, publish

NODES: Final = 16
PODS: Final = 300
"""Pods of the tenant that name its one claim, which no node can serve."""
CHANGES_A_SECOND: Final = 100
SECONDS: Final = 12
PATIENCE_S: Final = 15.0
DELAY_FLOOR_MS: Final = 250.0
DELAY_GOAL_MS: Final = 50.0
CPU_FLOOR: Final = 0.5
TENANT: Final = "default"
HONEST: Final = "honest"

Change = Callable[[KubeClient, int], None]


def _label(client: KubeClient, number: int) -> None:
    client.merge_patch(ResourceClaim, "s", {"metadata": {"labels": {"n": str(number)}}}, namespace=TENANT)


def _annotate(client: KubeClient, number: int) -> None:
    value = "x" if number % 2 else None
    patch = {"metadata": {"annotations": {EXTENDED_RESOURCE_ANNOTATION: value}}}
    client.merge_patch(ResourceClaim, "s", patch, namespace=TENANT)


def _make_again(client: KubeClient, number: int) -> None:
    if number % 2:
        client.delete(ResourceClaim, "s", namespace=TENANT)
    else:
        client.create(ResourceClaim, _claim("s", 9), namespace=TENANT)


def _label_pods(client: KubeClient, number: int) -> None:
    name = f"p{number % PODS}"
    client.merge_patch(Pod, name, {"metadata": {"labels": {"n": str(number)}}}, namespace=TENANT)


def _make_pods_again(client: KubeClient, number: int) -> None:
    name = f"q{number // 2 % 50}"
    if number % 2:
        client.delete(Pod, name, namespace=TENANT)
    else:
        create_pod(client, name, "s")


PATTERNS: Final[Mapping[str, tuple[Change, ...]]] = MappingProxyType(
    {
        "nothing": (),
        "labels of a claim": (_label,),
        "annotations of a claim": (_annotate,),
        "a claim made again": (_make_again,),
        "labels of pods": (_label_pods,),
        "pods made again": (_make_pods_again,),
        "all of them by chance": (_label, _annotate, _make_again, _label_pods, _make_pods_again),
    }
)


def rows(progress: Progress) -> Section:
    """Measure all patterns: two minutes."""
    table: list[tuple[str, ...]] = []
    added_ms, cpu = 0.0, 0.0
    quiet: dict[str, float] = {}
    for name in PATTERNS:
        progress(f"hostile changes: {name}")
        found = measured(PATTERNS[name])
        quiet = quiet or found
        added_ms = max(added_ms, found["max_ms"] - quiet["p50_ms"])
        cpu = max(cpu, found["cpu"] - quiet["cpu"])
        figures = ("changes", "p50_ms", "max_ms", "cpu", "cpu_after", "grown_mib")
        table.append((name, *(f"{found[key]:.1f}" if found[key] >= 10 else f"{found[key]:.2f}" for key in figures)))
    header = (
        "what the tenant changes",
        "changes a second",
        "another pod: p50, ms",
        "another pod: max, ms",
        "CPU, cores",
        "CPU afterwards, cores",
        "memory grown, MiB",
    )
    return Section(
        title="hostile changes",
        tables=(Table(f"{PODS} pods name one claim; a pod of others each second", header, tuple(table)),),
        floors=(
            Floor("another pod's delay, hostile changes", added_ms, DELAY_FLOOR_MS, "ms", DELAY_GOAL_MS),
            Floor("CPU that hostile changes cost", cpu, CPU_FLOOR, "cores"),
        ),
        notes=("The API server and both clients share one process: honest pods wait for it, too.",),
    )


def measured(changes: tuple[Change, ...]) -> dict[str, float]:
    """Run a controller while a tenant makes such changes; return what others waited, and what it cost."""
    with api_ground() as ground, TemporaryDirectory() as folder:
        kubeconfig = Path(folder, "kubeconfig")
        kubeconfig.write_text(json.dumps(ground.kubeconfig()), encoding="utf-8")
        client = _client(kubeconfig)
        publish(
            client,
            {f"n{number}": machine("eight", blocks(4, 4, inside="PIX", outside="SYS")) for number in range(NODES)},
        )
        with suppress(KubeError):
            client.create(Namespace, {"metadata": {"name": HONEST}})
        client.create(ResourceClaim, _claim("s", 9), namespace=TENANT)
        for number in range(PODS):
            create_pod(client, f"p{number}", "s")
        with _controller(kubeconfig, Path(folder, "log")) as pid:
            for number in range(3):
                _ask(client, f"warm{number}")
            return _beside(client, _client(kubeconfig), changes, pid)


def _client(kubeconfig: Path) -> KubeClient:
    return KubeClient(Transport.from_kubeconfig(str(kubeconfig), user_agent="bench"))


def _beside(client: KubeClient, tenant: KubeClient, changes: tuple[Change, ...], pid: int) -> dict[str, float]:
    ended, sent, rng = threading.Event(), [0], random.Random(1)

    def change() -> None:
        began_s = time.monotonic()
        while changes and not ended.is_set():
            with suppress(KubeError):  # two patterns at once change what the other one made
                rng.choice(changes)(tenant, sent[0])
            sent[0] += 1
            ended.wait(max(0.0, began_s + sent[0] / CHANGES_A_SECOND - time.monotonic()))

    before_mib = _rss_mib(pid)
    sender = threading.Thread(target=change, name="tenant")
    began_s, spent_s = time.monotonic(), cpu_s(pid)
    sender.start()
    waits_ms = []
    for number in range(SECONDS):
        waits_ms.append(_ask(client, f"h{number}"))
        time.sleep(max(0.0, began_s + number + 1 - time.monotonic()))
    ended.set()
    sender.join()
    took_s, spent_s = time.monotonic() - began_s, cpu_s(pid) - spent_s
    time.sleep(2.0)
    after_s = cpu_s(pid)
    time.sleep(2.0)
    return {
        "changes": sent[0] / took_s,
        "p50_ms": median(waits_ms),
        "max_ms": max(waits_ms),
        "cpu": spent_s / took_s,
        "cpu_after": (cpu_s(pid) - after_s) / 2.0,
        "grown_mib": _rss_mib(pid) - before_mib,
    }


def _ask(client: KubeClient, name: str) -> float:
    """Let an honest pod come, get its GPU and go; return the milliseconds it waited."""
    client.create(ResourceClaim, _claim(name, 1), namespace=HONEST)
    spec = {
        "containers": [{"name": "main", "image": "example/app:1.0", "resources": {"claims": [{"name": "g"}]}}],
        "resourceClaims": [{"name": "g", "resourceClaimName": name}],
    }
    client.create(Pod, {"metadata": {"name": name}, "spec": spec}, namespace=HONEST)
    began_s = time.monotonic()
    while time.monotonic() - began_s < PATIENCE_S:
        if client.get(ResourceClaim, name, namespace=HONEST).status.allocation is not None:
            break
        time.sleep(0.002)
    waited_ms = (time.monotonic() - began_s) * 1000
    client.delete(Pod, name, namespace=HONEST)
    with suppress(KubeError):
        client.delete(ResourceClaim, name, namespace=HONEST)
    return waited_ms


@contextmanager
def _controller(kubeconfig: Path, log: Path) -> Iterator[int]:
    command = [sys.executable, "-P", "-m", "dracaena.cli.main", "controller", "--kubeconfig", str(kubeconfig)]
    with log.open("wb") as stream:
        process = subprocess.Popen([*command, "--leader-elect=false"], stdout=stream, stderr=stream)
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()


def _claim(name: str, count: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [request(count=count)]}}}


def _rss_mib(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(float(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("VmRSS:"))


if __name__ == "__main__":
    section = rows(lambda text: print(text, file=sys.stderr))
    print(as_text(section))
    print(floors_as_text(section.floors))
