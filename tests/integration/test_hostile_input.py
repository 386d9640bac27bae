"""The same on the embedded API server as tests/e2e/test_hostile_input.py on the real one, with fewer objects.

What kube-apiserver takes and the embedded server cannot read, it refuses: that is left to the other test.
"""

from __future__ import annotations

import time
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
import urllib3

from dracaena.api.objects import Node
from dracaena.api.resource_objects import ResourceClaim
from dracaena.demo.apiserver import ApiServer
from dracaena.kube.client import KubeClient
from support.allocation import blocks, machine
from support.controller import NAMESPACE, ask, check_invariants, publish, running_controller, transport
from support.hostile_objects import HostileObject, Resource, huge_slice
from support.kube import wait_for
from support.random_hostile_objects import random_objects
from support.seeds import in_tiers

SEED: Final = 15
HONEST_EVERY: Final = 8
USED_EVERY: Final = 3
PATIENCE_S: Final = 60.0
"""For one honest pod, and for one answer: the server validates the bad objects in this same process."""

COLLECTIONS: Final[dict[Resource, str]] = {
    "resourceclaims": "/apis/resource.k8s.io/v1/namespaces/hostile/resourceclaims",
    "deviceclasses": "/apis/resource.k8s.io/v1/deviceclasses",
    "resourceslices": "/apis/resource.k8s.io/v1/resourceslices",
}
PODS: Final = "/api/v1/namespaces/hostile/pods"

pytestmark = pytest.mark.embedded_only("leaves behind what api_ground cannot read")


class Sender:
    """Sends bad objects, and pods that use some of them."""

    def __init__(self, server: ApiServer) -> None:
        self._url = server.url
        self.accepted: Counter[str] = Counter()
        self._send("POST", "/api/v1/namespaces", b'{"metadata":{"name":"hostile"}}')

    def send(self, item: HostileObject) -> bool:
        """Send an object; return whether it was accepted."""
        is_accepted = self._send("POST", COLLECTIONS[item.resource], item.body) == 201
        self.accepted[item.resource] += is_accepted
        return is_accepted

    def use(self, item: HostileObject) -> None:
        """Make a pod that uses a claim."""
        name = item.name[:60].rstrip("-")
        body = (
            '{"metadata":{"name":"%s"},"spec":{"nodeSelector":{"tenant":"hostile"},"containers":[{"name":"main",'
            '"image":"example/app:1.0"}],"resourceClaims":[{"name":"gpu","resourceClaimName":"%s"}]}}'
        )
        assert self._send("POST", PODS, (body % (name, item.name)).encode()) == 201

    def _send(self, method: str, path: str, body: bytes) -> int:
        headers = {"Content-Type": "application/json"}
        answer = urllib3.request(method, f"{self._url}{path}", body=body, headers=headers, timeout=PATIENCE_S)
        assert answer.status < 500, f"{method} {path}: {answer.data[:500]!r}"
        return answer.status


def honest_pod(client: KubeClient, number: int) -> float:
    """Ask for one GPU, wait for it, and return the seconds that it took."""
    name = f"honest-{number}"
    ask(client, name, {name: 1}, nodeSelector={"tenant": "honest"})
    began_s = time.monotonic()
    wait_for(lambda: is_allocated(client, name), f"{name} to get its GPU", PATIENCE_S)
    return time.monotonic() - began_s


def is_allocated(client: KubeClient, name: str) -> bool:
    return client.get(ResourceClaim, name, namespace=NAMESPACE).status.allocation is not None


@pytest.mark.parametrize("objects", in_tiers(40, 240))
def test_random_objects_stop_nobody(server: ApiServer, tmp_path: Path, objects: int) -> None:
    """So many are accepted. Some hundred are enough to have every theme; the thousand are for the real server."""
    connection = transport(server, tmp_path)
    client = KubeClient(connection)
    names = {f"honest-{number}": "honest" for number in range(4)} | {"hostile": "hostile"}
    publish(client, {name: machine(name, blocks(8, inside="PIX", outside="PIX")) for name in names})
    for name, tenant in names.items():
        client.merge_patch(Node, name, {"metadata": {"labels": {"tenant": tenant}}})
    sender = Sender(server)
    waited_s: list[float] = []
    with running_controller(connection) as controller:
        bad = chain((huge_slice(1, "gone", taints=True),), random_objects(SEED))
        while (accepted := sender.accepted.total()) < objects:
            item = next(bad)
            if sender.send(item) and item.is_claim and accepted % USED_EVERY == 0:
                sender.use(item)
            if len(waited_s) <= accepted // HONEST_EVERY:
                waited_s.append(honest_pod(client, len(waited_s)))
        assert controller.not_ready() is None
    assert set(sender.accepted) == set(COLLECTIONS), sender.accepted
    assert len(waited_s) == objects // HONEST_EVERY
    check_invariants(client)
