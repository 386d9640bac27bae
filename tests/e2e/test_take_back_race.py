"""Taking back races with binding, 400 times for each time that a bind takes: no pod is bound without its devices."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.api import MERGE_PATCH
from e2e.bulk import Request
from e2e.made_up import NODES, ONE, MadeUpCluster, devices_of
from e2e.pods import CLAIMS, PODS, Pod, claim_spec, create_template
from e2e.slow_binds import SlowBinds
from e2e.test_take_back import SETTLED_S, is_clear, is_drop
from e2e.waiting import eventually
from support.write_proxy import Write

TRIES = 400
"""For each time that a bind takes."""

BINDS_S = (1.0, 3.0, 10.0, 30.0)
"""How long kube-scheduler takes from its look at the claims to the bind, beside its own time."""

OWN_S = 12.0
"""kube-scheduler's own time for a bind, and the server's, at most: hundreds end at once, on a loaded machine. The
controller is told that a bind takes so much longer at most."""

CLOSED_TRY_S = 6.0
"""When a node that stays closed has its pod tried again at the latest, counted from the first write of its take-back:
sooner and later than what kube-scheduler says is a proof (2 s)."""

UNTIL_OPEN_S = 2.5
"""When a node opens at the latest, counted likewise."""

WORKERS = TRIES // 4 + 32
"""Of the controller: every fourth first write is held."""

LONGEST_HOLD_S = 8.0
"""The controller gives a request up after 15 s."""

UNAVAILABLE = 503
"""What a request is answered that was held for so long."""

SEED = 20261121

WITHIN_S = 240.0
"""For each step of 400 pods at once, beside what it has to wait for, on a loaded machine."""

LOOK_S = 2.0
"""Between two looks at all pods and claims: a look takes a good part of that on a loaded machine."""

OPEN = "open"
"""Label that a pod's node needs. (A cordon that ends makes kube-scheduler try all pods, not only its own.)"""


def opening(node: str, *, is_open: bool = True, cordoned: bool = False) -> Request:
    """Return what opens a node for its pod, or closes it. A cordoned one has its pod tried, which is refused."""
    changes = {"metadata": {"labels": {OPEN: "yes" if is_open else None}}, "spec": {"unschedulable": cordoned or None}}
    return Request("PATCH", f"{NODES}/{node}", changes, MERGE_PATCH)


def set_open(cluster: MadeUpCluster, node: str, *, cordoned: bool = False) -> None:
    """Open a node."""
    cluster.send_all([opening(node, cordoned=cordoned)])


class Opener:
    """Opens each node once, around the take-back of what is allocated there. Of four in turn:

    * one before the first write, which is held until the bind has begun: the take-back must end without its second;
    * one at a random moment, from the first write to a while after it;
    * one when the second write is sent, so that the bind comes too late;
    * one likewise, and before that kube-scheduler tries its pod once more in vain, which can be the proof.

    So both ends are seen often, however fast the machine binds.
    """

    def __init__(self, cluster: MadeUpCluster, binds: SlowBinds, node_of_claim: dict[str, str]) -> None:
        self.cleared_s: dict[str, float] = {}
        """When the server had answered the last write that cleared a claim, by the claim's name."""
        self._cluster = cluster
        self._binds = binds
        self._before_drop = dict(node_of_claim)
        self._until_begun: dict[str, str] = {}
        self._before_clear: dict[str, str] = {}
        self._random = random.Random(SEED)
        self._lock = threading.Lock()
        self._begun = 0

    def before(self, write: Write) -> int | None:
        """Hook of the proxy: hold a write while its node opens; refuse it for now if that takes kube-scheduler long."""
        if is_drop(write):
            with self._lock:
                node = self._before_drop.pop(write.name, None)
            if node is not None:
                self._begin(write.name, node)
            node = self._until_begun.get(write.name)
            return None if node is None or self._binds.wait_begun(node, LONGEST_HOLD_S) else UNAVAILABLE
        if is_clear(write):
            with self._lock:
                node = self._before_clear.pop(write.name, None)
            if node is not None:
                set_open(self._cluster, node)
        return None

    def after(self, write: Write) -> None:
        """Hook of the proxy: note what was cleared."""
        if is_clear(write) and write.status == 200:
            self.cleared_s[write.name] = time.monotonic()

    def _begin(self, claim: str, node: str) -> None:
        """Choose what comes of a claim that is taken back; its pod has the node's name."""
        with self._lock:
            turn = self._begun % 4
            self._begun += 1
            share = self._random.random()
            if turn > 1:
                self._before_clear[claim] = node
        if turn == 0:
            self._until_begun[claim] = node
            set_open(self._cluster, node)
        elif turn == 1:
            threading.Timer(share * UNTIL_OPEN_S, set_open, (self._cluster, node)).start()
        elif turn == 3:
            threading.Timer(share * CLOSED_TRY_S, self._try_in_vain, (claim, node)).start()

    def _try_in_vain(self, claim: str, node: str) -> None:
        with self._lock:
            if claim in self._before_clear:
                set_open(self._cluster, node, cordoned=True)


@pytest.fixture
def impatient(made_up: MadeUpCluster, bind_s: float) -> Iterator[MadeUpCluster]:
    flags = ("--refused-wait-s=1", "--exclusion-s=1", f"--longest-bind-s={bind_s + OWN_S}", f"--workers={WORKERS}")
    with made_up.controller_with(*flags, "--log-level=info"):
        yield made_up
        made_up.control_plane.scheduler.kill()
        made_up.control_plane.scheduler.start()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bind_s", BINDS_S, ids="{:g}s".format)
def test_no_pod_is_bound_without_its_devices_however_long_binds_take(
    impatient: MadeUpCluster, bind_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, api = impatient, impatient.api
    began_s = time.monotonic()
    names = [f"race-{number:03}" for number in range(TRIES)]
    create_template(api, "one", claim_spec(1))
    plane = cluster.control_plane
    with SlowBinds(plane, tmp_path / "slow-binds.json", lambda _: bind_s) as binds:
        with cluster.without_scheduler(f"--config={binds.config}"):
            cluster.add_nodes(names, ONE, labels={OPEN: "yes"})
            pods = [
                Pod(name, templates={"g": "one"}, node_selector={"kubernetes.io/hostname": name, OPEN: "yes"})
                for name in names
            ]
            cluster.send_all(Request("POST", PODS, pod.document()) for pod in pods)
            node_of_claim = eventually(
                lambda: all_allocated(cluster, names), "all have devices", within_s=WITHIN_S, every_s=LOOK_S
            )
            cluster.send_all(opening(name, is_open=False) for name in names)
            time.sleep(SETTLED_S)
            opener = Opener(cluster, binds, node_of_claim)
            cluster.proxy.before, cluster.proxy.after = opener.before, opener.after
        allocated_s = time.monotonic()
        eventually(
            lambda: all_bound_ever_with_devices(cluster, names),
            "all pods are bound",
            within_s=bind_s + OWN_S + bind_s + WITHIN_S,
            every_s=LOOK_S,
        )
        bound_s = time.monotonic()
    eventually(lambda: not unreserved(cluster), "all reservations are back", within_s=WITHIN_S, every_s=LOOK_S)
    cluster.check()
    dropped = {write.name for write in cluster.proxy.writes if is_drop(write)}
    cleared = opener.cleared_s
    longest_s = max(ended_s - begin_s for begin_s, ended_s in binds.done.values())
    # The same devices may have come back before a bind ends that began before they went: then nothing else shows it.
    lost = sorted(node for claim, node in node_of_claim.items() if binds.done[node][0] < cleared.get(claim, 0.0))
    with capsys.disabled():
        print(  # noqa: T201
            f"\nbinds of {bind_s:g} s, the longest {longest_s:.1f} s: {len(dropped)} dropped, {len(cleared)} cleared, "
            f"{len(dropped - cleared.keys())} bound before that; {len(lost)} with devices that were taken back; "
            f"{allocated_s - began_s:.0f} s until taken back, {bound_s - allocated_s:.0f} s until bound"
        )
    assert not lost, f"binds of {bind_s:g} s: {len(lost)} pods were bound with devices that were taken back"
    assert longest_s < bind_s + OWN_S, "this machine is too slow for this test"
    assert dropped == node_of_claim.keys()
    assert len(cleared) >= TRIES // 10  # both ends were seen
    assert len(dropped - cleared.keys()) >= TRIES // 10


def all_allocated(cluster: MadeUpCluster, names: list[str]) -> dict[str, str] | None:
    """Return the node of each claim once all are allocated."""
    claims = {claim["metadata"]["name"]: devices_of(claim) for claim in cluster.api.items(CLAIMS)}
    found = {name: devices[0][0] for name, devices in claims.items() if devices}
    return found if len(found) == len(names) else None


def all_bound_ever_with_devices(cluster: MadeUpCluster, names: list[str]) -> bool:
    """Check each bound pod, and return whether all are. A reservation may be missing for a moment, a device never."""
    pods = cluster.api.items(PODS)  # before the claims: who is bound by now has its device by now
    claims = {claim["metadata"]["name"]: devices_of(claim) for claim in cluster.api.items(CLAIMS)}
    bound = [pod for pod in pods if pod["spec"].get("nodeName")]
    without = []
    for pod in bound:
        (entry,) = pod["status"]["resourceClaimStatuses"]
        devices = claims[entry["resourceClaimName"]]
        if [node for node, _ in devices] != [pod["spec"]["nodeName"]]:
            without.append(pod["metadata"]["name"])
    assert not without, f"{len(without)} pods are bound without their devices: {without}"
    return len(bound) == len(names)


def unreserved(cluster: MadeUpCluster) -> list[str]:
    claims = cluster.api.items(CLAIMS)
    return [claim["metadata"]["name"] for claim in claims if not claim["status"].get("reservedFor")]
