from __future__ import annotations

import pytest

from dracaena.api.reasons import ReadName
from dracaena.controller.allocation.state import published_names
from dracaena.controller.allocation.state.inventory import Inventory
from dracaena.controller.allocation.state.published_names import PublishedNames
from dracaena.controller.simulation import make_inventory
from support.allocation import DRIVER, blocks, machine, node, pool_slice

PLAIN = machine("plain", blocks(2, inside="PIX", outside="PIX"))
NAMED = machine("named", blocks(2, inside="PIX", outside="PIX"), product_name="A100", memory_bytes=40 << 30)
PRODUCT = ReadName("attributes", DRIVER, "productName")
MEMORY = ReadName("capacity", DRIVER, "memory")
ELSEWHERE = ReadName("attributes", "x.example", None)


def cluster(*machines: object) -> Inventory:
    names = [f"n{number}" for number in range(len(machines))]
    slices = [pool_slice(name, made) for name, made in zip(names, machines, strict=True)]  # type: ignore[arg-type]
    return make_inventory(DRIVER, nodes=[node(name) for name in names], slices=slices)


def test_what_some_node_has_is_known_and_all_else_is_reported_once() -> None:
    names = PublishedNames()
    assert names.unknown(cluster(PLAIN, NAMED), (PRODUCT, MEMORY)) == ()
    assert names.unknown(cluster(PLAIN), (PRODUCT, MEMORY, PRODUCT, ELSEWHERE)) == (
        f"no GPU has the attribute {DRIVER}/productName",
        f"no GPU has the capacity {DRIVER}/memory",
        f"no GPU has attributes of the domain x.example: their domains are {DRIVER}, resource.kubernetes.io",
    )


def test_nothing_is_reported_while_nothing_is_published() -> None:
    assert PublishedNames().unknown(cluster(), (PRODUCT,)) == ()


def test_identities_are_known_though_kinds_leave_them_out() -> None:
    read = ReadName("attributes", DRIVER, "uuid"), ReadName("attributes", "resource.kubernetes.io", "pciBusID")
    assert PublishedNames().unknown(cluster(PLAIN), read) == ()


def test_nodes_that_come_and_go_count_as_they_are() -> None:
    names, there = PublishedNames(), cluster(PLAIN)
    assert names.unknown(there, (PRODUCT,)) != ()
    there.set_node(node("later"))
    there.change_slice(None, pool_slice("later", NAMED))
    assert names.unknown(there, (PRODUCT,)) == ()
    there.remove_node("later")
    assert names.unknown(there, (PRODUCT,)) != ()


def test_nothing_is_reported_until_every_kind_was_read_and_each_call_reads_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published_names, "MAX_READ", 1)
    kinds = [machine(f"m{count}", blocks(count, inside="PIX", outside="PIX")) for count in range(1, 5)]
    names, there = PublishedNames(), cluster(*kinds)
    told = [bool(names.unknown(there, (PRODUCT,))) for _ in range(5)]
    assert told == [False, False, False, True, True]


@pytest.mark.parametrize(("count", "last"), [(1, ""), (10, ""), (11, "and 1 more name"), (800, "and 790 more names")])
def test_of_many_names_the_first_are_reported_and_the_others_counted(count: int, last: str) -> None:
    read = tuple(ReadName("attributes", DRIVER, f"wrong{number}") for number in range(count))
    told = PublishedNames().unknown(cluster(NAMED), read)
    assert [f"{one.qualified}" in text for one, text in zip(read, told, strict=False)][:10] == [True] * min(count, 10)
    assert list(told[10:]) == ([f"{last} that no GPU has"] if last else [])
