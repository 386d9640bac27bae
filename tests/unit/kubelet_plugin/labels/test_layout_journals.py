from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.labels.layout_journals import LayoutJournals
from dracaena.kubelet_plugin.prepare.journals.layouts import MIG_JOURNAL, GpuRecord, MadeInstance
from support.layout_node import layout
from support.plugin import ThreadLock

JOURNAL = MIG_JOURNAL.file
MADE = GpuRecord(made=(MadeInstance("1g.10gb", 0, 1, 1),))


def journals(folder: Path) -> LayoutJournals[GpuRecord]:
    return LayoutJournals(DocumentFolder(folder, synced=False), ThreadLock(), "boot-1", MIG_JOURNAL)


def test_another_process_reads_what_one_has_written(tmp_path: Path) -> None:
    journals(tmp_path).note("GPU-1", MADE)
    begun = journals(tmp_path).begin("GPU-1", layout(g1=7), lambda: None)
    assert begun == GpuRecord(layout(g1=7), MADE.made)
    other = journals(tmp_path)
    assert other.read().gpus == {"GPU-1": begun}
    assert other.changing() == {"GPU-1"}


def test_nothing_is_begun_on_a_gpu_that_somebody_has(tmp_path: Path) -> None:
    one = journals(tmp_path)
    with pytest.raises(InUseError, match="claim a/b has it"):
        one.begin("GPU-1", layout(g1=7), lambda: "claim a/b has it")
    assert one.changing() == frozenset()
    assert not (tmp_path / JOURNAL).exists()


def test_a_journal_without_content_is_no_file(tmp_path: Path) -> None:
    one = journals(tmp_path)
    one.note("GPU-1", MADE)
    assert (tmp_path / JOURNAL).exists()
    one.note("GPU-1", GpuRecord())
    assert not (tmp_path / JOURNAL).exists()


def test_a_journal_that_cannot_be_read_is_kept_aside_and_what_it_had_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).write_bytes(b"\0torn")
    one = journals(tmp_path)
    assert one.read().gpus == {}
    assert (tmp_path / f"{JOURNAL}.broken").read_bytes() == b"\0torn"
    one.note("GPU-1", MADE)
    assert journals(tmp_path).read().of("GPU-1") == MADE
