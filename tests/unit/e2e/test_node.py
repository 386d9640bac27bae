"""What the end-to-end tests' node clears away, while other nodes on the same machine do the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from e2e import node
from e2e.node import remove_empty_folders


def test_folders_that_hold_nothing_are_removed_and_others_stay(tmp_path: Path) -> None:
    top = tmp_path / "k8s.io"
    (top / "pod" / "container").mkdir(parents=True)
    used = top / "used" / "container"
    used.mkdir(parents=True)
    (used / "file").touch()
    remove_empty_folders(top)
    assert sorted(path.name for path in top.rglob("*")) == ["container", "file", "used"]


def test_a_tree_that_another_removes_meanwhile_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever folder is looked at first, another one that was found beside it goes then."""
    top = tmp_path / "k8s.io"
    pods = [top / f"pod-{number}" for number in range(3)]
    for pod in pods:
        (pod / "container").mkdir(parents=True)
    scandir, left = os.scandir, list(pods)

    def scan(path: Any) -> object:
        found = scandir(path)
        if path in map(str, left):
            others, left[:] = [pod for pod in left if str(pod) != path], []
            for pod in others:
                shutil.rmtree(pod)
        return found

    monkeypatch.setattr(os, "scandir", scan)
    remove_empty_folders(top)
    assert left == []
    assert not top.exists()


def test_a_tree_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    remove_empty_folders(tmp_path / "none")


@pytest.mark.parametrize("place", ["k8s.io", "memory/k8s.io"], ids=["version 2", "version 1"])
def test_a_node_removes_the_cgroups_of_its_own_containers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Another node's are empty too before its containers come in. What is left when no node runs goes altogether."""
    cgroups, state = tmp_path / "cgroup", tmp_path / "containerd"
    monkeypatch.setattr(node, "CGROUPS", cgroups)
    monkeypatch.setattr(node, "RUNTIME_STATE", state)
    for name in ("mine", "another's"):
        (cgroups / place / name / "within").mkdir(parents=True)
    (state / "io.containerd.runtime.v2.task" / "k8s.io" / "mine").mkdir(parents=True)
    node._remove_cgroups(node._containers())
    assert [path.name for path in (cgroups / place).iterdir()] == ["another's"]
    node.remove_empty_cgroups()
    assert not (cgroups / place).exists()
