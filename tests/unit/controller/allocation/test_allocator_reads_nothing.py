"""A warm decision reads, decodes and compiles nothing: that was done when the watches brought the objects."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from dracaena.api.mig import MigDevice
from dracaena.controller.allocation.result import Allocation
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from support.allocation import DRIVER, claim, device_class, node, own_config, pod, policy, pool_slice, request
from support.bare_cluster import bare_cluster, decide, land, written
from support.mig_nodes import mig_classes, mig_slices, part
from support.mig_tables import A100
from support.shares import in_shares, share
from support.watched_cluster import WatchedCluster

ALLOCATION: Final = "dracaena.controller.allocation"
READING: Final = (
    (f"{ALLOCATION}.request", "read_claim"),
    (f"{ALLOCATION}.request", "read_class"),
    (f"{ALLOCATION}.request", "decode_config"),
    (f"{ALLOCATION}.request", "merged"),
    (f"{ALLOCATION}.request", "unpacked"),
    (f"{ALLOCATION}.legal.read.claims", "unpacked"),
    (f"{ALLOCATION}.state.inventory", "read_slice"),
    (f"{ALLOCATION}.state.inventory", "read_pool"),
    (f"{ALLOCATION}.state.pool", "decode_pool"),
    (f"{ALLOCATION}.state.pool", "make_box"),
    (f"{ALLOCATION}.state.device_kind", "read_device"),
    (f"{ALLOCATION}.allocator", "facts_of"),
    (f"{ALLOCATION}.legal.cel_selectors", "cel_device"),
    ("dracaena.cel.memo", "compile_selector"),
)
"""What reads an object or compiles an expression: the module that uses it, and its name there."""

MACHINE = read_machine("dgx-1v")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each was called."""
    calls: Counter[str] = Counter()

    def counted(module: str, name: str) -> None:
        genuine = getattr(importlib.import_module(module), name)

        def count(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return genuine(*args, **options)

        monkeypatch.setattr(f"{module}.{name}", count)

    for module, name in READING:
        counted(module, name)
    return calls


def selected(name: str, kind: str) -> Any:
    expression = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    return device_class(name, policy("BestEffort"), selectors=[{"cel": {"expression": expression}}])


def cluster_of_both() -> WatchedCluster:
    """Nodes of whole GPUs, and nodes of which half the GPUs are divided."""
    cluster = bare_cluster()
    for item in (device_class(), selected("gpu", "gpu"), selected("mig", "mig")):
        cluster.intake.class_changed(None, item)
    gpus = tuple(replace(gpu, mig_enabled=gpu.index >= 4) for gpu in MACHINE.gpus)
    parts = tuple(
        MigDevice(gpu.uuid, f"MIG-{gpu.uuid[4:-1]}{number}", number + 1, 0, "1g.10gb", number, 1)
        for gpu in gpus[4:]
        for number in range(7)
    )
    divided = replace(MACHINE, gpus=gpus, mig_devices=parts)
    for name in "abcdef":
        cluster.intake.node_changed(None, node(name))
        cluster.intake.slice_changed(None, pool_slice(name, MACHINE if name < "d" else divided))
    return cluster


def cluster_of_roles() -> WatchedCluster:
    """Nodes whose GPUs are given in shares, and nodes whose GPUs are cut on demand."""
    cluster = bare_cluster()
    for item in mig_classes():
        cluster.intake.class_changed(None, item)
    for name in "abcdef":
        cluster.intake.node_changed(None, node(name))
        for page in [in_shares(pool_slice(name, MACHINE))] if name < "d" else mig_slices(name, MACHINE, [A100] * 8):
            cluster.intake.slice_changed(None, page)
    return cluster


def first_of(*counts: int) -> dict[str, Any]:
    every = [{"name": f"{count}-gpus", "deviceClassName": "gpu", "count": count} for count in counts]
    return {"name": "gpus", "firstAvailable": every}


WHEN_FILLED: Final = {cluster_of_both: (6, 3), cluster_of_roles: (9, 2)}
"""Pools, one for each slice that comes, and classes."""

SWITCH: Final = {"matchAttribute": f"{DRIVER}/pcieSwitch"}

FORMS: Final = {
    "whole GPUs": (cluster_of_both, {"request": request(count=2)}),
    "whole GPUs by a selector": (cluster_of_both, {"request": request(count=2, device_class="gpu")}),
    "whole GPUs that agree": (cluster_of_both, {"request": request(count=2), "constraints": [SWITCH]}),
    "alternatives": (cluster_of_both, {"request": first_of(30, 2)}),
    "MIG devices": (cluster_of_both, {"request": request(count=2, device_class="mig")}),
    "more than there are": (cluster_of_both, {"request": request(count=30, device_class="gpu")}),
    "whole GPUs beside other roles": (cluster_of_roles, {"request": request(count=2)}),
    "shares": (cluster_of_roles, {"request": share("share", "8Gi", 10)}),
    "parts on demand": (cluster_of_roles, {"request": part("part", "1g.10gb")}),
}


@pytest.mark.parametrize(("cluster_of", "fields"), FORMS.values(), ids=FORMS.keys())
def test_a_warm_decision_reads_and_compiles_nothing(
    cluster_of: Callable[[], WatchedCluster], fields: dict[str, Any], reads: Counter[str]
) -> None:
    cluster = cluster_of()
    assert (reads["read_pool"], reads["read_class"]) == WHEN_FILLED[cluster_of]
    for number in range(6):
        asked = claim(f"c{number}", fields["request"], configs=[own_config(policy("BestEffort"))])
        asked.spec["devices"]["constraints"] = fields.get("constraints", [])
        waiting = pod(f"p{number}", asked.metadata.name)
        cluster.intake.claim_changed(None, asked)
        cluster.intake.pod_changed(None, waiting)
        if number >= 2:
            reads.clear()
        decision = decide(cluster, waiting, asked)
        if number >= 2:
            assert reads.total() == 0, reads
        if isinstance(decision, Allocation):
            (stored,) = written(decision, waiting)
            land(cluster, stored)
            cluster.intake.claim_changed(asked, stored)


def test_what_is_counted_is_called_by_what_is_new(reads: Counter[str]) -> None:
    """Or the test above would hold for a reader that was renamed."""
    cluster = cluster_of_both()
    asked = claim("c", request(device_class="mig"), configs=[own_config(policy("BestEffort"))])
    cluster.intake.claim_changed(None, asked)
    assert isinstance(decide(cluster, pod("p", "c"), asked), Allocation)
    assert {name for _, name in READING} == set(reads)


def test_a_claim_is_read_when_the_watch_brings_it(reads: Counter[str]) -> None:
    cluster = cluster_of_both()
    asked = claim("c", request(count=3))
    cluster.intake.claim_changed(None, asked)
    assert reads["read_claim"] == 1
    reads.clear()
    decide(cluster, pod("p", "c"), asked)
    assert reads["read_claim"] == 0
