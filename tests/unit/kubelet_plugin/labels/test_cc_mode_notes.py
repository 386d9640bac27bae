"""The note of modes: what claims are told while it names a change, and what is left when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.errors import PermanentError
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.labels.cc_mode_notes import CcModeNotes
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.prepare.journals.cc_modes import ModeChange, ModeStep, NotedModes, RefusedMode
from support.layout_node import OpenLock

FILE = "cc-modes.node.json"
GPU, OTHER = "0000:18:00.0", "0000:3b:00.0"


@pytest.fixture
def notes(tmp_path: Path) -> CcModeNotes:
    return of(tmp_path)


def of(folder: Path, boot: str = "boot") -> CcModeNotes:
    return CcModeNotes(Ledger(DocumentFolder(folder, synced=False), OpenLock(), boot), OpenLock())


def test_nobody_is_given_a_gpu_from_the_first_note_to_the_last(notes: CcModeNotes, tmp_path: Path) -> None:
    assert notes.refusal() is None
    assert not notes.is_changing()
    change = notes.begin("on", {GPU: "nvidia"}, lambda: None)
    assert change.step is ModeStep.UNBINDING
    for reader in (notes, of(tmp_path)):  # the other instance during an upgrade
        assert "is being changed" in (reader.refusal() or "")
        assert reader.is_changing()
    notes.note(change, {GPU: "on"})
    assert notes.modes() == {GPU: "on"}
    notes.end(RefusedMode("on", "why"))
    assert notes.refusal() is None
    assert notes.read() == NotedModes({GPU: "on"}, refused=RefusedMode("on", "why"))
    notes.refuse(None)
    assert of(tmp_path, "later").read() == NotedModes()


def test_nothing_is_begun_while_a_claim_has_a_gpu(notes: CcModeNotes, tmp_path: Path) -> None:
    with pytest.raises(InUseError, match="claim a/b has it"):
        notes.begin("on", {GPU: "nvidia"}, lambda: "claim a/b has it")
    assert list(tmp_path.iterdir()) == []


def test_gpus_that_are_asked_are_given_to_nobody_and_those_that_a_claim_has_are_not_asked(
    notes: CcModeNotes,
) -> None:
    assert notes.begin_asking([OTHER, GPU], lambda address: address == OTHER) == (GPU,)
    assert "are being asked" in (notes.refusal() or "")
    notes.asked({GPU: "off"})
    assert notes.refusal() is None
    assert notes.begin_asking([OTHER], lambda _address: True) == ()
    assert notes.refusal() is None
    notes.asked({OTHER: "on"})
    assert notes.modes() == {GPU: "off", OTHER: "on"}


@pytest.mark.parametrize("broken", ["", "[]", "{", '{"checksum":"","note":{}}', "[" * 100_000])
def test_a_note_that_cannot_be_read_lets_nobody_have_a_gpu(notes: CcModeNotes, tmp_path: Path, broken: str) -> None:
    (tmp_path / FILE).write_text(broken)
    for question in (notes.read, notes.refusal):
        with pytest.raises(PermanentError, match="remove the file"):
            question()
    assert notes.modes() == {}
    assert notes.is_changing()


def test_when_nothing_is_to_be_said_there_is_no_file(notes: CcModeNotes, tmp_path: Path) -> None:
    notes.begin("on", {GPU: "nvidia"}, lambda: None)
    notes.end()
    assert list(tmp_path.iterdir()) == []


ADDRESSES = st.dictionaries(st.sampled_from([GPU, OTHER]), st.sampled_from(["on", "off", ""]))
NOTED = st.builds(
    NotedModes,
    ADDRESSES,
    st.none() | st.builds(ModeChange, st.text(), st.sampled_from(ModeStep), ADDRESSES, ADDRESSES, st.text(), st.text()),
    st.none() | st.builds(RefusedMode, st.sampled_from(["on", "off"]), st.text()),
    st.booleans(),
)


@given(NOTED)
def test_what_is_written_is_read_in_its_boot_and_what_survives_it_in_the_next(
    tmp_path_factory: pytest.TempPathFactory, noted: NotedModes
) -> None:
    folder = tmp_path_factory.mktemp("plugin")
    of(folder)._write(noted)
    assert of(folder).read() == noted
    assert of(folder, "later").read() == noted.after_boot()
