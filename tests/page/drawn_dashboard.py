"""A dashboard's JSON and what Prometheus answered → an HTML page with a drawing of it. Pure.

It is our own drawing, not Grafana's: panels stand where the dashboard puts them, with its titles, queries, units and
legends. It knows what our dashboards use, and refuses what it does not know rather than leave that out.
"""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

Point = tuple[float, float]
"""Unix time in seconds, value."""


class CannotDrawError(Exception):
    """A panel has no data, or asks for what the drawing does not know; str() names it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One series that Prometheus answered with."""

    labels: Mapping[str, str]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What is drawn: which time, and who answers for it."""

    begin_s: float
    """Unix time."""
    end_s: float
    ask: Callable[[str, bool], Sequence[Answer]]
    """(query, whether only the end of the time is meant) → its series."""


COLUMNS: Final = 24
"""Of Grafana's grid."""

WIDTH: Final = 1100
ROW: Final = 25
"""CSS pixels of one row of the grid."""
_GAP: Final = 8
_LEGEND_LINE: Final = 15
_MOST_LEGEND_LINES: Final = 3
_COLOURS: Final = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#9c755f", "#edc948", "#d37295", "#86bcb6",
    "#499894", "#8cd17d",
)  # fmt: skip
_STAT_COLOURS: Final = {"blue": "#dbe7f5", "green": "#d3ecd0", "orange": "#fbdcb8", "red": "#f5b5b1"}
_STYLE: Final = """
body { margin: 0; background: #f4f5f5; font: 12px sans-serif; color: #24292e; position: relative; }
h1 { font-size: 16px; margin: 0; padding: 10px 8px 6px; height: 20px; } h1 small { font-weight: normal; color: #666; }
.panel { position: absolute; box-sizing: border-box; background: #fff; border: 1px solid #dcdcdc; overflow: hidden; }
h2 { font-size: 12px; margin: 0; padding: 5px 8px; } svg { display: block; } text { font-size: 10px; fill: #666; }
.legend { padding: 0 8px; line-height: 15px; font-size: 10.5px; overflow: hidden; } .legend span { margin-right: 12px;
white-space: nowrap; } .legend i { display: inline-block; width: 10px; height: 3px; margin: 0 4px 3px 0; }
.stat { text-align: center; font-size: 24px; }
table { border-collapse: collapse; font-size: 10px; margin: 0 8px; } th, td { text-align: left; padding: 1px 7px 1px 0;
white-space: nowrap; max-width: 270px; overflow: hidden; text-overflow: ellipsis; }
th { border-bottom: 1px solid #ccc; }
"""
_HEAD: Final = 36


def draw(dashboard: Any, chosen: Mapping[str, str], source: Source, *, subtitle: str = "") -> str:
    """Return the page; `chosen` has a regular expression for each variable. Raises CannotDrawError."""
    panels = "".join(_panel(panel, chosen, source) for panel in dashboard["panels"])
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    title = f"<h1>{html.escape(dashboard['title'])} <small>{html.escape(subtitle)}</small></h1>"
    style = f"{_STYLE} body {{ width: {WIDTH}px; height: {_HEAD + rows * ROW + _GAP}px; }}"
    return f"<!doctype html><meta charset=utf-8><style>{style}</style><body>{title}{panels}</body>"


def filled_in(query: str, chosen: Mapping[str, str]) -> str:
    """Return a query with the values of its variables. Raises CannotDrawError for one that has none."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in chosen:
            raise CannotDrawError(f"{query}: the variable {found[1]} has no value")
        return chosen[found[1]]

    return re.sub(r"\$\{?(\w+)\}?", value, query)


def _panel(panel: Any, chosen: Mapping[str, str], source: Source) -> str:
    place = panel["gridPos"]
    width = WIDTH * place["w"] // COLUMNS - _GAP
    height = ROW * place["h"] - _GAP
    style = (
        f"left:{WIDTH * place['x'] // COLUMNS + _GAP // 2}px;top:{_HEAD + ROW * place['y']}px;"
        f"width:{width}px;height:{height}px"
    )
    draws = {"stat": _stat, "timeseries": _timeseries, "table": _table}
    if panel["type"] not in draws:
        raise CannotDrawError(f"{panel['title']}: the type {panel['type']} is not known")
    found = [
        (target, answer)
        for target in panel["targets"]
        for answer in source.ask(filled_in(target["expr"], chosen), bool(target.get("instant")))
    ]
    if not any(not math.isnan(value) for _, answer in found for _, value in answer.points):
        raise CannotDrawError(f"{panel['title']}: no data")
    body = draws[panel["type"]](panel, found, source, width - 2, height - 28)
    return f'<div class=panel style="{style}"><h2>{html.escape(panel["title"])}</h2>{body}</div>'


def _stat(panel: Any, found: Sequence[tuple[Any, Answer]], _source: Source, _width: int, height: int) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    (value,) = (answer.points[-1][1] for _, answer in found)
    worth, word = unit_of(defaults["unit"], value)
    steps = [step for step in defaults["thresholds"]["steps"] if step["value"] is None or step["value"] <= value]
    style = f"height:{height}px;line-height:{height}px;background:{_STAT_COLOURS[steps[-1]['color']]}"
    return f'<div class=stat style="{style}">{value / worth:.3g}{word}</div>'


def legend_of(form: str, labels: Mapping[str, str]) -> str:
    """Return how a series is named: `{{label}}` stands for its value, which may be empty."""
    return re.sub(r"\s+", " ", re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form)).strip()


def _timeseries(panel: Any, found: Sequence[tuple[Any, Answer]], source: Source, width: int, height: int) -> str:
    defaults = panel["fieldConfig"]["defaults"]
    names = [legend_of(target["legendFormat"], answer.labels) for target, answer in found]
    room = _MOST_LEGEND_LINES * (width - 120)
    shown = [name for number, name in enumerate(names) if sum(map(_width_of, names[: number + 1])) <= room]
    lines = min(_MOST_LEGEND_LINES, 1 + sum(map(_width_of, shown)) // (width - 120))
    height -= lines * _LEGEND_LINE + 4
    values = [value for _, answer in found for _, value in answer.points if not math.isnan(value)]
    low, high = float(defaults.get("min", min(values))), float(defaults.get("max", max(values)))
    worth, word = unit_of(defaults["unit"], high)
    ticks = ticks_of(low / worth, high / worth)
    left, top, bottom = 62, 6, height - 18
    across = _Scale(source.begin_s, source.end_s, left, width - 22)
    up = _Scale(ticks[0] * worth, ticks[-1] * worth, bottom, top)
    parts = [
        f'<path d="M{left} {up.of(tick * worth):.1f}H{width - 22}" stroke="#e4e4e4"/>'
        f"<text x={left - 6} y={up.of(tick * worth) + 3:.1f} text-anchor=end>{tick:.4g}{word}</text>"
        for tick in ticks
    ]
    parts += [
        f"<text x={across.of(at):.1f} y={height - 4} text-anchor=middle>{datetime.fromtimestamp(at, UTC):%H:%M}</text>"
        for at in _half_hours(across.low, across.high)
    ]
    parts += [
        f'<path d="{path}" fill="none" stroke="{_COLOURS[number % len(_COLOURS)]}" stroke-width="1.3" '
        'stroke-linecap="round"/>'
        for number, (_, answer) in enumerate(found)
        for path in _paths(answer.points, across, up)
    ]
    return f"<svg width={width} height={height}>{''.join(parts)}</svg>{_legend(shown, len(names) - len(shown), lines)}"


def _width_of(name: str) -> int:
    """Return about how many pixels a name takes in the legend, with its colour."""
    return 6 * len(name) + 30


def _legend(names: Sequence[str], more: int, lines: int) -> str:
    spans = [
        f'<span><i style="background:{_COLOURS[number % len(_COLOURS)]}"></i>{html.escape(name)}</span>'
        for number, name in enumerate(names)
    ]
    if more:
        spans.append(f"<span>and {more} more</span>")
    return f'<div class=legend style="height:{lines * _LEGEND_LINE}px">{" ".join(spans)}</div>'


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    begin: float
    end: float

    def of(self, value: float) -> float:
        """Return the pixel of a value."""
        if self.high == self.low:
            return self.begin
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


def _paths(points: Sequence[Point], across: _Scale, up: _Scale) -> Iterator[str]:
    """Yield a line for each run of points without a gap. A point by itself is a line of no length: a round dot."""
    run: list[Point] = []
    gap_s = 1.5 * min((later[0] - sooner[0] for sooner, later in itertools.pairwise(points)), default=0)
    for point in (*points, (math.inf, math.nan)):
        if run and (math.isnan(point[1]) or point[0] - run[-1][0] > gap_s):
            places = [f"{across.of(at):.1f} {up.of(value):.1f}" for at, value in run]
            yield "M" + "L".join(places if len(places) > 1 else places * 2)
            run = []
        if not math.isnan(point[1]):
            run.append(point)


def ticks_of(low: float, high: float) -> list[float]:
    """Return four to eight round numbers from one below all values to one above them."""
    span = high - low
    if span < 1e-9 * max(1.0, abs(high)):  # all values are one
        span = 1.0
    step = 10.0 ** math.floor(math.log10(span / 4))
    step *= next(times for times in (1, 2, 5, 10) if span / (step * times) <= 5)
    first = math.floor(low / step)
    return [number * step for number in range(first, math.ceil((low + span) / step) + 1)]


def _half_hours(begin_s: float, end_s: float) -> Iterator[float]:
    at_s = math.ceil(begin_s / 1800) * 1800
    while at_s <= end_s:
        yield at_s
        at_s += 1800


_PREFIXED: Final = {
    "bytes": tuple((1024.0**power, f" {prefix}B") for power, prefix in enumerate(("", "Ki", "Mi", "Gi", "Ti"))),
    "mbytes": tuple((1024.0**power, f" {prefix}B") for power, prefix in enumerate(("Mi", "Gi", "Ti"))),
    "Bps": tuple((1000.0**power, f" {prefix}B/s") for power, prefix in enumerate(("", "k", "M", "G"))),
    "s": ((1e-3, " ms"), (1.0, " s"), (60.0, " min"), (3600.0, " h")),
    "percentunit": ((0.01, " %"),),
}
_PLAIN: Final = {"short": "", "ops": "/s", "percent": " %", "celsius": " °C", "watt": " W"}


def unit_of(unit: str, largest: float) -> tuple[float, str]:
    """Return what one step of an axis is worth and the word behind its numbers, by Grafana's name of the unit. Raises
    CannotDrawError.
    """
    if unit in _PLAIN:
        return 1.0, _PLAIN[unit]
    if unit not in _PREFIXED:
        raise CannotDrawError(f"the unit {unit} is not known")
    fitting = [each for each in _PREFIXED[unit] if largest >= 2 * each[0]]
    return fitting[-1] if fitting else _PREFIXED[unit][0]


def _table(panel: Any, found: Sequence[tuple[Any, Answer]], _source: Source, _width: int, height: int) -> str:
    left_out, order, words = set[str](), dict[str, int](), dict[str, str]()
    rows = [
        {"Time": str(answer.points[-1][0]), **answer.labels, "Value": f"{answer.points[-1][1]:g}"}
        for _, answer in found
    ]
    for change in panel.get("transformations", ()):
        if change["id"] == "joinByField":
            rows = _joined(change["options"]["byField"], found)
            continue
        if change["id"] != "organize":
            raise CannotDrawError(f"{panel['title']}: the transformation {change['id']} is not known")
        options = change["options"]
        left_out |= {name for name, is_out in options["excludeByName"].items() if is_out}
        order |= options["indexByName"]
        words |= options["renameByName"]
    names = sorted({name for row in rows for name in row} - left_out, key=lambda name: (order.get(name, 99), name))
    head = "".join(f"<th>{html.escape(words.get(name, name))}" for name in names)
    lines = ["".join(f"<td>{html.escape(row.get(name, ''))}" for name in names) for row in rows]
    body = "".join(f"<tr>{line}" for line in lines[: height // 16])
    return f"<table><tr>{head}{body}</table>"


def _joined(label: str, found: Sequence[tuple[Any, Answer]]) -> list[dict[str, str]]:
    """Return a row for each value of a label, with a value for each query that has one."""
    rows: dict[str, dict[str, str]] = {}
    for target, answer in found:
        name = answer.labels[label]
        rows.setdefault(name, {label: name})[f"Value #{target['refId']}"] = f"{answer.points[-1][1]:g}"
    return [rows[name] for name in sorted(rows)]
