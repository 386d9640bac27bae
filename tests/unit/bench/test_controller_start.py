"""The section on the controller's start: what the cluster holds, and that a controller decides in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bench import controller_start
from bench.cluster.processes import Memory
from bench.controller_start import Size, Start, fill
from bench.http_api import served
from bench.in_memory_api import InMemoryApi
from bench.report import as_text
from dracaena.api.objects import Node, Pod
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.kube.client import KubeClient
from dracaena.kube.transport import Transport
from support.controller import running_controller
from support.kube import wait_for

SIZE = Size(nodes=4, pods=20, fat_claims=2)


def connection(kubeconfig: object, folder: Path) -> Transport:
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    return Transport.from_kubeconfig(str(path), user_agent="tests")


def test_the_cluster_has_what_its_size_says(tmp_path: Path) -> None:
    api = InMemoryApi(lambda key: None)
    fill(api, SIZE)
    with served(api) as kubeconfig:
        client = KubeClient(connection(kubeconfig, tmp_path))
        assert len(client.list(Node).items) == len(client.list(ResourceSlice).items) == SIZE.nodes
        pods = {item.metadata.uid: item for item in client.list(Pod).items}
        claims = client.list(ResourceClaim).items
    assert len(pods) == SIZE.pods
    assert sum(item.metadata.namespace == "others" for item in claims) == SIZE.fat_claims
    held = [item for item in claims if item.status.allocation is not None]
    assert len(held) == 3 * SIZE.nodes
    for item in held:
        (user,) = item.status.reserved_for
        assert pods[user.uid].spec.node_name


def test_the_pod_that_waits_is_the_one_that_is_decided_for(tmp_path: Path) -> None:
    allocated: list[str] = []
    api = InMemoryApi(allocated.append)
    fill(api, SIZE)
    with served(api) as kubeconfig, running_controller(connection(kubeconfig, tmp_path)):
        wait_for(lambda: allocated, "the first allocation")
    assert allocated == ["default/waiting"]


@pytest.mark.parametrize(("peak_mib", "holds"), [(499.0, True), (501.0, False)])
def test_the_floor_is_for_the_peak_of_the_smaller_cluster(
    monkeypatch: pytest.MonkeyPatch, peak_mib: float, holds: bool
) -> None:
    def measured(size: Size) -> Start:
        listed_anew = Memory(200.0, peak_mib if size.nodes == controller_start.NODES else 900.0)
        return Start(2.0, 1.0, Memory(200.0, 300.0), listed_anew)

    monkeypatch.setattr(controller_start, "measured", measured)
    section = controller_start.rows(lambda text: None)
    assert [floor.holds for floor in section.floors] == [holds]
    assert "50,000 pods and 1,000 fat claims" in as_text(section)
