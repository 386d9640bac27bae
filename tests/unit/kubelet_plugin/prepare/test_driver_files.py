"""What a container gets of the driver."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.kubelet_plugin.prepare.cdi_rules import check_spec
from dracaena.kubelet_plugin.prepare.driver_files import DriverEdits, DriverFile, DriverFiles, Mount, driver_edits

VERSION = "580.65.06"
DEBIAN = "/usr/lib/x86_64-linux-gnu"


def file(path: str, soname: str | None = None, real_path: str | None = None) -> DriverFile:
    return DriverFile(path, real_path or path, soname)


CUDA = file(f"{DEBIAN}/libcuda.so.{VERSION}", "libcuda.so.1")
FILES = DriverFiles(
    version=VERSION,
    machine="x86_64",
    libraries=(CUDA, file(f"{DEBIAN}/libnvidia-gpucomp.so.{VERSION}", f"libnvidia-gpucomp.so.{VERSION}")),
    plugins=(file(f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}", "libvdpau_nvidia.so.1"),),
    files=(file("/usr/bin/nvidia-smi"),),
    sockets=(file("/run/nvidia-persistenced/socket"),),
)


def by_path(edits: DriverEdits) -> dict[str, Mount]:
    return {mount.container_path: mount for mount in edits.mounts}


def test_containers_see_the_paths_without_the_driver_root() -> None:
    mount = by_path(driver_edits(FILES, "/run/nvidia/driver/"))["/usr/bin/nvidia-smi"]
    assert mount.host_path == "/run/nvidia/driver/usr/bin/nvidia-smi"
    assert mount.options == ("ro", "nosuid", "nodev", "rbind", "rprivate")


def test_without_the_hook_tool_a_library_is_mounted_at_each_name_for_both_kinds_of_images() -> None:
    mounts = by_path(driver_edits(FILES, "/"))
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
    paths = {path for path in by_path(driver_edits(FILES, "/")) if "vdpau" in path}
    assert paths == {
        f"{DEBIAN}/vdpau/libvdpau_nvidia.so.{VERSION}",
        f"{DEBIAN}/vdpau/libvdpau_nvidia.so.1",
    }


def test_a_library_of_another_folder_is_mounted_where_loaders_look() -> None:
    wsl = DriverFiles(VERSION, "x86_64", (file("/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so.1"),))
    assert {"/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib64/libcuda.so.1", f"{DEBIAN}/libcuda.so.1"} <= set(
        by_path(driver_edits(wsl, "/"))
    )


def test_what_is_mounted_is_the_file_behind_all_links() -> None:
    linked = DriverFiles(VERSION, None, (file(CUDA.path, "libcuda.so.1", f"/opt/nvidia/libcuda.so.{VERSION}"),))
    hosts = {mount.host_path for mount in driver_edits(linked, "/run/nvidia/driver").mounts}
    assert hosts == {f"/run/nvidia/driver/opt/nvidia/libcuda.so.{VERSION}"}


def test_sockets_are_writable_and_run_nothing() -> None:
    options = by_path(driver_edits(FILES, "/"))["/run/nvidia-persistenced/socket"].options
    assert "ro" not in options
    assert "noexec" in options


def test_with_the_hook_tool_links_and_cache_are_its_work() -> None:
    hooked = DriverFiles(VERSION, "x86_64", FILES.libraries, FILES.plugins, hook="/usr/bin/nvidia-cdi-hook")
    edits = driver_edits(hooked, "/")
    assert len(edits.mounts) == 3
    links, cache = edits.hooks
    assert links.arguments[:2] == ("nvidia-cdi-hook", "create-symlinks")
    assert f"libcuda.so.{VERSION}::{DEBIAN}/libcuda.so.1" in links.arguments
    assert f"libcuda.so.{VERSION}::{DEBIAN}/libcuda.so" in links.arguments
    assert cache.arguments == ("nvidia-cdi-hook", "update-ldcache", "--folder", DEBIAN)


def test_nothing_found_is_nothing_to_add() -> None:
    assert driver_edits(DriverFiles(VERSION, None, ()), "/").document() == {}


def test_the_document_is_a_good_cdi_edit() -> None:
    for hook in (None, "/usr/bin/nvidia-cdi-hook"):
        files = DriverFiles(VERSION, "x86_64", FILES.libraries, FILES.plugins, FILES.files, FILES.sockets, hook)
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "gpu.dracaena.dev/claim",
            "containerEdits": driver_edits(files, "/").document(),
            "devices": [{"name": "gpu0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
        }
        assert check_spec(spec) == ()


NAMES = st.sampled_from(
    ["libcuda.so.1", "libcuda.so.580.65.06", "libcuda.so", "libGLX_nvidia.so.0", "liba.so.580.65.06"]
)
FOLDERS = st.sampled_from(["/usr/lib64", DEBIAN, "/lib64", "/usr/lib/wsl/lib"])


@settings(deadline=None, derandomize=True)
@given(libraries=st.lists(st.tuples(FOLDERS, NAMES, NAMES | st.none()), max_size=6))
def test_no_path_is_mounted_twice_and_every_library_is_there(libraries: list[tuple[str, str, str | None]]) -> None:
    files = tuple(file(f"{folder}/{name}", soname) for folder, name, soname in libraries)
    paths = [mount.container_path for mount in driver_edits(DriverFiles(VERSION, "x86_64", files), "/").mounts]
    assert len(set(paths)) == len(paths)
    assert paths == sorted(paths)
    assert {library.path for library in files} <= set(paths)
