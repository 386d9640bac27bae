"""Somebody who sends what does harm, somebody who only wants a GPU meanwhile, and the controller that serves both.

The controller talks to kube-apiserver directly here: no program of ours stands between the two.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from e2e.api import JSON, MERGE_PATCH
from e2e.bulk import Connection, Request, lines
from e2e.control_plane import ADMIN, DRACAENA_CONTROLLER
from e2e.installation import DRIVER
from e2e.made_up import FINALIZER, MadeUpCluster, controller_command
from e2e.pods import CLAIMS, PODS, Pod, claim_spec
from e2e.processes import Program
from e2e.waiting import eventually
from support.hostile_objects import HostileObject, Resource
from support.readiness import readiness

PORT: Final = 8111
NAMESPACE: Final = "hostile"
HOSTILE_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
COLLECTIONS: Final[dict[Resource, str]] = {
    "resourceclaims": f"/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims",
    "deviceclasses": "/apis/resource.k8s.io/v1/deviceclasses",
    "resourceslices": "/apis/resource.k8s.io/v1/resourceslices",
}
START_S: Final = 60.0

PATIENCE_S: Final = 20.0
"""How long an honest pod is waited for, so that a failure can say how late it was: not what is allowed."""

GONE_S: Final = 90.0
"""For hundreds of pods and claims to be deleted and freed on a machine that does other things too."""


class DirectController:
    """Our controller as a process that talks to kube-apiserver itself."""

    def __init__(self, cluster: MadeUpCluster, logs: Path) -> None:
        kubeconfig = cluster.control_plane.kubeconfig(DRACAENA_CONTROLLER)
        command = controller_command(kubeconfig, PORT, "--leader-elect=false")
        self.program = Program("dracaena-controller-hostile", command, logs)
        self._log_began = self.program.log_size()

    def start(self) -> None:
        """Start it and wait until it has seen everything."""
        self.program.start()
        eventually(self.is_ready, "the controller is ready", within_s=START_S, programs=(self.program,))

    def is_ready(self) -> bool:
        """Whether /readyz says so."""
        return readiness(PORT)[0] == 200

    def restart(self) -> None:
        """A new process that lists all that is there."""
        self.program.stop()
        self.start()

    @property
    def resident_bytes(self) -> int:
        """Memory that is in RAM now."""
        return self._status("VmRSS")

    @property
    def peak_bytes(self) -> int:
        """The most memory that was in RAM since the process began."""
        return self._status("VmHWM")

    def tracebacks(self) -> list[str]:
        """Return the log lines of this test that carry a traceback: nothing that a user sends may make one."""
        with self.program.log.open("rb") as log:
            log.seek(self._log_began)
            logged = log.read().decode(errors="replace").splitlines()
        return [line[:2000] for line in logged if "Traceback (most recent call last)" in line]

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.program.pid}/status").read_text(encoding="ascii")
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024


@contextmanager
def direct_controller(cluster: MadeUpCluster, logs: Path) -> Iterator[DirectController]:
    """Run it inside the block, in place of the one behind the proxy."""
    controller = DirectController(cluster, logs)
    with cluster.without_controller():
        try:
            controller.start()
            yield controller
        finally:
            controller.program.stop()


class Honest:
    """Pods for one GPU each, and how many seconds passed from each pod until its claim was allocated.

    The moment is the one in which a watch shows it. Each pod stays until the test ends.
    """

    def __init__(self, cluster: MadeUpCluster) -> None:
        self._cluster = cluster
        self._watch = _connection(cluster)
        self._http = _connection(cluster)
        self._stopping = threading.Event()
        self._allocated: dict[str, float] = {}
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name="honest-claims", daemon=True)
        self._thread.start()
        self.pods: list[Pod] = []
        self.delays_s: list[float] = []

    def ask(self) -> float:
        """Make a claim and a pod, wait for the GPU, and return how long that took, PATIENCE_S at most."""
        name = f"honest-{len(self.pods)}"
        pod = Pod(name, claims={"gpu": name}, node_selector={"tenant": "honest"})
        self.pods.append(pod)
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
        self._create(CLAIMS, {**kind, "metadata": {"name": name}, "spec": claim_spec()})
        self._create(PODS, pod.document())
        began_s = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: name in self._allocated, PATIENCE_S)
            delay_s = self._allocated.get(name, began_s + PATIENCE_S) - began_s
        self.delays_s.append(delay_s)
        return delay_s

    def ask_for(self, times: int) -> list[float]:
        """Ask one after the other, until one has waited in vain."""
        delays_s: list[float] = []
        while len(delays_s) < times and PATIENCE_S not in delays_s:
            delays_s.append(self.ask())
        return delays_s

    def wait_bound(self) -> None:
        """Wait until kube-scheduler has bound all of them, with their devices."""
        for pod in self.pods:
            self._cluster.wait_bound(pod, within_s=60.0)
        self._cluster.check()

    def stop(self) -> None:
        """End the watch."""
        self._stopping.set()
        self._watch.cut()
        self._thread.join(5.0)
        self._http.close()

    def _create(self, path: str, document: Any) -> None:
        status, body = self._http.send(Request("POST", path, document))
        assert status == 201, f"POST {path}: {status} {body[:500]!r}"

    def _follow(self) -> None:
        """Read watches one after the other: the server may end one at any time."""
        while not self._stopping.is_set():
            with suppress(OSError, http.client.HTTPException, ValueError):
                self._watch = _connection(self._cluster)
                for line in lines(self._watch.open_watch(f"{CLAIMS}?watch=true")):
                    self._take_in(json.loads(line))
            self._watch.close()
            self._stopping.wait(0.1)

    def _take_in(self, event: Any) -> None:
        if event["type"] == "ERROR" or not event["object"].get("status", {}).get("allocation"):
            return
        with self._changed:
            self._allocated.setdefault(event["object"]["metadata"]["name"], time.monotonic())
            self._changed.notify_all()


@dataclass(slots=True)
class Sent:
    """What became of the objects that were sent, by theme."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    accepted_bytes: int = 0
    names: dict[Resource, list[str]] = field(default_factory=lambda: {resource: [] for resource in COLLECTIONS})
    why: dict[str, str] = field(default_factory=dict)
    """What the server said about the first of a theme that it refused."""
    longest: tuple[float, str] = (0.0, "")
    """Seconds that the server took for one object, and what it was: kube-apiserver's own limit."""

    def __str__(self) -> str:
        rows = (
            f"  {theme}: {self.accepted[theme]} accepted, {self.refused[theme]} refused"
            for theme in sorted({*self.accepted, *self.refused})
        )
        total = f"{self.accepted.total()} accepted ({self.accepted_bytes:,} bytes), {self.refused.total()} refused"
        longest = f"the server took {self.longest[0]:.1f} s for one ({self.longest[1]})"
        return "\n".join([f"{total}; {longest}", *rows])


class Hostile:
    """Sends objects into a namespace of its own, and pods that use them."""

    def __init__(self, cluster: MadeUpCluster) -> None:
        self._cluster = cluster
        self._http = _connection(cluster)
        self.sent = Sent()
        kind = {"apiVersion": "v1", "kind": "Namespace"}
        cluster.api.send("POST", "/api/v1/namespaces", {**kind, "metadata": {"name": NAMESPACE}})
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        eventually(lambda: cluster.api.find(accounts), "the namespace can hold pods", within_s=30)

    def send(self, item: HostileObject) -> bool:
        """Send one object; return whether the server accepted it."""
        began_s = time.monotonic()
        status, body = self._http.send(Request("POST", COLLECTIONS[item.resource], item.body))
        self.sent.longest = max(self.sent.longest, (time.monotonic() - began_s, item.theme))
        assert status < 500, f"{item.name}: {status} {body[:500]!r}"
        is_accepted = status == 201
        (self.sent.accepted if is_accepted else self.sent.refused)[item.theme] += 1
        if not is_accepted:
            self.sent.why.setdefault(item.theme, body.decode(errors="replace")[:300])
        if is_accepted:
            self.sent.accepted_bytes += len(item.body)
            self.sent.names[item.resource].append(item.name)
        return is_accepted

    def send_all(self, items: Sequence[HostileObject]) -> None:
        """Send objects that the server has to accept."""
        for item in items:
            assert self.send(item), f"{item.theme}: the server refused it"

    def use(self, item: HostileObject) -> Pod:
        """Make a pod that uses a claim."""
        # kube-scheduler takes seconds for some of these selectors; that is not what is tested, and would blur it.
        nobody = {"schedulerName": "nobody"}
        name = item.name[:60].rstrip("-")
        pod = Pod(name, claims={"gpu": item.name}, node_selector={"tenant": "hostile"}, more=nobody)
        status, body = self._http.send(Request("POST", HOSTILE_PODS, pod.document()))
        assert status == 201, f"{pod.name}: {status} {body[:500]!r}"
        return pod

    def events(self, pod: Pod, reason: str) -> list[str]:
        """Return what was told about a pod of this namespace."""
        found = self._cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/events")
        return [e["message"] for e in found if e["involvedObject"].get("name") == pod.name and e["reason"] == reason]

    def hold(self, item: HostileObject, node: str, device: str) -> None:
        """Allocate a claim as somebody else might, for a pod that runs on the node."""
        pod = Pod("holder", claims={"gpu": item.name}, more={"nodeName": node})
        uid = json.loads(self._want("POST", HOSTILE_PODS, pod.document()))["metadata"]["uid"]
        rule = {"key": "metadata.name", "operator": "In", "values": [node]}
        status = {
            "allocation": {
                "devices": {"results": [{"request": "gpus", "driver": DRIVER, "pool": node, "device": device}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [rule]}]},
            },
            "reservedFor": [{"resource": "pods", "name": "holder", "uid": uid}],
        }
        path = f"{COLLECTIONS['resourceclaims']}/{item.name}"
        self._want("PATCH", path, {"metadata": {"finalizers": [FINALIZER]}})
        self._want("PATCH", f"{path}/status", {"status": status})

    def delete_all(self) -> None:
        """Delete all of it, and wait until Kubernetes and our controller have let it go."""
        self._begin_deletion()
        eventually(self._is_empty, "nothing hostile is left", within_s=GONE_S, programs=self._cluster.programs)

    def stop(self) -> None:
        """Remove by force what is left, and end the connection."""
        with suppress(OSError, http.client.HTTPException):
            self._begin_deletion()
            for name in self.sent.names["resourceclaims"]:
                path = f"{COLLECTIONS['resourceclaims']}/{name}"
                self._patch_anyway(f"{path}/status", {"status": {"allocation": None, "reservedFor": None}})
                self._patch_anyway(path, {"metadata": {"finalizers": None}})
        self._http.close()

    def _begin_deletion(self) -> None:
        now = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        self._http.send(Request("DELETE", HOSTILE_PODS, now))
        for path in (COLLECTIONS["resourceclaims"], f"/api/v1/namespaces/{NAMESPACE}/events"):
            self._http.send(Request("DELETE", path))
        for resource in ("deviceclasses", "resourceslices"):
            for name in self.sent.names[resource]:
                self._http.send(Request("DELETE", f"{COLLECTIONS[resource]}/{name}"))

    def _is_empty(self) -> bool:
        """Nothing is decoded: Python's json stops at what Go's goes through."""
        found = [self._want("GET", path) for path in (HOSTILE_PODS, COLLECTIONS["resourceclaims"])]
        return all(b'"items":[]' in body for body in found)

    def _want(self, method: str, path: str, document: Any = None) -> bytes:
        content_type = MERGE_PATCH if method == "PATCH" else JSON
        status, body = self._http.send(Request(method, path, document, content_type))
        assert 200 <= status < 300, f"{method} {path}: {status} {body[:500]!r}"
        return body

    def _patch_anyway(self, path: str, document: Any) -> None:
        self._http.send(Request("PATCH", path, document, MERGE_PATCH))


def told(delays_s: Sequence[float]) -> str:
    """Return median and maximum as text."""
    return f"p50 {median(delays_s) * 1000:.0f} ms, max {max(delays_s) * 1000:.0f} ms over {len(delays_s)} honest pods"


def _connection(cluster: MadeUpCluster) -> Connection:
    plane = cluster.control_plane
    return Connection(plane.url, plane.authority, ADMIN.token)
