"""Sums by the GPU that was bought, and sizes that fit."""

from __future__ import annotations

import json

from dracaena.controller.allocation.explanation import Reasons
from dracaena.controller.views.node_line import NodeLine, Room
from dracaena.controller.views.snapshot import ClusterSnapshot, WaitingPod
from dracaena.controller.views.summary import MOST_PRODUCTS, fits, summary

HOSTILE = '<img src=x onerror="alert(1)">\n\u202e\x1b[31m'


def line(name: str, *open_gpus: int, cells: str = "........", product: str = "H100") -> NodeLine:
    return NodeLine(name, product, cells, open_gpus, ())


def waits(name: str, namespace: str = "team", why: str = "0/3 nodes fit", since_s: float = 100.2) -> WaitingPod:
    return WaitingPod(namespace, name, "unsatisfiable", Reasons(why), since_s)


def test_pods_of_a_size_are_counted_node_by_node_and_within_nvlink_groups() -> None:
    found = {one["gpus"]: (one["pods"], one["linked"]) for one in fits([line("a", 4, 3), line("b", 8), line("c", 1)])}
    assert found == {1: (16, 16), 2: (7, 7), 4: (3, 3), 8: (1, 1)}
    assert fits([line("a", 3, 3)])[2] == {"gpus": 4, "pods": 1, "linked": 0}


def test_larger_pods_are_counted_where_a_node_has_so_many_gpus() -> None:
    assert [one["gpus"] for one in fits([line("a", 16, cells="." * 16)])] == [1, 2, 4, 8, 16]
    assert [one["gpus"] for one in fits([])] == [1, 2, 4, 8]


def test_products_come_by_their_gpus_and_the_rest_is_one_entry() -> None:
    lines = tuple(line(f"n{number}", cells="." * (number % 3 + 1), product=f"P{number:03}") for number in range(150))
    products = summary(ClusterSnapshot("gpu.dracaena.dev", lines=lines), 0.0)["products"]
    assert len(products) == MOST_PRODUCTS + 1
    assert [entry["gpus"] for entry in products[:-1]] == sorted((len(each.cells) for each in lines), reverse=True)[:100]
    assert products[-1]["product"] == "other products"
    assert sum(entry["gpus"] for entry in products) == sum(len(each.cells) for each in lines)
    assert sum(entry["nodes"] for entry in products) == 150


def test_parts_and_shares_are_summed() -> None:
    parts = NodeLine("n", "H100", "+", (), (), mig_slices=Room(3, 7), share_gib=Room(20, 80))
    found = summary(ClusterSnapshot("gpu.dracaena.dev", lines=(parts, parts)), 0.0)
    assert (found["migSlices"], found["shareMemoryGiB"]) == ({"free": 6, "all": 14}, {"free": 40, "all": 160})


def test_who_waits_is_counted_with_the_longest_wait_as_of_now() -> None:
    snapshot = ClusterSnapshot("gpu.dracaena.dev", waiting=(waits("a"), waits("b", since_s=110.0)))
    for now_s, seconds in ((112.9, 12), (160.5, 60), (100.1, 0)):
        assert summary(snapshot, now_s)["waiting"] == {
            "total": 2,
            "reasons": {"unsatisfiable": 2},
            "oldestSeconds": seconds,
        }


def test_a_summary_is_bounded_whatever_the_cluster_and_the_texts() -> None:
    lines = tuple(line(f"node-{number:05}", 8, product=HOSTILE * 9 + str(number)) for number in range(5_000))
    pods = tuple(waits(f"pod-{number}", why=HOSTILE * 999) for number in range(10_000))
    found = summary(ClusterSnapshot("gpu.dracaena.dev", lines=lines, waiting=pods), 112.9)
    assert found["waiting"]["total"] == 10_000
    text = json.dumps(found)
    assert len(text) < 1 << 20
    assert "\\n" not in text
    assert "\\u001b" not in text
    assert "\\u202e" not in text


def test_an_empty_cluster_has_a_summary() -> None:
    found = summary(ClusterSnapshot("gpu.dracaena.dev"), 112.9)
    assert (found["nodes"], found["gpus"]["gpus"], found["waiting"]["total"]) == (0, 0, 0)
    assert summary(ClusterSnapshot("gpu.dracaena.dev", waiting=None), 0.0)["waiting"] is None
