from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from dracaena.demo.cluster import ClusterError, short_folder


def use_folder(kept_after_error: str, end: BaseException | None = None) -> Path:
    """Fill a folder and end its block; return where it was."""
    with suppress(ClusterError, KeyboardInterrupt), short_folder(kept_after_error=kept_after_error) as folder:
        for name in ("logs", "n1"):
            (folder / name).mkdir()
            (folder / name / "file").write_text(name)
        (folder / "kubeconfig").write_text("x")
        if end is not None:
            raise end
    return folder


@pytest.mark.parametrize(("kept", "end"), [("logs", None), ("logs", KeyboardInterrupt()), ("", ClusterError("a bug"))])
def test_the_folder_goes_with_the_block(kept: str, end: BaseException | None) -> None:
    assert not use_folder(kept, end).exists()


def test_after_an_error_only_what_is_named_stays() -> None:
    folder = use_folder("logs", ClusterError("a bug"))
    try:
        assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) == ["logs", "logs/file"]
    finally:
        shutil.rmtree(folder)
