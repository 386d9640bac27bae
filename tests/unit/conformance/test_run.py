"""`make conformance`: what it refuses, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conformance import run

CASE: dict[str, Any] = {
    "name": "driver",
    "expression": 'device.driver == "d"',
    "driver": "d",
    "attributes": None,
    "capacity": None,
    "allowMultipleAllocations": None,
    "enableConsumableCapacity": False,
    "enableListTypeAttributes": None,
    "envType": "",
    "expectCompileError": "",
    "expectMatchError": "",
    "expectMatch": True,
    "expectCost": 3,
}


def outcome_of(
    folder: Path, cases: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    (folder / "cel.json").write_text(json.dumps(cases))
    monkeypatch.setenv(run.VARIABLE, str(folder))
    code = run.main()
    return code, capsys.readouterr().out


def test_without_a_folder_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(run.VARIABLE, raising=False)
    assert run.main() == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert run.VARIABLE in printed.err


@pytest.mark.parametrize("missing", [True, False])
def test_a_folder_that_is_missing_or_empty_fails(
    missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(run.VARIABLE, str(tmp_path / "nowhere" if missing else tmp_path))
    assert run.main() == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_that_is_no_list_of_cases_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome_of(tmp_path, {"cases": []}, monkeypatch, capsys)[0] == 2
    (tmp_path / "cel.json").write_text("[")
    assert run.main() == 2
    assert "cel.json" in capsys.readouterr().err


def test_cases_that_pass_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome_of(tmp_path, [CASE, CASE], monkeypatch, capsys) == (0, "2 passed, 0 failed\n")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"expectMatch": False}, ["wanted      no match", "answered    match"]),
        ({"expectMatchError": "boom"}, ["wanted      error with 'boom'", "answered    match"]),
        ({"expectCompileError": "boom"}, ["wanted      compile error with 'boom'", "answered    match"]),
        ({"expression": "device.drvr"}, ["wanted      match", "answered    compile error: ERROR: <input>:1:7"]),
        ({"attributes": {"v": {"version": "x"}}}, ["answered    error: attribute v: parse semantic version"]),
        ({"expectCost": 1}, ["cost 3, wanted at most 1"]),
        ({"capacity": 5}, ["raised AttributeError"]),
    ],
)
def test_a_difference_is_shown_and_counted(
    change: dict[str, Any],
    shown: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, printed = outcome_of(tmp_path, [CASE, CASE | change | {"name": "other"}], monkeypatch, capsys)
    assert code == 1
    assert printed.startswith("FAILED cel/other\n")
    assert printed.endswith("1 passed, 1 failed\n")
    for line in shown:
        assert line in printed


def test_a_case_that_differs_on_purpose_is_told_and_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "ON_PURPOSE", {((1, 36), "cel/driver"): "because"})
    code, printed = outcome_of(tmp_path, [CASE | {"expectMatch": False}], monkeypatch, capsys)
    assert (code, printed) == (
        0,
        "differs on purpose: cel/driver: because\n0 passed, 0 failed, 1 different on purpose\n",
    )


def test_a_case_that_does_not_differ_any_more_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "ON_PURPOSE", {((1, 36), "cel/driver"): "because"})
    code, printed = outcome_of(tmp_path, [CASE], monkeypatch, capsys)
    assert code == 1
    assert "does not differ any more" in printed
    assert printed.endswith("0 passed, 1 failed\n")
