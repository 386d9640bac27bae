"""The names that a program or a test run loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(link.name for link in (ROOT / "src" / "dracaena").iterdir() if link.is_symlink())


def test_links_cover_every_package_of_the_repository() -> None:
    folders = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
    assert folders == PACKAGES


def test_links_are_relative() -> None:
    for name in PACKAGES:
        assert str((ROOT / "src" / "dracaena" / name).readlink()) == f"../../{name}"


def test_importing_everything_loads_no_generic_top_level_name(
    loaded_by_everything: tuple[list[str], dict[str, list[str]]],
) -> None:
    modules, _ = loaded_by_everything
    assert {f"dracaena.{name}" for name in PACKAGES} <= set(modules)
    assert [name for name in modules if name.partition(".")[0] in PACKAGES] == []


def test_this_test_run_loaded_no_generic_top_level_name() -> None:
    assert [name for name in sys.modules if name.partition(".")[0] in PACKAGES] == []


def test_this_test_run_cannot_find_the_short_names() -> None:
    assert str(ROOT) not in sys.path
    assert "" not in sys.path


def test_the_plugin_loads_nvml_only_where_it_is_asked() -> None:
    """A recorded machine runs on a host without any driver, and costs no memory for its bindings."""
    program = "import sys, dracaena.kubelet_plugin.program; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", PACKAGES)
def test_linter_bans_the_short_name(name: str, tmp_path: Path) -> None:
    source = tmp_path / "wrong.py"
    source.write_text(f"import {name}\n")
    ruff = [sys.executable, "-m", "ruff", "check", "--select", "TID251", "--config", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*ruff, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"Import dracaena.{name}" in done.stdout


@pytest.mark.parametrize(
    ("importer", "imported"),
    [("api.links", "kube.client"), ("kubelet_plugin.node.publisher", "kubelet_plugin.claims.device_state")],
)
def test_import_rules_notice_a_forbidden_import(tmp_path: Path, importer: str, imported: str) -> None:
    """The checker itself is checked: a copy of the tree with one wrong import must fail."""
    package = tmp_path / "dracaena"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in PACKAGES:
        copy_python(ROOT / name, package / name)
    wrong = package / f"{importer.replace('.', '/')}.py"
    wrong.write_text(wrong.read_text() + f"\nimport dracaena.{imported}\n")
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(lint), "--config", str(ROOT / ".importlinter"), "--no-cache"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"dracaena.{importer} -> dracaena.{imported}" in " ".join(done.stdout.split())


def copy_python(source: Path, target: Path) -> None:
    for path in source.rglob("*.py"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
