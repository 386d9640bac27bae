"""Faults of a recorded machine, from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dracaena.api.errors import BadInputError
from dracaena.host.facts.health import GpuEvent, GpuState
from dracaena.kubelet_plugin.adapters.recorded.faults import RecordedFaults

UUIDS = ["GPU-1", "GPU-2"]
WELL = tuple(GpuState(uuid, recovery_action=0) for uuid in UUIDS)


def faults(path: Path, text: str | None) -> RecordedFaults:
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return RecordedFaults(str(path), UUIDS)


def test_without_a_file_all_gpus_are_well(tmp_path: Path) -> None:
    source = faults(tmp_path / "faults.json", None)
    assert source.events() == ()
    assert source.poll().states == WELL


def test_what_stands_in_the_file_is_told_and_an_xid_once(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    source = faults(path, json.dumps({"GPU-2": {"lost": "pulled out", "remap_pending": True, "xids": [79, 31]}}))
    assert source.events() == (GpuEvent("GPU-2", 31), GpuEvent("GPU-2", 79))
    assert source.events() == ()
    assert source.poll().states == (
        WELL[0],
        GpuState("GPU-2", lost="pulled out", recovery_action=0, remap_pending=True),
    )
    path.write_text("{}", encoding="utf-8")
    assert source.events() == ()
    assert source.poll().states == WELL
    path.write_text('{"GPU-2": {"xids": [79]}}', encoding="utf-8")
    assert source.events() == (GpuEvent("GPU-2", 79),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "expected an object"),
        ("{", "not JSON"),
        ('{"GPU-9": {}}', "GPU-9: not a GPU of this machine, expected one of GPU-1, GPU-2"),
        ('{"GPU-1": 79}', "GPU-1: expected an object"),
        ('{"GPU-1": {"xid": 79}}', "unknown xid; known: lost, silent"),
        ('{"GPU-1": {"xids": 79}}', "xids is 79, expected a list of numbers"),
        ('{"GPU-1": {"xids": [true]}}', "expected a list of numbers"),
        ('{"GPU-1": {"recovery_action": "reset"}}', "recovery_action is 'reset', expected int"),
        ('{"GPU-1": {"remap_pending": 1}}', "remap_pending is 1, expected bool"),
        ('{"GPU-1": {"uuid": "GPU-2"}}', "unknown uuid"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_was_expected(tmp_path: Path, text: str, said: str) -> None:
    source = faults(tmp_path / "faults.json", text)
    for look in (source.events, source.poll):
        with pytest.raises(BadInputError, match=said):
            look()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        RecordedFaults(str(tmp_path), UUIDS).poll()
