from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dracaena import __version__
from dracaena.cli.main import main

COMMAND = [sys.executable, "-P", "-m", "dracaena.cli.main"]


def test_without_arguments_it_prints_its_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: dracaena" in capsys.readouterr().out


def test_help_teaches_with_examples_of_commands_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    examples = re.findall(r"^      (?:.*\| )?dracaena (.+)$", text, re.MULTILINE)
    assert len(examples) >= 6
    for name in ("topology", "demo", "controller", "kubelet-plugin"):
        assert any(example.startswith(name) for example in examples)


@pytest.mark.parametrize("command", ["topology", "controller", "kubelet-plugin", "demo", "version"])
def test_each_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"usage: dracaena {command}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nonsense"], ["topology"], ["topology", "import"], ["version", "x"]])
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"dracaena {__version__}\n"


def test_a_missing_setting_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubelet-plugin"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("dracaena: ")
    assert "--node-name" in err
    assert err.count("\n") == 1


def run_to_end(*arguments: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], stderr=subprocess.PIPE, timeout=60, check=False, **how)


def test_a_reader_that_goes_away_is_no_error() -> None:
    """Like `dracaena … | head -0`: the pipe is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed_pipe:
        result = run_to_end("topology", "show", "--machine", "dgx-2", "-o", "resourceslices", stdout=closed_pipe)
    assert (result.returncode, result.stderr) == (141, b"")


def test_a_terminal_without_box_characters_still_shows_the_tree() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = run_to_end("topology", "show", "--machine", "l40s-x4", stdout=subprocess.PIPE, env=environment)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"PIX:2" in result.stdout


def test_an_interrupt_ends_quietly(tmp_path: Path) -> None:
    """The command waits for the text in a named pipe when the interrupt comes."""
    fifo = tmp_path / "topo.txt"
    os.mkfifo(fifo)
    with subprocess.Popen(
        [*COMMAND, "topology", "import", str(fifo)],
        stderr=subprocess.PIPE,
        # A shell's background job has it ignored. Safe beside threads: nothing but a system call.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        with fifo.open("wb"):  # returns once the command has opened its end
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


def test_heavy_libraries_are_not_loaded_by_light_commands() -> None:
    script = (
        "import sys; from dracaena.cli.main import main; main(['version'])\n"
        "heavy = {'kubernetes', 'grpc', 'rich', 'jsonschema', 'prometheus_client', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    result = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


MATRIX = b"\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tPIX\t X \n"


def test_a_full_disk_for_the_output_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run_to_end("topology", "import", "-", stdout=full, input=MATRIX)
    assert (done.returncode, done.stderr) == (1, b"dracaena: the output cannot be written: No space left on device\n")


def test_a_closed_standard_input_is_one_line() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND, "topology", "import", "-"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == b"dracaena: standard input: is closed, expected the output of `nvidia-smi topo -m`\n"


def test_an_endless_input_is_refused_and_not_read_into_memory() -> None:
    done = run_to_end("topology", "import", "/dev/zero", stdout=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stderr == (
        b"dracaena: /dev/zero: holds more than 16 MiB, expected the output of `nvidia-smi topo -m`\n"
    )


def test_a_driver_name_that_the_api_refuses_is_refused_here_too() -> None:
    name = "a" * 64
    done = run_to_end(
        "topology", "import", "-", "-o", "resourceslices", "--driver-name", name, stdout=subprocess.PIPE, input=MATRIX
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"has 64 characters, expected at most 63" in done.stderr
