from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dracaena.cli.completion import SHELLS
from dracaena.cli.main import COMMANDS, main

# What bash does when Tab is pressed behind the words: it calls the function that `complete` has noted.
TAB = """
source "$1"; shift
read -r _ _ _ _ function _ < <(complete -p dracaena)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "$function"; printf '%s\\n' "${COMPREPLY[@]}"
"""


TYPED = [
    ("dracaena expl", ["explain"]),
    ("dracaena explain --kubec", ["--kubeconfig"]),
    ("dracaena topology mach", ["machines"]),
    ("dracaena completion f", ["fish"]),
]
"""What is typed, and what Tab makes of the last word."""

LONGEST_S = 60.0
"""Until a shell answers; it takes a fraction of a second."""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    return tmp_path / "script"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["expl"], {"explain"}),
        (["explain", "--kubec"], {"--kubeconfig"}),
        (["topology", "mach"], {"machines"}),
        (["completion", ""], set(SHELLS)),
        ([""], set(COMMANDS)),
        (["no-such"], {""}),
    ],
)
def test_bash_offers_what_fits_what_was_typed(script: Path, words: list[str], offered: set[str]) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", TAB, "bash", script, "dracaena", *words], capture_output=True, text=True, check=False
    )
    assert (set(done.stdout.split("\n")[:-1]), done.stderr) == (offered, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here (apt install fish)")
@pytest.mark.parametrize(("typed", "offered"), TYPED)
def test_fish_offers_what_fits_what_was_typed(
    typed: str, offered: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "fish"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    tab = 'source $argv[1]; complete -C "$argv[2]"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", tab, tmp_path / "script", typed], capture_output=True, text=True, check=False
    )
    assert ([line.partition("\t")[0] for line in done.stdout.splitlines()], done.stderr) == (offered, "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here (apt install zsh)")
@pytest.mark.parametrize(("typed", "offered"), TYPED)
def test_zsh_completes_what_was_typed(
    typed: str, offered: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its completion works in its line editor alone, so Tab is pressed in a terminal."""
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "_dracaena").write_text(capsys.readouterr().out)
    terminal, shell_side = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "", "HOME": str(tmp_path)}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=shell_side, stdout=shell_side, stderr=shell_side, env=environment, cwd=tmp_path
    ) as shell:
        os.close(shell_side)
        try:
            os.write(terminal, b"fpath=($PWD $fpath); autoload -U compinit; compinit -u -D; print rea''dy\n")
            read_until(terminal, "ready")
            os.write(terminal, f"{typed}\t".encode())
            read_until(terminal, offered[0])
        finally:
            shell.kill()
            os.close(terminal)


def read_until(terminal: int, expected: str) -> None:
    """Read what a terminal shows until it has shown the expected."""
    shown, until_s = "", time.monotonic() + LONGEST_S
    while expected not in shown:
        ready, _, _ = select.select([terminal], [], [], max(until_s - time.monotonic(), 0.0))
        assert ready, f"{expected!r} did not come; the terminal shows {shown!r}"
        shown += os.read(terminal, 1 << 12).decode()


@pytest.mark.parametrize(("shell", "first"), [("zsh", "#compdef dracaena"), ("fish", "# ")])
def test_other_shells_get_each_command(shell: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text.startswith(first)
    assert [name for name in COMMANDS if name not in text] == []


def test_the_extra_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "shtab is not installed: it comes with the extra `completion` of this package" in capsys.readouterr().err
