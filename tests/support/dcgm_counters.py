"""What dcgm-exporter serves by default: facts of tests/fixtures/dcgm-default-counters.csv."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

_FILE = Path(__file__).parents[1] / "fixtures" / "dcgm-default-counters.csv"


class DcgmCounter(NamedTuple):
    """One counter. `unit` is `none` for a mere number."""

    name: str
    type: str
    unit: str


def _read() -> dict[str, DcgmCounter]:
    lines = [line for line in _FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    counters = [DcgmCounter(*line.split(",")) for line in lines]
    return {counter.name: counter for counter in counters}


DCGM_COUNTERS: Final = _read()
"""By name, in the file's order."""
