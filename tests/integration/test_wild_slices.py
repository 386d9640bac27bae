"""The same on the embedded API server as tests/e2e/test_wild_slices.py on the real one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import urllib3
from hypothesis import HealthCheck, given, settings

from dracaena.api.machine import Machine
from dracaena.api.names import DEFAULT_DRIVER_NAME
from dracaena.demo.apiserver import ApiServer
from support.wild_machines import slice_bodies, wild_machines, without_times

ANSWER_S = 20.0
"""For one answer of a server on a loaded machine: without it urllib3 gives up after 3 s."""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(machine=wild_machines())
def test_random_machines_are_stored_as_they_are_sent(server: ApiServer, machine: Machine) -> None:
    url = f"{server.url}/apis/resource.k8s.io/v1/resourceslices"
    for body in slice_bodies(machine, driver=DEFAULT_DRIVER_NAME, node_name="n1"):
        answer = urllib3.request("POST", url, json=body, timeout=ANSWER_S)
        assert answer.status == 201, answer.data
        stored = json.loads(answer.data)["spec"].get("devices", [])
        assert without_times(stored) == without_times(body["spec"]["devices"])
        assert urllib3.request("DELETE", f"{url}/{body['metadata']['name']}", timeout=ANSWER_S).status == 200
