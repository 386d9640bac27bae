"""The embedded server gives the answers that were recorded from a real kube-apiserver (tests/transcripts)."""

from __future__ import annotations

import pytest

from dracaena.demo.apiserver import ApiServer
from dracaena.demo.apiserver.version import NEWEST, RELEASES
from transcripts.connection import Ground
from transcripts.recording import GOLDEN, NotAloneError, difference, record
from transcripts.scenarios import SCENARIOS, Scenario
from transcripts.scenarios.documents import NODES, node
from transcripts.session import Session

AS_THE_NEWEST = {
    "create_with_bad_metadata": "1.36 names the faults of an owner without its place",
    "device_status": "1.36 says of a condition without a type that it is wrong, and names the type of a second one",
}
"""Scenarios with causes of a refusal that 1.36 reports differently: the embedded server has one behaviour."""


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_embedded_server_answers_as_the_real_one(scenario: Scenario, version: str) -> None:
    with ApiServer(version=version) as server:
        ground = Ground(server.url, token="", authority=None, forget_history=server.forget_history)
        judge = NEWEST if scenario.name in AS_THE_NEWEST else version
        found = difference(scenario, judge, record(scenario, ground))
    assert not found, f"\n{found}"


def test_server_that_somebody_uses_is_left_alone() -> None:
    with ApiServer() as server:
        ground = Ground(server.url, token="", authority=None, forget_history=server.forget_history)
        with Session(ground) as session:
            session.create("a node", NODES, node("node-a"))
            with pytest.raises(NotAloneError, match="/api/v1/nodes holds node-a"):
                record(SCENARIOS[0], ground)
            assert session.get("it is still there", f"{NODES}/node-a")["metadata"]["name"] == "node-a"


def test_every_transcript_has_its_scenario_and_an_older_version_only_those_that_differ() -> None:
    names = {f"{scenario.name}.yaml" for scenario in SCENARIOS}
    assert {path.name for path in GOLDEN.iterdir() if path.is_file()} == names
    assert {path.name for path in GOLDEN.iterdir() if path.is_dir()} == RELEASES.keys() - {NEWEST}
    for path in GOLDEN.glob("*/*.yaml"):
        assert path.name in names
        assert path.read_text(encoding="utf-8") != (GOLDEN / path.name).read_text(encoding="utf-8")
