"""What the bench of shares looks at: each thing that a cycle may leave is found. The bench itself runs the programs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.node import shares
from bench.node.driver import usage_of
from bench.node.ground import device_names
from dracaena.kubelet_plugin.adapters.recorded.machine import read_machine
from dracaena.mps.planning.state import ComputeMode
from support.fake_memory_limits import LIMIT
from support.fake_nvidia_smi import NvidiaSmiRoot
from support.mps_process import SupervisedNode

MACHINE = "hgx-h100"
GPUS = tuple(gpu.uuid for gpu in read_machine(MACHINE).gpus)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> shares.SharingNode:
    """The folders of a node whose programs do not run: this process stands for both."""
    root = tmp_path / "m"
    plugin = shares.SharingPlugin(tmp_path / "n", tmp_path / "kubeconfig", MACHINE, str(root))
    NvidiaSmiRoot(plugin.folder, *GPUS)
    monkeypatch.setattr(shares.SharingPlugin, "pid", os.getpid())
    supervisor = SupervisedNode(str(root), tmp_path / "d", 3, GPUS)
    monkeypatch.setattr(supervisor, "process", type("Self", (), {"pid": os.getpid()}))
    return shares.SharingNode(plugin, supervisor)


def found(node: shares.SharingNode, before: dict[str, frozenset[str]]) -> list[str]:
    usage = {"plugin": usage_of(os.getpid())}
    return [floor.name for floor in shares.more(before, node.left(), usage, usage, "now") if not floor.holds]


def leave_a_limit(node: shares.SharingNode) -> None:
    (node.plugin.tree.add("a-pod") / f"{LIMIT}0").touch()


def leave_a_journal(node: shares.SharingNode) -> None:
    path = Path(node.supervisor.places.journal)
    path.mkdir(parents=True)
    (path / GPUS[0]).touch()


def leave_an_interval(node: shares.SharingNode) -> None:
    (node.plugin.places.intervals / GPUS[2]).write_text("Long\n")


def leave_a_mode(node: shares.SharingNode) -> None:
    node.supervisor.modes.set(GPUS[1], ComputeMode.EXCLUSIVE_PROCESS)


@pytest.mark.parametrize(
    ("leave", "what"),
    [
        (leave_a_limit, "files and folders"),
        (leave_a_journal, "files and folders"),
        (leave_an_interval, "GPUs with an interval"),
        (leave_a_mode, "GPUs with a compute mode"),
    ],
)
def test_what_is_left_on_the_node_is_found(node: shares.SharingNode, leave: object, what: str) -> None:
    before = dict(node.left())
    assert found(node, before) == []
    leave(node)  # type: ignore[operator]
    assert found(node, before) == [f"{what} more now"]


def test_descriptors_threads_and_memory_count_above_what_may_come_late() -> None:
    before = usage_of(os.getpid())
    for field, late in (("descriptors", shares.LATE), ("threads", shares.LATE), ("rss_bytes", 2 << 20)):
        for more, holds in ((late, True), (late + 1, False)):
            after = replace(before, **{field: getattr(before, field) + more})
            floors = shares.more({}, {}, {"plugin": before}, {"plugin": after}, "now")
            assert all(floor.holds for floor in floors) is holds


def test_each_kind_of_claim_has_a_gpu_of_its_own() -> None:
    assert len(set(shares.GPU_OF.values())) == len(shares.GPU_OF) <= len(device_names(MACHINE))
    assert shares.PARTS.keys() == shares.GPU_OF.keys() == shares.WORDS.keys()
