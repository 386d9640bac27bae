"""The mode that Fabric Manager is started in is read from its file, and nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.files.fabric_manager_file import FILE, MOST_BYTES, configured_mode


def file_of(root: Path) -> Path:
    path = root / FILE
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("FABRIC_MODE=1\n", 1),
        ("# FABRIC_MODE=1\nFABRIC_MODE_RESTART=1\n  FABRIC_MODE = 0  \n", 0),
        ("FABRIC_MODE=0\nFABRIC_MODE=2\n", 2),
        ("FABRIC_MODE=\n", None),
        ("FABRIC_MODE=one\n", None),
        ("SHARED_FABRIC_MODE=1\n", None),
        ("FABRIC_MODE=" + "1" * 4000 + "\n", None),
        ("#" * MOST_BYTES + "\nFABRIC_MODE=1\n", None),
        ("\xff\x00", None),
        ("", None),
    ],
)
def test_the_last_line_that_names_a_mode_counts(tmp_path: Path, text: str, mode: int | None) -> None:
    file_of(tmp_path).write_bytes(text.encode("latin-1"))
    assert configured_mode(str(tmp_path)) == mode


def test_a_file_that_is_not_there_or_no_file_names_no_mode(tmp_path: Path) -> None:
    assert configured_mode(str(tmp_path)) is None
    file_of(tmp_path).mkdir()
    assert configured_mode(str(tmp_path)) is None
