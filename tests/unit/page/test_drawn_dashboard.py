"""The drawing of a dashboard: a panel without data and a form that it does not know are errors, never left out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest

from page.drawn_dashboard import Answer, CannotDrawError, Source, draw
from support.dashboards import NAMES, dashboard

BEGIN_S, END_S = 1_000_000.0, 1_003_600.0
ONE = Answer({"pod": "a", "node": "n", "namespace": "s"}, ((BEGIN_S, 1.0), (BEGIN_S + 60, 2.0), (BEGIN_S + 120, 3.0)))


def answering(*answers: Answer) -> Source:
    return Source(BEGIN_S, END_S, lambda _query, _instant: answers)


def panel(**changes: Any) -> Any:
    made = {
        "type": "timeseries", "title": "P", "gridPos": {"x": 0, "y": 0, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": "short", "min": 0}},
        "targets": [{"expr": "up", "legendFormat": "{{pod}}"}],
    }  # fmt: skip
    return {"title": "D", "panels": [made | changes]}


@pytest.mark.parametrize("name", NAMES)
def test_every_dashboard_of_the_chart_can_be_drawn(name: str) -> None:
    made = dashboard(name)
    values = {variable["name"]: "x" for variable in made["templating"]["list"]}
    page = draw(made, values, answering(ONE))
    assert page.count("<div class=panel ") == len(made["panels"])
    assert page.count("<div class=stat ") == sum(each["type"] == "stat" for each in made["panels"])
    lines = sum(len(each["targets"]) for each in made["panels"] if each["type"] == "timeseries")
    assert len(re.findall(r'<path [^>]*stroke-width="1.3"', page)) == lines


@pytest.mark.parametrize("answers", [(), (Answer({}, ()),), (Answer({}, ((BEGIN_S, math.nan),)),)])
def test_a_panel_without_data_is_an_error_that_names_it(answers: Sequence[Answer]) -> None:
    with pytest.raises(CannotDrawError, match="P: no data"):
        draw(panel(), {}, answering(*answers))


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "gauge"},
        {"fieldConfig": {"defaults": {"unit": "furlong"}}},
        {"type": "table", "transformations": [{"id": "merge"}]},
        {"targets": [{"expr": 'up{pod="$pod"}', "legendFormat": ""}]},
    ],
)
def test_what_the_drawing_does_not_know_is_an_error(changes: dict[str, Any]) -> None:
    with pytest.raises(CannotDrawError):
        draw(panel(**changes), {}, answering(ONE))


@pytest.mark.parametrize(("value", "colour"), [(0.0, "#d3ecd0"), (1.0, "#fbdcb8"), (7.0, "#f5b5b1")])
def test_a_stat_shows_its_value_on_the_colour_of_its_threshold(value: float, colour: str) -> None:
    steps = [{"value": at, "color": name} for name, at in (("green", None), ("orange", 1), ("red", 5))]
    made = panel(type="stat", fieldConfig={"defaults": {"unit": "short", "thresholds": {"steps": steps}}})
    page = draw(made, {}, answering(Answer({}, ((BEGIN_S, value),))))
    assert f"background:{colour}" in page
    assert f">{value:g}</div>" in page


def test_queries_that_are_joined_share_the_row_of_a_label() -> None:
    targets = [{"expr": name, "legendFormat": "", "refId": ref} for ref, name in (("A", "a"), ("B", "b"))]
    changes = {
        "type": "table",
        "targets": targets,
        "transformations": [{"id": "joinByField", "options": {"byField": "pod"}}],
    }
    page = draw(panel(**changes), {}, answering(Answer({"pod": "x"}, ((BEGIN_S, 3.0),))))
    assert re.findall(r"<t[hd]>([^<]*)", page) == ["Value #A", "Value #B", "pod", "3", "3", "x"]
