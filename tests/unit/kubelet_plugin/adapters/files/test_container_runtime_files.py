"""The files of containerd, CRI-O and NVIDIA's toolkit on a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.adapters.files.container_runtime_files import (
    FILES,
    FOLDERS,
    MOST_BYTES,
    runtime_documents,
    toolkit_config,
)


def put(root: Path, path: str, text: str) -> Path:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_all_files_are_read_those_in_folders_last(tmp_path: Path) -> None:
    assert list(runtime_documents(GpuDriverRoot(str(tmp_path)))) == []
    for number, path in enumerate(FILES):
        put(tmp_path, path, f"number = {number}")
    put(tmp_path, f"{FOLDERS[0]}/99-nvidia.toml", "number = 99")
    put(tmp_path, f"{FOLDERS[0]}/10-first.toml", "number = 10")
    put(tmp_path, f"{FOLDERS[2]}/99-nvidia.conf", "number = 100")
    put(tmp_path, f"{FOLDERS[0]}/README", "number = -1")
    found = [document["number"] for document in runtime_documents(GpuDriverRoot(str(tmp_path)))]
    assert found == [*range(len(FILES)), 10, 99, 100]


@pytest.mark.parametrize("text", ["no toml", "a = 1\n" + "#" * MOST_BYTES + "\nb = [", "[" * 10_000])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, text: str) -> None:
    put(tmp_path, FILES[0], text)
    (tmp_path / FILES[5].lstrip("/")).mkdir(parents=True)
    put(tmp_path, FILES[1], "a = 2")
    found = list(runtime_documents(GpuDriverRoot(str(tmp_path))))
    assert found[-1] == {"a": 2}
    assert len(found) <= 2


def test_a_link_leads_to_nothing_outside_the_host(tmp_path: Path) -> None:
    outside = put(tmp_path, "outside.toml", "a = 1")
    link = tmp_path / "host" / FILES[0].lstrip("/")
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    assert list(runtime_documents(GpuDriverRoot(str(tmp_path / "host")))) == []


def test_the_operators_toolkit_has_its_own_configuration_beside_it(tmp_path: Path) -> None:
    host = GpuDriverRoot(str(tmp_path))
    program = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
    assert toolkit_config(host, program).path == "/etc/nvidia-container-runtime/config.toml"
    assert toolkit_config(host, program).document == {}
    put(tmp_path, "/etc/nvidia-container-runtime/config.toml", "a = 1")
    assert toolkit_config(host, program).document == {"a": 1}
    own = "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
    put(tmp_path, own, "a = 2")
    assert toolkit_config(host, program).path == own
    assert toolkit_config(host, program).document == {"a": 2}
    assert toolkit_config(host, "/usr/bin/nvidia-container-runtime").document == {"a": 1}
