"""What was loaded is left out by the garbage collector, and what comes later is not."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from dracaena.process.garbage import leave_out_what_was_loaded


class _Node:
    """One end of a cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.freeze()  # conftest.py has frozen the tests themselves


def test_what_was_loaded_is_walked_no_more() -> None:
    stays = [[number] for number in range(1000)]
    leave_out_what_was_loaded()
    walked = {id(one) for one in gc.get_objects()}
    assert not walked & {id(one) for one in stays}


def test_garbage_that_was_there_goes_first_and_that_which_comes_goes_as_ever() -> None:
    before = weakref.ref(_Node())
    leave_out_what_was_loaded()
    assert before() is None
    after = weakref.ref(_Node())
    gc.collect()
    assert after() is None
