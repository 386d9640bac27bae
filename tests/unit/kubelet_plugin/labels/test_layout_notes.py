from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import OurVgpu, VgpuLayout
from dracaena.kubelet_plugin.labels.follower import InUseError
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import NOTHING_KNOWN, VgpuRecord
from support.layout_node import OpenLock

MADE = VgpuRecord(made=(OurVgpu("0000:18:00.4", "A100-10C", "471"),))
GPU, OTHER = "0000:18:00.0", "0000:3b:00.0"
LAYOUT = VgpuLayout("small", {"A100-10C": 4})
FILE = f"vgpu-layouts.{GPU}.json"

NAMES = st.text("abc-0:.", min_size=1, max_size=8)
GPUS = st.text("abc-0:", min_size=1, max_size=8)
RECORDS = st.builds(
    GpuRecord,
    st.none() | st.builds(GpuLayout, NAMES, st.booleans(), st.dictionaries(NAMES, st.integers(1, 7), max_size=3)),
)
VGPUS = st.lists(st.builds(OurVgpu, NAMES, NAMES, NAMES)).map(tuple)
VGPU_RECORDS = st.builds(
    VgpuRecord,
    st.none() | st.builds(VgpuLayout, NAMES, st.dictionaries(NAMES, st.integers(1, 9), max_size=3)),
    VGPUS,
    st.none() | VGPUS,
)


def ledger(folder: Path, boot: str = "boot-1") -> Ledger:
    return Ledger(DocumentFolder(folder, synced=False), OpenLock(), boot)


def mig_notes(folder: Path, boot: str = "boot-1") -> LayoutNotes[GpuRecord]:
    return LayoutNotes(ledger(folder, boot), OpenLock(), "mig-layouts", GpuRecord())


def notes(folder: Path, boot: str = "boot-1") -> LayoutNotes[VgpuRecord]:
    return LayoutNotes(ledger(folder, boot), OpenLock(), "vgpu-layouts", NOTHING_KNOWN)


def test_another_process_reads_what_one_has_written(tmp_path: Path) -> None:
    notes(tmp_path).note(GPU, MADE)
    begun = notes(tmp_path).begin(GPU, LAYOUT, lambda: None)
    assert begun == VgpuRecord(LAYOUT, MADE.made, MADE.made)
    other = notes(tmp_path)
    assert other.read() == {GPU: begun}
    assert other.changing() == {GPU}


@given(gpus=st.dictionaries(GPUS, RECORDS, max_size=4), others=st.dictionaries(GPUS, VGPU_RECORDS, max_size=4))
def test_what_is_written_is_read_again_in_the_same_boot_and_says_nothing_in_another(
    tmp_path_factory: pytest.TempPathFactory, gpus: Mapping[str, GpuRecord], others: Mapping[str, VgpuRecord]
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    for gpu, record in gpus.items():
        mig_notes(folder).note(gpu, record)
    for gpu, vgpus in others.items():
        notes(folder).note(gpu, vgpus)
    assert mig_notes(folder).read() == {gpu: record for gpu, record in gpus.items() if record != GpuRecord()}
    assert notes(folder).read() == {gpu: record for gpu, record in others.items() if record != NOTHING_KNOWN}
    assert (mig_notes(folder, "boot-2").read(), notes(folder, "boot-2").read()) == ({}, {})


def test_nothing_is_begun_on_a_gpu_that_somebody_has(tmp_path: Path) -> None:
    one = notes(tmp_path)
    with pytest.raises(InUseError, match="claim a/b has it"):
        one.begin(GPU, LAYOUT, lambda: "claim a/b has it")
    assert one.changing() == frozenset()
    assert not (tmp_path / FILE).exists()


def test_a_gpu_of_which_nothing_is_known_has_no_file(tmp_path: Path) -> None:
    one = notes(tmp_path)
    one.note(GPU, MADE)
    assert (tmp_path / FILE).exists()
    one.note(GPU, NOTHING_KNOWN)
    assert not (tmp_path / FILE).exists()
    assert one.of(OTHER) == NOTHING_KNOWN


def test_a_note_that_cannot_be_read_is_kept_aside_and_what_it_had_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"\0torn")
    one = notes(tmp_path)
    one.note(OTHER, MADE)
    assert one.read() == {OTHER: MADE}
    assert (tmp_path / f"{FILE}.broken").read_bytes() == b"\0torn"
    one.note(GPU, MADE)
    assert notes(tmp_path).of(GPU) == MADE


def test_a_change_that_is_over_ends_no_other(tmp_path: Path) -> None:
    one = notes(tmp_path)
    begun = one.begin(GPU, LAYOUT, lambda: None)
    one.rest(GPU, replace(LAYOUT, counts={}))
    assert one.of(GPU) == begun
    one.rest(GPU, LAYOUT)
    assert one.of(GPU) == NOTHING_KNOWN
