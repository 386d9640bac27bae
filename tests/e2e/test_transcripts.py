"""The committed transcripts are what a real kube-apiserver answers, each time.

They are recorded from a server of their own, because in a whole cluster others write too: the scheduler, the garbage
collector, kubelet. It runs with every default but the ServiceAccount admission plugin, which would put the
controller manager's accounts into pods.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.api_server import BareApiServer
from e2e.kubernetes import VERSION
from e2e.run import BINARIES, LOGS
from transcripts.connection import Ground
from transcripts.recording import difference, keep, record
from transcripts.scenarios import SCENARIOS, Scenario

RECORD = "DRACAENA_E2E_RECORD"
"""Environment variable: when it is set, the transcripts are written anew, and the test fails where they changed."""

pytestmark = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Give a kube-apiserver that nobody else writes to."""
    root = tmp_path_factory.mktemp("api-server")
    with BareApiServer(root, Path(os.environ[BINARIES]), Path(os.environ[LOGS])) as server:
        yield Ground(server.url, server.token, server.authority, server.forget_history)


def test_transcript_is_what_the_server_answers_and_answers_again(ground: Ground, scenario: Scenario) -> None:
    first = record(scenario, ground)
    found = difference(scenario, VERSION, first)
    if RECORD in os.environ:
        keep(scenario, VERSION, first)
        assert not found, f"\n{found}"
    assert not found, f"\n{found}"
    assert record(scenario, ground) == first
