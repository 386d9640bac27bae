"""What a container gets of the driver."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import (
    GpuDriverEdits,
    GpuDriverFile,
    GpuDriverFiles,
    gpu_driver_edits,
)
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS, HookTool
from dracaena.kubelet_plugin.prepare.cdi.spec import Device, DeviceNode, Edits, Mount, Spec, broken_rules

VERSION = "580.65.06"
DEBIAN = "/usr/lib/x86_64-linux-gnu"
TOOL = HookTool("/usr/bin/nvidia-cdi-hook", COMMANDS)


def file(path: str, soname: str | None = None, real_path: str | None = None) -> GpuDriverFile:
    return GpuDriverFile(path, real_path or path, soname)


CUDA = file(f"{DEBIAN}/libcuda.so.{VERSION}", "libcuda.so.1")
FILES = GpuDriverFiles(
    version=VERSION,
    machine="x86_64",
    libraries=(CUDA, file(f"{DEBIAN}/libnvidia-gpucomp.so.{VERSION}", f"libnvidia-gpucomp.so.{VERSION}")),
    plugins=(file(f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1"),),
    files=(file("/usr/bin/nvidia-smi"),),
    sockets=(file("/run/nvidia-persistenced/socket"),),
)


def by_path(edits: GpuDriverEdits) -> dict[str, Mount]:
    return {mount.container_path: mount for mount in edits.mounts}


def test_containers_see_the_paths_without_the_driver_root() -> None:
    mount = by_path(gpu_driver_edits(FILES, "/run/nvidia/driver/"))["/usr/bin/nvidia-smi"]
    assert mount.host_path == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert mount.options == ("ro", "nosuid", "nodev", "rbind", "rprivate")


def test_without_the_hook_tool_a_library_is_mounted_at_each_name_for_both_kinds_of_images() -> None:
    mounts = by_path(gpu_driver_edits(FILES, "/"))
    cuda = {path for path, mount in mounts.items() if mount.host_path == CUDA.path}
    assert cuda == {
        CUDA.path,
        f"{DEBIAN}/libcuda.so.1",
        f"{DEBIAN}/libcuda.so",
        "/usr/lib64/libcuda.so.1",
        "/usr/lib64/libcuda.so",
    }
    assert f"/usr/lib64/libnvidia-gpucomp.so.{VERSION}" in mounts


def test_plugins_stay_in_their_folder() -> None:
    paths = {path for path in by_path(gpu_driver_edits(FILES, "/")) if "vdpau" in path}
    assert paths == {
        f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"{DEBIAN}/vdpau/libvdpau_nvidia.so.1",
    }


def test_a_library_of_another_folder_is_mounted_where_loaders_look() -> None:
    wsl = GpuDriverFiles(VERSION, "x86_64", (file("/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so.1"),))
    assert {"/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib64/libcuda.so.1", f"{DEBIAN}/libcuda.so.1"} <= set(
        by_path(gpu_driver_edits(wsl, "/"))
    )


def test_what_is_mounted_is_the_file_behind_all_links() -> None:
    linked = GpuDriverFiles(VERSION, None, (file(CUDA.path, "libcuda.so.1", f"/opt/nvidia/libcuda.so.{VERSION}"),))
    hosts = {mount.host_path for mount in gpu_driver_edits(linked, "/run/nvidia/driver").mounts}
    assert hosts == {f"/run/nvidia/driver/opt/nvidia/libcuda.so.{VERSION}"}


def test_sockets_are_writable_and_run_nothing() -> None:
    options = by_path(gpu_driver_edits(FILES, "/"))["/run/nvidia-persistenced/socket"].options
    assert "ro" not in options
    assert "noexec" in options


def test_with_the_hook_tool_links_and_cache_are_its_work() -> None:
    edits = gpu_driver_edits(replace(FILES, files=(), sockets=()), "/", TOOL)
    assert len(edits.mounts) == 3
    hooks = {hook.args[1]: hook.args[2:] for hook in edits.hooks}
    before_the_cache = ["create-symlinks", "enable-cuda-compat", "update-ldcache"]
    assert [name for name in hooks if name in before_the_cache] == before_the_cache, "the cache picks up what they make"
    assert f"libcuda.so.{VERSION}::{DEBIAN}/libcuda.so.1" in hooks["create-symlinks"]
    assert f"libcuda.so.1::{DEBIAN}/libcuda.so" in hooks["create-symlinks"]
    assert hooks["update-ldcache"] == ("--folder", DEBIAN, "--folder", f"{DEBIAN}/vdpau")
    assert hooks["enable-cuda-compat"] == (f"--host-driver-version={VERSION}",)
    assert hooks["disable-device-node-modification"] == hooks["update-application-profile"] == ()


def test_a_hook_that_the_tool_does_not_know_is_left_out() -> None:
    edits = gpu_driver_edits(FILES, "/", HookTool("/usr/bin/nvidia-cdi-hook"))
    assert [hook.args[1] for hook in edits.hooks] == ["create-symlinks", "update-ldcache"]


def test_an_older_tool_has_its_hooks_below_a_command() -> None:
    edits = gpu_driver_edits(FILES, "/run/nvidia/driver", HookTool("/usr/bin/nvidia-ctk", COMMANDS))
    assert {hook.args[:2] for hook in edits.hooks} == {("nvidia-ctk", "hook")}


@pytest.mark.parametrize(
    ("name", "soname", "link"),
    [
        ("libnvidia-allocator", "libnvidia-allocator.so.1", "../libnvidia-allocator.so.1::{}/gbm/nvidia-drm_gbm.so"),
        ("libGLX_nvidia", "libGLX_nvidia.so.0", "libGLX_nvidia.so.{v}::{}/libGLX_indirect.so.0"),
        (
            "libnvidia-vulkan-producer",
            "libnvidia-vulkan-producer.so",
            "libnvidia-vulkan-producer.so.{v}::{}/libnvidia-vulkan-producer.so",
        ),
        (
            "libnvidia-opticalflow",
            "libnvidia-opticalflow.so.1",
            "libnvidia-opticalflow.so.1::{}/libnvidia-opticalflow.so",
        ),
    ],
)
def test_names_by_which_programs_open_a_library_lead_to_it(name: str, soname: str, link: str) -> None:
    files = GpuDriverFiles(VERSION, "x86_64", (file(f"{DEBIAN}/{name}.so.{VERSION}", soname),))
    expected = link.format(DEBIAN, v=VERSION)
    assert expected in gpu_driver_edits(files, "/", TOOL).hooks[0].args
    assert expected.partition("::")[2] in by_path(gpu_driver_edits(files, "/"))


def test_the_glx_module_is_opened_without_a_version() -> None:
    folder = "/usr/lib/xorg/modules/extensions"
    files = GpuDriverFiles(VERSION, None, (), modules=(file(f"{folder}/libglxserver_nvidia.so.{VERSION}"),))
    link = f"libglxserver_nvidia.so.{VERSION}::{folder}/libglxserver_nvidia.so"
    assert link in gpu_driver_edits(files, "/", TOOL).hooks[0].args


def test_a_link_without_a_version_is_made_where_the_host_has_one() -> None:
    path = f"{DEBIAN}/libnvidia-ml.so.{VERSION}"
    for plain in (True, False):
        ml = GpuDriverFile(path, path, "libnvidia-ml.so.1", plain_link=plain)
        edits = gpu_driver_edits(GpuDriverFiles(VERSION, None, (ml,)), "/", TOOL)
        assert (f"libnvidia-ml.so.1::{DEBIAN}/libnvidia-ml.so" in edits.hooks[0].args) is plain


def test_programs_in_the_container_are_told_where_the_libraries_are() -> None:
    assert gpu_driver_edits(FILES, "/").environment == (f"NVIDIA_CTK_LIBCUDA_DIR={DEBIAN}",)


def test_nothing_found_is_nothing_to_add() -> None:
    assert gpu_driver_edits(GpuDriverFiles(VERSION, None, ()), "/") == GpuDriverEdits()


def test_they_are_good_cdi_edits() -> None:
    gpu = Device("gpu0", Edits(device_nodes=(DeviceNode("/dev/nvidia0"),)))
    for tool in (None, TOOL):
        edits = gpu_driver_edits(FILES, "/", tool)
        spec = Spec("gpu.dracaena.dev/claim", (gpu,), Edits(edits.environment, (), edits.mounts, edits.hooks))
        assert list(broken_rules(spec)) == []


NAMES = st.sampled_from(
    ["libcuda.so.1", "libcuda.so.580.65.06", "libcuda.so", "libGLX_nvidia.so.0", "liba.so.580.65.06"]
)
FOLDERS = st.sampled_from(["/usr/lib64", DEBIAN, "/lib64", "/usr/lib/wsl/lib"])


@settings(derandomize=True)
@given(libraries=st.lists(st.tuples(FOLDERS, NAMES, NAMES | st.none()), max_size=6))
def test_no_path_is_mounted_twice_and_every_library_is_there(libraries: list[tuple[str, str, str | None]]) -> None:
    files = tuple(file(f"{folder}/{name}", soname) for folder, name, soname in libraries)
    paths = [mount.container_path for mount in gpu_driver_edits(GpuDriverFiles(VERSION, "x86_64", files), "/").mounts]
    assert len(set(paths)) == len(paths)
    assert paths == sorted(paths)
    assert {library.path for library in files} <= set(paths)
