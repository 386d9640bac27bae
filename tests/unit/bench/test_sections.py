"""The sections of the bench on a few machines and one day."""

from __future__ import annotations

import pytest

from bench import mixed, ours, quality, queueing
from bench.baselines import BASELINES
from bench.machines import recorded
from bench.report import Section, as_text
from bench.systems import baseline_system, fullest_likes


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def small_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queueing, "NODES_OF_A_KIND", 2)


def cell(section: Section, title: str, line: str, column: str) -> str:
    table = next(table for table in section.tables if table.title.startswith(title))
    row = next(row for row in table.rows if row[: len(line.split("|"))] == tuple(line.split("|")))
    return row[table.header.index(column)]


def test_quality_counts_what_each_baseline_gets_wrong(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    machines = tuple(map(recorded, ("a100-pcie-pairs-cross-numa", "l40s-x4", "gb200-tray")))
    monkeypatch.setattr(quality, "all_machines", lambda: machines)
    section = quality.rows(told.append)
    assert [floor.measured for floor in section.floors] == [0]
    assert cell(section, "Lower bandwidth", "l40s-x4", "first fit") == "11.8"
    assert cell(section, "Lower bandwidth", "l40s-x4", "HAMi") == "0.0"
    assert cell(section, "Lower bandwidth", "l40s-x4", "go static") == "-"
    assert cell(section, "Mean bandwidth", "a100-pcie-pairs-cross-numa", "koordinator") == "0.828"
    assert cell(section, "All machines", "MAPA preserve", "states") == "256"
    assert int(cell(section, "All machines", "topology tree", "over-allocated")) > 0
    assert "Everyone ties in bandwidth, ring and damage on gb200-tray." in section.notes
    assert any(note.endswith("tie with ours in bandwidth on l40s-x4.") for note in section.notes)
    assert {row.against for row in section.rows} == set(BASELINES)
    assert len(told) == len(machines)


def test_a_beaten_state_breaks_the_floor_of_quality(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    def first_fit(machine: object, free: tuple[int, ...], count: int) -> ours.OurChoice:
        assert isinstance(machine, type(bridged))
        mask, of = sum(1 << gpu for gpu in free[:count]), sum(1 << gpu for gpu in free)
        return ours.OurChoice(free[:count], ours.ENGINE.score(machine.box, of, mask))

    bridged = recorded("a100-pcie-pairs-cross-numa")
    monkeypatch.setattr(quality, "all_machines", lambda: (bridged,))
    monkeypatch.setattr(ours, "choose", first_fit)
    section = quality.rows(told.append)
    assert not section.floors[0].holds
    assert "a100-pcie-pairs-cross-numa: free" in as_text(section)


@pytest.mark.usefixtures("small_clusters")
def test_queue_runs_every_system_on_every_cluster(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> None:
    machines = tuple(map(recorded, ("l40s-x4", "gb200-tray")))
    monkeypatch.setattr(queueing, "all_machines", lambda: machines)
    monkeypatch.setattr(queueing, "LOADS", (0.7,))
    monkeypatch.setattr(queueing, "SEEDS", (1,))
    section = queueing.rows(told.append)
    assert [row[0] for row in section.tables[0].rows] == [
        "1 x l40s-x4", "2 x l40s-x4", "2 x gb200-tray", "mixed, 8 nodes"
    ]  # fmt: skip
    assert cell(section, "Mean bandwidth", "2 x gb200-tray", "first fit") == "1.000"
    assert cell(section, "% in one NVLink group", "2 x l40s-x4", "ours") == "-"
    assert [(floor.measured, floor.holds) for floor in section.floors] == [(100, True)]
    assert float(cell(section, "Mean bandwidth", "mixed, 8 nodes", "ours")) > float(
        cell(section, "Mean bandwidth", "mixed, 8 nodes", "go best-effort")
    )


@pytest.mark.search
def test_mixed_runs_every_system_on_every_cluster_and_its_floors_can_break(
    monkeypatch: pytest.MonkeyPatch, told: list[str]
) -> None:
    monkeypatch.setattr(mixed, "LOADS", (0.9,))
    monkeypatch.setattr(mixed, "SEEDS", range(1))
    monkeypatch.setattr(mixed, "JOBS", 600)
    monkeypatch.setattr(mixed, "NODES", 8)
    section = mixed.rows(told.append)
    assert len(section.tables) == len(told) == 5
    assert {len(table.rows) for table in section.tables} == {len(mixed.systems())} == {8}
    assert float(cell(section, mixed.MIXED, "0.9|ours", "GB/s")) > 1.15 * float(
        cell(section, mixed.MIXED, f"0.9|{mixed.FULLEST}", "GB/s")
    )
    assert len(section.floors) == 8
    monkeypatch.setattr(
        mixed, "our_system", lambda policy=None: baseline_system(BASELINES["gpu-manager"], fullest_likes)
    )
    assert [floor.holds for floor in mixed.rows(told.append).floors] == [
        False,
        False,
        True,
        False,
        False,
        False,
        True,
        True,
    ]
