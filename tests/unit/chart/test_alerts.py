"""The alerts of the chart: what they ask for exists, each has a section of a runbook and cases for promtool."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dracaena.api.mps import MpsFaultKind, MpsPhase
from dracaena.host.facts.troubles import TroubleKind
from support.served_metrics import faults_of, only_sometimes, served

ROOT = Path(__file__).resolve().parents[3]
RULES = ROOT / "deploy" / "helm" / "dracaena" / "files" / "alerts.yaml"
CASES = ROOT / "tests" / "fixtures" / "alert-cases.yaml"
RUNBOOKS = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "runbooks").glob("*.md"))}


DEFAULT_URL: Final = yaml.safe_load((RULES.parents[1] / "values.yaml").read_text(encoding="utf-8"))["monitoring"][
    "alerts"
]["runbookUrl"]
"""What the template replaces by the chart's value. A site has the page DIR/NAME.md as DIR/NAME/."""


def alerts() -> list[Any]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def words(rule: Any) -> str:
    return " ".join(rule["annotations"].values())


def test_each_alert_has_a_name_of_its_own() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) > 20


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_asks_for_series_and_labels_that_our_programs_serve(rule: Any) -> None:
    assert list(faults_of(rule["expr"])) == []


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_has_what_the_operator_takes_and_words_with_labels_that_it_has(rule: Any) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert re.fullmatch(r"([0-9]+[smh])?", rule.get("for", ""))
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    by = [label for found in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for label in found.split(", ")]
    names = re.findall(r"\bdracaena_\w+", rule["expr"])
    left = set(by) if by else set().union(*(served()[name] for name in names))
    assert set(re.findall(r"\$labels\.(\w+)", words(rule))) <= left


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("dracaena_controller_leaders == 0", "no series dracaena_controller_leaders"),
        ('dracaena_plugin_troubles{why="x"} > 0', "dracaena_plugin_troubles has no label why"),
        ("sum by (pool) (dracaena_plugin_troubles)", "no series of it has the label pool"),
        ("rate(dracaena_plugin_claim_duration_seconds[5m])", "no series dracaena_plugin_claim_duration_seconds"),
        ('sum by (pod) (DCGM_FI_DEV_GPU_UTIL{Hostname="a"})', "DCGM_FI_DEV_GPU_UTIL has no label Hostname"),
        ("vector(1)", "asks for no series of ours"),
    ],
)
def test_what_no_program_serves_is_found(expression: str, fault: str) -> None:
    assert list(faults_of(expression)) == [fault]


def test_series_that_the_page_calls_absent_at_first_are_served_by_a_program() -> None:
    """tests/e2e/test_monitoring.py lets these alone be missing in a scrape."""
    assert len(only_sometimes()) > 5
    assert only_sometimes() <= served().keys()


def test_reasons_that_an_alert_leaves_out_are_those_that_need_nobody() -> None:
    (rule,) = (rule for rule in alerts() if rule["alert"] == "DracaenaPodsNeedAPerson")
    left_out = re.findall(r'reason!~"([^"]+)"', rule["expr"])[0].split("|")
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    named = page.partition("\n`reason`: ")[2].partition("All others need a")[0]
    assert left_out == re.findall(r"\*\*([a-z-]+)\*\*", named)


ENUMERATED: Final[Mapping[tuple[str, str], type[Enum]]] = {
    ("dracaena_mps_faults_total", "kind"): MpsFaultKind,
    ("dracaena_mps_shares", "phase"): MpsPhase,
    ("dracaena_plugin_troubles", "reason"): TroubleKind,
}


def made_up_values(text: str) -> Iterator[str]:
    """Yield label values that no program gives, of the labels whose values are enumerated."""
    for name, matchers in re.findall(r"\b(dracaena_\w+)\{([^}]*)\}", text):
        for label, values in re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', matchers):
            kinds = ENUMERATED.get((name, label))
            known = set() if kinds is None else {kind.value for kind in kinds}
            yield from (f"{name}: {label} {each}" for each in values.split("|") if kinds and each not in known)


def test_rules_and_cases_name_label_values_that_our_programs_give() -> None:
    for path in (RULES, CASES):
        assert list(made_up_values(path.read_text(encoding="utf-8"))) == []
    planted = 'x{kind="none"} or dracaena_mps_shares{node="n1", phase=~"Failed|failed"}'
    assert list(made_up_values(planted)) == ["dracaena_mps_shares: phase failed"]


def test_each_alert_names_its_own_section_of_a_runbook() -> None:
    sections = {
        name: f"{DEFAULT_URL}/{path.stem}/#{name.lower()}"
        for path, text in RUNBOOKS.items()
        for name in re.findall(r"^### (Dracaena\w+)$", text, re.MULTILINE)
    }
    assert sections == {rule["alert"]: rule["annotations"]["runbook_url"] for rule in alerts()}


def test_each_section_says_at_least_one_thing_to_do() -> None:
    sections = [part for text in RUNBOOKS.values() for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]]
    assert [section.split()[0] for section in sections if "\n1. " not in section] == []


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    seen = {
        (re.findall(r'alertname="(\w+)"', one["expr"])[0], bool(one["exp_samples"]))
        for case in cases
        for one in case["promql_expr_test"]
    }
    assert seen == {(rule["alert"], fires) for rule in alerts() for fires in (True, False)}
