"""Runs the whole bench: `make bench`. Prints the sections, then one line a floor.

First come the sections that count: they run side by side, and each is printed once it and those before it are done.
Then come those that measure times and memory, one after the other, each printed as it is done. Within both the order is
that in which sections are named, without names that of SECTIONS.
`make bench-long` takes more seeds and more sizes in the sections that have a long form. Exit status 1 when a floor is
broken. Progress goes to stderr, and so do errors that what is measured logs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from types import MappingProxyType
from typing import Final

from bench.garbage import look_seldom
from bench.report import Section, as_document, as_text, floors_as_text
from dracaena.process.logs import configure_logs

SECTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "quality": "bench.quality",
        "rings": "bench.rings",
        "queue": "bench.queueing",
        "mixed": "bench.mixed",
        "siblings": "bench.siblings",
        "gangs": "bench.gangs",
        "shares": "bench.shares",
        "decision": "bench.decision",
        "quotas": "bench.quotas",
        "scale": "bench.scale",
        "page": "bench.page_open",
        "starving": "bench.starving",
        "partitioned": "bench.partitioned",
        "mig": "bench.mig",
        "ondemand": "bench.on_demand",
        "placement": "bench.placement",
        "start": "bench.controller_start",
        "cel": "bench.cel_selectors",
        "semantics": "bench.semantics",
        "hostile": "bench.hostile",
        "changes": "bench.hostile_changes",
        "shown": "bench.shown_slices",
    }
)
"""Module of each section, in the order in which they run and are printed; those that are COUNTED come before all
others."""

COUNTED: Final = ("mixed", "siblings", "shares", "queue", "mig", "quality", "rings")
"""Sections whose figures are counted in seeded runs, the longest first. They are the same whatever else the machine
does, so these run at once, one on each core."""

WITH_LONG_FORM: Final = frozenset({"queue", "mixed", "siblings", "gangs", "page", "start"})
"""Sections whose rows() takes `long`."""

NOT_MEASURED: Final = (
    "pods bound per second, memory of the controller at work: make bench-cluster",
    "prepare and unprepare, the plugin at rest: they need a node",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections that are named, all without a name; return the exit status."""
    parser = argparse.ArgumentParser(prog="make bench", description="measure ours against the systems before us")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"any of {', '.join(SECTIONS)}")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--long", action="store_true", help="more seeds and sizes, where a section has them")
    chosen = parser.parse_args(arguments)
    configure_logs("error", "json")
    if unknown := [name for name in chosen.sections if name not in SECTIONS]:
        parser.error(f"no section is called {unknown[0]!r}, expected any of {', '.join(SECTIONS)}")
    look_seldom()
    began_s = time.monotonic()
    found: list[Section] = []
    for section in _sections(chosen.sections or list(SECTIONS), began_s, long=chosen.long):
        found.append(section)
        if chosen.output == "table":
            print(as_text(section), flush=True)
    floors = [floor for section in found for floor in section.floors]
    if chosen.output == "json":
        print(json.dumps(as_document(found), indent=1))
    else:
        print("== Floors ==\n" + floors_as_text(floors), end="")
        print("".join(f"not measured here: {text}\n" for text in NOT_MEASURED), end="")
    _tell(f"{time.monotonic() - began_s:.0f} s in all")
    return 0 if all(floor.holds for floor in floors) else 1


def _sections(names: Sequence[str], began_s: float, *, long: bool) -> Iterator[Section]:
    """Run sections: those that count side by side, then the others one after the other."""
    measure = partial(_section, began_s=began_s, long=long)
    counted = [name for name in COUNTED if name in names]
    if len(counted) > 1:
        with ProcessPoolExecutor(os.cpu_count(), get_context("fork")) as pool:
            runs = {name: pool.submit(measure, name) for name in counted}
            yield from (runs[name].result() for name in names if name in runs)
        names = [name for name in names if name not in counted]
    yield from map(measure, names)


def _section(name: str, began_s: float, *, long: bool) -> Section:
    """Run one section; progress tells the seconds since the whole began."""
    module = import_module(SECTIONS[name])

    def progress(text: str) -> None:
        _tell(f"[{time.monotonic() - began_s:4.0f} s] {text}")

    found: Section = module.rows(progress, long=long) if name in WITH_LONG_FORM else module.rows(progress)
    return found


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
