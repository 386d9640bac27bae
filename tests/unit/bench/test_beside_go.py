"""What is asked of go-gpuallocator and how its answers are read. Go itself is asked by `make bench-go` only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import beside_go, ours
from bench.baselines.answer import Answer, Fault, granted
from bench.beside_go import FOLDER, asked, main, read, states
from bench.dominance import all_states
from bench.machines import BenchMachine, recorded
from support.go_programs import GoError

DGX_1V, HOPPER = recorded("dgx-1v"), recorded("hgx-h100")


def fake_go(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str, status: int = 0) -> None:
    """A `go build` that writes a program of the test."""
    go = folder / "go"
    go.write_text(f'#!/bin/sh\necho "no module" >&2\ncp {folder}/program "$4"\nexit {status}\n')
    (folder / "program").write_text(f"#!/bin/sh\n{program}\n")
    for file in (go, folder / "program"):
        file.chmod(0o755)
    monkeypatch.setenv("GO", str(go))


def test_states_are_in_the_order_of_the_program() -> None:
    assert states(2) == [((0,), 1), ((1,), 1), ((0, 1), 1), ((0, 1), 2)]
    assert sorted(states(8)) == sorted(all_states(8))


def test_answers_are_sets_or_faults() -> None:
    found = read([1, 0, -1, 3], 2)
    assert list(found.values()) == [
        granted((0,)),
        Answer(fault=Fault.REFUSED),
        Answer(fault=Fault.CRASHED),
        granted((0, 1)),
    ]


def test_it_is_told_the_links_that_it_would_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of links to NVSwitches none: they do not end at the other GPU."""
    fake_go(tmp_path, monkeypatch, f"cat > {tmp_path}/told; echo '[{[1] * 1024}, {[2] * 1024}]'")
    found = asked([DGX_1V, HOPPER])
    assert [answers[((0,), 1)] for answers in found] == [granted((0,)), granted((1,))]
    mesh, switched = json.loads((tmp_path / "told").read_text())
    assert mesh["nvlinks"][0][:5] == [0, 1, 1, 2, 2]
    assert mesh["levels"][0][0] == 0
    assert not any(map(any, switched["nvlinks"]))
    assert {level for row in switched["levels"] for level in row} <= set(range(7))


def test_a_set_that_beats_ours_is_told_and_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    l40s = recorded("l40s-x4")
    monkeypatch.setattr(beside_go, "all_machines", lambda: (l40s,))
    lowest = [sum(1 << gpu for gpu in free[:count]) for free, count in states(4)]
    fake_go(tmp_path, monkeypatch, f"cat > /dev/null; echo '[{lowest}]'")
    assert main() == 0
    assert "PASS  states in which go-gpuallocator beats ours: 0 states" in capsys.readouterr().out

    def last(machine: BenchMachine, free: tuple[int, ...], count: int) -> object:
        mask, of = sum(1 << gpu for gpu in free[-count:]), sum(1 << gpu for gpu in free)
        return ours.OurChoice(free[-count:], ours.ENGINE.score(machine.box, of, mask))

    monkeypatch.setattr(ours, "choose", last)
    assert main() == 1
    assert "l40s-x4: free" in capsys.readouterr().out


def test_without_go_or_without_the_module_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GO", str(tmp_path / "none"))
    assert main() == 2
    assert "bench-go: no Go here" in capsys.readouterr().err
    fake_go(tmp_path, monkeypatch, "exit 0", status=1)
    with pytest.raises(GoError, match="ended with 1:\nno module"):
        asked([DGX_1V])


def test_the_module_is_pinned_by_version_and_checksum() -> None:
    required = next(line.split() for line in (FOLDER / "go.mod").read_text().splitlines() if "go-gpuallocator" in line)
    assert required[0] == "require"
    assert f"{required[1]} {required[2]} h1:" in (FOLDER / "go.sum").read_text()
