"""The driver's files, found in trees as distributions and driver containers have them."""

from __future__ import annotations

from pathlib import Path

from dracaena.kubelet_plugin.adapters.driver_files import find_driver_files
from dracaena.kubelet_plugin.prepare.driver_files import DriverFile, DriverFiles
from support.driver_root import VERSION, put, put_driver
from support.elf import library


def found(root: Path, host_root: str = "/run/nvidia/driver") -> DriverFiles:
    files = find_driver_files(str(root), host_root=host_root)
    assert files is not None
    return files


def paths(files: tuple[DriverFile, ...]) -> list[str]:
    return [file.path for file in files]


def test_libraries_are_found_by_version_with_their_sonames(tmp_path: Path) -> None:
    put_driver(tmp_path)
    put(tmp_path, "/usr/lib64/libc.so.6", library("libc.so.6"))
    files = found(tmp_path)
    assert (files.version, files.machine) == (VERSION, "x86_64")
    assert [(file.path, file.soname) for file in files.libraries] == [
        (f"/usr/lib64/libcuda.so.{VERSION}", "libcuda.so.1"),
        (f"/usr/lib64/libnvidia-gpucomp.so.{VERSION}", f"libnvidia-gpucomp.so.{VERSION}"),
        (f"/usr/lib64/libnvidia-ml.so.{VERSION}", "libnvidia-ml.so.1"),
    ]


def test_without_a_driver_there_is_none(tmp_path: Path) -> None:
    put(tmp_path, "/usr/lib64/libc.so.6")
    assert find_driver_files(str(tmp_path)) is None
    assert find_driver_files(str(tmp_path / "gone")) is None


def test_of_two_versions_the_one_in_use_holds(tmp_path: Path) -> None:
    put_driver(tmp_path)
    put(tmp_path, "/usr/lib64/libcuda.so.470.42.01", library("libcuda.so.1"))
    put(tmp_path, "/usr/lib64/libnvidia-ml.so.470.42.01", library("libnvidia-ml.so.1"))
    assert found(tmp_path).version == VERSION
    assert all(path.endswith(VERSION) for path in paths(found(tmp_path).libraries))


def test_a_file_that_two_folders_lead_to_is_there_once(tmp_path: Path) -> None:
    put_driver(tmp_path)
    (tmp_path / "lib64").symlink_to("/usr/lib64")
    assert paths(found(tmp_path).libraries)[0] == f"/usr/lib64/libcuda.so.{VERSION}"
    assert len(found(tmp_path).libraries) == 3


def test_links_are_followed_below_the_root(tmp_path: Path) -> None:
    put(tmp_path, f"/usr/lib64/nvidia/libcuda.so.{VERSION}", library("libcuda.so.1"))
    (tmp_path / f"usr/lib64/libcuda.so.{VERSION}").symlink_to(f"/usr/lib64/nvidia/libcuda.so.{VERSION}")
    assert found(tmp_path).libraries == (
        DriverFile(f"/usr/lib64/libcuda.so.{VERSION}", f"/usr/lib64/nvidia/libcuda.so.{VERSION}", "libcuda.so.1"),
    )


def test_a_driver_in_a_folder_of_its_own_is_found_where_the_usual_links_lead(tmp_path: Path) -> None:
    """As Debian lays it out: the links go through /etc/alternatives, the versioned files are elsewhere."""
    usual, own = "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current"
    put_driver(tmp_path, own)
    put(tmp_path, f"{own}/vdpau/libvdpau_nvidia.so.{VERSION}", library("libvdpau_nvidia.so.1"))
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / f"etc/alternatives/{name}").symlink_to(f"{own}/{name}")
        (tmp_path / f"{usual}/{name}".lstrip("/")).symlink_to(f"/etc/alternatives/{name}")
    files = found(tmp_path)
    assert paths(files.libraries) == [
        f"{own}/{name}.so.{VERSION}" for name in ("libcuda", "libnvidia-gpucomp", "libnvidia-ml")
    ]
    assert paths(files.plugins) == [f"{own}/vdpau/libvdpau_nvidia.so.{VERSION}"]


def test_programs_firmware_configuration_and_sockets(tmp_path: Path) -> None:
    put_driver(tmp_path, "/usr/lib/x86_64-linux-gnu")
    wanted = [
        "/etc/OpenCL/vendors/nvidia.icd",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
        "/usr/bin/nvidia-smi",
        "/usr/share/vulkan/icd.d/nvidia_icd.json",
    ]
    for path in (*wanted, "/usr/bin/bash", "/lib/firmware/nvidia/470.42.01/gsp.bin", "/run/nvidia-persistenced/socket"):
        put(tmp_path, path)
    put(tmp_path, f"/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.{VERSION}", library("libvdpau_nvidia.so.1"))
    files = found(tmp_path)
    assert paths(files.files) == wanted
    assert paths(files.sockets) == ["/run/nvidia-persistenced/socket"]
    assert paths(files.plugins) == [f"/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.{VERSION}"]


def test_a_socket_that_two_paths_lead_to_is_there_once(tmp_path: Path) -> None:
    put_driver(tmp_path)
    put(tmp_path, "/run/nvidia-persistenced/socket")
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    assert len(found(tmp_path).sockets) == 1


def test_the_hook_tool_counts_only_on_the_host_itself(tmp_path: Path) -> None:
    put_driver(tmp_path)
    assert found(tmp_path, "/").hook is None
    put(tmp_path, "/usr/bin/nvidia-cdi-hook")
    assert found(tmp_path, "/").hook == "/usr/bin/nvidia-cdi-hook"
    assert found(tmp_path, "/run/nvidia/driver").hook is None


def test_a_library_that_is_no_library_is_still_mounted_by_its_name(tmp_path: Path) -> None:
    put_driver(tmp_path)
    put(tmp_path, f"/usr/lib64/libnvidia-odd.so.{VERSION}", b"no ELF")
    odd = next(file for file in found(tmp_path).libraries if "odd" in file.path)
    assert odd.soname is None
