"""Which folders of a node hold files of claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dracaena.api.passthrough import passthrough_device_name
from dracaena.host.paths import LAST_ASKING, plugin_paths
from dracaena.kubelet_plugin.node.section import LAST_SECTION
from dracaena.kubelet_plugin.settings import PluginSettings
from dracaena.kubelet_plugin.store.claims import BOOT_MARK
from dracaena.kubelet_plugin.upkeep import mps_fault_watch
from dracaena.kubelet_plugin.wiring.claim_folders import claim_folders
from support.plugin import DRIVER
from support.sockets import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as made:
        yield made


def test_what_a_crash_left_of_any_file_beside_the_checkpoints_is_found(folder: Path) -> None:
    paths = plugin_paths(str(folder), DRIVER, "")
    paths.checkpoints.mkdir(parents=True)
    beside = (
        *(BOOT_MARK, mps_fault_watch.TOLD, f"{passthrough_device_name('0000:18:00.0')}.json"),
        *(LAST_SECTION, LAST_ASKING),
    )
    for name in beside:
        (paths.checkpoints.parent / f".{name}.tmp").write_bytes(b"half")
    settings = PluginSettings(node_name="n1", kubelet_root=str(folder), cdi_root=str(folder / "cdi"))
    removed = [
        name
        for folder, prefix in claim_folders(settings, paths).written(DRIVER)
        for name in folder.remove_half_written(prefix)
    ]
    assert sorted(removed) == sorted(f".{name}.tmp" for name in beside)
