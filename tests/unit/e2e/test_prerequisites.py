"""What is missing for the end-to-end tests is named, one line each, and nothing else is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from e2e import prerequisites

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Linux is what is missing")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(prerequisites, "CNI_FOLDERS", (tmp_path / "cni",))
    return folder


def put_program(folder: Path, name: str, script: str = "") -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)


def put_go(folder: Path, version: str, toolchain: str = "auto") -> None:
    put_program(folder, "go", f'[ "$*" = "env GOVERSION GOTOOLCHAIN" ] && printf "{version}\\n{toolchain}\\n"')


def about(name: str, *, built: bool = False) -> list[str]:
    return [line for line in prerequisites.missing(built=built) if line.startswith(f"{name}")]


@pytest.mark.parametrize("name", ["runc", "ip", "unshare", "mount"])
def test_a_program_that_is_not_there_is_named_with_its_package(programs: Path, name: str) -> None:
    assert len(about(f"{name}: not on PATH (Debian package")) == 1
    put_program(programs, name, "exit 1")
    assert about(f"{name}:") == []


def test_cni_plugins_are_missing_unless_one_folder_has_them_all(programs: Path) -> None:
    folder = programs.parent / "cni"
    folder.mkdir()
    for name in ("ptp", "host-local"):
        put_program(folder, name)
    assert len(about("CNI plugins ptp, host-local, loopback")) == 1
    put_program(folder, "loopback")
    assert about("CNI plugins") == []


def test_go_is_needed_only_to_build(programs: Path) -> None:
    assert about("go") == ["go: not on PATH (Go 1.26 or newer, or 1.21 with leave to fetch it)"]
    assert about("go", built=True) == []


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("version", "toolchain", "missing"),
    [
        ("go1.26.0", "auto", False),
        ("go1.26.8", "local", False),
        ("go1.27rc1", "local", False),
        ("go2.0", "local", False),
        ("go1.24.4", "auto", False),
        ("go1.24.4", "local", True),
        ("go1.19.8", "", True),
        ("go1.3", "", True),
        ("devel go1.27-abc", "local", False),
    ],
)
def test_a_go_that_is_too_old_and_may_not_fetch_another_is_named(
    programs: Path, version: str, toolchain: str, *, missing: bool
) -> None:
    put_go(programs, version, toolchain)
    expected = f"go: {version} is too old (Go 1.26 or newer, or 1.21 with leave to fetch it)"
    assert about("go") == ([expected] if missing else [])


def test_the_first_thing_that_root_may_not_do_is_named_alone(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    put_program(programs, "mount")
    put_program(programs, "unshare", "exit 1")
    assert [len(about(line)) for line in ("namespaces", "overlay file system", "device nodes")] == [1, 0, 0]
    put_program(programs, "unshare", 'case "$*" in *overlay*) exit 1;; esac')
    assert [len(about(line)) for line in ("namespaces", "overlay file system", "device nodes")] == [0, 1, 0]
    put_program(programs, "unshare", 'case "$*" in *mknod*) exit 1;; esac')
    assert len(about("device nodes")) == 1
    put_program(programs, "unshare")
    assert about("namespaces") + about("overlay") + about("device nodes") == []


def test_cgroups_that_cannot_be_written_are_named(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(prerequisites, "CGROUPS", (tmp_path / "two", tmp_path / "one"))
    assert len(about("cgroups: none can be made in")) == 1
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "cgroup.procs").touch()
    assert about("cgroups") == []


def test_without_root_nothing_is_tried(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    put_program(programs, "mount")
    put_program(programs, "unshare", "exit 1")
    assert len(about("root: ")) == 1
    assert about("namespaces") == []
