"""The API server of the bench over HTTP: our own client reads, watches and patches what was put there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.http_api import served
from bench.in_memory_api import InMemoryApi
from dracaena.api.objects import Pod
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kube.client import PAGE_SIZE, KubeClient, ObjectChange
from dracaena.kube.errors import ApiUnavailableError, GoneError, NotFoundError
from dracaena.kube.transport import Transport


@pytest.fixture
def allocated() -> list[str]:
    return []


@pytest.fixture
def api(allocated: list[str]) -> InMemoryApi:
    return InMemoryApi(allocated.append)


@pytest.fixture
def client(api: InMemoryApi, tmp_path: Path) -> Iterator[KubeClient]:
    with served(api) as kubeconfig:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig))
        yield KubeClient(Transport.from_kubeconfig(str(path), user_agent="tests"))


def put(api: InMemoryApi, resource: str, kind: str, name: str) -> None:
    api.put(resource, kind, {"name": name, "namespace": "default"})


def test_a_list_comes_page_by_page(api: InMemoryApi, client: KubeClient) -> None:
    names = [f"p{number:04}" for number in range(PAGE_SIZE + 2)]
    for name in names:
        put(api, "pods", "Pod", name)
    assert [item.metadata.name for item in client.list(Pod).items] == names


def test_a_watch_tells_what_comes_after_the_list(api: InMemoryApi, client: KubeClient) -> None:
    put(api, "pods", "Pod", "old")
    watch = client.watch(Pod, resource_version=client.list(Pod).resource_version, timeout_s=60, read_timeout_s=60)
    put(api, "pods", "Pod", "new")
    event = next(iter(watch))
    assert isinstance(event, ObjectChange)
    assert event.object.metadata.name == "new"
    watch.close()


def test_watches_that_expire_have_everything_listed_anew(api: InMemoryApi, client: KubeClient) -> None:
    watch = client.watch(Pod, resource_version=client.list(Pod).resource_version, timeout_s=60, read_timeout_s=60)
    assert api.watched == {"pods"}
    api.expire()
    assert not api.watched
    with pytest.raises(GoneError):
        next(iter(watch))


def test_an_allocation_is_stored_and_told(api: InMemoryApi, client: KubeClient, allocated: list[str]) -> None:
    put(api, "resourceclaims", "ResourceClaim", "c")
    status: dict[str, Any] = {"status": {"allocation": {"devices": {"results": []}}}}
    client.merge_patch(ResourceClaim, "c", status, namespace="default", subresource="status")
    assert client.get(ResourceClaim, "c", namespace="default").status.allocation is not None
    assert allocated == ["default/c"]


def test_what_is_not_there_is_not_found(client: KubeClient) -> None:
    with pytest.raises(NotFoundError):
        client.get(Pod, "nobody", namespace="default")


def test_nobody_answers_after_the_block(tmp_path: Path, api: InMemoryApi) -> None:
    path = tmp_path / "kubeconfig"
    with served(api) as kubeconfig:
        path.write_text(yaml.safe_dump(kubeconfig))
    with pytest.raises(ApiUnavailableError):
        KubeClient(Transport.from_kubeconfig(str(path), user_agent="tests")).list(Pod)
