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
prerequisites.missing = lambda built: ("runc: only tests need it",)
prerequisites.missing_to_build = lambda built: ()
sys.argv = ["make e2e", "--build-only"]
sys.exit(run.main())
"""

INTERRUPTED_AT_ONCE = """
import os, signal, subprocess, time
from pathlib import Path
from e2e import binaries

class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        while not Path(os.environ["PIDS"]).exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

binaries.subprocess = type("subprocess", (), {**vars(subprocess), "Popen": Popen})
"""
"""The interrupt comes while the process is started: go runs, and whoever started it does not know it yet."""

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


def start(script: str, tmp_path: Path) -> subprocess.Popen[str]:
    """Start a build with a go that runs until it is ended, and notes its pids."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO, encoding="ascii")
    go.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{go.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(TESTS),
        "PIDS": str(tmp_path / "pids"),
        "DRACAENA_E2E_CACHE": str(tmp_path / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-c", script],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell may have it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - one thread here
    )


def noted_pids(tmp_path: Path) -> tuple[int, int]:
    """Return the pids of the compiler and of go, once they run."""
    pids = tmp_path / "pids"
    compiler, go = (int(pid) for pid in wait_for(lambda: pids.exists() and pids.read_text().split(), "go runs"))
    return compiler, go


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_a_build_that_is_interrupted_ends_go_and_is_not_taken_for_whole(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    runner = start(RUN, tmp_path)
    compiler, go = noted_pids(tmp_path)
    try:
        runner.send_signal(number)
        _, said = runner.communicate(timeout=60)
        assert runner.returncode == code
        assert "Traceback" not in said
        wait_for(lambda: not runs(go), "go ends")
        if number != signal.SIGKILL:  # the kernel ends go alone; a compiler ends with its file
            wait_for(lambda: not runs(compiler), "the compiler ends")
            assert said == "e2e: interrupted while building; the next run goes on from what Go has cached\n"
        assert [path.suffix for path in (tmp_path / "cache").iterdir() if path.is_dir()] == [".unfinished"]
    finally:
        end(compiler, go)


def test_an_interrupt_while_go_is_started_leaves_nothing_behind(tmp_path: Path) -> None:
    runner = start(INTERRUPTED_AT_ONCE + RUN, tmp_path)
    compiler, go = noted_pids(tmp_path)
    try:
        _, said = runner.communicate(timeout=60)
        assert (runner.returncode, "Traceback" in said) == (130, False)
        wait_for(lambda: not runs(go), "go ends")
        wait_for(lambda: not runs(compiler), "the compiler ends")
    finally:
        end(compiler, go)


def end(*pids: int) -> None:
    for pid in pids:
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


BUILDING_GO = """#!/bin/sh
pwd >> "$PIDS"
while [ "$1" != -o ]; do shift; done
folder=$2; shift 2
for package in "$@"; do
    name=$(basename "$package"); [ "$name" = . ] && name=$(basename "$PWD")
    echo "$PWD" > "$folder/$name"
done
"""
"""Writes for each program where it was built, and notes each call."""


def test_without_go_nothing_is_built_and_no_test_is_called_skipped(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "DRACAENA_E2E_CACHE": str(tmp_path), "PATH": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "e2e.run", "--build-only"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "e2e: missing: go: not on PATH (Go 1.26 or newer" in done.stdout
    assert "skipped" not in done.stdout


def built(version: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir(exist_ok=True)
    go.write_text(BUILDING_GO, encoding="ascii")
    go.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{go.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(TESTS),
        "PIDS": str(tmp_path / "calls"),
        "DRACAENA_E2E_CACHE": str(tmp_path / "cache"),
        "KUBERNETES": version,
    }
    without_image = "from e2e.install import image; image.missing = lambda _: ('an image',)\n" + RUN
    command = [sys.executable, "-P", "-c", without_image]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_second_version_of_kubernetes_is_built_beside_the_first_and_nothing_else_again(tmp_path: Path) -> None:
    for version in ("1.37", "1.36", "1.37"):
        assert built(version, tmp_path).returncode == 0
    calls = [Path(line).name for line in (tmp_path / "calls").read_text().splitlines()]
    assert calls == ["probe", "etcd", "helm", "containerd", "prometheus", "kubernetes-1.37", "kubernetes-1.36"]
    for version in ("1.37", "1.36"):
        (programs,) = (tmp_path / "cache").glob(f"programs-kubernetes-v{version}.*")
        assert (programs / "kubelet").read_text().strip().endswith(f"/kubernetes-{version}")
        assert (programs / "helm").exists()


def test_a_version_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    done = built("1.30", tmp_path)
    assert (done.returncode, done.stderr) == (2, "e2e: KUBERNETES is '1.30', expected 1.37 or 1.36\n")
