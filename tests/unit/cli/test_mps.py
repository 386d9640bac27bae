"""`dracaena mps`: its help teaches, and bad input ends in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.cli.main import EXIT_BAD_INPUT, main


def test_help_says_what_it_does_and_how_to_look_at_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mps", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("one MPS server per GPU", "EXCLUSIVE_PROCESS", "status/*.json", "get_server_list", "--multi-user"):
        assert words in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--root", "relative"], "absolute path"),
        (["--root", "/run/" + "a" * 60], "bytes too long"),
        (["--multi-user", "4"], "true or false"),
    ],
)
def test_bad_settings_end_in_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dracaena.mps.program.hold_end_signals", lambda: None)
    monkeypatch.setattr("dracaena.mps.program.configure_logs", lambda *_: None)
    assert main(["mps", *arguments]) == EXIT_BAD_INPUT
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1


def test_a_root_that_cannot_be_made_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dracaena.mps.program.hold_end_signals", lambda: None)
    monkeypatch.setattr("dracaena.mps.program.configure_logs", lambda *_: None)
    (tmp_path / "f").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert main(["mps", "--root", "/dev/null/x"]) == EXIT_BAD_INPUT
    assert "/dev/null" in capsys.readouterr().err
