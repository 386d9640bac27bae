"""What a search draws: a few seeds for `make test`, more for `make test-search`, all of them for `make test-long`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings


def in_tiers(test: Any, search: Any = None, long: Any = None) -> list[ParameterSet]:
    """Return what a search draws in each of the three as a parameter; None: nothing more there."""
    larger = ((search, pytest.mark.search), (long, pytest.mark.long))
    return [pytest.param(test), *(pytest.param(one, marks=mark) for one, mark in larger if one is not None)]


def sampled(seeds: Sequence[Any], few: int, some: int = 0) -> list[ParameterSet]:
    """Return each seed as a parameter: the first `few` for `make test`, those up to `some` for `make test-search`, the
    others for `make test-long`."""
    return [pytest.param(seed, marks=_tier(at, few, some)) for at, seed in enumerate(seeds)]


def in_turn(seeds: range, few: int, some: int, variants: Sequence[Any]) -> list[ParameterSet]:
    """Return each seed with each variant as two parameters. `make test` takes the first `few` seeds and `make
    test-search` those up to `some`, each with one variant: the first seed with the first, the next with the second, and
    so on."""
    return [
        pytest.param(seed, variant, marks=_tier(at if number == at % len(variants) else len(seeds), few, some))
        for at, seed in enumerate(seeds)
        for number, variant in enumerate(variants)
    ]


def fewer_examples(divisor: int) -> int:
    """Return how many examples a costly property draws: so many times fewer than others in the same of the three."""
    return settings().max_examples // divisor


def _tier(at: int, few: int, some: int) -> list[pytest.MarkDecorator]:
    if at < few:
        return []
    return [pytest.mark.search if at < some else pytest.mark.long]
