"""The journal's file: what claims are told while it names a change, and what is left when it is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.api.errors import PermanentError
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.labels.cc_mode_journals import JOURNAL, CcModeJournals
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.prepare.journals.cc_modes import CcModeJournal, ModeStep, RefusedMode
from support.layout_node import OpenLock

GPU, OTHER = "0000:18:00.0", "0000:3b:00.0"


@pytest.fixture
def journals(tmp_path: Path) -> CcModeJournals:
    return of(tmp_path)


def of(folder: Path, boot: str = "boot") -> CcModeJournals:
    return CcModeJournals(DocumentFolder(folder, synced=False), OpenLock(), boot)


def test_nobody_is_given_a_gpu_from_the_first_note_to_the_last(journals: CcModeJournals, tmp_path: Path) -> None:
    assert journals.refusal() is None
    assert not journals.is_changing()
    change = journals.begin("on", {GPU: "nvidia"}, lambda: None)
    assert change.step is ModeStep.UNBINDING
    for reader in (journals, of(tmp_path)):  # the other instance during an upgrade
        assert "is being changed" in (reader.refusal() or "")
        assert reader.is_changing()
    journals.note(change, {GPU: "on"})
    assert journals.modes() == {GPU: "on"}
    journals.end(RefusedMode("on", "why"))
    assert journals.refusal() is None
    assert journals.read() == CcModeJournal("boot", {GPU: "on"}, refused=RefusedMode("on", "why"))
    journals.refuse(None)
    assert of(tmp_path, "later").read() == CcModeJournal("later")


def test_nothing_is_begun_while_a_claim_has_a_gpu(journals: CcModeJournals, tmp_path: Path) -> None:
    with pytest.raises(InUseError, match="claim a/b has it"):
        journals.begin("on", {GPU: "nvidia"}, lambda: "claim a/b has it")
    assert list(tmp_path.iterdir()) == []


def test_gpus_that_are_asked_are_given_to_nobody_and_those_that_a_claim_has_are_not_asked(
    journals: CcModeJournals,
) -> None:
    assert journals.begin_asking([OTHER, GPU], lambda address: address == OTHER) == (GPU,)
    assert "are being asked" in (journals.refusal() or "")
    journals.asked({GPU: "off"})
    assert journals.refusal() is None
    assert journals.begin_asking([OTHER], lambda _address: True) == ()
    assert journals.refusal() is None
    journals.asked({OTHER: "on"})
    assert journals.modes() == {GPU: "off", OTHER: "on"}


def test_a_journal_that_cannot_be_read_lets_nobody_have_a_gpu(journals: CcModeJournals, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_text("{")
    for question in (journals.read, journals.refusal):
        with pytest.raises(PermanentError, match="remove the file"):
            question()
    assert journals.modes() == {}
    assert journals.is_changing()


def test_when_nothing_is_to_be_said_there_is_no_file(journals: CcModeJournals, tmp_path: Path) -> None:
    journals.begin("on", {GPU: "nvidia"}, lambda: None)
    journals.end()
    assert list(tmp_path.iterdir()) == []
