from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.effects.bound_gpus import BoundGpus
from support.plugin import ThreadLock

GPU, OTHER = "0000:18:00.0", "0000:3b:00.0"


def bound(folder: Path, boot: str = "boot-1") -> BoundGpus:
    return BoundGpus(DocumentFolder(folder, synced=False), ThreadLock(), boot)


def test_what_is_noted_outlives_the_process_until_it_is_forgotten(tmp_path: Path) -> None:
    bound(tmp_path).note(GPU, f"{GPU}=nvidia")
    bound(tmp_path).note(OTHER, f"{OTHER}=")
    assert bound(tmp_path).addresses() == (GPU, OTHER)
    assert bound(tmp_path).functions(GPU) == f"{GPU}=nvidia"
    bound(tmp_path).forget(GPU)
    bound(tmp_path).forget(GPU)
    assert (bound(tmp_path).addresses(), bound(tmp_path).functions(GPU)) == ((OTHER,), "")


def test_gpus_that_are_not_given_back_yet_are_named(tmp_path: Path) -> None:
    bound(tmp_path).note(GPU, f"{GPU}=nvidia")
    assert bound(tmp_path, "boot-2").unclaimed() is None
    bound(tmp_path).note(OTHER, f"{OTHER}=")
    assert (bound(tmp_path).unclaimed() or "").startswith(f"VFIO has {GPU}, {OTHER} for a claim that has ended")
    bound(tmp_path).forget(GPU)
    bound(tmp_path).forget(OTHER)
    assert bound(tmp_path).unclaimed() is None


def test_a_record_of_an_earlier_boot_says_nothing(tmp_path: Path) -> None:
    bound(tmp_path).note(GPU, f"{GPU}=nvidia")
    assert bound(tmp_path, "boot-2").functions(GPU) == ""
    bound(tmp_path, "boot-2").note(GPU, f"{GPU}=")
    assert bound(tmp_path, "boot-2").functions(GPU) == f"{GPU}="


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"version": 2, "boot_id": "boot-1", "functions": "x"}'])
def test_a_broken_record_says_nothing_and_other_files_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "vfio-0000-18-00-0.json").write_bytes(data)
    (tmp_path / "told-mps-faults.json").write_bytes(b"{}")
    assert bound(tmp_path).addresses() == (GPU,)
    assert bound(tmp_path).functions(GPU) == ""
