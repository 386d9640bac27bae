from __future__ import annotations

import json

import pytest

from dracaena.api.errors import TemporaryError
from dracaena.controller.page.node_use import FAILED_S, FRESH_S, KNOWN_S, MOST_NODES, NodeUse
from support.clock import FakeClock


class Exporters:
    """One on each node; `fails` are those that give nothing."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fails: set[str] = set()
        self.looked_up: list[str] = []
        self.asked: list[str] = []
        self.use = NodeUse(self.find, self.read, self.clock)

    def find(self, node: str) -> str | None:
        self.looked_up.append(node)
        if node == "unknown":
            raise TemporaryError("the API server is away")
        return None if node == "without" else f"at-{node}"

    def read(self, address: str) -> bytes:
        self.asked.append(address)
        if address in self.fails:
            raise TemporaryError(f"{address} gave no answer")
        uses = {"main": [{"gpu": 0, "sm_ratio": 0.5}]}
        pods = [{"namespace": "team", "pod": f"p{len(self.asked)}", "containers": uses}]
        return json.dumps({"node": address.removeprefix("at-"), "driver": True, "pods": pods}).encode()


def test_figures_are_read_again_after_a_while_and_the_address_is_kept() -> None:
    world = Exporters()
    first = world.use.of("n")
    assert not isinstance(first, str)
    assert (first.uses[0].pod, first.uses[0].sm_percent) == ("p1", 50)
    assert world.use.of("n") is first
    world.clock.advance(FRESH_S)
    again = world.use.of("n")
    assert not isinstance(again, str)
    assert again.uses[0].pod == "p2"
    assert world.looked_up == ["n"]
    world.clock.advance(KNOWN_S)
    world.use.of("n")
    assert world.looked_up == ["n", "n"]


def test_one_that_gives_none_is_left_alone_for_a_while_and_looked_up_again() -> None:
    world = Exporters()
    world.fails.add("at-n")
    assert world.use.of("n") == "at-n gave no answer"
    world.clock.advance(FAILED_S - 1)
    assert world.use.of("n") == "at-n gave no answer"
    assert world.asked == ["at-n"]
    assert not isinstance(world.use.of("other"), str), "the others are as ever"
    world.fails.clear()
    world.clock.advance(1)
    assert not isinstance(world.use.of("n"), str)
    assert world.looked_up == ["n", "other", "n"]


@pytest.mark.parametrize(
    ("node", "why"), [("without", "no exporter runs on it"), ("unknown", "the API server is away")]
)
def test_a_node_without_an_exporter_is_reported(node: str, why: str) -> None:
    assert Exporters().use.of(node) == why


def test_what_is_kept_is_bounded() -> None:
    world = Exporters()
    for number in range(MOST_NODES + 1):
        world.use.of(f"n{number}")
    world.use.of(f"n{MOST_NODES}")
    assert len(world.asked) == MOST_NODES + 1
    world.use.of("n0")
    assert world.looked_up[-1] == "n0"
