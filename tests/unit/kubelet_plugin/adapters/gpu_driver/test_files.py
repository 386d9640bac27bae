"""The driver's files, found in trees as distributions and driver containers have them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.adapters.gpu_driver.files import Kernel, find_gpu_driver_files, missing_libraries
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import GpuDriverFile, GpuDriverFiles
from support.elf import library
from support.gpu_driver_root import VERSION, put, put_gpu_driver
from support.ld_so_cache import ld_so_cache


def look(root: Path, loaded: str | None = None) -> GpuDriverFiles | None:
    return find_gpu_driver_files(GpuDriverRoot(str(root)), Kernel(str(root / "sys")), loaded)


def found(root: Path, loaded: str | None = None) -> GpuDriverFiles:
    files = look(root, loaded)
    assert files is not None
    return files


def put_special(root: Path, path: str, kind: int) -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(target, kind | 0o666)
    return target


def paths(files: tuple[GpuDriverFile, ...]) -> list[str]:
    return [file.path for file in files]


def test_libraries_are_found_by_version_with_their_sonames(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
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
    assert look(tmp_path) is None
    assert look(tmp_path / "gone") is None


def test_of_two_versions_the_one_in_use_holds(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    put(tmp_path, "/usr/lib64/libcuda.so.470.42.01", library("libcuda.so.1"))
    put(tmp_path, "/usr/lib64/libnvidia-ml.so.470.42.01", library("libnvidia-ml.so.1"))
    assert found(tmp_path).version == VERSION
    assert all(path.endswith(VERSION) for path in paths(found(tmp_path).libraries))


def test_a_file_that_two_folders_lead_to_is_there_once(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    (tmp_path / "lib64").symlink_to("/usr/lib64")
    assert paths(found(tmp_path).libraries)[0] == f"/usr/lib64/libcuda.so.{VERSION}"
    assert len(found(tmp_path).libraries) == 3


def test_links_are_followed_below_the_root(tmp_path: Path) -> None:
    put(tmp_path, f"/usr/lib64/nvidia/libcuda.so.{VERSION}", library("libcuda.so.1"))
    (tmp_path / f"usr/lib64/libcuda.so.{VERSION}").symlink_to(f"/usr/lib64/nvidia/libcuda.so.{VERSION}")
    assert found(tmp_path).libraries == (
        GpuDriverFile(f"/usr/lib64/libcuda.so.{VERSION}", f"/usr/lib64/nvidia/libcuda.so.{VERSION}", "libcuda.so.1"),
    )


def test_a_driver_in_a_folder_of_its_own_is_found_where_the_usual_links_lead(tmp_path: Path) -> None:
    """As Debian lays it out: the links go through /etc/alternatives, the versioned files are elsewhere."""
    usual, own = "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current"
    put_gpu_driver(tmp_path, own)
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


def test_libraries_of_the_loaded_driver_are_taken_whatever_the_links_say(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path, version="550.54.15")
    put_gpu_driver(tmp_path)
    files = found(tmp_path, "550.54.15")
    assert files.version == "550.54.15"
    assert all(path.endswith(".550.54.15") for path in paths(files.libraries))


def test_libraries_that_do_not_fit_the_loaded_driver_are_none(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    assert look(tmp_path, "550.54.15") is None


def test_a_driver_without_one_of_its_essential_libraries_is_told(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    assert missing_libraries(found(tmp_path)) == ()
    (tmp_path / f"usr/lib64/libcuda.so.{VERSION}").unlink()
    assert missing_libraries(found(tmp_path)) == (f"libcuda.so.{VERSION}",)


@pytest.mark.parametrize("folder", ["/usr/lib", "/opt/nvidia/lib"])
def test_libraries_of_an_unusual_folder_are_found_by_the_loaders_cache(tmp_path: Path, folder: str) -> None:
    put_gpu_driver(tmp_path, folder)
    assert look(tmp_path) is None
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    put(tmp_path, "/etc/ld.so.cache", ld_so_cache({name: f"{folder}/{name}" for name in names}))
    files = found(tmp_path)
    assert {file.folder for file in files.libraries} == {folder}
    assert missing_libraries(files) == ()


def test_a_cache_that_names_compatibility_libraries_does_not_mislead(tmp_path: Path) -> None:
    """CUDA's own compatibility libraries of a newer version stand in the cache of many hosts."""
    put_gpu_driver(tmp_path, "/usr/lib")
    put(tmp_path, "/usr/local/cuda/compat/libcuda.so.590.44.01", library("libcuda.so.1"))
    entries = {
        "libcuda.so.1": "/usr/local/cuda/compat/libcuda.so.590.44.01",
        "libnvidia-ml.so.1": "/usr/lib/libnvidia-ml.so.1",
    }
    put(tmp_path, "/etc/ld.so.cache", ld_so_cache(entries))
    files = found(tmp_path, VERSION)
    assert {file.folder for file in files.libraries} == {"/usr/lib"}
    assert missing_libraries(files) == ()


def test_programs_and_firmware(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path, "/usr/lib/x86_64-linux-gnu")
    wanted = [f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin", f"/lib/firmware/nvidia/{VERSION}/ucodes_gb10x.bin"]
    for path in (*wanted, "/usr/bin/bash", "/lib/firmware/nvidia/470.42.01/gsp.bin"):
        put(tmp_path, path)
    for folder in ("/usr/bin", "/opt/bin"):
        put(tmp_path, f"{folder}/nvidia-smi")
    put(tmp_path, f"/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.{VERSION}", library("libvdpau_nvidia.so.1"))
    files = found(tmp_path)
    assert paths(files.files) == [*wanted, "/usr/bin/nvidia-smi"]
    assert paths(files.plugins) == [f"/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.{VERSION}"]


def test_firmware_is_found_where_the_kernel_was_told_to_look(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    put(tmp_path, "/sys/module/firmware_class/parameters/path", b"/opt/firmware\n")
    put(tmp_path, f"/opt/firmware/nvidia/{VERSION}/gsp_tu10x.bin")
    assert paths(found(tmp_path).files) == [f"/opt/firmware/nvidia/{VERSION}/gsp_tu10x.bin"]


@pytest.mark.parametrize(
    ("path", "in_container"),
    [
        ("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "/etc/vulkan/icd.d/nvidia_icd.x86_64.json"),
        ("/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json"),
        ("/etc/OpenCL/vendors/nvidia.icd", "/etc/OpenCL/vendors/nvidia.icd"),
        ("/usr/local/share/nvidia/nvoptix.bin", "/usr/share/nvidia/nvoptix.bin"),
        ("/etc/glvnd/egl_vendor.d/10_nvidia.json", "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"),
    ],
)
def test_configuration_stands_where_a_container_looks_for_it(tmp_path: Path, path: str, in_container: str) -> None:
    put_gpu_driver(tmp_path)
    put(tmp_path, path)
    assert found(tmp_path).files == (GpuDriverFile(in_container, path),)


def test_modules_of_the_x_server(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    wanted = [
        "/usr/lib64/xorg/modules/drivers/nvidia_drv.so",
        f"/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.{VERSION}",
    ]
    for path in (*wanted, "/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so.470.42.01"):
        put(tmp_path, path)
    assert paths(found(tmp_path).modules) == wanted


def test_sockets_are_told_once_and_nothing_else_that_is_called_so(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    put_special(tmp_path, "/run/nvidia-persistenced/socket", stat.S_IFSOCK)
    (tmp_path / "run/nvidia-fabricmanager").mkdir()
    (tmp_path / "run/nvidia-fabricmanager/socket").symlink_to("/etc/shadow")
    put(tmp_path, "/etc/shadow")
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("/run")
    assert paths(found(tmp_path).sockets) == ["/run/nvidia-persistenced/socket"]


def test_the_pipes_of_mps_are_a_folder_of_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody may write to /tmp: a folder of somebody else, or a link, would lead all containers there."""
    put_gpu_driver(tmp_path)
    pipes = tmp_path / "tmp/nvidia-mps"
    (tmp_path / "etc").mkdir()
    pipes.parent.mkdir()
    pipes.symlink_to("/etc")
    assert found(tmp_path).sockets == ()
    pipes.unlink()
    pipes.mkdir()
    real = Path.lstat
    for owner, expected in ((0, ["/tmp/nvidia-mps"]), (1000, [])):

        def owned(path: Path, owner: int = owner) -> os.stat_result:
            facts = list(real(path))
            facts[stat.ST_UID] = owner
            return os.stat_result(facts)

        monkeypatch.setattr(Path, "lstat", owned)
        assert paths(found(tmp_path).sockets) == expected


def test_a_link_without_a_version_is_noted(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    (tmp_path / "usr/lib64/libnvidia-ml.so").symlink_to("libnvidia-ml.so.1")
    put(tmp_path, "/usr/lib64/libcuda.so")  # a stub, no link
    assert [file.name for file in found(tmp_path).libraries if file.plain_link] == [f"libnvidia-ml.so.{VERSION}"]


@pytest.mark.parametrize("name", [f"lib:a.so.{VERSION}", f"libé.so.{VERSION}", f"lib\n.so.{VERSION}"])
def test_a_name_that_no_spec_can_hold_is_passed_over(tmp_path: Path, name: str) -> None:
    put_gpu_driver(tmp_path)
    put(tmp_path, f"/usr/lib64/{name}", library(None))
    (tmp_path / f"usr/lib64/libnvidia-linked.so.{VERSION}").symlink_to(name)
    assert len(found(tmp_path).libraries) == 3


def test_a_library_that_is_no_library_is_still_mounted_by_its_name(tmp_path: Path) -> None:
    put_gpu_driver(tmp_path)
    put(tmp_path, f"/usr/lib64/libnvidia-odd.so.{VERSION}", b"no ELF")
    odd = next(file for file in found(tmp_path).libraries if "odd" in file.path)
    assert odd.soname is None
