"""The Grafana dashboards of the chart: what they ask for exists, and Grafana can take all of them into one instance."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from support.dashboards import FOLDER, NAMES, dashboard, queries
from support.served_metrics import faults_of

BOARDS = {dashboard(name)["uid"]: dashboard(name) for name in NAMES}


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("boards", FOLDER.parents[2] / "boards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_generator_writes() -> None:
    there = {path: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert there == generator().generated(), "`make chart` writes them"


def test_there_is_one_for_the_fleet_one_for_teams_one_for_nodes_and_one_for_jobs() -> None:
    assert NAMES == ["fleet", "job", "node", "team"]


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_has_a_description_that_says_more_than_its_title(name: str) -> None:
    panels = dashboard(name)["panels"]
    assert len(panels) > 10
    assert [each["title"] for each in panels if len(each["description"]) <= len(each["title"])] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_stat_has_thresholds_that_rise_from_the_lowest_value_on(name: str) -> None:
    stats = [panel for panel in dashboard(name)["panels"] if panel["type"] == "stat"]
    assert len(stats) >= 6
    for panel in stats:
        first, *others = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        assert first is None, panel["title"]
        assert others == sorted(others), panel["title"]


def links_of(made: Any) -> Iterator[str]:
    """Yield where a board leads: from its head, and from the cells of its tables."""
    yield from (link["url"] for link in made["links"])
    for panel in made["panels"]:
        for override in panel["fieldConfig"]["overrides"]:
            for found in override["properties"]:
                if found["id"] == "links":
                    yield from (link["url"] for link in found["value"])


def faults_of_link(url: str) -> Iterator[str]:
    """Yield what a link names that there is not: a board, or a variable of it."""
    path, _, query = url.partition("?")
    board = BOARDS.get(path.removeprefix("/d/"))
    if board is None:
        yield f"no board {path}"
        return
    known = {variable["name"] for variable in board["templating"]["list"]}
    yield from (f"{path} has no variable {name}" for name in re.findall(r"var-(\w+)=", query) if name not in known)


@pytest.mark.parametrize("name", NAMES)
def test_a_board_leads_to_all_others_and_links_to_boards_and_variables_that_there_are(name: str) -> None:
    made = dashboard(name)
    assert [(url, fault) for url in links_of(made) for fault in faults_of_link(url)] == []
    assert {link["url"] for link in made["links"]} == {f"/d/{uid}" for uid in BOARDS if uid != made["uid"]}
    assert all(link["keepTime"] and link["includeVars"] for link in made["links"])


def test_links_to_what_there_is_not_are_found() -> None:
    assert list(faults_of_link("/d/dracaena-cluster?var-node=a")) == ["no board /d/dracaena-cluster"]
    assert list(faults_of_link("/d/dracaena-node?var-pod=a")) == ["/d/dracaena-node has no variable pod"]


@pytest.mark.parametrize("name", NAMES)
def test_a_cell_leads_on_with_columns_that_its_table_has(name: str) -> None:
    for panel in (each for each in dashboard(name)["panels"] if each["type"] == "table"):
        (organized,) = (each["options"] for each in panel["transformations"] if each["id"] == "organize")
        shown = set(organized["indexByName"]) - set(organized["renameByName"])
        named = {override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]}
        assert named, panel["title"]
        assert named | set(re.findall(r"__data\.fields\.(\w+)", json.dumps(panel))) <= shown, panel["title"]
        for column in named:
            for target in panel["targets"]:
                assert list(faults_of(f"count by ({column}) ({target['expr']})")) == []


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
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(made["panels"]) + json.dumps(made["templating"])))
    assert {each for each in used if not each.startswith("__")} == known


@pytest.mark.parametrize("name", NAMES)
def test_no_data_source_is_written_down_but_the_one_that_the_viewer_chooses(name: str) -> None:
    made = dashboard(name)
    first = made["templating"]["list"][0]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
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
