"""`dracaena demo` as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = (sys.executable, "-P", "-m", "dracaena.cli.main", "demo", "--plain")


def test_the_demo_shows_its_load_and_ends_by_itself() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    for expected in ("notebook", "finetune", "render", "train", "pretrain", "too-big", "typo", "ROOT:", "cdiVersion"):
        assert expected in done.stdout
    assert "✗" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_demo_that_is_told_to_end_leaves_nothing_behind(sent: signal.Signals, code: int) -> None:
    demo = subprocess.Popen((*COMMAND, "--keep"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert demo.stdout is not None
        kubeconfig = Path(next(line for line in demo.stdout if "export KUBECONFIG=" in line).partition("=")[2].strip())
        assert kubeconfig.is_file()
        children = [int(pid) for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]
        assert children
        demo.send_signal(sent)
        demo.communicate(timeout=30)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == code
    assert not kubeconfig.parent.exists()
    for child in children:
        assert not is_alive(child)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
