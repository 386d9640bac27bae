"""Our limits beside those of Kubernetes, which conformance/record_limits.py has recorded from its sources."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dracaena.api import limits

RECORDED: dict[str, dict[str, int]] = json.loads((Path(__file__).parent / "limits.json").read_text(encoding="utf-8"))
CONSTANTS = {name: value for constants in RECORDED.values() for name, value in constants.items()}

WITHOUT_A_NAME = {"ALLOCATION_CONFIGS": 2 * CONSTANTS["DeviceConfigMaxSize"], "PORT": 65_535}
"""Limits that Kubernetes writes as numbers, or works out where it checks them."""


def names_in_kubernetes() -> dict[str, list[str]]:
    """Return for each of our limits the names in parentheses in its docstring."""
    source = Path(limits.__file__).read_text(encoding="utf-8")
    documented = re.findall(r"^([A-Z_]+): Final = .+\n\"\"\"([^\"]+)\"\"\"", source, re.MULTILINE)
    found = {}
    for name, text in documented:
        inside = re.search(r"\(([A-Za-z0-9,\s]+)\)", text)
        found[name] = re.split(r",\s+", inside[1]) if inside else []
    return found


def test_every_limit_is_documented() -> None:
    assert sorted(names_in_kubernetes()) == sorted(name for name in vars(limits) if name.isupper())


@pytest.mark.parametrize(("name", "kubernetes"), sorted(names_in_kubernetes().items()))
def test_a_limit_is_what_kubernetes_says(name: str, kubernetes: list[str]) -> None:
    ours = getattr(limits, name)
    if name in WITHOUT_A_NAME:
        assert ours == WITHOUT_A_NAME[name]
    else:
        assert dict.fromkeys(kubernetes, ours) == {constant: CONSTANTS[constant] for constant in kubernetes}
        assert kubernetes
