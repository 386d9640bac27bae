"""The API server that the programs under test talk to (support.api_ground says which), and logs put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from dracaena.demo.apiserver import ApiServer, Faults
from support.api_ground import ApiGround, api_ground


@pytest.fixture
def server() -> Iterator[ApiGround]:
    """Give an empty server."""
    with api_ground() as running:
        yield running


@pytest.fixture
def faults(server: ApiGround) -> Faults:
    """Give the switch for faults, which only the embedded server has: the test is marked `embedded_only`."""
    assert isinstance(server, ApiServer), "mark this test embedded_only"
    return server.faults


@pytest.fixture
def logs_as_before() -> Iterator[None]:
    """For tests that run commands in this process: these send logs to a standard error that is gone afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()
