"""What a built wheel holds, and when it must not be built."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Collection
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = ROOT / "src" / "dracaena"
PACKAGES = sorted(link.name for link in LINKS.iterdir() if link.is_symlink())


def tracked_files() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def copy_of_the_repository(target: Path, left_out: Collection[str] = ()) -> Path:
    """Copy what git tracks, links as links: a build leaves folders behind that do not belong into the checkout."""
    for name in tracked_files():
        if name.partition("/")[0] in left_out:
            continue
        source, copy = ROOT / name, target / name
        if source.exists() or source.is_symlink():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    return target


def build(root: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(root / "dist"),
        str(root),
    ]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = copy_of_the_repository(tmp_path_factory.mktemp("repository"))
    done = build(root)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((root / "dist").glob("*.whl"))


def test_wheel_holds_what_git_holds(wheel: Path) -> None:
    in_wheel = {name for name in zipfile.ZipFile(wheel).namelist() if not name.split("/")[0].endswith(".dist-info")}
    in_git = {f"dracaena/{name}" for name in tracked_files() if name.partition("/")[0] in PACKAGES}
    in_git |= {
        name.removeprefix("src/")
        for name in tracked_files()
        if name in {"src/dracaena/__init__.py", "src/dracaena/py.typed"}
    }
    assert sorted(in_wheel) == sorted(in_git)


def test_wheel_owns_one_top_level_name(wheel: Path) -> None:
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"dracaena"}


def test_wheel_brings_both_commands(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    entry_points = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
    lines = archive.read(entry_points).decode().splitlines()
    assert "dracaena = dracaena.cli.main:main" in lines
    assert "kubectl-dracaena = dracaena.cli.main:main" in lines


@pytest.mark.parametrize("damage", ["link removed", "link leads nowhere", "folder without __init__.py"])
def test_build_fails_when_a_linked_package_is_missing(damage: str, tmp_path: Path) -> None:
    root = copy_of_the_repository(tmp_path, left_out={"tests", "docs"})  # most of the files, and of no package
    link = root / "src" / "dracaena" / "controller"
    if damage == "folder without __init__.py":
        (root / "controller" / "__init__.py").unlink()
    else:
        link.unlink()
    if damage == "link leads nowhere":
        link.symlink_to("../../nowhere")
    done = build(root)
    assert done.returncode != 0
    assert "{controller} lead to no package" in done.stdout + done.stderr
    assert not list((root / "dist").glob("*.whl"))
