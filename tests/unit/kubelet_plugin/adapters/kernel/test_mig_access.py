"""Which nodes open a MIG device, from a /proc of the test."""

from __future__ import annotations

from pathlib import Path

from dracaena.kubelet_plugin.adapters.kernel.mig_access import MigAccess

TABLE = """config 1
monitor 2
gpu0/gi1/access 12
gpu0/gi1/ci0/access 13
gpu10/gi1/access 3012
gpu10/gi1/ci0/access 3013
gpu1/gi0/access 300
"""


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="ascii")


def capability(minor: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"


def test_the_table_of_all_gpus_is_read(tmp_path: Path) -> None:
    put(tmp_path, "driver/nvidia-caps/mig-minors", TABLE)
    access = MigAccess(str(tmp_path))
    assert access.minors(0, 1, 0) == (12, 13)
    assert access.minors(10, 1, 0) == (3012, 3013)


def test_what_the_table_does_not_have_is_read_from_the_files_of_the_instance(tmp_path: Path) -> None:
    put(tmp_path, "driver/nvidia-caps/mig-minors", TABLE)
    put(tmp_path, "driver/nvidia/capabilities/gpu1/mig/gi0/ci0/access", capability(301))
    put(tmp_path, "driver/nvidia/capabilities/gpu2/mig/gi3/access", capability(7))
    put(tmp_path, "driver/nvidia/capabilities/gpu2/mig/gi3/ci1/access", capability(8))
    access = MigAccess(str(tmp_path))
    assert access.minors(1, 0, 0) == (300, 301)
    assert access.minors(2, 3, 1) == (7, 8)


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    put(tmp_path, "driver/nvidia-caps/mig-minors", TABLE)
    put(tmp_path, "driver/nvidia/capabilities/gpu5/mig/gi0/access", "DeviceFileMode: 292\n")
    access = MigAccess(str(tmp_path))
    assert access.minors(1, 0, 0) is None
    assert access.minors(0, 1, 1) is None
    assert access.minors(5, 0, 0) is None
    assert MigAccess(str(tmp_path / "gone")).minors(0, 1, 0) is None
