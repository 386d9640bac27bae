"""Real processes of the real command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.demo.apiserver import ApiServer
from dracaena.demo.programs import ProgramEndedError, ProgramProcess
from support.kube import kubeconfig_document, wait_for


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    import yaml

    with ApiServer(port=0) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(kubeconfig_document(server.url)))
        yield path


def test_a_program_that_ends_by_itself_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    program = ProgramProcess(
        "plugin of n1", ("kubelet-plugin", "--node-name", "n1", "--machine", "no-such"), tmp_path / "log"
    )
    program.start()
    wait_for(lambda: not program.is_running, "the program to end")
    with pytest.raises(ProgramEndedError, match="plugin of n1 ended with 2") as caught:
        program.check()
    assert "no-such" in str(caught.value)


def test_a_program_that_was_killed_or_stopped_is_not_missed_and_starts_again(tmp_path: Path, kubeconfig: Path) -> None:
    program = ProgramProcess("controller", ("controller", "--kubeconfig", str(kubeconfig)), tmp_path / "log")
    program.check()
    program.start()
    assert program.is_running
    program.kill()
    program.check()
    program.start()
    wait_for(lambda: program.log_tail() != "    (empty)", "the first log line")
    assert program.stop() == 0
    program.check()
    assert program.stop() is None


def test_settings_of_the_callers_environment_do_not_reach_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRACAENA_LOG_LEVEL", "nonsense")
    program = ProgramProcess("version", ("version",), tmp_path / "log")
    program.start()
    wait_for(lambda: not program.is_running, "the program to end")
    with pytest.raises(ProgramEndedError, match="ended with 0"):
        program.check()
