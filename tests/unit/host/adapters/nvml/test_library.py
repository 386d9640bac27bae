"""Finding and loading the driver's library below a driver root, with real shared objects."""

from __future__ import annotations

import _ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.host.adapters.nvml.library import LIBRARY, GpuDriverNotReadyError, NvmlLibrary, load_library


@pytest.fixture(autouse=True)
def _no_library_stays() -> Iterator[None]:
    yield
    assert pynvml.nvmlLib is None
    assert not pynvml._nvmlGetFunctionPointer_cache


def put_library(root: Path, folder: str) -> Path:
    """Put some shared object in the place of NVML's: it loads, and has none of its symbols."""
    target = root / folder / f"{LIBRARY.removesuffix('.1')}.580.65.06"
    target.parent.mkdir(parents=True)
    shutil.copy(_ctypes.__file__, target)
    (target.parent / LIBRARY).symlink_to(target.name)
    return target


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64"])
def test_the_library_is_found_in_the_folders_of_distributions(folder: str, tmp_path: Path) -> None:
    target = put_library(tmp_path, folder)
    root = GpuDriverRoot(str(tmp_path))
    path = root.library(LIBRARY)
    assert path is not None
    assert root.on_disk(path) == target
    assert load_library(str(tmp_path)) is not None


def test_without_a_library_the_error_names_the_root(tmp_path: Path) -> None:
    with pytest.raises(GpuDriverNotReadyError, match=f"waiting for the NVIDIA driver: no {LIBRARY} below {tmp_path}"):
        load_library(str(tmp_path))


def test_a_file_that_is_no_library_is_waited_for(tmp_path: Path) -> None:
    target = put_library(tmp_path, "usr/lib64")
    target.write_text("half copied", encoding="ascii")
    with pytest.raises(GpuDriverNotReadyError, match=str(target)):
        load_library(str(tmp_path))


def test_a_library_without_our_symbols_is_said_to_be_too_old(tmp_path: Path) -> None:
    put_library(tmp_path, "usr/lib64")
    library = NvmlLibrary(lambda: load_library(str(tmp_path)))
    with pytest.raises(GpuDriverNotReadyError, match="too old"):
        library.open()


def test_closing_what_is_not_open_is_nothing(tmp_path: Path) -> None:
    NvmlLibrary(lambda: load_library(str(tmp_path))).close()


def test_absolute_links_stay_below_the_root(tmp_path: Path) -> None:
    target = tmp_path / "usr/lib/nvidia/libcuda.so.1"
    target.parent.mkdir(parents=True)
    target.write_text("inside", encoding="ascii")
    (tmp_path / "usr/lib64").mkdir()
    (tmp_path / "usr/lib64/libcuda.so.1").symlink_to("/usr/lib/nvidia/libcuda.so.1")
    (tmp_path / "lib64").symlink_to("/usr/lib64")
    root = GpuDriverRoot(str(tmp_path))
    assert str(root.resolve("/lib64/libcuda.so.1")) == "/usr/lib/nvidia/libcuda.so.1"


def test_links_that_climb_stop_at_the_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/host").write_text("", encoding="ascii")
    (tmp_path / "up").symlink_to("../../../../../../etc/host")
    assert str(GpuDriverRoot(str(tmp_path)).resolve("/up")) == "/etc/host"


def test_a_circle_of_links_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("/a")
    assert GpuDriverRoot(str(tmp_path)).resolve("/a") is None


def test_a_link_to_nothing_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/gone")
    assert GpuDriverRoot(str(tmp_path)).resolve("/a") is None
