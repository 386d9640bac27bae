"""Sums, sizes that fit, lists that are cut, and who may be named."""

from __future__ import annotations

import json

from dracaena.controller.views.node_line import NodeLine
from dracaena.controller.views.snapshot import ClusterSnapshot, WaitingPod
from dracaena.controller.views.summary import MOST_NODES, MOST_WAITING, fits, nodes, summary, waiting

HOSTILE = '<img src=x onerror="alert(1)">\n\u202e\x1b[31m'


def line(name: str, *open_gpus: int, cells: str = "........", product: str = "H100") -> NodeLine:
    return NodeLine(name, product, len(cells), cells.count("."), cells, "", open_gpus, ())


def waits(name: str, namespace: str = "team", why: str = "0/3 nodes fit") -> WaitingPod:
    return WaitingPod(namespace, name, "unsatisfiable", why, 100.2)


def everything(namespace: str) -> bool:
    return True


def test_pods_of_a_size_are_counted_node_by_node_and_within_nvlink_groups() -> None:
    found = {one["gpus"]: (one["pods"], one["linked"]) for one in fits([line("a", 4, 3), line("b", 8), line("c", 1)])}
    assert found == {1: (16, 16), 2: (7, 7), 4: (3, 3), 8: (1, 1)}
    assert fits([line("a", 3, 3)])[2] == {"gpus": 4, "pods": 1, "linked": 0}


def test_larger_pods_are_told_of_where_a_node_has_so_many_gpus() -> None:
    assert [one["gpus"] for one in fits([line("a", 16, cells="." * 16)])] == [1, 2, 4, 8, 16]
    assert [one["gpus"] for one in fits([])] == [1, 2, 4, 8]


def test_nodes_are_found_by_name_or_product_and_told_page_by_page() -> None:
    lines = [line(f"node-{number:04}", product="A100" if number % 2 else "H100") for number in range(1_000)]
    first = nodes(lines)
    assert (first["total"], first["more"], len(first["nodes"])) == (1_000, True, MOST_NODES)
    names = []
    page = first
    while page["nodes"]:
        names += [node["name"] for node in page["nodes"]]
        page = nodes(lines, after=names[-1])
    assert names == [each.name for each in lines]
    assert nodes(lines, search="a100")["total"] == 500
    assert [node["name"] for node in nodes(lines, search="NODE-0007")["nodes"]] == ["node-0007"]
    assert nodes(lines, search="none") == {"total": 0, "more": False, "nodes": []}


def test_who_may_not_be_named_is_counted() -> None:
    pods = [waits("a"), waits("b", namespace="secret"), waits("c")]
    found = waiting(pods, lambda namespace: namespace == "team", 112.9)
    assert [pod["name"] for pod in found["pods"]] == ["a", "c"]
    assert (found["total"], found["hidden"], found["reasons"]) == (3, 1, {"unsatisfiable": 3})
    assert "secret" not in json.dumps(found)


def test_pods_of_others_take_no_place_of_those_that_may_be_named() -> None:
    pods = [*(waits(f"theirs-{number}", namespace="secret") for number in range(3 * MOST_WAITING)), waits("a")]
    found = waiting(pods, lambda namespace: namespace == "team", 112.9)
    assert [pod["name"] for pod in found["pods"]] == ["a"]
    assert (found["total"], found["hidden"]) == (3 * MOST_WAITING + 1, 3 * MOST_WAITING)


def test_how_long_a_pod_waits_is_said_as_of_now() -> None:
    snapshot = ClusterSnapshot("gpu.dracaena.dev", waiting=(waits("a"),))
    for now_s, seconds in ((112.9, 12), (160.5, 60), (100.1, 0)):
        assert summary(snapshot, everything, now_s)["waiting"]["pods"][0]["waitedSeconds"] == seconds


def test_a_summary_is_bounded_whatever_the_cluster_and_the_texts() -> None:
    product, why = HOSTILE * 9, HOSTILE * 999
    lines = tuple(line(f"node-{number:05}", 8, product=product) for number in range(5_000))
    pods = tuple(waits(f"pod-{number}", why=why) for number in range(10_000))
    found = summary(ClusterSnapshot("gpu.dracaena.dev", lines=lines, waiting=pods), everything, 112.9)
    assert found["waiting"]["total"] == 10_000
    assert len(found["waiting"]["pods"]) == MOST_WAITING
    text = json.dumps(found)
    assert len(text) < 1 << 20
    assert "\\n" not in text
    assert "\\u001b" not in text
    assert "\\u202e" not in text


def test_an_empty_cluster_has_a_summary() -> None:
    found = summary(ClusterSnapshot("gpu.dracaena.dev"), everything, 112.9)
    assert (found["nodes"], found["devices"], found["waiting"]["total"]) == (0, 0, 0)
