"""The baselines answer as the originals do, on the originals' own cases: `DRACAENA_PEER_CASES=folder make peer-cases`.

The cases are other projects' data and not part of this repository; tests/unit/bench/test_baselines.py has ours.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.baselines import go_gpuallocator, gpu_manager, hami, koordinator
from bench.baselines.answer import Answer, Fault, Links
from bench.baselines.pair_points import Points, pair_points
from dracaena.api.links import Link, LinkLevel

FOLDER = Path(os.environ["DRACAENA_PEER_CASES"])

Document = Mapping[str, Any]


def document(name: str) -> Document:
    loaded: Document = json.loads((FOLDER / name).read_text())
    return loaded


GO, GPU_MANAGER = document("go-gpuallocator-cases.json"), document("gpu-manager-cases.json")
HAMI, KOORDINATOR = document("hami-topology-cases.json"), document("koordinator-topology-cases.json")


def cases(loaded: Document, key: str, **equal: str) -> list[Any]:
    found = [case for case in loaded.get(key, ()) if all(case.get(name) == value for name, value in equal.items())]
    return [pytest.param(case, id=case["id"].replace(" ", "-")) for case in found]


# go-gpuallocator


def box_links(box: Document) -> Links:
    levels = tuple(tuple(None if cell in {"X", None} else LinkLevel[cell] for cell in row) for row in box["pcie_level"])
    return Links(levels, tuple(map(tuple, box["nvlinks"])), (None,) * box["gpus"])


def inline_points(case: Document) -> Points:
    """Points of a box that a case draws itself: a matrix of tokens, or linked neighbours over SYS."""
    box = case["box_inline"]
    if "topo_m" in box:
        return tuple(tuple(token_points(token) for token in row) for row in box["topo_m"])
    nvlinks = {"probe/aliasing-required": [2] * 7, "probe/aliasing-best-pair": [1, 1, 1, 2, 2, 4, 4]}[case["id"]]
    gpus = range(box["gpus"])
    return tuple(
        tuple(0 if a == b else 10 + 100 * (nvlinks[a // 2] if a // 2 == b // 2 else 0) for b in gpus) for a in gpus
    )


def token_points(token: str) -> int:
    if token == "X":
        return 0
    link = Link.from_token(token)
    if link.nvlinks:
        return 100 * link.nvlinks
    assert link.level is not None
    return {LinkLevel.SYS: 10, LinkLevel.NODE: 20, LinkLevel.PHB: 30, LinkLevel.PIX: 50}[link.level]


def go_answer(case: Document, available: Sequence[int], required: Sequence[int], size: int) -> Answer:
    policy = case["policy"]
    if policy == "simple":
        return go_gpuallocator.simple(available, required, size)
    if policy.startswith("static"):
        table = go_gpuallocator.DGX_1_PASCAL if policy.endswith("pascal") else go_gpuallocator.DGX_1_VOLTA
        return go_gpuallocator.static(table, available, required, size)
    points = (
        inline_points(case)
        if "box_inline" in case
        else pair_points(box_links(GO["boxes"][case["box"]]), through_switches=False)
    )
    return go_gpuallocator.best_effort(points, available, required, size, most_partitions=None)


@pytest.mark.parametrize("case", cases(GO, "policy_cases"))
def test_go_gpuallocator_answers_one_request(case: Document) -> None:
    answer = go_answer(case, case["available"], case["required"], case["size"])
    assert list(answer.gpus) == sorted(case["expect"])


@pytest.mark.parametrize("case", cases(GO, "sequence_cases"))
def test_go_gpuallocator_answers_one_request_after_another(case: Document) -> None:
    left = list(range(GO["boxes"][case["box"]]["gpus"]))
    for step in case["steps"]:
        answer = go_answer(case, left, (), step["size"])
        assert list(answer.gpus) == sorted(step["expect"])
        left = [gpu for gpu in left if gpu not in answer.gpus]


@pytest.mark.parametrize("case", cases(GO, "enumeration_cases", kind="partitions (-1 = padding)"))
def test_go_gpuallocator_walks_these_partitions(case: Document) -> None:
    walked = go_gpuallocator.iterate_partitions(case["input"], case["size"])
    assert sorted(sorted(map(sorted, partition)) for partition in walked) == sorted(
        sorted(map(sorted, partition)) for partition in case["expect"]
    )


@pytest.mark.parametrize("case", cases(GO, "probe_cases"))
def test_go_gpuallocator_has_its_known_flaws(case: Document) -> None:
    if "steps" in case:
        left = list(range(GO["boxes"][case["box"]]["gpus"]))
        for step in case["steps"]:
            answer = go_answer(case, left, (), step["size"])
            assert list(answer.gpus) == step["upstream"]
            left = [gpu for gpu in left if gpu not in answer.gpus]
        return
    answer = go_answer(case, case["available"], case["required"], case["size"])
    expected = [go_gpuallocator.NIL if gpu is None else gpu for gpu in case["upstream_result"]]
    assert list(answer.gpus) == expected
    assert (answer.fault is Fault.CRASHED) == (go_gpuallocator.NIL in expected)


# gpu-manager


def gpu_manager_links(gpus: int, rows: Sequence[Sequence[str]] | None) -> Links:
    levels = tuple(
        tuple(None if token == "X" else LinkLevel.from_token(token) for token in row) for row in rows or [["X"]]
    )
    return Links(levels, ((0,) * gpus,) * gpus, (None,) * gpus)


@pytest.mark.parametrize("case", cases(GPU_MANAGER, "evaluator_cases"))
def test_gpu_manager_answers_one_request(case: Document) -> None:
    box = case.get("box_inline", GPU_MANAGER["box"])
    if case["evaluator"] == "share":
        left = dict.fromkeys(range(box["gpus"]), gpu_manager.WHOLE_CARD)
        for gpu, hundredths in case["allocated_cores"].items():
            left[int(gpu)] -= hundredths
        assert list(gpu_manager.share(left, case["cores"]).gpus) == case["expect"]
        return
    links = gpu_manager_links(box["gpus"], box.get("topo_m"))
    free = tuple(gpu for gpu in range(box["gpus"]) if gpu not in case["busy"])
    choose = gpu_manager.choose_fragment if case["evaluator"] == "fragment" else gpu_manager.choose
    assert list(choose(links, free, case["gpus"]).gpus) == case["expect"]


@pytest.mark.parametrize("case", cases(GPU_MANAGER, "sequence_cases"))
def test_gpu_manager_answers_one_request_after_another(case: Document) -> None:
    links = gpu_manager_links(GPU_MANAGER["box"]["gpus"], GPU_MANAGER["box"]["topo_m"])
    left = dict.fromkeys(range(links.gpu_count), gpu_manager.WHOLE_CARD)
    held: dict[str, dict[int, int]] = {}
    for step in case["steps"]:
        if "free" in step:
            for pod in [pod for pod in held if pod.split("/")[0] == step["free"]]:
                for gpu, hundredths in held.pop(pod).items():
                    left[gpu] += hundredths
            continue
        if step["pod"] not in held:  # the same container again is answered from a cache
            cores = step["cores"]
            free = tuple(gpu for gpu, hundredths in left.items() if hundredths == gpu_manager.WHOLE_CARD)
            answer = (
                gpu_manager.share(left, cores)
                if cores < gpu_manager.WHOLE_CARD
                else gpu_manager.choose(links, free, cores // gpu_manager.WHOLE_CARD)
            )
            held[step["pod"]] = {gpu: min(cores, gpu_manager.WHOLE_CARD) for gpu in answer.gpus}
            for gpu, hundredths in held[step["pod"]].items():
                left[gpu] -= hundredths
        assert sorted(held[step["pod"]]) == step["expect_devices"]


# HAMi


@pytest.mark.parametrize("case", cases(HAMI, "select_cases"))
def test_hami_answers_one_request(case: Document) -> None:
    if case.get("numa_bind"):
        answer = hami.numa_bound(case["numa"], range(len(case["numa"])), case["size"])
    else:
        box = case["box"]
        points = tuple(map(tuple, box["pair_score"] or [[0] * box["gpus"]] * box["gpus"]))
        answer = hami.topology_aware(points, range(box["gpus"]), case["size"])
    if "expect_len" in case:
        assert len(answer.gpus) == case["expect_len"]
    else:
        assert sorted(answer.gpus) == sorted(case["expect"])


def hami_pair_cases() -> Iterator[Any]:
    for case in HAMI.get("pair_score_cases", ()):
        if "links" in case:  # the other one reports asymmetric links, which our model of a machine cannot hold
            yield pytest.param(case, id=case["id"].replace(" ", "-"))


@pytest.mark.parametrize("case", list(hami_pair_cases()))
def test_hami_gives_a_pair_these_points(case: Document) -> None:
    gpus = range(len(case["expect"]))
    nvlinks = [[0] * len(gpus) for _ in gpus]
    for pair, tokens in case["links"].items():
        a, b = map(int, pair.split("-"))
        nvlinks[a][b] = nvlinks[b][a] = sum(int(token.removeprefix("NV")) for token in tokens)
    links = Links(((None,) * len(gpus),) * len(gpus), tuple(map(tuple, nvlinks)), (None,) * len(gpus))
    points = pair_points(links, through_switches=True)
    assert {str(a): {str(b): points[a][b] for b in gpus if a != b} for a in gpus} == case["expect"]


# koordinator


@pytest.mark.parametrize("case", cases(KOORDINATOR, "cases"))
def test_koordinator_chooses_these_gpus(case: Document) -> None:
    """GPUs only: the virtual functions of NICs that the cases also expect are placed after them."""
    gpus = KOORDINATOR["boxes"][case["box"]]["gpus"]
    used = [gpu["minor"] if isinstance(gpu, dict) else gpu for gpu in case["assigned"]["gpu"]]
    free = tuple(gpu["minor"] for gpu in gpus if gpu["minor"] not in used)
    scopes = koordinator.make_scopes([gpu["numa"] for gpu in gpus], [gpu["pcie"] for gpu in gpus])
    wanted = case["gpus_wanted"]
    if "node_partition_policy" in case:
        answer = koordinator.by_partition(free, wanted)
        if answer.fault is not None and case["node_partition_policy"] == "Prefer":
            answer = koordinator.by_scope(scopes, free, wanted)
    else:
        depth = {"NUMANode": koordinator.NUMA_NODE, "PCIe": koordinator.PCIE}
        required = depth.get(case.get("required_scope", ""), koordinator.NODE)
        answer = koordinator.by_scope(scopes, free, wanted, required)
    if case["expect_error"]:
        assert answer.fault is Fault.REFUSED
    else:
        assert list(answer.gpus) == case["expect"]["gpu"]
