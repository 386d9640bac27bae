"""What the walk asks."""

from __future__ import annotations

import pytest

from dracaena.controller.allocation.walk.judgements import NodeChoice
from dracaena.controller.allocation.walk.node_rules import NodeRules


@pytest.fixture
def asked_nodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that the rules were asked about, in order."""
    asked: list[str] = []
    ask = NodeRules.ask

    def noted(rules: NodeRules, name: str) -> NodeChoice | str:
        asked.append(name)
        return ask(rules, name)

    monkeypatch.setattr(NodeRules, "ask", noted)
    return asked
