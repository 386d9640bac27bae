from __future__ import annotations

import subprocess
import sys
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
