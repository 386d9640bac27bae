"""A cluster of 245 nodes for the pictures: what is broken is made up, who gets what and why others wait is decided by
the real reconciler.

Broken on purpose, and to be found by whoever looks at the pictures: GPUs with XID 79 on three nodes, two lost GPUs, a
failed row remap; a rack that is cordoned; a node that is not ready; a node that publishes seven of its eight GPUs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import msgspec

from dracaena.api.machine import Machine
from dracaena.api.names import quota_annotation
from dracaena.api.objects import Namespace, Node, ObjectMeta, OwnerReference, Pod, Taint
from dracaena.api.resource_objects import ResourceSlice
from dracaena.api.topology_levels import DEFAULT_LEVELS, RACK
from dracaena.controller.views.snapshot import WaitingPod, Watched
from dracaena.process.clock import SystemClock
from support.allocation import DRIVER, blocks, claim, machine, node, pod, pool_slice, request
from support.mig_nodes import mig_classes, mig_slices, part
from support.mig_tables import A100
from support.page import PageCluster
from support.reconciling import Bench

H100: Final = machine("h", blocks(8, inside="NV18", outside="SYS"), product_name="NVIDIA H100 80GB HBM3")
A100_SXM: Final = machine("a", blocks(8, inside="NV12", outside="SYS"), product_name="NVIDIA A100-SXM4-80GB")
L40S: Final = machine("l", blocks(2, 2, inside="NODE", outside="SYS"), product_name="NVIDIA L40S")
KINDS: Final[Sequence[tuple[str, Machine, int]]] = (
    ("hgx-h100", H100, 140),
    ("dgx-a100", A100_SXM, 60),
    ("l40s", L40S, 30),
    ("mig-a100", A100_SXM, 15),
)
A_RACK: Final = 8
"""Nodes."""

FAULTS: Final[dict[str, dict[int, str]]] = {
    "hgx-h100-017": {3: "xid=79"},
    "hgx-h100-042": {0: "xid=79", 1: "xid=79"},
    "hgx-h100-101": {6: "xid=79"},
    "dgx-a100-023": {4: "gpu-lost"},
    "dgx-a100-051": {2: "gpu-lost"},
    "l40s-007": {1: "row-remap=failed"},
}
"""Node → ordinal → taint of the driver's domain that keeps pods off."""

ONLY_TOLD: Final = {"dgx-a100-009": {5: "xid=13"}, "hgx-h100-077": {2: "slowdown=thermal"}}
CORDONED_RACK: Final = "hgx-h100-r05"
NOT_READY: Final = "dgx-a100-044"
WITHOUT_ONE: Final = "hgx-h100-120"

QUOTAS: Final = {"speech": 480, "vision": 400, "search": 700, "recsys": 64, "genomics": 16, "robotics": 320}
TEAMS: Final = (*QUOTAS, "llm-train", "research", "ads", "fraud", "platform", "chem")

DEPLOYMENT: Final = "embed"
OF_THE_DEPLOYMENT: Final = 69
OTHERS: Final = 30
"""Pods that wait."""


class MadeUpFleet(Bench):
    """The nodes, and jobs until little is left."""

    def __init__(self) -> None:
        names = {f"{kind}-{number + 1:03}": made for kind, made, many in KINDS for number in range(many)}
        super().__init__(**names)
        self.rng = random.Random("fleet")
        self.numbers = count()
        self.nodes = [_node(name) for name in names]
        self.slices = [page for name, made in names.items() for page in _pages(name, made)]
        for one in self.nodes:
            self.cluster.intake.node_changed(None, one)
        for page in self.slices:
            self.cluster.intake.slice_changed(None, page)
        for each in mig_classes():
            self.cluster.intake.class_changed(None, each)
        self.namespaces = [_namespace(team) for team in TEAMS]
        for team in self.namespaces:
            self.cluster.intake.namespace_changed(None, team)
        self._fill()
        self._wait()

    def page(self) -> PageCluster:
        """Return what the page is to show."""
        shown = PageCluster()
        shown.pods = dict(self.api.pods)
        shown.watched = Watched(
            self.nodes,
            self.slices,
            tuple(self.api.claims.values()),
            self._waits(),
            namespaces=self.namespaces,
            levels=DEFAULT_LEVELS,
        )
        return shown

    def ask(self, team: str, kind: str, workload: str, *requests: dict[str, Any]) -> Pod:
        """Let a pod of a workload ask, and be decided about."""
        name = f"{workload}-{next(self.numbers)}"
        owner = OwnerReference(uid=f"uid-{workload}", kind=kind, name=workload, controller=True)
        labels = {}
        if kind == "Deployment":
            owner = OwnerReference(uid=owner.uid, kind="ReplicaSet", name=f"{workload}-7f9", controller=True)
            labels = {"pod-template-hash": "7f9"}
        asked = claim(name, *requests, uid=f"uid-{team}-{name}")
        asked = msgspec.structs.replace(asked, metadata=msgspec.structs.replace(asked.metadata, namespace=team))
        meta = ObjectMeta(name, team, uid=f"uid-{name}", owner_references=[owner], labels=labels)
        made = msgspec.structs.replace(pod(name, name), metadata=meta)
        self.add(asked, made)
        self.run()
        node_name = self.node_of(asked.key)
        if node_name is not None:  # as kube-scheduler and kubelet would
            runs = self.api.pods[made.key]
            spec = msgspec.structs.replace(runs.spec, node_name=node_name)
            status = msgspec.structs.replace(runs.status, phase="Running")
            self.add(msgspec.structs.replace(runs, spec=spec, status=status))
            self.run()
        return made

    def node_of(self, claim_key: str) -> str | None:
        allocation = self.api.claims[claim_key].status.allocation
        return None if allocation is None else allocation.devices.results[0].pool

    def _fill(self) -> None:
        teams = [team for team in TEAMS if team not in ("search", "recsys", "genomics")]
        for number in range(70):
            self.ask(self.rng.choice(teams), "Job", f"train-{number % 9}", _of("H100", 8))
        for number in range(45):
            self.ask(self.rng.choice(teams), "PyTorchJob", f"tune-{number % 7}", _of("A100", 8))
        for number in range(70):
            self.ask(self.rng.choice(teams), "StatefulSet", f"serve-{number % 11}", request(count=1))
        for number in range(60):
            self.ask(self.rng.choice(teams), "Deployment", f"infer-{number % 5}", _of("L40S", 1))
        for number in range(40):
            profile = self.rng.choice(("1g.10gb", "2g.20gb", "3g.40gb"))
            self.ask("platform", "Job", f"notebook-{number % 6}", part("gpus", profile))
        for _ in range(64):
            self.ask("recsys", "Deployment", "rank", _of("A100", 1))

    def _wait(self) -> None:
        self._ask_until(OF_THE_DEPLOYMENT, "search", "Deployment", DEPLOYMENT, _of("H100", 4))
        self._ask_until(8, "recsys", "Deployment", "rank-next", _of("A100", 1))
        self._ask_until(5, "genomics", "Job", "align", _of("A100", 8))
        self._ask_until(5, "chem", "Job", "fold", _of("B200", 8))
        self._ask_until(4, "research", "JobSet", "pretrain", request(count=16))
        self._ask_until(3, "fraud", "Job", "score", request(device_class="gpu.nvidia.com"))
        self._ask_until(3, "platform", "StatefulSet", "lab", part("gpus", "3g.20gb"))
        self._ask_until(2, "ads", "Job", "bid", _reads(f"device.attributes['{DRIVER}'].productNam == 'L40S'", 1))
        for _ in range(OF_THE_DEPLOYMENT + OTHERS):  # each second the reasons of ten pods are worked out
            self.clock.advance(1.0)
            self.waiting.report_due()

    def _ask_until(self, waits: int, team: str, kind: str, workload: str, asked: dict[str, Any]) -> None:
        """Let pods of a workload ask until so many of them wait."""
        while waits:
            made = self.ask(team, kind, workload, asked)
            waits -= self.node_of(f"{team}/{made.metadata.name}") is None

    def _waits(self) -> Sequence[WaitingPod]:
        now_s, rng = SystemClock().monotonic(), random.Random("since")
        found = []
        for key, reason, why, _ in sorted(self.waiting.waiting(), key=lambda one: one[0]):
            namespace, _, name = key.partition("/")
            found.append(WaitingPod(namespace, name, reason, why, now_s - rng.randint(60, 9_000)))
        return tuple(found)


def _of(product: str, gpus: int) -> dict[str, Any]:
    return _reads(f"device.attributes['{DRIVER}'].productName.contains('{product}')", gpus)


def _reads(expression: str, gpus: int) -> dict[str, Any]:
    return request(count=gpus, selectors=[{"cel": {"expression": expression}}])


def _namespace(team: str) -> Namespace:
    quota = {quota_annotation(DRIVER): f'{{"gpus": {QUOTAS[team]}}}'} if team in QUOTAS else {}
    return Namespace(ObjectMeta(team, annotations=quota))


def _node(name: str) -> Node:
    kind, _, number = name.rpartition("-")
    rack = f"{kind}-r{(int(number) - 1) // A_RACK + 1:02}"
    taints = [Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")] if name == NOT_READY else []
    return node(name, labels={RACK: rack}, unschedulable=rack == CORDONED_RACK, taints=taints)


def _pages(name: str, made: Machine) -> Sequence[ResourceSlice]:
    if name.startswith("mig-"):
        return mig_slices(name, made, [A100] * len(made.gpus))
    taints = {
        place: [Taint(key=f"{DRIVER}/{key}", value=value, effect=effect)]
        for told, effect in ((FAULTS, "NoSchedule"), (ONLY_TOLD, "None"))
        for place, fault in told.get(name, {}).items()
        for key, _, value in (fault.partition("="),)
    }
    page = pool_slice(name, made, foreign=taints)
    if name == WITHOUT_ONE:
        devices = [device for place, device in enumerate(page.spec.devices) if place != 3]
        page = msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, devices=devices))
    return [page]
