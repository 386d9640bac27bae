"""Who waits longest gets his turn, however many another address brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dracaena.process.turns import Turns


@dataclass(frozen=True)
class Client:
    """Implements Queued."""

    name: str
    wanted: Callable[[], bool] = lambda: True


def taken(turns: Turns[Client]) -> list[str]:
    names = []
    while (client := turns.take()) is not None:
        names.append(client.name)
    return names


def test_addresses_take_turns_each_in_its_own_order() -> None:
    turns = Turns[Client](most_of_address=4, most=16)
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        assert turns.add(Client(name), name[0])
    assert taken(turns) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_an_address_has_few_places_and_leaves_the_others_theirs() -> None:
    turns = Turns[Client](most_of_address=2, most=3)
    assert [turns.add(Client(f"a{number}"), "a") for number in range(3)] == [True, True, False]
    assert [turns.add(Client(f"{name}1"), name) for name in "bc"] == [True, False]
    assert taken(turns) == ["a0", "b1", "a1"]
    assert turns.add(Client("c2"), "c")


def test_who_has_gone_takes_no_place_and_no_turn() -> None:
    turns = Turns[Client](most_of_address=1, most=1)
    assert turns.add(Client("gone", lambda: False), "a")
    assert turns.add(Client("a"), "a")
    assert taken(turns) == ["a"]
