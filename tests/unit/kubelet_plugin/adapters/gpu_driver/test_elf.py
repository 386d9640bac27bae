"""SONAMEs of real and of broken libraries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dracaena.kubelet_plugin.adapters.gpu_driver.elf import ElfFacts, read_elf
from support.elf import library


def test_the_libraries_of_this_process_are_read() -> None:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    libc = next(iter(re.findall(r"(/\S*/(?:libc\.so\.6|ld-musl\S*))", maps)))
    facts = read_elf(Path(libc))
    assert facts is not None
    assert facts.soname is not None
    assert facts.soname.startswith("lib")


@pytest.mark.parametrize(("number", "machine"), [(62, "x86_64"), (183, "aarch64"), (3, None)])
def test_soname_and_machine(number: int, machine: str | None, tmp_path: Path) -> None:
    file = tmp_path / "lib"
    file.write_bytes(library("libcuda.so.1", number))
    assert read_elf(file) == ElfFacts(machine, "libcuda.so.1")


def test_a_library_without_soname(tmp_path: Path) -> None:
    file = tmp_path / "lib"
    file.write_bytes(library(None))
    assert read_elf(file) == ElfFacts("x86_64", None)


def test_a_soname_with_a_slash_is_none(tmp_path: Path) -> None:
    file = tmp_path / "lib"
    file.write_bytes(library("../../etc/passwd"))
    assert read_elf(file) == ElfFacts("x86_64", None)


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert read_elf(tmp_path / "gone") is None
    assert read_elf(tmp_path) is None


@settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 400), changes=st.dictionaries(st.integers(0, 300), st.integers(0, 255), max_size=4))
def test_no_broken_file_crashes(cut: int, changes: dict[int, int], tmp_path: Path) -> None:
    content = bytearray(library("libcuda.so.1"))
    for place, value in changes.items():
        if place < len(content):
            content[place] = value
    file = tmp_path / "lib"
    file.write_bytes(bytes(content[:cut]))
    facts = read_elf(file)
    assert facts is None or facts.soname is None or "/" not in facts.soname
