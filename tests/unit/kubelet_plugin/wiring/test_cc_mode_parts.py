from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.wiring.cc_mode_parts import cc_mode_notes
from support.layout_node import OpenLock

GPU = "0000:18:00.0"


def test_a_change_is_on_the_disk_with_its_name_before_the_first_gpu_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append(f"folder with {sorted(p.name for p in tmp_path.iterdir())}" if is_folder else "content")

    monkeypatch.setattr("dracaena.host.adapters.files.whole_files.os.fsync", fsync)
    node: Any = SimpleNamespace(
        settings=PluginSettings(node_name="n1", cc_mode_tool="/opt/tools/nvidia_gpu_tools.py"),
        paths=SimpleNamespace(ledger=tmp_path),
        ledger=Ledger(DocumentFolder(tmp_path), OpenLock(), "boot-1"),
        claims=OpenLock(),
    )
    notes = cc_mode_notes(node)
    assert notes is not None
    assert synced == []
    notes.begin("on", {GPU: "nvidia"}, lambda: None)
    assert synced == ["content", "folder with ['cc-modes.node.json']"]
