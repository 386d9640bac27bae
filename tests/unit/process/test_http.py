from __future__ import annotations

import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from dracaena.api.errors import BadInputError
from dracaena.process.http import HttpEndpoint
from dracaena.process.http_message import text_answer


class Program:
    missing: str | None = "the first list of pods"


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
def endpoint(program: Program) -> Iterator[HttpEndpoint]:
    registry = CollectorRegistry()
    Counter("decisions", "Decisions taken.", registry=registry).inc(3)
    served = HttpEndpoint("127.0.0.1:0", lambda: program.missing, registry)
    served.start()
    yield served
    served.stop()


def get(endpoint: HttpEndpoint, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_readiness_says_what_is_missing(endpoint: HttpEndpoint, program: Program) -> None:
    assert get(endpoint, "/readyz") == (503, "not ready: the first list of pods\n")
    program.missing = None
    assert get(endpoint, "/readyz") == (200, "ok\n")


def test_readiness_says_in_which_state_a_ready_program_is() -> None:
    states = iter(["ok: standing by", "ok: leading"])
    served = HttpEndpoint("127.0.0.1:0", lambda: None, CollectorRegistry(), state=lambda: next(states))
    served.start()
    try:
        assert get(served, "/readyz") == (200, "ok: standing by\n")
        assert get(served, "/readyz") == (200, "ok: leading\n")
    finally:
        served.stop()


def test_health_does_not_wait_for_readiness(endpoint: HttpEndpoint) -> None:
    assert get(endpoint, "/healthz") == (200, "ok\n")


def test_metrics_are_served(endpoint: HttpEndpoint) -> None:
    status, text = get(endpoint, "/metrics")
    assert status == 200
    assert "decisions_total 3.0" in text


def test_other_paths_are_not_found(endpoint: HttpEndpoint) -> None:
    assert get(endpoint, "/debug")[0] == 404


@pytest.mark.parametrize("address", ["8080", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000", "127.0.0.1:²"])
def test_bad_address_is_refused(address: str) -> None:
    with pytest.raises(BadInputError, match="is not host:port"):
        HttpEndpoint(address, lambda: None)


def test_taken_port_is_refused_by_name(endpoint: HttpEndpoint) -> None:
    with pytest.raises(BadInputError, match="cannot listen: Address already in use"):
        HttpEndpoint(f"127.0.0.1:{endpoint.port}", lambda: None)


def test_host_that_can_have_no_address_is_refused_by_name() -> None:
    with pytest.raises(BadInputError, match="cannot listen: encoding of hostname failed"):
        HttpEndpoint(f"{'ü' * 80}:0", lambda: None)


def test_client_that_hangs_up_leaves_no_traceback(endpoint: HttpEndpoint, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        client = socket.create_connection(("127.0.0.1", endpoint.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() resets
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        client.close()
    assert get(endpoint, "/healthz")[0] == 200
    assert capfd.readouterr().err == ""


def test_a_program_may_say_that_a_new_start_would_help() -> None:
    problems: list[str | None] = [None, "socket /s does not answer"]
    served = HttpEndpoint("127.0.0.1:0", lambda: None, CollectorRegistry(), alive=lambda: problems.pop(0))
    served.start()
    try:
        assert get(served, "/healthz") == (200, "ok\n")
        assert get(served, "/healthz") == (503, "not alive: socket /s does not answer\n")
    finally:
        served.stop()


@pytest.mark.parametrize("address", ["[::1]:0", "::1:0"])
def test_address_of_ipv6_is_served(address: str) -> None:
    """With brackets, and as a pod's address comes before a colon and the port."""
    endpoint = HttpEndpoint(address, lambda: None, CollectorRegistry())
    endpoint.start()
    try:
        with urllib.request.urlopen(f"http://[::1]:{endpoint.port}/healthz") as response:
            assert response.status == 200
    finally:
        endpoint.stop()


def test_a_program_may_have_further_pages_and_metrics_in_a_form_of_its_own() -> None:
    pages = {"/metrics": lambda: text_answer(200, "mine"), "/tree": lambda: text_answer(200, "a tree")}
    served = HttpEndpoint("127.0.0.1:0", lambda: None, CollectorRegistry(), pages=pages)
    served.start()
    try:
        assert get(served, "/metrics") == (200, "mine\n")
        assert get(served, "/tree") == (200, "a tree\n")
        assert get(served, "/other") == (404, "/healthz, /readyz, /metrics and /tree are here\n")
    finally:
        served.stop()
