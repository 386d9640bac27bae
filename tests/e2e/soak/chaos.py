"""What is done to the cluster at random. The seed decides what and in which order; when, the machine does."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from e2e.api import MERGE_PATCH
from e2e.made_up_nodes import DRIVER, NODES, SLICES, MadeUpNode, gpu_uuid
from e2e.processes import Program
from e2e.soak.rules import FRIEND, LONELY, NEEDY
from e2e.soak.world import SHAPES, Replica, World

PODS: Final = "/api/v1/namespaces/default/pods"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

FIRST_NODES: Final = 12
MOST_NODES: Final = 16
FEWEST_NODES: Final = 8
FIRST_PODS: Final = 30
MOST_PODS: Final = 60
"""About 110 GPUs of 96 to 128: now and then some have to wait."""

STEP_S: Final = (0.1, 0.6)
"""Between two small deeds."""

BIG_DEEDS: Final = {
    "kill leader": (2.0, 45.0, 75.0),
    "kill both controllers": (60.0, 90.0, 150.0),
    "kill API server": (50.0, 40.0, 70.0),
    "kill controller-manager": (12.0, 30.0, 60.0),
    "kill scheduler": (65.0, 40.0, 80.0),
}
"""When the first of a kind comes at the earliest, and the fewest and most seconds to the next: two minutes see each of
them. A leader that was killed is replaced after 24 s: more often, and nobody would ever lead."""

AT_WORK_S: Final = 18.0
"""A new leader gives nothing for 10 s, in which writes of the old one may land."""

LOST: Final = '"event": "leadership lost"'
LOG_END: Final = 4_000
"""Characters at the end of a controller's log that are told of one that crashed."""

DOWN_S: Final = (0.3, 3.0)
"""For which a killed program stays away."""

MOST_LONELY: Final = 8
"""Pods at a time that bear no other of their kind on the same node. The controller does not know that rule: it gives
them devices where kube-scheduler refuses them and clears the allocation, and comes to a node that does after some."""

UNCALLED: Final = 0.15
"""How often a friend comes that could: every minute."""

MOST_STRANDED: Final = 3
"""Nodes that are closed at last because pods wait that have their devices there."""

MOST_NEEDY: Final = 14
"""Pods at a time that kube-scheduler binds only while a friend is there: of those without one it clears nothing, and
the controller has to take the devices back. A friend that comes at that moment makes the bind race with it."""

FAULT_PERCENT: Final = (0.0, 5.0, 15.0, 30.0)
"""Of the controllers' requests, changed now and then."""


class Chaos:
    """Disturbs a world step by step. Everything but the restarts happens in the thread that calls step()."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._rng = rng
        self._nodes: dict[int, MadeUpNode] = {}
        self._generations: Counter[int] = Counter()
        self._pages: dict[int, int] = {}
        self._cordoned: set[int] = set()
        self._pods: list[str] = []
        self._lonely: set[str] = set()
        self._needy: set[str] = set()
        self._friend: str | None = None
        self._named_claims: list[str] = []
        self._pod_number = 0
        self._due_s = {deed: first for deed, (first, _, _) in BIG_DEEDS.items()}
        self._restarts: list[threading.Timer] = []
        self._led_since_s: dict[str, float] = {}
        self._small: list[tuple[Callable[[], None], int]] = [
            (self._create_pods, 30),
            (self._delete_pod, 22),
            (self._finish_pod, 4),
            (self._new_named_claim, 3),
            (self._delete_named_claim, 2),
            (self._change_company, 4),
            (self._cordon, 3),
            (self._uncordon, 4),
            (self._add_node, 3),
            (self._remove_node, 2),
            (self._rewrite_slices, 6),
            (self._change_faults, 5),
        ]

    def begin(self) -> None:
        """Make the first nodes and pods."""
        self._world.delay(on=True)
        for _ in range(FIRST_NODES):
            self._add_node()
        while len(self._pods) < FIRST_PODS:
            self._create_pods()

    def step(self) -> float:
        """Do something; return the seconds until the next step."""
        for deed in sorted(self._due_s):
            if self._world.now_s() >= self._due_s[deed]:
                self._due_s[deed] = self._world.now_s() + self._rng.uniform(*BIG_DEEDS[deed][1:])
                self._do_big(deed)
        if self._world.taking_back.is_set():
            self._world.taking_back.clear()
            if self._friend is None:
                self._befriend()
        deeds, weights = zip(*self._small, strict=True)
        self._rng.choices(deeds, weights)[0]()
        return self._rng.uniform(*STEP_S)

    def end(self) -> None:
        """Stop all faults and have every program run. What waits last has to be taken back once more."""
        self._world.delay(on=False)
        self._world.disturb(0.0)
        for timer in self._restarts:
            timer.join()
        for number in sorted(self._nodes):
            self._write_slices(number, without=())
        self._strand()

    def _strand(self) -> None:
        """Close some nodes that have devices for pods without a node, and let a friend come: they have to move."""
        waiting = {pod["metadata"]["uid"] for pod in self._world.api.items(PODS) if not pod["spec"].get("nodeName")}
        numbers = {node.name: number for number, node in self._nodes.items()}
        pools = [
            result["pool"]
            for claim in self._world.api.items(CLAIMS)
            if any(user["uid"] in waiting for user in claim.get("status", {}).get("reservedFor", ()))
            for result in claim["status"]["allocation"]["devices"]["results"]
        ]
        for name in list(dict.fromkeys(pool for pool in pools if pool in numbers))[:MOST_STRANDED]:
            self._surely(lambda name=name: self._set_closed(numbers[name], closed=True))  # type: ignore[misc]
            self._cordoned.add(numbers[name])
            self._done("nodes cordoned at last", name)
        if self._friend is None:
            self._befriend()

    def open_nodes(self) -> None:
        """Let every node take pods again."""
        for number in sorted(self._cordoned):
            self._surely(lambda number=number: self._set_closed(number, closed=False))  # type: ignore[misc]
        self._cordoned.clear()

    def revive(self) -> list[str]:
        """Start again what ended by itself, and return what the log of each controller says that crashed.

        One that lost its lease ends in order, and kubelet would start it again; so it would Kubernetes' own programs,
        which end when they find no API server for 10 s at their start.
        """
        crashed: list[str] = []
        if any(timer.is_alive() for timer in self._restarts):
            return crashed
        for program in self._world.plane.programs:
            if not program.is_running:
                self._done("programs of Kubernetes that ended", program.name)
                program.start()
        for replica in self._world.replicas:
            if not replica.program.is_running:
                logged = replica.program.logged()
                if LOST not in logged:
                    crashed.append(f"{replica.name} ended by itself, and no leadership was lost:\n{logged[-LOG_END:]}")
                self._done("controllers that lost the lease", replica.name)
                replica.program.start()
        return crashed

    # Programs

    def _do_big(self, deed: str) -> None:
        plane = self._world.plane
        if deed in ("kill leader", "kill both controllers"):
            leader = self._leader_at_work()
            if leader is None:
                self._due_s[deed] = self._world.now_s() + 1.0
            elif deed == "kill leader":
                self._kill(deed, leader.program)
            else:
                self._kill(deed, *(replica.program for replica in self._world.replicas))
        elif deed == "kill API server":
            self._kill(deed, plane.apiserver)
        elif deed == "kill controller-manager":
            self._kill(deed, plane.controller_manager)
        else:
            self._kill(deed, plane.scheduler)

    def _leader_at_work(self) -> Replica | None:
        """Return who has led for long enough to have given devices, so that there is something to break."""
        now_s = self._world.now_s()
        for replica in self._world.replicas:
            if not replica.leads():
                self._led_since_s.pop(replica.name, None)
            elif now_s - self._led_since_s.setdefault(replica.name, now_s) >= AT_WORK_S:
                return replica
        return None

    def _kill(self, deed: str, *programs: Program) -> None:
        self._restarts = [timer for timer in self._restarts if timer.is_alive()]
        if self._restarts:
            self._due_s[deed] = self._world.now_s() + 1.0  # one after the other, so that each is seen by itself
            return
        self._done(deed, *(program.name for program in programs))
        for program in programs:
            program.kill()
            timer = threading.Timer(self._rng.uniform(*DOWN_S), program.start)
            self._restarts.append(timer)
            timer.start()

    # Pods and claims

    def _create_pods(self) -> None:
        for _ in range(self._rng.choice((1, 1, 1, 2, 4))):
            if len(self._pods) >= MOST_PODS:
                return
            self._pod_number += 1
            name = f"pod-{self._pod_number}"
            if self._try("POST", PODS, self._pod(name)):
                self._pods.append(name)
                self._done("pods created", name)

    def _pod(self, name: str) -> dict[str, Any]:
        claims: list[dict[str, str]] = []
        if self._named_claims and self._rng.random() < 0.2:
            claims.append({"name": "shared", "resourceClaimName": self._rng.choice(self._named_claims)})
        if not claims or self._rng.random() < 0.3:
            for number in range(self._rng.choice((1, 1, 1, 1, 2))):
                shape = self._rng.choice(sorted(SHAPES))
                claims.append({"name": f"own-{number}", "resourceClaimTemplateName": shape})
        container = {
            "name": "main",
            "image": "nobody/runs-this:1",
            "resources": {"requests": {"cpu": "1"}, "claims": [{"name": claim["name"]} for claim in claims]},
        }
        spec: dict[str, Any] = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "resourceClaims": claims,
            "containers": [container],
        }
        if self._rng.random() < 0.1:
            spec["nodeSelector"] = {"topology.kubernetes.io/zone": f"somewhere-1{self._rng.choice('abc')}"}
        metadata: dict[str, Any] = {"name": name}
        self._lonely.intersection_update(self._pods)
        self._needy.intersection_update(self._pods)
        if len(self._lonely) < MOST_LONELY and self._rng.random() < 0.3:
            self._lonely.add(name)
            metadata["labels"] = LONELY
            spec["affinity"] = {"podAntiAffinity": _required(LONELY, "kubernetes.io/hostname")}
        elif len(self._needy) < MOST_NEEDY and self._rng.random() < 0.3:
            self._needy.add(name)
            metadata["labels"] = NEEDY
            spec["affinity"] = {"podAffinity": _required(FRIEND, "kubernetes.io/os")}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _change_company(self) -> None:
        """Let a friend go, or now and then come although nobody called: mostly those who need one are to be alone."""
        if self._friend is not None or self._rng.random() < UNCALLED:
            self._befriend()

    def _befriend(self) -> None:
        """Let a friend come, or go again."""
        if self._friend is not None:
            if self._delete(f"{PODS}/{self._friend}"):
                self._done("friends gone", self._friend)
                self._friend = None
            return
        self._pod_number += 1
        name = f"friend-{self._pod_number}"
        spec = {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "nobody/runs-this:1"}],
        }
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": FRIEND}, "spec": spec}
        if self._try("POST", PODS, document):
            self._friend = name
            self._done("friends come", name)

    def _delete_pod(self) -> None:
        if not self._pods:
            return
        name = self._pods[self._rng.randrange(len(self._pods))]
        if self._delete(f"{PODS}/{name}"):
            self._pods.remove(name)
            self._done("pods deleted", name)

    def _finish_pod(self) -> None:
        """Let a pod end as kubelet would; one that is not bound cannot."""
        if not self._pods:
            return
        name = self._pods[self._rng.randrange(len(self._pods))]
        found = self._world.api.send("GET", f"{PODS}/{name}")
        if found.status == 200 and found.document["spec"].get("nodeName"):
            phase = self._rng.choice(("Succeeded", "Failed"))
            if self._try("PATCH", f"{PODS}/{name}/status", {"status": {"phase": phase}}):
                self._done("pods finished", name)

    def _new_named_claim(self) -> None:
        if len(self._named_claims) >= 4:
            return
        self._pod_number += 1
        name = f"claim-{self._pod_number}"
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": SHAPES[self._rng.choice(sorted(SHAPES))]},
        }
        if self._try("POST", CLAIMS, document):
            self._named_claims.append(name)
            self._done("claims created", name)

    def _delete_named_claim(self) -> None:
        """Delete a claim that pods may still wait for, or use: it goes when they do."""
        if self._named_claims:
            name = self._rng.choice(self._named_claims)
            if self._delete(f"{CLAIMS}/{name}"):
                self._named_claims.remove(name)
                self._done("claims deleted", name)

    # Nodes

    def _add_node(self) -> None:
        free = [number for number in range(MOST_NODES) if number not in self._nodes]
        if not free:
            return
        number = self._rng.choice(free)
        node = MadeUpNode(number)
        if self._try("POST", NODES, node.document()):
            self._nodes[number] = node
            self._write_slices(number, without=())
            self._done("nodes added", node.name)

    def _remove_node(self) -> None:
        """Remove a node with its slices, with or without its pods: those that stay the pod collector finds."""
        if len(self._nodes) <= FEWEST_NODES:
            return
        number = self._rng.choice(sorted(self._nodes))
        drained = self._rng.random() < 0.7
        if drained:
            for name in self._pods_on(MadeUpNode(number).name):
                self._delete(f"{PODS}/{name}")
        if self._delete(f"{NODES}/{MadeUpNode(number).name}"):
            del self._nodes[number]
            self._cordoned.discard(number)
            for page in range(self._pages.pop(number, 1)):
                self._delete_surely(f"{SLICES}/{MadeUpNode(number).slice_name(page)}")
            for name in self._pods_on(MadeUpNode(number).name):
                self._delete_surely(f"{PODS}/{name}")
            self._done("nodes removed", MadeUpNode(number).name, "drained" if drained else "with its pods")

    def _cordon(self) -> None:
        if len(self._cordoned) < 3:
            number = self._rng.choice(sorted(self._nodes))
            if self._set_closed(number, closed=True):
                self._cordoned.add(number)
                self._done("nodes cordoned", MadeUpNode(number).name)

    def _uncordon(self) -> None:
        if self._cordoned:
            number = self._rng.choice(sorted(self._cordoned))
            if self._set_closed(number, closed=False):
                self._cordoned.discard(number)
                self._done("nodes opened", MadeUpNode(number).name)

    def _set_closed(self, number: int, *, closed: bool) -> bool:
        path = f"{NODES}/{MadeUpNode(number).name}"
        return self._try("PATCH", path, {"spec": {"unschedulable": closed or None}})

    def _rewrite_slices(self) -> None:
        """Publish a node's pool anew, now and then with a GPU less, or on two pages."""
        number = self._rng.choice(sorted(self._nodes))
        without = (self._rng.randrange(8),) if self._rng.random() < 0.3 else ()
        self._write_slices(number, without=without, pages=self._rng.choice((1, 1, 2)))
        self._done("pools rewritten", MadeUpNode(number).name, f"without {without}")

    def _write_slices(self, number: int, *, without: tuple[int, ...], pages: int = 1) -> None:
        node = MadeUpNode(number)
        self._generations[number] += 1
        documents = node.slice_documents(generation=self._generations[number], without=without, pages=pages)
        documents[0]["spec"]["devices"].append(_shared_device(number))
        for page, document in enumerate(documents):
            path = f"{SLICES}/{node.slice_name(page)}"
            self._surely(lambda path=path, document=document: self._put(path, document))  # type: ignore[misc]
        for page in range(pages, self._pages.get(number, 1)):
            self._delete_surely(f"{SLICES}/{node.slice_name(page)}")
        self._pages[number] = pages

    def _put(self, path: str, document: dict[str, Any]) -> bool:
        return self._try("PUT", path, document) or self._try("POST", SLICES, document)

    def _change_faults(self) -> None:
        percent = self._rng.choice(FAULT_PERCENT)
        self._world.disturb(percent)
        self._done("fault rates", f"{percent:.0f} %")

    def _done(self, deed: str, *about: str) -> None:
        self.counts[deed] += 1
        self._world.note(" ".join((deed, *about)))

    # The API, which may be away

    def _pods_on(self, node: str) -> list[str]:
        found = self._world.api.send("GET", f"{PODS}?fieldSelector=spec.nodeName={node}")
        return [item["metadata"]["name"] for item in found.document["items"]] if found.status == 200 else []

    def _try(self, method: str, path: str, body: dict[str, Any]) -> bool:
        content_type = MERGE_PATCH if method == "PATCH" else "application/json"
        return self._world.api.send(method, path, body, content_type).is_good

    def _delete(self, path: str) -> bool:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        return self._world.api.send("DELETE", path, options).status in (200, 202, 404)

    def _delete_surely(self, path: str) -> None:
        self._surely(lambda: self._delete(path))

    def _surely(self, deed: Callable[[], bool]) -> None:
        """Do something that must not stay half done, over a restart of the server."""
        for _ in range(60):
            if deed():
                return
            self._world.pause(0.5)


def _required(labels: Mapping[str, str], topology_key: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": topology_key}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def _shared_device(number: int) -> dict[str, Any]:
    """Return one more device of a pool, which several claims may have at once: our plugin publishes none like it."""
    attributes = {"type": "mig", "uuid": f"MIG-{number:08x}", "parentUUID": gpu_uuid(number, 0), "profile": "1g.10gb"}
    return {
        "name": f"mig-{number:08x}",
        "allowMultipleAllocations": True,
        "attributes": {name: {"string": value} for name, value in attributes.items()},
        "capacity": {"memory": {"value": "80Gi"}},
        "taints": [{"key": f"{DRIVER}/controller-allocated", "value": "true", "effect": "NoSchedule"}],
    }
