"""A thread in state D is told from all others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dracaena.host.adapters.kernel.thread_state import is_uninterruptible
from support.kube import wait_for


def test_a_thread_of_this_process_that_waits_can_be_interrupted() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    native_id = thread.native_id
    assert native_id is not None
    # While it begins and ends, it may wait for a page of memory, and that is not interruptible.
    wait_for(lambda: not is_uninterruptible(native_id), "it waits for the event")
    end.set()
    thread.join()
    wait_for(lambda: not Path(f"/proc/self/task/{native_id}").exists(), "the kernel's thread is gone")
    assert not is_uninterruptible(native_id)


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
