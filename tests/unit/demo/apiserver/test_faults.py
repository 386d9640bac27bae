"""Faults on purpose."""

from __future__ import annotations

import http.client

import pytest

from dracaena.demo.apiserver import InjectedFault

PODS = "/api/v1/namespaces/default/pods"


def test_the_next_matching_requests_are_refused_and_later_ones_served(api, faults, connect):
    faults.add(InjectedFault(method="GET", path="/pods", times=2, status=429, message="slow down"))
    assert api.get("/api/v1/nodes").code == 200, "another path is not met"
    for _ in range(2):
        refused = connect().get(PODS)
        assert (refused.code, refused.body["reason"]) == (429, "TooManyRequests")
    assert connect().get(PODS).code == 200
    assert faults.pending() == 0


def test_after_a_refusal_the_client_knows_that_its_connection_ends(api, faults):
    """Or it sends the next request on it, which then has no answer."""
    faults.add(InjectedFault(path="/pods", status=503))
    assert api.get(PODS).headers["connection"] == "close"
    assert api.get(PODS).code == 200


def test_a_connection_can_be_closed_without_an_answer(connect, faults):
    faults.add(InjectedFault(close=True))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        connect().get(PODS)
    assert connect().get(PODS).code == 200


def test_a_refused_write_is_not_done(connect, faults, pod):
    faults.add(InjectedFault(method="POST", status=503))
    assert connect().create(PODS, pod("a")).code == 503
    assert connect().get(f"{PODS}/a").code == 404


def test_a_write_can_be_done_and_its_answer_lost(connect, faults, pod):
    faults.add(InjectedFault(method="POST", close=True, after=True))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        connect().create(PODS, pod("a"))
    assert connect().get(f"{PODS}/a").code == 200


def test_faults_can_be_forgotten(api, faults):
    faults.add(InjectedFault(status=500, times=5))
    faults.clear()
    assert api.get(PODS).code == 200
