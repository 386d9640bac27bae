"""Seeds of a property test: a sample for `make test`, all of them for `make test-long`."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet


def sampled(seeds: range, count: int) -> list[ParameterSet]:
    """Return each seed as a parameter; those after the first `count` are marked `long`."""
    return [pytest.param(seed, marks=[pytest.mark.long] if at >= count else []) for at, seed in enumerate(seeds)]
