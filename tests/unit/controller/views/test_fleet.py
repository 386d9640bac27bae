"""All nodes as rows, then those that changed: together they always are the whole, as a reader sees it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.gpu_quota import QuotaItem
from dracaena.controller.views.fleet import HIDDEN, NOBODY, Changes, changes, fleet
from dracaena.controller.views.node_line import NodeLine, Room
from dracaena.controller.views.snapshot import ClusterSnapshot

NAMESPACES = ("a", "b", "secret")


def everything(_namespace: str) -> bool:
    return True


def some(namespace: str) -> bool:
    return namespace != "secret"


def line(name: str, cells: str = "..", *, held: tuple[tuple[str, ...], ...] = ((), ()), **more: Any) -> NodeLine:
    holds = {namespace: {QuotaItem("gpus"): 1} for namespaces in held for namespace in namespaces}
    return NodeLine(name, more.pop("product", "H100"), cells, (), (), held=held, holds=holds, **more)


def of(*lines: NodeLine) -> ClusterSnapshot:
    return ClusterSnapshot("gpu.dracaena.dev", lines=lines)


def read(snapshot: ClusterSnapshot, known: Changes, sight: Any = everything, since: int = 0) -> dict[str, Any]:
    return dict(json.loads(fleet(snapshot, sight, known, {"number": 1}, since)))


def test_a_row_says_what_a_node_has_and_who_holds_it() -> None:
    sick = line(
        "n1",
        "%+-x",
        held=(("a",), ("a", "secret"), (), ()),
        levels=(("rack", "r1"),),
        sick={0: "xid=79"},
        told={1: "xid=13"},
        mig_slices=Room(3, 7),
        share_gib=Room(20, 80),
        closed=True,
    )
    snapshot = of(line("n0"), sick)
    found = read(snapshot, changes(None, Changes(), snapshot, 1))
    assert (found["products"], found["racks"], found["teams"]) == (["H100"], ["r1"], ["a", "secret"])
    assert found["nodes"][0] == ["n0", 0, -1, "..", [NOBODY, NOBODY], 0]
    name, product, rack, cells, held, more = found["nodes"][1]
    assert (name, product, rack, cells, held) == ("n1", 0, 0, "%+-x", [0, [0, 1], NOBODY, NOBODY])
    assert more == {
        "sick": {"0": "xid=79"},
        "informs": {"1": "xid=13"},
        "mig": [3, 7],
        "share": [20, 80],
        "closed": True,
    }
    hidden = read(snapshot, changes(None, Changes(), snapshot, 1), some)
    assert (hidden["teams"], hidden["nodes"][1][4]) == (["a"], [0, [HIDDEN, 0], NOBODY, NOBODY])


def test_only_rows_that_changed_follow() -> None:
    first = of(line("n0"), line("n1", "#.", held=(("a",), ())))
    known = changes(None, Changes(), first, 5)
    second = of(line("n0"), line("n1", "#!", held=(("a",), ())))
    known = changes(first, known, second, 6)
    assert (known.rows, known.lists) == ((5, 6), 5)
    assert [*read(second, known, since=5)["rows"]] == ["1"]
    assert read(second, known, since=6)["rows"] == {}
    assert "nodes" in read(second, known, since=4), "of an earlier life of its lists"
    third = of(line("n0"))
    assert "nodes" in read(third, changes(second, known, third, 7), since=6), "a node went"


LINES = st.builds(
    lambda cells, holder, product: line("n", cells, held=((holder,) if holder else (), ()), product=product),
    st.text(".#!%+*-x", min_size=2, max_size=2),
    st.sampled_from((*NAMESPACES, "")),
    st.sampled_from(("H100", "A100")),
)


@given(st.lists(st.lists(LINES, min_size=3, max_size=3), min_size=1, max_size=6), st.sampled_from((everything, some)))
def test_a_reader_who_takes_in_each_answer_has_what_a_new_reader_gets(states: list[list[NodeLine]], sight: Any) -> None:
    before: ClusterSnapshot | None = None
    known, held, had = Changes(), {}, 0
    for number, lines in enumerate(states, start=1):
        now = of(*(replace(each, name=f"n{place}") for place, each in enumerate(lines)))
        known = changes(before, known, now, number)
        before = now
        answer = read(now, known, sight, had)
        if "nodes" in answer:
            held = answer
        else:
            assert answer["teams"] == held["teams"]
            for place, row in answer["rows"].items():
                held["nodes"][int(place)] = row
        had = number
        whole = read(now, known, sight)
        assert {name: held[name] for name in ("teams", "products", "racks", "nodes")} == {
            name: whole[name] for name in ("teams", "products", "racks", "nodes")
        }
        assert "secret" not in json.dumps(held) or sight is everything
