from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dracaena import __version__
from dracaena.cli import main as main_module
from dracaena.cli.main import COMMANDS, build_parser, main
from dracaena.demo.apiserver.version import RELEASES
from support.kube import kubeconfig_document
from support.scripted_server import ScriptedServer

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


@pytest.mark.parametrize(
    "command", ["explain", "status", "topology", "simulate", "validate", "controller", "kubelet-plugin"]
)
def test_the_help_of_a_command_has_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    examples = re.findall(
        r"^ +(?:.*\| )?(?:\$ )?dracaena ([^|>\n]+?)(?:  .*| [|>].*)?$", capsys.readouterr().out, re.MULTILINE
    )
    assert len(examples) >= 2
    for example in examples:
        assert build_parser().parse_args(shlex.split(example)).run


@pytest.mark.parametrize("arguments", [["--help"], ["--no-such-option"]])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_the_same_whether_or_not_the_parser_knows_others(
    command: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as alone:
        main([command, *arguments])
    printed = capsys.readouterr()
    with pytest.raises(SystemExit) as among_all:
        build_parser().parse_args([command, *arguments])
    assert (printed, alone.value.code) == (capsys.readouterr(), among_all.value.code)


def test_every_module_that_registers_a_command_is_one() -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in Path(main_module.__file__).parent.glob("*.py")}
    found = {name for name, text in texts.items() if "\ndef register(commands: Commands)" in text}
    assert found == {command.replace("-", "_") for command in COMMANDS}


def test_the_demo_can_answer_as_each_version_that_the_embedded_server_knows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["demo", "--kubernetes", "1.30"])
    assert f"choose from {', '.join(map(repr, RELEASES))}" in capsys.readouterr().err


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
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert (ended.value.code, capsys.readouterr().out) == (0, f"dracaena {__version__}\n")


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


def test_an_interrupt_while_the_command_is_still_being_loaded_ends_quietly() -> None:
    script = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'dracaena.cli.version':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from dracaena.cli.main import main\n"
        "sys.exit(main(['version']))"
    )
    result = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")


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
    assert done.stderr == (b"dracaena: /dev/zero: is larger than 16 MiB, expected the output of `nvidia-smi topo -m`\n")


def test_a_driver_name_that_the_api_refuses_is_refused_here_too() -> None:
    name = "a" * 64
    done = run_to_end(
        "topology", "import", "-", "-o", "resourceslices", "--driver-name", name, stdout=subprocess.PIPE, input=MATRIX
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--driver-name: 'aaaaaaaa" in done.stderr
    assert b"is not a DNS name of at most 63 characters" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["topology", "show", "--machine", "dgx-1v"],
        ["validate", "claim.yaml"],
        ["simulate", "-f", "claim.yaml"],
        ["status"],
        ["explain", "pod", "a"],
    ],
)
def test_every_command_refuses_a_driver_name_that_none_can_have(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--driver-name", ""])
    assert ended.value.code == 2
    assert "argument --driver-name: '' is not a DNS name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "advice"),
    [(401, "log in again, or name others with --kubeconfig"), (403, "an admin of the cluster has to")],
)
def test_an_answer_that_somebody_has_to_act_on_says_who(
    code: int, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with ScriptedServer(lambda request: request.answer(code, {"reason": "Refused", "message": "no"})) as server:
        kubeconfig.write_text(yaml.safe_dump(kubeconfig_document(server.url)))
        assert main(["status", "--kubeconfig", str(kubeconfig)]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"dracaena: GET /api/v1/nodes: {code} Refused: no (")
    assert advice in err
    assert err.count("\n") == 1


def test_an_unknown_argument_is_answered_with_the_usage_of_its_own_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["topology", "machines", "--unknown"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("usage: dracaena topology machines")
    assert "dracaena topology machines: error: unrecognized arguments: --unknown" in err


@pytest.mark.parametrize("command", [[], ["status"], ["simulate"], ["validate"], ["explain"], ["topology", "record"]])
def test_the_prose_of_a_help_fits_the_terminal(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Examples, which are indented, and usages stay as they are: a command is copied as a whole."""
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    prose = [line for line in capsys.readouterr().out.splitlines() if not line.startswith((" ", "usage: "))]
    assert len(prose) > 3
    assert [line for line in prose if len(line) > 60] == []


@pytest.mark.parametrize(("columns", "widest"), [("60", 60), ("200", 118), ("10", 40)])
def test_reasons_fit_the_terminal_they_are_read_on(
    columns: str, widest: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal of its own stands in for the user's: 118 columns at most, and not a word a line on a tiny one."""
    assert main(["topology", "show", "--machine", "l40s-x4", "-o", "resourceslices"]) == 0
    machine = capsys.readouterr().out.encode()
    controlling, terminal = os.openpty()
    claim = (
        b"---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\n"
        b"spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: "
        + b"a-long-class-name." * 6
        + b"x}}]}}\n"
    )
    with os.fdopen(terminal, "wb") as screen, os.fdopen(controlling, "rb", buffering=0) as seen:
        done = run_to_end(
            "simulate", "-f", "-", stdout=screen, input=machine + claim, env=os.environ | {"COLUMNS": columns}
        )
        lines = [line for line in seen.read(1 << 16).decode().splitlines() if line.startswith("    ")]
    assert done.returncode == 0
    words = [line for line in lines if len(line.split()) > 1]
    assert words
    assert max(map(len, words)) <= widest


@pytest.mark.parametrize(("word", "meant"), [("statsu", ": did you mean status?"), ("exlpain", "explain?"), ("x", ")")])
def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(meant)
