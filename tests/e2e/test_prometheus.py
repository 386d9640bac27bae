"""The chart's alerts and dashboards as Prometheus reads them, by its own promtool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from e2e.standalone import binaries_folder
from support.dashboards import NAMES, dashboard, queries

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "helm" / "dracaena" / "files" / "alerts.yaml"
CASES = ROOT / "tests" / "fixtures" / "alert-cases.yaml"


def promtool(*arguments: str) -> str:
    done = subprocess.run([binaries_folder() / "promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("arguments", [("check", "rules", str(RULES)), ("test", "rules", str(CASES))])
def test_promtool_takes_the_rules_and_every_case_comes_out_as_it_says(arguments: tuple[str, ...]) -> None:
    assert "SUCCESS" in promtool(*arguments)


def test_a_case_that_comes_out_otherwise_is_found(tmp_path: Path) -> None:
    """One with an alert that never fires. Only its own cases are tried: those of days take promtool half a minute."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    (lost,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == "DracaenaGpuLost"]
    lost["expr"] = f"({lost['expr']}) > 1e12"
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    cases["rule_files"] = ["alerts.yaml"]
    cases["tests"] = [case for case in cases["tests"] if case["name"].startswith("DracaenaGpuLost ")]
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases), encoding="utf-8")
    with pytest.raises(AssertionError, match="DracaenaGpuLost"):
        promtool("test", "rules", str(tmp_path / "cases.yaml"))


def test_prometheus_parses_every_query_of_the_dashboards(tmp_path: Path) -> None:
    asked = [re.sub(r"\$\w+", "x", query) for name in NAMES for query in queries(dashboard(name))]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(asked)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}), encoding="utf-8")
    assert f"{len(asked)} rules found" in promtool("check", "rules", str(path))
