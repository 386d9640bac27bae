"""The order of a run of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

INTEGRATION = Path(__file__).parent / "integration"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the integration tests among the others. They wait for programs half of their time; one after the other,
    on as many workers as there are, they would leave cores idle, and the others would then have too many workers."""
    waiting = [item for item in items if item.path.is_relative_to(INTEGRATION)]
    working = [item for item in items if not item.path.is_relative_to(INTEGRATION)]
    if waiting and working:
        items[:] = spread(waiting, working)


def spread(few: list[pytest.Item], many: list[pytest.Item]) -> list[pytest.Item]:
    """Return both in their own order, the few at equal distances among the many and none of them last."""
    ordered = list(many)
    for place, item in reversed(list(enumerate(few))):
        ordered.insert(place * len(many) // (len(few) + 1), item)
    return ordered
