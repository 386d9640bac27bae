"""The driver's files are found once, and again when the driver or its daemons change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dracaena.kubelet_plugin.driver_installation import DriverFilesMissingError, DriverInstallation
from dracaena.kubelet_plugin.prepare.driver_files import DriverEdits
from support.driver_root import VERSION, put, put_driver


def host_paths(edits: DriverEdits) -> set[str]:
    return {mount.host_path for mount in edits.mounts}


def test_host_paths_are_those_of_the_host_and_not_of_this_process(tmp_path: Path) -> None:
    put_driver(tmp_path)
    edits = DriverInstallation(str(tmp_path), "/run/nvidia/driver", required=True).edits()
    assert f"/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}" in host_paths(edits)
    assert not any(str(tmp_path) in path for path in host_paths(edits))


def test_an_unchanged_driver_is_not_searched_again(tmp_path: Path) -> None:
    put_driver(tmp_path)
    installation = DriverInstallation(str(tmp_path), "/", required=True)
    assert installation.edits() is installation.edits()


def test_another_driver_version_is_followed(tmp_path: Path) -> None:
    put_driver(tmp_path)
    installation = DriverInstallation(str(tmp_path), "/", required=True)
    installation.edits()
    put_driver(tmp_path, version="590.44.01")
    paths = host_paths(installation.edits())
    assert "/usr/lib64/libcuda.so.590.44.01" in paths
    assert f"/usr/lib64/libcuda.so.{VERSION}" not in paths


def test_a_socket_that_comes_or_goes_is_followed(tmp_path: Path) -> None:
    put_driver(tmp_path)
    installation = DriverInstallation(str(tmp_path), "/", required=True)
    assert not any("persistenced" in path for path in host_paths(installation.edits()))
    socket = put(tmp_path, "/run/nvidia-persistenced/socket")
    assert "/run/nvidia-persistenced/socket" in host_paths(installation.edits())
    socket.unlink()
    assert not any("persistenced" in path for path in host_paths(installation.edits()))


@pytest.mark.parametrize(
    "path",
    [
        f"/usr/lib64/libnvidia-encode.so.{VERSION}",
        f"/usr/lib64/vdpau/libvdpau_nvidia.so.{VERSION}",
        "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/etc/OpenCL/vendors/nvidia.icd",
    ],
)
def test_a_file_that_is_installed_later_is_followed(tmp_path: Path, path: str) -> None:
    """An installation brings its files one by one: the first claim may come in between."""
    put_driver(tmp_path)
    folder = (tmp_path / path.lstrip("/")).parent
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder, ns=(0, 0))  # long ago, whatever the clock of the file system
    installation = DriverInstallation(str(tmp_path), "/", required=True)
    assert path not in host_paths(installation.edits())
    file = put(tmp_path, path)
    assert path in host_paths(installation.edits())
    os.utime(folder, ns=(0, 0))
    file.unlink()
    assert path not in host_paths(installation.edits())


def test_a_root_without_driver_is_said_until_one_is_there(tmp_path: Path) -> None:
    installation = DriverInstallation(str(tmp_path), "/", required=True)
    with pytest.raises(DriverFilesMissingError, match=f"no NVIDIA driver below {tmp_path}.*--driver-root"):
        installation.edits()
    put_driver(tmp_path)
    assert installation.edits().mounts


def test_a_recorded_machine_needs_no_driver(tmp_path: Path) -> None:
    assert DriverInstallation(str(tmp_path), "/", required=False).edits() == DriverEdits()
