"""Taking back races with binding, 200 times: no pod is ever bound without its devices."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

from e2e.made_up import NODES, ONE, MadeUpCluster, devices_of
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_pod, create_template
from e2e.test_take_back import SETTLED_S, is_clear, is_drop
from e2e.waiting import POLL_S, eventually
from support.write_proxy import Write

TRIES = 200

LATEST_S = 2.5
"""When a node opens at the latest, counted from the first write of its pod's take-back; the second comes after 2 s."""

MEASURED = 8
"""The last binds that were waited for: they tell how long before the first write a node has to open."""

LONGEST_HOLD_S = 8.0
"""The controller gives a request up after 15 s."""

SEED = 20261121

WITHIN_S = 180.0
"""For each step of 200 pods at once, on a loaded machine."""


OPEN = "open"
"""Label that a pod's node needs. (A cordon that ends makes kube-scheduler try all 200 pods, not only its own.)"""


def set_open(cluster: MadeUpCluster, node: str, *, is_open: bool = True) -> None:
    """Open a node for its pod, or close it."""
    cluster.api.patch(f"{NODES}/{node}", {"metadata": {"labels": {OPEN: "yes" if is_open else None}}})


class Opener:
    """Opens each node once, around the take-back of what is allocated there. Of four in turn:

    * one before the first write, which is held until the pod is bound: the take-back must end without its second;
    * one when the second write is sent, so that the bind comes too late;
    * two at a random moment, from before the first write to after the second.

    So both ends are seen often, however fast the machine binds.
    """

    def __init__(self, cluster: MadeUpCluster, node_of_claim: dict[str, str]) -> None:
        self._cluster = cluster
        self._before_drop = node_of_claim
        self._before_clear: dict[str, str] = {}
        self._random = random.Random(SEED)
        self._lock = threading.Lock()
        self._bind_s: list[float] = []

    def __call__(self, write: Write) -> None:
        """Hook of the proxy: hold the write for as long as the node is to open before it."""
        if is_drop(write):
            self._drop(write.name)
        elif is_clear(write):
            with self._lock:
                node = self._before_clear.pop(write.name, None)
            if node is not None:
                set_open(self._cluster, node)

    def _drop(self, claim: str) -> None:
        with self._lock:
            node = self._before_drop.pop(claim, None)
            turn = len(self._before_drop) % 4
            if node is not None and turn == 1:
                self._before_clear[claim] = node
            measured_s = self._bind_s[-MEASURED:]
            after_s = self._random.uniform(-2 * median(measured_s), LATEST_S) if measured_s else None
        if node is None or turn == 1:
            return
        if turn == 0 or after_s is None:
            set_open(self._cluster, node)
            self._wait_for_bind(node)
        elif after_s > 0:
            threading.Timer(after_s, set_open, (self._cluster, node)).start()
        else:
            set_open(self._cluster, node)
            time.sleep(min(-after_s, LONGEST_HOLD_S))

    def _wait_for_bind(self, node: str) -> None:
        """Wait until the pod of a node is bound, and note how long it took; the pod has the node's name."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < LONGEST_HOLD_S:
            if self._cluster.api.get(f"{PODS}/{node}")["spec"].get("nodeName"):
                break
            time.sleep(POLL_S)
        with self._lock:
            self._bind_s.append(time.monotonic() - began_s)


@pytest.fixture
def impatient(made_up: MadeUpCluster) -> Iterator[MadeUpCluster]:
    with made_up.controller_with("--refused-wait-s=1", "--exclusion-s=1", "--workers=32", "--log-level=info"):
        yield made_up


@pytest.mark.timeout(600)
def test_no_pod_is_bound_without_its_devices_however_the_take_back_falls(impatient: MadeUpCluster) -> None:
    cluster, api = impatient, impatient.api
    names = [f"race-{number:03}" for number in range(TRIES)]
    create_template(api, "one", claim_spec(1))
    with ThreadPoolExecutor(8) as pool, cluster.without_scheduler():
        list(pool.map(lambda name: cluster.add_node(name, ONE, labels={OPEN: "yes"}), names))
        pods = [
            Pod(name, templates={"g": "one"}, node_selector={"kubernetes.io/hostname": name, OPEN: "yes"})
            for name in names
        ]
        list(pool.map(lambda pod: create_pod(api, pod), pods))
        allocated = eventually(lambda: all_allocated(cluster), "all pods have their device", within_s=WITHIN_S)
        list(pool.map(lambda name: set_open(cluster, name, is_open=False), names))
        time.sleep(SETTLED_S)
        cluster.proxy.before = Opener(cluster, allocated)
    eventually(lambda: all_bound_ever_with_devices(cluster), "all pods are bound", within_s=WITHIN_S)
    eventually(lambda: not unreserved(cluster), "all reservations are back", within_s=WITHIN_S)
    cluster.check()
    drops = {write.name for write in cluster.proxy.writes if is_drop(write)}
    cleared = {write.name for write in cluster.proxy.writes if is_clear(write) and write.status == 200}
    assert len(drops) >= TRIES
    # Both ends were seen.
    assert min(len(cleared), len(drops - cleared)) >= TRIES // 10


def all_allocated(cluster: MadeUpCluster) -> dict[str, str] | None:
    """Return the node of each claim once all are allocated."""
    found = {claim["metadata"]["name"]: devices_of(claim) for claim in cluster.api.items(CLAIMS)}
    if len(found) < TRIES or not all(found.values()):
        return None
    return {name: devices[0][0] for name, devices in found.items()}


def all_bound_ever_with_devices(cluster: MadeUpCluster) -> bool:
    """Check each bound pod, and return whether all are. A reservation may be missing for a moment, a device never."""
    pods = cluster.api.items(PODS)  # before the claims: who is bound by now has its device by now
    claims = {claim["metadata"]["name"]: devices_of(claim) for claim in cluster.api.items(CLAIMS)}
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    for pod in bound:
        (entry,) = pod["status"]["resourceClaimStatuses"]
        devices = claims[entry["resourceClaimName"]]
        assert [node for node, _ in devices] == [pod["spec"]["nodeName"]], f"{pod['metadata']['name']}: {devices}"
    return len(bound) == TRIES


def unreserved(cluster: MadeUpCluster) -> list[str]:
    claims = cluster.api.items(CLAIMS)
    return [claim["metadata"]["name"] for claim in claims if not claim["status"].get("reservedFor")]
