"""Runs the whole bench: `make bench`. Prints each section as it is done, then one line a floor.

Exit status 1 when a floor is broken. Progress goes to stderr, and so do errors that what is measured logs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

from bench.report import Section, as_document, as_text, floors_as_text
from dracaena.process.logs import configure_logs

SECTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "quality": "bench.quality",
        "rings": "bench.rings",
        "queue": "bench.queueing",
        "mixed": "bench.mixed",
        "siblings": "bench.siblings",
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
    }
)
"""Module of each section, in the order in which they run."""

NOT_MEASURED: Final = (
    "pods bound per second, memory of the controller at work: make bench-cluster",
    "prepare and unprepare, the plugin at rest: they need a node",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections that are named, all without a name; return the exit status."""
    parser = argparse.ArgumentParser(prog="make bench", description="measure ours against the systems before us")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"any of {', '.join(SECTIONS)}")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    chosen = parser.parse_args(arguments)
    configure_logs("error", "json")
    if unknown := [name for name in chosen.sections if name not in SECTIONS]:
        parser.error(f"no section is called {unknown[0]!r}, expected any of {', '.join(SECTIONS)}")
    modules = [import_module(SECTIONS[name]) for name in chosen.sections or SECTIONS]
    began_s = time.monotonic()
    found: list[Section] = []
    for module in modules:
        section = module.rows(lambda text: _tell(f"[{time.monotonic() - began_s:4.0f} s] {text}"))
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


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
