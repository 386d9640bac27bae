"""The Grafana dashboards of the chart: what they ask for exists, and Grafana can take all of them into one instance."""

from __future__ import annotations

import json
import re

import pytest

from support.dashboards import NAMES, dashboard, queries
from support.served_metrics import faults_of


def test_there_is_one_for_admins_one_for_teams_and_one_for_nodes() -> None:
    assert NAMES == ["cluster", "nodes", "teams"]


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_asks_for_series_and_labels_that_our_programs_serve(name: str) -> None:
    asked = list(queries(dashboard(name)))
    assert len(asked) > 10
    assert [(query, fault) for query in asked for fault in faults_of(query)] == []


@pytest.mark.parametrize("name", NAMES)
def test_legends_name_labels_that_their_query_leaves(name: str) -> None:
    for panel in dashboard(name)["panels"]:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for label in named:
                assert list(faults_of(f"count by ({label}) ({target['expr']})")) == [], target
            by = re.search(r"\bby \(([^)]*)\)", target["expr"])
            assert by is None or named <= set(by[1].split(", ")), target


@pytest.mark.parametrize("name", NAMES)
def test_every_query_uses_the_variables_and_no_others(name: str) -> None:
    made = dashboard(name)
    known = {variable["name"] for variable in made["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)\}?", json.dumps(made["panels"]) + json.dumps(made["templating"])))
    assert used == known | ({"__all"} if known > {"datasource"} else set())


@pytest.mark.parametrize("name", NAMES)
def test_no_data_source_is_written_down_but_the_one_that_the_viewer_chooses(name: str) -> None:
    made = dashboard(name)
    assert made["templating"]["list"][0] == {
        "name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"
    }  # fmt: skip
    sources = [panel["datasource"] for panel in made["panels"]]
    sources += [variable["datasource"] for variable in made["templating"]["list"][1:]]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_ids_are_unique_and_panels_do_not_overlap() -> None:
    made = [dashboard(name) for name in NAMES]
    assert len({one["uid"] for one in made}) == len({one["title"] for one in made}) == len(made)
    for one in made:
        assert "id" not in one  # a number of one Grafana's database
        numbers = [panel["id"] for panel in one["panels"]]
        assert len(set(numbers)) == len(numbers)
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in one["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24  # columns of Grafana's grid
