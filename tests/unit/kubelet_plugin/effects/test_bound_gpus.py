from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.effects.bound_gpus import BoundGpus
from dracaena.kubelet_plugin.prepare.journals.bound_gpu import HostFunction
from support.plugin import ThreadLock

GPU, AUDIO, OTHER = "0000:18:00.0", "0000:18:00.1", "0000:3b:00.0"
ON_HOST = (HostFunction(GPU, "nvidia"), HostFunction(AUDIO, "", "none"))


def bound(folder: Path, boot: str = "boot-1") -> BoundGpus:
    return BoundGpus(DocumentFolder(folder, synced=False), ThreadLock(), boot)


def test_what_is_noted_outlives_the_process_until_it_is_forgotten(tmp_path: Path) -> None:
    bound(tmp_path).note(GPU, ON_HOST)
    bound(tmp_path).note(OTHER, [HostFunction(OTHER, "")])
    assert bound(tmp_path).addresses() == (GPU, OTHER)
    assert bound(tmp_path).functions(GPU) == ON_HOST
    bound(tmp_path).forget(GPU)
    bound(tmp_path).forget(GPU)
    assert (bound(tmp_path).addresses(), bound(tmp_path).functions(GPU)) == ((OTHER,), ())


def test_gpus_that_are_not_given_back_yet_are_named(tmp_path: Path) -> None:
    bound(tmp_path).note(GPU, ON_HOST)
    assert bound(tmp_path, "boot-2").unclaimed() is None
    bound(tmp_path).note(OTHER, [HostFunction(OTHER, "")])
    assert (bound(tmp_path).unclaimed() or "").startswith(f"VFIO has {GPU}, {OTHER} for a claim that has ended")
    bound(tmp_path).note(GPU, ON_HOST[1:])
    bound(tmp_path).forget(OTHER)
    assert bound(tmp_path).unclaimed() is None, "only a sound card is left, and the GPU is back"


def test_a_record_of_an_earlier_boot_says_nothing(tmp_path: Path) -> None:
    bound(tmp_path).note(GPU, ON_HOST)
    assert bound(tmp_path, "boot-2").functions(GPU) == ()
    assert bound(tmp_path, "boot-2").problem(GPU) is None
    bound(tmp_path, "boot-2").note(GPU, ON_HOST[:1])
    assert bound(tmp_path, "boot-2").functions(GPU) == ON_HOST[:1]


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"version": 2, "boot_id": "boot-1", "functions": "x"}'])
def test_a_broken_record_is_named_and_other_files_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "vfio-0000-18-00-0.json").write_bytes(data)
    (tmp_path / "told-mps-faults.json").write_bytes(b"{}")
    assert bound(tmp_path).addresses() == (GPU,)
    assert bound(tmp_path).functions(GPU) == ()
    assert (bound(tmp_path).problem(GPU) or "").startswith("its record vfio-0000-18-00-0.json is broken (")
    assert bound(tmp_path).problem(OTHER) is None
