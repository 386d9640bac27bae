"""Seeds of a property test: a sample for `make test`, all of them for `make test-long`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet


def sampled(seeds: range, count: int) -> list[ParameterSet]:
    """Return each seed as a parameter; those after the first `count` are marked `long`."""
    return [pytest.param(seed, marks=[pytest.mark.long] if at >= count else []) for at, seed in enumerate(seeds)]


def in_turn(seeds: range, count: int, variants: Sequence[Any]) -> list[ParameterSet]:
    """Return each seed with each variant as two parameters. `make test` takes the first `count` seeds, each with one
    variant: the first seed with the first, the next with the second, and so on."""
    return [
        pytest.param(seed, variant, marks=[pytest.mark.long] if at >= count or number != at % len(variants) else [])
        for at, seed in enumerate(seeds)
        for number, variant in enumerate(variants)
    ]
