"""A thread in state D is told from all others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.kernel.thread_state import is_uninterruptible


def test_a_thread_of_this_process_that_waits_can_be_interrupted() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id is not None
    assert not is_uninterruptible(thread.native_id)
    end.set()
    thread.join()
    assert not is_uninterruptible(thread.native_id)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 (gpu-driver) D 1 7", True),
        ("7 (gpu-driver) S 1 7", False),
        ("7 (a) D b) R 1 7", False),
        ("7 (a) S b) D 1 7", True),
        ("", False),
        ("7 (x)", False),
    ],
)
def test_the_state_stands_behind_the_name(tmp_path: Path, text: str, expected: bool) -> None:
    file = tmp_path / "self/task/7/stat"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="ascii")
    assert is_uninterruptible(7, str(tmp_path)) is expected
