"""On small clusters a gang goes where trying everything says: legal whenever there is a way, and the best one."""

from __future__ import annotations

import pytest

from support.gang_comparison import answers_of
from support.random_gangs import random_gang
from support.seeds import sampled


@pytest.mark.parametrize("seed", sampled(range(6_000), 60, 600))
def test_a_gang_goes_where_trying_everything_says(seed: int) -> None:
    found, best = answers_of(random_gang(seed), seed)
    assert found == best
