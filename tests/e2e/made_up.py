"""A control plane of its own with Node objects that somebody made up: pods are bound there, and run nowhere.

For what is decided and written before a kubelet comes in. kube-scheduler would send pods to real and made-up nodes
alike, so the two never share a control plane.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from dracaena.api.machine import Machine
from e2e import impatient_controller, isolation
from e2e.api import MERGE_PATCH, Api
from e2e.bulk import Request, send_all
from e2e.control_plane import ADMIN, DRACAENA_CONTROLLER, ControlPlane, Ports
from e2e.installation import DEVICE_CLASSES, DRIVER, RIGHTS
from e2e.pods import CLAIMS, EVENTS, PODS, TEMPLATES, Pod, pod_claims, why
from e2e.processes import Program
from e2e.waiting import eventually
from support.allocation import blocks, machine, pool_slice
from support.readiness import readiness
from support.write_proxy import WriteProxy

PORTS = Ports(api=26443, etcd=22379, etcd_peer=22380, controller_manager=20257, scheduler=20259)
CONTROLLER_PORT = 8101

FOUR = machine("four", blocks(4, inside="PIX", outside="PIX"))
TWO = machine("two", blocks(2, inside="PIX", outside="PIX"))
ONE = machine("one", blocks(1, inside="PIX", outside="PIX"))
"""Machines of GPUs that are all linked alike: which of them a pod gets does not matter to most tests."""

NODES = "/api/v1/nodes"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PRIORITY_CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"

FINALIZER = "resource.kubernetes.io/delete-protection"

START_S = 60.0
BIND_S = 30.0
"""From a pod's creation until kube-scheduler has bound it: 0.5 s on a free machine, and its back-off of up to 10 s."""

ANSWERED_S = 15.0
"""For as long the controller waits for the answer to a write."""

RESET_S = 120.0
"""The largest test leaves 400 pods, claims, nodes and slices: 15 s on a free machine."""


class MadeUpCluster:
    """Control plane and controller inside a `with` block. The controller's requests go through `proxy`."""

    def __init__(self, binaries: Path, logs: Path) -> None:
        self._root = isolation.ROOT / "made-up"
        self._logs = logs
        identities = (DRACAENA_CONTROLLER,)
        self.control_plane = ControlPlane(
            self._root, binaries, logs, identities, ports=PORTS, suffix="-made-up", made_up_nodes=True
        )
        self.proxy = WriteProxy(self.control_plane.url, self.control_plane.authority)
        self.controller = Program(
            "dracaena-controller-made-up",
            controller_command(self.behind(self.proxy.url), CONTROLLER_PORT, "--leader-elect=false"),
            logs,
        )
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._ends.callback(self.control_plane.stop)
            self.control_plane.start()
            self.control_plane.kubectl("apply", "--filename", RIGHTS, "--filename", DEVICE_CLASSES)
            self._ends.enter_context(self.proxy)
            self._ends.callback(self.controller.stop)
            self.start_controller()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs, ours first."""
        return (self.controller, *self.control_plane.programs)

    @property
    def api(self) -> Api:
        """The API as its administrator sees it."""
        return self.control_plane.api()

    def behind(self, url: str) -> Path:
        """Write the controller's kubeconfig with a proxy as its server, and return its path."""
        path = self._root / f"behind-{url.rpartition(':')[2]}.kubeconfig"
        user = {"name": "controller", "user": {"token": DRACAENA_CONTROLLER.token}}
        context = {"cluster": "e2e", "user": "controller"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": {"server": url}}],
            "users": [user],
            "contexts": [{"name": "e2e", "context": context}],
            "current-context": "e2e",
        }
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def start_controller(self, *more: str) -> None:
        """Start our controller, this time with further flags, and wait until it is ready."""
        self.controller.start(*more)
        self.wait_controller()

    def wait_controller(self) -> None:
        """Wait until the controller has seen everything."""
        ready = lambda: readiness(CONTROLLER_PORT)[0] == 200  # noqa: E731
        eventually(ready, "the controller is ready", within_s=START_S, programs=(self.controller,))

    def restart_controller(self) -> None:
        """Let a new process of the controller list all that is there, and wait until it is ready."""
        self.controller.stop()
        self.start_controller()

    @contextmanager
    def controller_with(self, *more: str) -> Iterator[None]:
        """Run the controller with further flags inside the block."""
        self.controller.stop()
        self.start_controller(*more)
        try:
            yield
        finally:
            self.restart_controller()

    @contextmanager
    def without_controller(self) -> Iterator[None]:
        """Keep our controller off inside the block."""
        self.controller.stop()
        try:
            yield
        finally:
            self.start_controller()

    @contextmanager
    def without_scheduler(self, *then: str) -> Iterator[None]:
        """Keep kube-scheduler off inside the block: started again, this time with further flags, it sees everything
        before it binds anything."""
        self.control_plane.scheduler.kill()
        try:
            yield
        finally:
            self.control_plane.scheduler.start(*then)

    def send_all(self, requests: Iterable[Request], *, anyway: bool = False) -> None:
        """Send many requests, in about this order, as the administrator; with `anyway` some may be refused."""
        send_all(self.control_plane.url, self.control_plane.authority, ADMIN.token, requests, anyway=anyway)

    def add_node(self, name: str, machine: Machine, **more: Any) -> None:
        """Make a node that is ready, and the pool that its plugin would publish; `more` as for add_nodes."""
        self.add_nodes([name], machine, **more)

    def add_nodes(
        self,
        names: Sequence[str],
        machine: Machine,
        *,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        allocatable: Mapping[str, str] | None = None,
        tainted_devices: bool = True,
    ) -> None:
        """Make nodes that are ready, and the pools that their plugins would publish."""
        room = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "64Gi", "pods": "110", **(allocatable or {})}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "made up"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        kind = {"apiVersion": "v1", "kind": "Node"}
        metadata = [{"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}} for name in names]
        self.send_all(Request("POST", NODES, {**kind, "metadata": one, "status": status}) for one in metadata)
        change = {"spec": {"taints": list(taints) or None}}  # they come as not-ready
        self.send_all(Request("PATCH", f"{NODES}/{name}", change, MERGE_PATCH) for name in names)
        more: dict[str, Any] = {} if tainted_devices else {"taints": ()}
        made = [pool_slice(name, machine, **more) for name in names]
        self.send_all(_publication(one.metadata.name, msgspec.to_builtins(one.spec)) for one in made)

    def publish(self, name: str, spec: Mapping[str, Any]) -> None:
        """Make a ResourceSlice."""
        self.send_all([_publication(name, spec)])

    def devices(self, node: str) -> list[str]:
        """Return the names of the devices that a node publishes, in their order."""
        found = [one for one in self.api.items(SLICES) if one["spec"].get("nodeName") == node]
        return [device["name"] for one in found for device in one["spec"]["devices"]]

    def allocate_by_hand(self, claim: str, node: str, *devices: str) -> None:
        """Allocate a claim as somebody else might."""
        path = f"{CLAIMS}/{claim}"
        results = [{"request": "gpus", "driver": DRIVER, "pool": node, "device": device} for device in devices]
        rule = {"key": "metadata.name", "operator": "In", "values": [node]}
        allocation = {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [rule]}]},
            "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        self.api.patch(path, {"metadata": {"finalizers": [FINALIZER]}})
        self.api.patch(f"{path}/status", {"status": {"allocation": allocation}})

    def cordon(self, node: str, *, closed: bool = True) -> None:
        """Close a node, or open it again."""
        self.api.patch(f"{NODES}/{node}", {"spec": {"unschedulable": closed or None}})

    def wait_bound(self, pod: Pod, *, within_s: float = BIND_S) -> str:
        """Wait until a pod is bound and return its node."""
        look = lambda: self.api.get(pod.path)["spec"].get("nodeName")  # noqa: E731
        try:
            return str(eventually(look, f"pod {pod.name} is bound", within_s=within_s, programs=self.programs))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{why(self.api, pod)}") from error

    def wait_allocated(self, pod: Pod, *, within_s: float = BIND_S) -> dict[str, Any]:
        """Wait until all claims of a pod are allocated and return them by their names within the pod."""

        def look() -> dict[str, Any] | None:
            claims = pod_claims(self.api, pod)
            wanted = len(self.api.get(pod.path)["spec"]["resourceClaims"])
            return claims if len(claims) == wanted and all(devices_of(claim) for claim in claims.values()) else None

        try:
            return eventually(look, f"claims of {pod.name} are allocated", within_s=within_s, programs=self.programs)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{why(self.api, pod)}") from error

    def allocated_nodes(self) -> list[str]:
        """Return the nodes of all allocations that the controller has written, also those that did not last."""
        writes = [write for write in self.proxy.writes if write.kind == "resourceclaims/status"]
        # Others may see what was written before the proxy has the answer.
        eventually(lambda: all(write.status for write in writes), "the server answers", within_s=ANSWERED_S)
        stored = [write.answer for write in writes if write.status == 200]
        return [node_of(claim) for claim in stored if devices_of(claim)]

    def check(self) -> None:
        """Check what must hold at every moment: no device twice, no pod bound without its devices."""
        pods = self.api.items(PODS)  # before the claims: who is bound by now has its devices by now
        claims = {claim["metadata"]["name"]: claim for claim in self.api.items(CLAIMS)}
        held = Counter(device for claim in claims.values() for device in devices_of(claim))
        assert {device: count for device, count in held.items() if count > 1} == {}
        for pod in pods:
            if pod["spec"].get("nodeName"):
                check_bound_pod(pod, claims)

    def reset(self) -> None:
        """Remove what a test made, and start what it left ended."""
        self.proxy.forget()
        for program in self.programs:
            if program.was_started and not program.is_running:
                program.start()
        self.control_plane.wait_ready()
        eventually(self._is_empty, "nothing of the test is left", within_s=RESET_S, programs=self.programs)
        self.wait_controller()
        self.proxy.forget()

    def _is_empty(self) -> bool:
        api = self.api
        for path in (PODS, TEMPLATES, CLAIMS, NODES, SLICES, EVENTS):
            api.send("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
        left = [] if api.items(PODS) else [f"{CLAIMS}/{claim['metadata']['name']}" for claim in api.items(CLAIMS)]
        free, forget = {"status": {"allocation": None, "reservedFor": None}}, {"metadata": {"finalizers": None}}
        changes = [(f"{path}/status", free) for path in left] + [(path, forget) for path in left]
        self.send_all((Request("PATCH", path, change, MERGE_PATCH) for path, change in changes), anyway=True)
        for one in api.items(PRIORITY_CLASSES):
            if not one["metadata"]["name"].startswith("system-"):
                api.delete(f"{PRIORITY_CLASSES}/{one['metadata']['name']}")
        return not any(api.items(path) for path in (PODS, CLAIMS, NODES, SLICES))


def _publication(name: str, spec: Mapping[str, Any]) -> Request:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    return Request("POST", SLICES, {**kind, "metadata": {"name": name}, "spec": spec})


def controller_command(kubeconfig: Path, port: int, *flags: str) -> list[str | Path]:
    """Return the command line of one replica."""
    return [
        *impatient_controller.COMMAND,
        f"--kubeconfig={kubeconfig}",
        f"--http-address=127.0.0.1:{port}",
        "--log-level=debug",
        *flags,
    ]


def devices_of(claim: Any) -> tuple[tuple[str, str], ...]:
    """Return (pool, device) of what a claim holds of ours alone: shares of admins hold nothing."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return tuple((r["pool"], r["device"]) for r in results if r["driver"] == DRIVER and not r.get("adminAccess"))


def node_of(claim: Any) -> str:
    """Return the one node that an allocation allows."""
    (term,) = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    (rule,) = term["matchFields"]
    return str(rule["values"][0])


def check_bound_pod(pod: Any, claims: Mapping[str, Any]) -> None:
    """Check that each claim of a bound pod is allocated on its node and reserved for it."""
    name, uid, node = pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"]["nodeName"]
    generated = {s["name"]: s.get("resourceClaimName") for s in pod["status"].get("resourceClaimStatuses") or ()}
    for entry in pod["spec"].get("resourceClaims", ()):
        claim = claims[entry.get("resourceClaimName") or generated[entry["name"]]]
        assert "allocation" in claim.get("status", {}), f"{name} is bound to {node} without devices"
        assert node_of(claim) == node, f"{name} is bound to {node}, its devices are on {node_of(claim)}"
        users = [user["uid"] for user in claim["status"].get("reservedFor", ())]
        assert uid in users, f"{name} is bound to {node} and its devices are not reserved for it"
