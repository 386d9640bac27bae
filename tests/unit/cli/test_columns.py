"""What the commands print is shown by a terminal, never obeyed: names and messages come from files and clusters."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.cli.columns import aligned, print_lines
from dracaena.cli.main import main
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names

MACHINES = Path(__file__).resolve().parents[3] / "kubelet_plugin" / "machines"
RED = "\x1b[31m"


def test_lines_of_a_command_hold_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines([f"a{RED}b", "├─ ä 漢", "c\rd\ne"])
    assert capsys.readouterr().out == "a\\u001b[31mb\n├─ ä 漢\nc\\u000dd\\u000ae\n"


@pytest.mark.parametrize("form", ["tree", "matrix"])
def test_a_recorded_machine_cannot_send_orders_to_the_terminal(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "dgx-1v" in machine_names()
    text = (MACHINES / "dgx-1v.json").read_text().replace("Tesla V100", "Tesla\\u001b[31m V100")
    (tmp_path / "machine.json").write_text(text)
    assert main(["topology", "show", "--machine", str(tmp_path / "machine.json"), "-o", form]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    if form == "tree":
        assert "Tesla\\u001b[31m V100" in out


def test_an_error_cannot_send_orders_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"/nonexistent/{RED}"]) == 2
    assert capsys.readouterr().err.startswith("dracaena: /nonexistent/\\u001b[31m: cannot be read")


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert list(aligned([("A", "BB"), ("ccc", "")])) == ["A    BB", "ccc"]
