"""The road on which requests of the soak get lost knows the writes that take an allocation away."""

from __future__ import annotations

from typing import Any

import pytest

from e2e.soak.fault_proxy import clears
from support.write_proxy import Write

CLAIM = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (f"{CLAIM}/status", {"status": {"allocation": None, "reservedFor": None}}, True),
        (f"{CLAIM}/status", {"status": {"reservedFor": None}}, False),
        (f"{CLAIM}/status", {"status": {"allocation": {"devices": {}}}}, False),
        (CLAIM, {"metadata": {}}, False),
        (CLAIM, None, False),
    ],
)
def test_a_write_that_clears_an_allocation_is_told_from_others(path: str, body: Any, expected: bool) -> None:
    assert clears(Write("PATCH", path, {}, body)) is expected
