"""A build that is cut off leaves no process behind, and nothing that a later run would take for whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.kube import wait_for

TESTS = Path(__file__).parents[2]

RUN = """
import sys
from e2e import prerequisites, run
prerequisites.missing = lambda built: ()
sys.argv = ["make e2e", "--build-only"]
sys.exit(run.main())
"""

GO = """#!/bin/sh
sleep 600 &
echo $! $$ > "$PIDS.new"
mv "$PIDS.new" "$PIDS"
wait
"""


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie: who takes in orphans is not ours."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_build_that_is_interrupted_ends_go_and_is_not_taken_for_whole(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO, encoding="ascii")
    go.chmod(0o755)
    pids, cache = tmp_path / "pids", tmp_path / "cache"
    environment = {
        **os.environ,
        "PATH": f"{go.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(TESTS),
        "PIDS": str(pids),
        "DRACAENA_E2E_CACHE": str(cache),
    }
    runner = subprocess.Popen(
        [sys.executable, "-P", "-c", RUN],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - one thread here
    )
    compiler, started = (int(pid) for pid in wait_for(lambda: pids.exists() and pids.read_text().split(), "go runs"))
    try:
        runner.send_signal(number)
        _, said = runner.communicate(timeout=60)
        assert runner.returncode == code
        assert "Traceback" not in said
        wait_for(lambda: not runs(started), "go ends")
        if number != signal.SIGKILL:  # the kernel ends go alone; a compiler ends with its file
            wait_for(lambda: not runs(compiler), "the compiler ends")
            assert said == "e2e: interrupted while building; the next run goes on from what Go has cached\n"
        assert [path.suffix for path in cache.iterdir() if path.is_dir()] == [".unfinished"]
    finally:
        for pid in (compiler, started):
            if runs(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_cache_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "DRACAENA_E2E_CACHE": str(file / "cache")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, f"e2e: [Errno 20] Not a directory: '{file / 'cache'}'\n")
