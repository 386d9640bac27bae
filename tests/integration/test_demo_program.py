"""`dracaena demo` as a user runs it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dracaena.cli.main import main
from dracaena.demo.program import OWN_COMMANDS
from support.kube import wait_for

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-P", "-m", "dracaena.cli.main", "demo", "--plain")


@pytest.mark.search
def test_the_demo_shows_its_load_and_ends_by_itself() -> None:
    """As `make demo`; that it shows its load the test below sees too."""
    done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert_shows_its_load(done.stdout)


def assert_shows_its_load(said: str) -> None:
    assert "\x1b" not in said
    for expected in (
        "notebook",
        "finetune",
        "render",
        "train",
        "pretrain",
        "too-big",
        "typo",
        "ROOT:",
        "cdiVersion",
        SHARED,
    ):
        assert expected in said
    assert CUT.search(said)
    assert "✗" not in said
    for row in readme_rows():
        assert row in words_of(said)
    assert max(len(line) for line in said.splitlines()) <= 100


SHARED = "h100-pcie: GPU0 [2 shares: 40 of 79.6 GiB, 60 % of the cores; share-a, share-b]"

CUT = re.compile(r"^  GPU0  \[(?=.*3g─)(?=.*1g[ \]]).*\]$", re.MULTILINE)
"""The GPU that is cut for two pods. On which memory slices each part lies depends on whose pod is decided on first."""


def words_of(text: str) -> list[list[str]]:
    """The words of each line, up to a list of nodes: its end is where the lines wrap."""
    return [line.partition("(")[0].split() for line in text.splitlines()]


def readme_rows() -> list[list[str]]:
    """The rows of the table that README.md says the demo shows."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    head = next(at for at, line in enumerate(lines) if "LINKS, OR WHY IT WAITS" in line)
    rows = words_of("\n".join(lines[head : lines.index("```", head)]))
    assert len(rows) > 4
    return rows


def heed_hang_ups() -> None:
    """Undo what nohup does to the tests: a demo that is started with SIGHUP ignored goes on ignoring it, on purpose."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextmanager
def kept_demo() -> Iterator[tuple[subprocess.Popen[str], Path, list[int], str]]:
    """A demo that keeps running, the folder of its cluster, the ids of its programs, and what it has said so far."""
    # A session of its own: what ends the demo here must not reach the test by way of a process group.
    demo = subprocess.Popen(
        (*COMMAND, "--keep"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_hang_ups,  # noqa: PLW1509 - it touches nothing that another thread may hold
    )
    try:
        line, said = line_with("export KUBECONFIG=", demo)
        kubeconfig = Path(line.partition("=")[2].strip())
        assert kubeconfig.is_file()
        children = children_of(demo)
        assert len(children) == 6
        yield demo, kubeconfig.parent, children, said
    finally:
        demo.kill()
        demo.communicate()


def children_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def line_with(words: str, demo: subprocess.Popen[str]) -> tuple[str, str]:
    """Read what the demo says up to the line with these words; return that line, and what came before. Fail with all of
    it where the demo ends before."""
    assert demo.stdout is not None
    said = ""
    for line in demo.stdout:
        if words in line:
            return line, said
        said += line
    raise AssertionError(f"the demo ended without {words!r}:\n{said}")


@pytest.mark.usefixtures("logs_as_before")
def test_a_kept_demo_shows_its_load_what_it_says_to_ask_is_answered_and_on_sigterm_it_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with kept_demo() as (demo, folder, children, said):
        assert_shows_its_load(said)
        config = str(folder / "kubeconfig")
        first, *others = map(shlex.split, OWN_COMMANDS)
        command, environment = (*COMMAND[:-2], *first), os.environ | {"KUBECONFIG": config}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "dgx-a100" in done.stdout
        for arguments in others:
            assert main([*arguments, "--kubeconfig", config]) == 0
            answer = capsys.readouterr()
            assert answer.err == ""
            assert "dgx-a100" in answer.out
        assert caught(demo.pid) >= {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
        demo.terminate()
        demo.communicate(timeout=30)
    assert_ended(demo, 143, folder, children)


# Answered by what answers SIGTERM, which the test above sends; it also looks that all of them are caught.
@pytest.mark.search
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGINT, 0),
        (signal.SIGHUP, 129),
        (signal.SIGQUIT, 131),
    ],
)
def test_a_demo_that_is_told_to_end_leaves_nothing_behind(sent: signal.Signals, code: int) -> None:
    with kept_demo() as (demo, folder, children, _):
        demo.send_signal(sent)
        demo.communicate(timeout=30)
    assert_ended(demo, code, folder, children)


def assert_ended(demo: subprocess.Popen[str], code: int, folder: Path, children: list[int]) -> None:
    assert demo.returncode == code
    assert not folder.exists()
    for child in children:
        assert not is_alive(child)


def caught(pid: int) -> set[int]:
    """The signals that a process has a handler for, as proc(5) shows them: bit 0 is signal 1."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16)
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


SMALL_CLUSTER = """
import threading
from dracaena.demo.cluster import DemoCluster, DemoNode
with DemoCluster([DemoNode("dgx-1v", "dgx-1v")]) as cluster:
    print(f"folder={cluster.root}", flush=True)
    threading.Event().wait()
"""
"""What starts the programs of the demo, and ends them, with two of them."""


def test_programs_of_a_cluster_that_is_killed_end_with_it() -> None:
    with subprocess.Popen((sys.executable, "-P", "-c", SMALL_CLUSTER), stdout=subprocess.PIPE, text=True) as cluster:
        folder = Path(line_with("folder=", cluster)[0].partition("=")[2].strip())
        children = children_of(cluster)
        assert len(children) == 2
        assert all(map(is_alive, children))
        cluster.kill()
    try:
        wait_for(lambda: not any(is_alive(child) for child in children), "all programs to end")
    finally:
        shutil.rmtree(folder)  # a process that is killed cannot remove it


@pytest.mark.search
def test_a_demo_that_is_killed_leaves_no_program_running() -> None:
    with kept_demo() as (demo, folder, children, _):
        demo.kill()
        demo.wait()
    try:
        wait_for(lambda: not any(is_alive(child) for child in children), "all programs to end")
    finally:
        shutil.rmtree(folder)  # a process that is killed cannot remove it


@pytest.mark.search
def test_a_program_that_dies_ends_the_demo_and_the_logs_stay_where_it_says() -> None:
    with kept_demo() as (demo, folder, children, _):
        os.kill(children[0], signal.SIGKILL)
        said, _ = demo.communicate(timeout=30)
    try:
        assert demo.returncode == 1
        assert f"controller ended with -9; the end of {folder}/logs/controller.log:" in said
        assert f"the logs stay in {folder}/logs." in said
        assert [path.name for path in folder.iterdir()] == ["logs"]
        assert "everything seen once" in (folder / "logs" / "controller.log").read_text()
    finally:
        shutil.rmtree(folder)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
