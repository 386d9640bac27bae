"""One control plane with made-up nodes, and the sides that take turns on it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.cluster.processes import Memory, cpu_s, memory
from bench.cluster.quality import Allocated, Judge
from bench.cluster.watching import CLAIMS, PODS, Seen, Watching
from bench.report import Progress
from e2e.api import Api
from e2e.bulk import Connection, Request, send_all
from e2e.control_plane import ADMIN, DRACAENA_CONTROLLER, ControlPlane
from e2e.install.helm import CHART, Helm
from e2e.installation import DEVICE_CLASSES, RIGHTS
from e2e.made_up_nodes import DRIVER, NODES, SLICES, MadeUpNode
from e2e.processes import Program
from e2e.waiting import eventually
from support.readiness import readiness

NAMESPACE: Final = "default"

TEMPLATES: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"

EVENTS: Final = "/api/v1/namespaces/default/events"

CALM_PODS: Final = 30
CALM_GAP_S: Final = 0.2
"""Pods that come one after the other, and the pause between two: what a user waits on a cluster that is not busy."""

COUNTS: Final = (1, 2, 4)
"""GPUs of a pod: as many pods of each."""

WORST_USE: Final = 5
"""GPUs of a node that may be in use at most, on average, so that every pod fits however badly others were placed: a
node with four free GPUs takes any pod, so four of eight and one more on no node can all be in use."""

QPS: Final = 2_000
"""Requests a second that Kubernetes' own clients may send, for both sides. The default, 50, would bound all."""

FLAGS: Final = {
    "etcd": ("--quota-backend-bytes=8589934592",),
    # Node objects come as they shall be: nobody would remove the taint that says that a node is not ready yet.
    "kube-apiserver": ("--disable-admission-plugins=TaintNodesByCondition",),
    "kube-controller-manager": (f"--kube-api-qps={QPS}", f"--kube-api-burst={QPS}"),
    "kube-scheduler": (f"--kube-api-qps={QPS}", f"--kube-api-burst={QPS}"),
}

PORT: Final = 8081
SLOWEST_PODS_S: Final = 4.0
"""Pods a second below which a side is given up."""

READY_S: Final = 180.0
CLEAR_S: Final = 300.0
LONGEST_SETTLING_S: Final = 30.0
RESTING_CORES: Final = 0.3
"""CPU seconds a second of the whole control plane below which it does nothing but its rounds."""

NOTED_S: Final = 1.0
"""Between a claim's creation and its name in the pod's status, and more: kube-controller-manager writes one after the
other."""

IDLE_S: Final = 5.0
"""For which the controller's CPU time at rest is measured."""


@dataclass(frozen=True, slots=True)
class Side:
    """Who allocates."""

    name: str
    flags: tuple[str, ...] | None
    """Settings of our controller; None: kube-scheduler alone."""
    gated: bool = False
    """Whether pods come to the controller's scheduling gate, by the chart's policy."""


@dataclass(frozen=True, slots=True)
class Calm:
    """What pods waited that came one after the other; empty where that was not tried."""

    latencies_s: Sequence[float] = ()
    """From a claim's creation to its allocation, as seen by the watch."""
    binds_s: Sequence[float] = ()
    """From a pod's creation to its bind."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """By program, from before the first pod to after the last bind."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one side did in one round."""

    side: str
    pods: int
    seconds: float
    """From the start, when all pods and claims are there and who decides may begin, to the last bind that was seen."""
    latencies_s: Sequence[float]
    """From the start to the allocation of a claim, as seen by the watch."""
    calm: Calm
    refused: int
    """Times that kube-scheduler tried a pod and said that it cannot be scheduled, as far as Events tell."""
    cpu_s: dict[str, float]
    """By program."""
    allocated: Allocated
    memory: Memory | None = None
    """Of our controller."""
    idle_cpu_share: float | None = None
    """CPU seconds a second of our controller before the pods came; None where that was not tried."""


@dataclass(slots=True)
class World:
    """The control plane inside a `with` block."""

    nodes: int
    root: Path
    binaries: Path
    logs: Path
    tell: Progress
    seed: int = 1
    _plane: ControlPlane = field(init=False)
    _judge: Judge = field(init=False)
    _ends: ExitStack = field(init=False, default_factory=ExitStack)
    _tainted: bool | None = field(init=False, default=None)
    _protected: bool = field(init=False, default=False)
    _generation: int = field(init=False, default=0)
    _rounds: int = field(init=False, default=0)

    def __enter__(self) -> Self:
        self._plane = ControlPlane(
            self.root, self.binaries, self.logs, (DRACAENA_CONTROLLER,), made_up_nodes=True, more_flags=FLAGS
        )
        self._judge = Judge(self.nodes)
        try:
            self._ends.callback(self._plane.stop)
            self._plane.start()
            self._plane.kubectl("apply", "--filename", RIGHTS, "--filename", DEVICE_CLASSES)
            self._plane.kubectl("apply", "--filename", self._policy("scheduling-gate"))
            self.tell(f"{self.nodes:,} nodes are made")
            self._send(Request("POST", NODES, MadeUpNode(number).document()) for number in range(self.nodes))
            self._send(Request("POST", TEMPLATES, template(count)) for count in COUNTS)
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def run(self, side: Side, pods: int, *, calm: bool) -> Outcome:
        """Let a side bind so many pods that come at once, before that some `calm` ones, and clear the cluster again."""
        self._publish(tainted=side.flags is not None)
        self._gate(side.gated)
        self._protect(protected=side.flags is not None)
        with self._controller(side) as controller:
            idle = _idle_share(controller) if controller is not None and calm else None
            trickle = self._trickle(side, controller) if calm else Calm()
            outcome = self._load(side, pods, controller, idle, trickle)
        self._clear()
        return outcome

    def _trickle(self, side: Side, controller: Program | None) -> Calm:
        """Let pods come one after the other."""
        programs = self._programs(controller)
        watching = Watching(self._connect)
        watching.expect(CALM_PODS)
        rng = random.Random(self.seed)
        before = _cpu_of(programs)
        for number, count in enumerate(mix(CALM_PODS, rng)):
            self._send([Request("POST", PODS, pod(f"calm-{number}", count))])
            time.sleep(CALM_GAP_S)
        done = watching.enough.wait(60 + CALM_PODS / SLOWEST_PODS_S)
        spent = _cpu_since(before, programs)
        watching.cut()
        if watching.broken or not done:
            raise AssertionError(self._what_waits(side, CALM_PODS, watching.seen, watching.broken))
        return Calm(watching.seen.latencies_s(), watching.seen.binds_s(), spent)

    def _programs(self, controller: Program | None) -> list[Program]:
        return [*self._plane.programs, *([controller] if controller is not None else ())]

    def _load(self, side: Side, pods: int, controller: Program | None, idle: float | None, calm: Calm) -> Outcome:
        programs = self._programs(controller)
        self._rounds += 1
        rng = random.Random(self.seed * 1_000 + pods)  # the same pods in the same order for every side
        documents = [pod(f"r{self._rounds}-{number}", count) for number, count in enumerate(mix(pods, rng))]
        watching = Watching(self._connect)
        watching.expect(pods + len(calm.binds_s))
        deciding = [self._plane.scheduler, *([controller] if controller is not None else ())]
        with ExitStack() as standing_still:
            for program in deciding:
                standing_still.enter_context(program.paused())
            self._send(Request("POST", PODS, document) for document in documents)
            self._wait_generated(watching, pods + len(calm.binds_s), tuple(programs))
            before = _cpu_of(programs)
            began_s = time.monotonic()
        done = watching.enough.wait(60 + pods / SLOWEST_PODS_S)
        spent = _cpu_since(before, programs)
        watching.cut()
        seen = watching.seen
        if watching.broken or not done:
            raise AssertionError(self._what_waits(side, pods, seen, watching.broken))
        ended_s = max(seen.bound.values())
        claims = self._api.get(CLAIMS)["items"]
        allocated = self._judge.judge(claims)
        if allocated.twice:
            raise AssertionError(f"{side.name}: {allocated.twice} devices were given twice")
        if allocated.claims != pods + len(calm.binds_s):
            raise AssertionError(f"{side.name}: {len(seen.bound)} pods are bound, {allocated.claims} claims allocated")
        return Outcome(
            side=side.name,
            pods=pods,
            seconds=ended_s - began_s,
            latencies_s=seen.allocations_s(since_s=began_s),
            calm=calm,
            refused=self._refused(),
            cpu_s=spent,
            allocated=allocated,
            memory=memory(controller.pid) if controller is not None else None,
            idle_cpu_share=idle,
        )

    def _wait_generated(self, watching: Watching, claims: int, programs: tuple[Program, ...]) -> None:
        """Wait until each claim was made from its template, and its pod says so."""
        eventually(
            lambda: len(watching.seen.created) >= claims,
            "kube-controller-manager makes all claims",
            within_s=60 + claims / SLOWEST_PODS_S,
            programs=programs,
        )
        time.sleep(NOTED_S)

    def _refused(self) -> int:
        events = self._api.get(f"{EVENTS}?fieldSelector=reason=FailedScheduling")["items"]
        return sum((event.get("series") or {}).get("count") or event.get("count") or 1 for event in events)

    def _what_waits(self, side: Side, pods: int, seen: Seen, broken: str | None) -> str:
        items = self._api.get(PODS)["items"]
        bound = sum("nodeName" in item["spec"] for item in items)
        messages = {
            condition.get("message", "")
            for item in items
            if "nodeName" not in item["spec"]
            for condition in item["status"].get("conditions", ())
        }
        what = broken or f"not bound in time, first reasons: {sorted(messages)[:3]}"
        return f"{side.name}: {len(seen.bound)} of {pods} pods were seen bound, {bound} are: {what}"

    @contextmanager
    def _controller(self, side: Side) -> Iterator[Program | None]:
        if side.flags is None:
            yield None
            return
        command = [
            *(sys.executable, "-P", "-m", "dracaena.cli.main", "controller"),
            f"--kubeconfig={self._plane.kubeconfig(DRACAENA_CONTROLLER)}",
            f"--http-address=127.0.0.1:{PORT}",
            "--leader-elect=false",
            *side.flags,
        ]
        program = Program("dracaena-controller", command, self.logs)
        try:
            program.start()
            ready: Callable[[], bool] = lambda: readiness(PORT)[0] == 200  # noqa: E731
            eventually(ready, "the controller is ready", within_s=READY_S, programs=(program,))
            time.sleep(1.0)  # from synced to the first decision
            yield program
        finally:
            program.stop()

    def _policy(self, name: str) -> Path:
        """Return a file with a policy as the chart brings it."""
        helm = Helm(self.binaries / "helm", self._plane.kubeconfig(ADMIN), self.root / "helm")
        template = f"templates/{name}.yaml"
        rendered = helm.do("template", "bench", CHART, "--kube-version=1.36.3", f"--show-only={template}")
        path = self.root / f"{name}.yaml"
        path.write_text(rendered, encoding="utf-8")
        return path

    def _gate(self, gated: bool) -> None:
        """Have the API server put the gate on new pods, or not; wait until it does so."""
        label = f"{DRIVER}/gate={str(gated).lower()}"
        self._plane.kubectl("label", "--overwrite", "namespace", NAMESPACE, label)

        def is_so() -> bool:
            made = self._api.create(f"{PODS}?dryRun=All", pod("asks", 1))
            return ("schedulingGates" in made["spec"]) is gated

        eventually(is_so, "the policy counts", within_s=READY_S)

    def _protect(self, *, protected: bool) -> None:
        """Have the API server put the finalizer on new claims, as the chart does, or not, as in a cluster without it;
        wait until it does so."""
        if self._protected is protected:
            return
        verb = ("apply",) if protected else ("delete", "--ignore-not-found")
        self._plane.kubectl(*verb, "--filename", self._policy("delete-protection"))
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "asks"}}

        def is_so() -> bool:
            made = self._api.create(f"{CLAIMS}?dryRun=All", {**kind, "spec": template(1)["spec"]["spec"]})
            return bool(made["metadata"].get("finalizers")) is protected

        eventually(is_so, "the policy counts", within_s=READY_S)
        self._protected = protected

    def _publish(self, *, tainted: bool) -> None:
        """Have all slices with the taint, or all without; wait until the watchers have taken it in."""
        if self._tainted is tainted:
            return
        self._generation += 1
        self.tell(f"{self.nodes:,} slices are written {'with' if tainted else 'without'} the taint")
        new = self._tainted is None
        self._send(
            Request("POST" if new else "PUT", SLICES if new else f"{SLICES}/{document['metadata']['name']}", document)
            for number in range(self.nodes)
            for document in MadeUpNode(number).slice_documents(tainted=tainted, generation=self._generation)
        )
        self._tainted = tainted
        self._settle()

    def _clear(self) -> None:
        """Delete all pods; wait until Kubernetes has freed and removed their claims and nobody works any more."""
        self._delete_all(PODS)
        eventually(lambda: not self._some(CLAIMS), "all claims are gone", within_s=CLEAR_S)
        self._delete_all(EVENTS)
        self._settle()

    def _delete_all(self, collection: str) -> None:
        """Delete a collection. The server gives a request one minute, and goes on with the next one where it was."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}

        def none_left() -> bool:
            with suppress(AssertionError):
                self._send([Request("DELETE", collection, options)])
            return not self._some(collection)

        eventually(none_left, f"nothing is left of {collection}", within_s=CLEAR_S)

    def _settle(self) -> None:
        """Wait until the control plane is at rest, but not for ever: others may keep the machine busy."""
        ends_s = time.monotonic() + LONGEST_SETTLING_S
        while time.monotonic() < ends_s:
            before = sum(cpu_s(program.pid) for program in self._plane.programs)
            time.sleep(1.0)
            if sum(cpu_s(program.pid) for program in self._plane.programs) - before < RESTING_CORES:
                return

    @property
    def _api(self) -> Api:
        return self._plane.api()

    def _some(self, collection: str) -> bool:
        return bool(self._api.get(f"{collection}?limit=1")["items"])

    def _connect(self) -> Connection:
        return Connection(self._plane.url, self._plane.authority, ADMIN.token)

    def _send(self, requests: Iterable[Request]) -> None:
        send_all(self._plane.url, self._plane.authority, ADMIN.token, requests)


def mix(pods: int, rng: random.Random) -> list[int]:
    """Return the GPUs of each pod: as many of each count, in an order that the seed decides."""
    counts = [COUNTS[number % len(COUNTS)] for number in range(pods)]
    rng.shuffle(counts)
    return counts


def most_pods(nodes: int) -> int:
    """Return how many pods fit whatever was chosen before, the calm ones not counted."""
    return nodes * WORST_USE * len(COUNTS) // sum(COUNTS) - CALM_PODS


def template(count: int) -> dict[str, Any]:
    """Return the ResourceClaimTemplate for a number of GPUs."""
    exactly = {"deviceClassName": DRIVER, "count": count}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": f"gpus-{count}"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    }


def pod(name: str, count: int) -> dict[str, Any]:
    """Return a pod for a number of GPUs. Nobody runs it."""
    container = {
        "name": "main",
        "image": "nobody/runs-this:1",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "claims": [{"name": "gpus"}]},
    }
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": f"gpus-{count}"}],
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "bench"}}, "spec": spec}


def _cpu_of(programs: Iterable[Program]) -> dict[str, float]:
    return {program.name: cpu_s(program.pid) for program in programs}


def _cpu_since(before: Mapping[str, float], programs: Iterable[Program]) -> dict[str, float]:
    return {name: now - before[name] for name, now in _cpu_of(programs).items()}


def _idle_share(controller: Program) -> float:
    before = cpu_s(controller.pid)
    time.sleep(IDLE_S)
    return (cpu_s(controller.pid) - before) / IDLE_S
