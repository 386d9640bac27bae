"""What a case says is read, and what is not known is named."""

from __future__ import annotations

import pytest

from support.allocator_cases import features_of


def test_an_unknown_gate_is_named() -> None:
    with pytest.raises(ValueError, match="feature gate 'DRATimeTravel' is not known"):
        features_of(["DRATimeTravel"])
