"""The Lease over HTTP, on the embedded API server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from dracaena.demo.apiserver import ApiServer
from dracaena.kube.client import KubeClient
from dracaena.kube.errors import AlreadyExistsError, ConflictError, NotFoundError
from dracaena.kube.lease import KubeLease, Lease, LeaseSpec, microtime
from support.kube import client_from

TIME = "2026-01-01T00:00:00.000001Z"
LATER = "2026-01-01T00:00:02.000000Z"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[KubeClient]:
    with ApiServer() as server:
        yield client_from(server.kubeconfig(), tmp_path)


def test_a_lease_is_made_once_and_read_back(client: KubeClient) -> None:
    lease = KubeLease(client, "default", "l")
    assert lease.read() is None
    spec = LeaseSpec("a", 20, TIME, TIME, 0)
    assert lease.create(spec).spec == spec
    found = lease.read()
    assert found is not None
    assert found.spec == spec
    with pytest.raises(AlreadyExistsError):
        lease.create(spec)


def test_a_write_keeps_what_others_noted_and_clears_what_is_not_said(client: KubeClient) -> None:
    document = {"metadata": {"name": "l", "labels": {"app": "x"}}, "spec": {"holderIdentity": "b", "renewTime": TIME}}
    made = client.create(Lease, document, namespace="default")
    lease = KubeLease(client, "default", "l")
    stored = lease.write(made, LeaseSpec("a", 20, LATER, LATER, 1))
    assert stored.metadata.labels == {"app": "x"}
    assert stored.spec == LeaseSpec("a", 20, LATER, LATER, 1)
    assert lease.write(stored, LeaseSpec(lease_transitions=1)).spec == LeaseSpec(lease_transitions=1)


def test_a_lease_that_changed_or_was_made_anew_is_a_conflict_and_one_that_is_gone_is_not_found(
    client: KubeClient,
) -> None:
    lease = KubeLease(client, "default", "l")
    old = lease.create(LeaseSpec("a", 20))
    lease.write(old, LeaseSpec("b", 20))
    with pytest.raises(ConflictError):
        lease.write(old, LeaseSpec("a", 20))
    client.delete(Lease, "l", namespace="default")
    with pytest.raises(NotFoundError):
        lease.write(old, LeaseSpec("a", 20))
    lease.create(LeaseSpec("b", 20))
    with pytest.raises(ConflictError):
        lease.write(old, LeaseSpec("a", 20))


def test_times_are_written_in_utc_with_microseconds() -> None:
    moment = datetime(2026, 1, 1, 2, 0, 0, 5, tzinfo=timezone(timedelta(hours=2)))
    assert microtime(moment) == "2026-01-01T00:00:00.000005Z"
    assert microtime(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000000Z"
