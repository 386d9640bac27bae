"""What tests use in place of the command behaves as the command does."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from support import forked_programs
from support.forked_programs import ForkedProgram

UNKNOWN = ("kubelet-plugin", "--node-name=n", "--machine=no-such", "--kubeconfig=/nowhere")


@pytest.mark.parametrize("name", forked_programs.LOADED)
def test_what_is_loaded_before_is_there(name: str) -> None:
    """The standard library says nothing about a module that it does not find."""
    assert importlib.util.find_spec(name) is not None


def test_what_it_prints_is_added_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        with ForkedProgram(("version",), log=log) as program:
            assert program.wait(60) == 0
    first, second = log.read_text().splitlines()
    assert first == second
    assert first.startswith("dracaena ")


def test_exit_code_and_standard_error_are_those_of_the_command() -> None:
    program = ForkedProgram(UNKNOWN)
    _, text = program.communicate()
    assert program.returncode == 2
    (line,) = text.splitlines()
    assert "no-such" in line


def test_a_setting_in_its_environment_reaches_it_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRACAENA_LOG_LEVEL", "of-this-process")
    for environment, expected in ((None, True), ({"PATH": os.environ["PATH"]}, False)):
        _, text = ForkedProgram(UNKNOWN, environment=environment).communicate()
        assert ("of-this-process" in text) is expected


def test_a_signal_ends_it_and_is_its_exit_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never-written")
    program = ForkedProgram(("topology", "import", str(tmp_path / "never-written")))
    assert program.poll() is None
    program.kill()
    assert program.wait(60) == -signal.SIGKILL
    program.kill()
    program.communicate()


def test_a_signal_to_one_that_ends_at_that_moment_is_nothing() -> None:
    for _ in range(20):
        program = ForkedProgram(("version",))
        while program.poll() is None:
            program.terminate()
        program.communicate()
