from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dracaena.cli.main import main

ROOT = Path(__file__).parents[3]
GOOD = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: train, namespace: ml}
spec:
  devices:
    requests:
      - name: gpus
        exactly:
          deviceClassName: gpu.dracaena.dev
          count: 4
"""
BAD = GOOD.replace("count: 4", "count: -4")
MISTAKE = GOOD + "          tolerations: [{operator: Exists}]\n"
BAD_CEL = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  selectors:
    - cel:
        expression: |-
          device.driver == "gpu.dracaena.dev" &&
            devices.attributes.size() > 0
"""
OTHER = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: ml}\n"

Run = Callable[..., SimpleNamespace]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Write texts as a.yaml, b.yaml, … and validate them; options come as keywords. The result: code, out and err."""
    monkeypatch.chdir(tmp_path)

    def _run(*texts: str, options: tuple[str, ...] = ()) -> SimpleNamespace:
        files = [f"{name}.yaml" for name, _ in zip("abcdef", texts, strict=False)]
        for file, text in zip(files, texts, strict=True):
            Path(file).write_text(text, encoding="utf-8")
        code = main(["validate", *options, *files])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return _run


def test_good_objects_are_one_line_and_exit_code_0(run: Run) -> None:
    result = run(GOOD)
    assert (result.code, result.out, result.err) == (0, "1 object checked in 1 file: 0 errors, 0 warnings\n", "")


def test_an_error_is_shown_with_object_place_and_what_was_expected(run: Run) -> None:
    result = run(GOOD.replace("train", "other"), BAD)
    assert result.code == 1
    assert result.out == (
        "ResourceClaim ml/train (b.yaml:1)\n"
        "  b.yaml:10:11: error: spec.devices.requests[0].exactly.count\n"
        "    negative: -4, expected a whole number above 0\n"
        "2 objects checked in 2 files: 1 error, 0 warnings\n"
    )


def test_a_cel_error_is_shown_with_a_caret(run: Run) -> None:
    result = run(BAD_CEL)
    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[1] == "  a.yaml:7:9: error: spec.selectors[0].cel.expression"
    assert lines[2].startswith("    CEL: ")
    assert lines[2].endswith(" (line 2, column 3)")
    assert lines[3:5] == ["        devices.attributes.size() > 0", "        ^"]


def test_a_warning_alone_is_exit_code_0(run: Run) -> None:
    result = run(MISTAKE)
    assert result.code == 0
    assert "  a.yaml:11:25: warning: spec.devices.requests[0].exactly.tolerations[0]\n" in result.out
    assert result.out.endswith("1 object checked in 1 file: 0 errors, 1 warning\n")


def test_findings_come_in_the_order_of_the_file(run: Run) -> None:
    result = run(BAD.replace("gpu.dracaena.dev", "GPU").replace("name: gpus", "name: A"))
    assert re.findall(r"^  a\.yaml:(\d+):", result.out, re.MULTILINE) == ["7", "9", "10"]


def test_other_kinds_are_counted(run: Run) -> None:
    result = run(GOOD + "---\n" + OTHER)
    assert result.out == "1 object checked in 1 file: 0 errors, 0 warnings (1 object of other kinds not checked)\n"


def test_the_driver_name_is_a_setting(run: Run) -> None:
    parameters = "{apiVersion: gpu.dracaena.dev/v1alpha1, kind: No}"
    config = f"    config: [{{opaque: {{driver: gpu.example.com, parameters: {parameters}}}}}]\n"
    assert run(GOOD + config).code == 0
    result = run(GOOD + config, options=("--driver-name", "gpu.example.com"))
    assert result.code == 1
    assert "spec.devices.config[0].opaque.parameters.kind" in result.out


def test_json_holds_everything_in_a_stable_shape(run: Run) -> None:
    result = run(BAD_CEL, BAD, OTHER, options=("-o", "json"))
    document = json.loads(result.out)
    assert result.code == 1
    assert document["summary"] == {"files": 3, "objects": 2, "notChecked": 1, "errors": 2, "warnings": 0}
    cel, count = document["findings"]
    assert list(cel) == [
        "file",
        "line",
        "column",
        "object",
        "path",
        "severity",
        "message",
        "seen",
        "expected",
        "cel",
    ]
    assert count == {
        "file": "b.yaml",
        "line": 10,
        "column": 11,
        "object": {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "namespace": "ml", "name": "train"},
        "path": "spec.devices.requests[0].exactly.count",
        "severity": "error",
        "message": "negative",
        "seen": "-4",
        "expected": "a whole number above 0",
        "cel": None,
    }
    assert cel["cel"] == {"line": 2, "column": 3, "excerpt": "  devices.attributes.size() > 0\n  ^"}


def test_json_without_findings_is_a_document_too(run: Run) -> None:
    result = run(GOOD, options=("-o", "json"))
    assert result.code == 0
    assert json.loads(result.out) == {
        "findings": [],
        "summary": {"files": 1, "objects": 1, "notChecked": 0, "errors": 0, "warnings": 0},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "dracaena: a.yaml:2:1: not YAML"),
        ("- 1", "dracaena: a.yaml:1:1: a list, expected a Kubernetes object"),
        ("", "dracaena: a.yaml: is empty"),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_cannot_be_read_is_one_line_and_exit_code_2(run: Run, text: str, message: str, form: str) -> None:
    result = run(text, options=("-o", form))
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(message)
    assert result.err.count("\n") == 1


def test_unreadable_input_next_to_findings_is_exit_code_2(run: Run) -> None:
    result = run(BAD, "a: [")
    assert (result.code, result.out) == (2, "")


def test_without_files_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["validate"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "usage: dracaena validate" in err
    assert "error: name at least one FILE to check, or - for standard input" in err


def test_standard_input_is_validated(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert main(["validate", "-"]) == 1
    assert "ResourceClaim ml/train (standard input:1)\n" in capsys.readouterr().out


def test_a_closed_standard_input_is_exit_code_2() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -P -m dracaena.cli.main validate - <&-', sys.executable],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "dracaena: standard input: is closed, expected Kubernetes objects in YAML or JSON\n"


def test_nothing_in_an_object_reaches_the_terminal_as_it_is(run: Run) -> None:
    escape = "\\x1b[2J\\x9b2J\\n"
    result = run(GOOD.replace("name: train", f'name: "{escape}"').replace("count", f'"{escape}"'))
    assert result.code == 1
    assert all(line.isprintable() for line in result.out.splitlines())


def test_the_example_of_the_help_is_true(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["validate", "--help"])
    text = capsys.readouterr().out
    shown = re.search(r"\$ cat claim\.yaml\n(.*?)  \$ dracaena validate claim\.yaml\n(.*?)\n\n", text, re.DOTALL)
    assert shown is not None
    manifest, output = (re.sub(r"^  ", "", part, flags=re.MULTILINE) for part in shown.groups())
    result = run(manifest)
    assert result.out.rstrip("\n") == output.replace("claim.yaml", "a.yaml")


def test_our_own_manifests_have_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(ROOT / "deploy")]) == 0
    assert ": 0 errors, " in capsys.readouterr().out


def test_the_demo_has_the_one_mistake_that_it_means_to_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "-o", "json", str(ROOT / "demo" / "manifests")]) == 1
    (error,) = (each for each in json.loads(capsys.readouterr().out)["findings"] if each["severity"] == "error")
    assert Path(error["file"]).name == "07-typo.yaml"
    assert error["path"].endswith(".opaque.parameters.requirment")


def test_files_may_be_named_as_kubectl_takes_them(run: Run) -> None:
    Path("more.yaml").write_text(BAD, encoding="utf-8")
    found = run(GOOD, options=("-f", "more.yaml", "--filename", "a.yaml"))
    assert found.code == 1
    assert "more.yaml:10:11: error" in found.out
    assert run(options=("-f", "a.yaml")).code == 0
