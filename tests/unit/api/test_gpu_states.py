"""Each GPU that was bought is in one state, and whoever counts them counts the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api import gpu_states
from dracaena.api.gpu_states import (
    FREE,
    FULL,
    OF_NOBODY,
    PARTS,
    STATES,
    GpuState,
    Parts,
    gpu_sums,
    state_in_words,
    sums_in_words,
)
from dracaena.api.node_status import node_document, node_statuses
from dracaena.cli import status
from dracaena.controller.metrics import ControllerMetrics
from dracaena.controller.page.gpu_counts import GpuCounts
from dracaena.controller.page.snapshots import LatestSnapshot
from dracaena.controller.views.snapshot import SnapshotMaker, Watched
from dracaena.controller.views.summary import summary
from support.allocation import DRIVER, blocks, claim, holding, machine, node
from support.bought_gpus import BoughtGpus, bought_gpus
from support.clock import FakeClock
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A100
from support.seeds import sampled


def counts_of_status(cluster: BoughtGpus) -> Mapping[str, int]:
    shown = node_statuses(DRIVER, cluster.nodes, cluster.slices, cluster.claims, cluster.rules)
    counted = status._summary(shown)
    each = Counter(gpu["state"] for one in shown for gpu in node_document(one)["gpus"])
    assert {name: counted[name] for name in STATES} == {name: each[name] for name in STATES}
    words = sums_in_words([gpu for one in shown for gpu in one.states])
    assert words.startswith(f"{counted['gpus']} GPU{'' if counted['gpus'] == 1 else 's'}: {counted['free']} free")
    assert words in status._total(shown)
    for one in shown:
        assert node_document(one)["counts"] == {
            "gpus": cluster.by_node[one.name].total(),
            **{name: cluster.by_node[one.name][name] for name in STATES},
        }, one.name
    return {name: counted[name] for name in STATES}


def counts_of_page(cluster: BoughtGpus) -> Mapping[str, int]:
    watched = Watched(cluster.nodes, cluster.slices, cluster.claims, taint_rules=cluster.rules)
    *_, snapshot = SnapshotMaker(DRIVER).turns(watched)
    assert snapshot is not None
    answer = summary(snapshot, 0.0)
    assert answer["gpus"]["free"] == answer["fits"][0]["pods"], "so many pods with one GPU fit"
    return {name: answer["gpus"][name] for name in STATES}


def counts_of_metric(cluster: BoughtGpus) -> Mapping[str, int]:
    watched = Watched(cluster.nodes, cluster.slices, cluster.claims, taint_rules=cluster.rules)
    registry = CollectorRegistry()
    metrics, counts = (
        ControllerMetrics(registry),
        GpuCounts(LatestSnapshot(DRIVER, lambda: watched, FakeClock()), FakeClock()),
    )
    for state in STATES:
        metrics.queue.gpus.labels(state).set(counts.of(state))
    assert counts.most_free_on_a_node() == max((one["free"] for one in cluster.by_node.values()), default=0)
    return {
        state: int(registry.get_sample_value("dracaena_controller_gpus", {"state": state}) or 0) for state in STATES
    }


COUNTED: Mapping[str, Callable[[BoughtGpus], Mapping[str, int]]] = {
    "status": counts_of_status,
    "page": counts_of_page,
    "metric": counts_of_metric,
}


@pytest.mark.parametrize("seed", sampled(range(2_000), 60, 400))
def test_status_page_and_metric_count_what_is_there(seed: int) -> None:
    cluster = bought_gpus(seed)
    expected = {state: cluster.expected[state] for state in STATES}
    assert {name: count(cluster) for name, count in COUNTED.items()} == dict.fromkeys(COUNTED, expected)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("why_not_given", lambda _driver, _device: ""),
        ("why_nothing_given", lambda _pages, _node: iter(())),
        ("_fault", lambda _driver, _taints: ""),
        ("_NO_FAULT", frozenset()),
        ("shares_of", lambda _holders, _capacity: ()),
        ("handed_devices", lambda _pages: {}),
        ("_of_nobody", lambda _pages, _cut: iter(())),
        ("reduce", lambda _or, _places, none: none),
        ("PARTS", FREE),
        ("VIRTUAL", FREE),
    ],
)
def test_planted_faults_are_found(name: str, planted: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_states, name, planted)
    wrong = 0
    for seed in range(60):
        try:
            test_status_page_and_metric_count_what_is_there(seed)
        except (AssertionError, KeyError):
            wrong += 1
    assert wrong


def test_each_sign_is_of_one_state_and_the_states_add_up() -> None:
    signs = "".join(STATES.values())
    assert len(set(signs)) == len(signs)
    sums = gpu_sums(["..", f"{signs}!"])
    assert sums["gpus"] == len(signs) + 3 == sum(sums[name] for name in STATES)
    assert (sums["free"], sums["failed"]) == (3, 3)


def test_what_is_left_of_gpus_in_parts_is_added_up_by_kind() -> None:
    cut = GpuState(PARTS, parts=Parts("parts", 2, 3, 7, "slices"))
    shared = GpuState(PARTS, parts=Parts("shares", 1, 60 << 10, 80 << 10, "MiB"))
    full = GpuState(FULL, parts=Parts("parts", 1, 0, 7, "slices"))
    sick = GpuState("!", fault="xid=79")
    assert sums_in_words([GpuState(FREE)] * 30 + [cut, cut]) == (
        "32 GPUs: 30 free, 2 partly free (4 parts, 6 of 14 slices free)"
    )
    assert sums_in_words([cut, shared, full, sick, sick]) == (
        "5 GPUs: 0 free, 2 partly free (2 parts, 3 of 7 slices free, 1 share, 60 of 80 GiB free), 1 used, "
        "2 failed (2 × xid=79)"
    )


@pytest.mark.parametrize(
    ("others", "claims", "words"),
    [
        (("3g.40gb", 0), (), "cut into 1 part, 4 of 7 slices free"),
        (("3g.40gb", 4), (("4g.40gb", 0),), "cut into 2 parts, 0 of 7 slices free"),
        (("7g.80gb", 0), (), f"cut into 1 part, 0 of 7 slices free; closed to pods: {OF_NOBODY}"),
    ],
)
def test_mig_instances_that_no_claim_made_leave_a_gpu_not_free(
    others: tuple[str, int], claims: Sequence[tuple[str, int]], words: str
) -> None:
    made = machine("two", blocks(2, inside="NV12", outside="SYS"))
    at = {(one.profile, one.start): one for one in A100.parts()}
    pages = mig_slices("n", made, [A100, A100], foreign={1: [at[others]]})
    held = [holding(claim("c"), "n", part_name(made, 1, at[one])) for one in claims]
    (shown,) = node_statuses(DRIVER, [node("n")], pages, held, [])
    first, second = shown.states
    assert (first.name, state_in_words(first)) == ("free", "free")
    assert second.name != "free"
    assert state_in_words(second).startswith(words)
