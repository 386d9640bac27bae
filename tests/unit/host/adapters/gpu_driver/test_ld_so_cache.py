"""The loader's cache: what ldconfig wrote is read, and nothing that is broken does harm."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.host.adapters.gpu_driver.ld_so_cache import (
    MAX_BYTES,
    CachedLibrary,
    parse_ld_so_cache,
    read_ld_so_cache,
)
from support.elf import library
from support.ld_so_cache import AARCH64, I386, ld_so_cache

LIBRARIES = {"libcuda.so.1": "/usr/lib/libcuda.so.1", "libnvidia-ml.so.1": "/opt/nvidia/libnvidia-ml.so.1"}
EXPECTED = tuple(CachedLibrary(name, path) for name, path in LIBRARIES.items())


@pytest.mark.parametrize("with_old_format", [False, True])
def test_entries_are_read_in_their_order(*, with_old_format: bool) -> None:
    assert parse_ld_so_cache(ld_so_cache(LIBRARIES, with_old_format=with_old_format)) == EXPECTED
    assert parse_ld_so_cache(ld_so_cache(LIBRARIES, kind=AARCH64)) == EXPECTED


def test_libraries_of_32_bits_are_left_out() -> None:
    assert parse_ld_so_cache(ld_so_cache(LIBRARIES, kind=I386)) == ()


def test_a_cache_in_the_other_byte_order_is_none() -> None:
    data = bytearray(ld_so_cache(LIBRARIES))
    data[28] = 3
    assert parse_ld_so_cache(bytes(data)) == ()


def test_an_entry_that_points_outside_is_left_out() -> None:
    data = ld_so_cache(LIBRARIES)
    assert parse_ld_so_cache(data[:-1]) == EXPECTED[:1]
    assert parse_ld_so_cache(ld_so_cache({"a": "relative", "b\n": "/b", **LIBRARIES})) == EXPECTED


def test_what_is_no_file_or_too_large_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(ld_so_cache(LIBRARIES) + b"\0" * MAX_BYTES)
    for name in ("pipe", "large", "gone", "."):
        assert read_ld_so_cache(tmp_path / name) == ()


CACHES = st.builds(
    lambda libraries, old: ld_so_cache(libraries, with_old_format=old),
    st.dictionaries(st.text("abc.so", min_size=1, max_size=5), st.text("/abc", max_size=5), max_size=4),
    st.booleans(),
)


@given(
    data=CACHES,
    changes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8),
    end=st.integers(0, 400),
)
def test_no_broken_cache_raises_or_names_what_is_no_path(data: bytes, changes: list[tuple[int, int]], end: int) -> None:
    broken = bytearray(data)
    for place, value in changes:
        if place < len(broken):
            broken[place] = value
    for each in parse_ld_so_cache(bytes(broken[:end])):
        assert each.name.isprintable()
        assert each.path.startswith("/")


@pytest.mark.skipif(shutil.which("ldconfig") is None, reason="ldconfig writes the cache that is read here")
def test_a_cache_that_ldconfig_itself_wrote_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "opt/nvidia"
    folder.mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (folder / "libcuda.so.580.65.06").write_bytes(library("libcuda.so.1"))
    (tmp_path / "etc/ld.so.conf").write_text("/opt/nvidia\n")
    subprocess.run([str(shutil.which("ldconfig")), "-r", str(tmp_path)], check=True, capture_output=True)
    assert CachedLibrary("libcuda.so.1", "/opt/nvidia/libcuda.so.1") in read_ld_so_cache(tmp_path / "etc/ld.so.cache")
