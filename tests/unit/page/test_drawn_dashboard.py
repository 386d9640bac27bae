"""The drawing of a dashboard: a panel without data and a form that it does not know are errors, never left out."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page.drawn_dashboard import Answer, CannotDrawError, Source, draw, filled_in, legend_of, ticks_of
from support.dashboards import NAMES, dashboard

BEGIN_S, END_S = 1_000_000.0, 1_003_600.0
ONE = Answer({"pod": "a"}, ((BEGIN_S, 1.0), (BEGIN_S + 60, 2.0), (BEGIN_S + 120, 3.0)))


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


def test_a_gap_and_what_is_no_number_break_the_line() -> None:
    times = (0, 60, 120, 600, 660, 720, 780)
    points = tuple((BEGIN_S + s, math.nan if s == 720 else 1.0) for s in times)
    page = draw(panel(), {}, answering(Answer({}, points)))
    assert len(re.findall(r'<path [^>]*stroke-width="1.3"', page)) == 3


def test_names_made_of_markup_are_shown_as_they_are() -> None:
    page = draw(panel(title="<b>"), {}, answering(Answer({"pod": "<script>"}, ONE.points)))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<h2>&lt;b&gt;</h2>" in page


def test_a_legend_that_is_too_long_says_how_many_it_leaves_out() -> None:
    answers = [Answer({"pod": f"a-pod-with-a-long-name-{number}"}, ONE.points) for number in range(40)]
    page = draw(panel(), {}, answering(*answers))
    (left_out,) = re.findall(r"and (\d+) more", page)
    assert int(left_out) == 40 - page.count("a-pod-with-a-long-name")


def test_a_table_shows_its_columns_in_order_and_under_their_names() -> None:
    options = {"excludeByName": {"Time": True, "Value": True}, "indexByName": {"pod": 0}, "renameByName": {"pod": "P"}}
    changed = {"type": "table", "transformations": [{"id": "organize", "options": options}]}
    page = draw(panel(**changed), {}, answering(Answer({"node": "n", "pod": "a"}, ((BEGIN_S, 1.0),))))
    assert re.findall(r"<th>(\w+)", page) == ["P", "node"]
    assert re.findall(r"<td>(\w+)", page) == ["a", "n"]


def test_variables_and_legends_are_filled_in() -> None:
    assert filled_in('up{node=~"$node", pod=~"${pod}"}', {"node": "a|b", "pod": "c"}) == 'up{node=~"a|b", pod=~"c"}'
    assert legend_of("{{node}} GPU {{gpu}} {{profile}}", {"node": "n", "gpu": "1"}) == "n GPU 1"


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_an_axis_holds_all_values_and_has_few_ticks(low: float, span: float) -> None:
    ticks = ticks_of(low, low + span)
    slack = 1e-6 * (ticks[1] - ticks[0]) + 1e-9 * max(1.0, abs(low) + span)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= low + span - slack
    assert 2 <= len(ticks) <= 8
