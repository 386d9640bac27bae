"""The plugin for krew: its manifest by krew's own rules, and an archive that is unpacked and linked as krew does it."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import shlex
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "krew"
URL = "https://downloads.example/dracaena/v0.1.0/"


def script(name: str) -> Any:
    path = ROOT / "deploy" / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ARCHIVES = script("krew/archives.py")
MANIFEST = yaml.safe_load(ARCHIVES.MANIFEST.read_text(encoding="utf-8"))


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return folder / name


PLATFORM = ("uri", "sha256", "selector", "files", "bin", "license")
SPEC = ("version", "shortDescription", "description", "caveats", "homepage", "platforms")


def faults(manifest: dict[str, Any]) -> list[str]:
    """Return what krew (pkg/index, internal/index/validation of v0.4) refuses in a manifest, and unknown fields."""
    spec, platforms = manifest["spec"], manifest["spec"].get("platforms", [])
    found = [
        (set(manifest) != {"apiVersion", "kind", "metadata", "spec"}, "fields of the manifest"),
        (manifest["apiVersion"] != "krew.googlecontainertools.github.com/v1alpha2", "apiVersion"),
        (manifest["kind"] != "Plugin", "kind"),
        (not re.fullmatch(r"[\w-]+", manifest["metadata"]["name"]), "name"),
        (not set(spec) <= set(SPEC), "fields of the spec"),
        (not spec.get("shortDescription") or "\n" in spec["shortDescription"], "shortDescription"),
        (not re.fullmatch(r"v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?", spec.get("version", "")), "version"),
        (not platforms, "platforms"),
    ]
    for platform in platforms:
        labels = platform.get("selector", {}).get("matchLabels", {})
        found += [
            (not set(platform) <= set(PLATFORM), "fields of a platform"),
            (not platform.get("uri"), "uri"),
            (not re.fullmatch(r"[a-f0-9]{64}", platform.get("sha256", "")), "sha256"),
            (not platform.get("bin"), "bin"),
            (platform.get("files") == [], "files"),
            (not labels or not set(labels) <= {"os", "arch"}, "selector"),
        ]
    return [words for wrong, words in found if wrong]


def completed(folder: Path) -> dict[str, Any]:
    archives = {}
    for key in ARCHIVES.platforms(MANIFEST):
        archives[key] = folder / ARCHIVES.archive_name(MANIFEST, *key)
        archives[key].write_text("-".join(key), encoding="utf-8")
    manifest: dict[str, Any] = ARCHIVES.complete(MANIFEST, archives, URL)
    return manifest


def test_manifest_is_one_that_krew_takes(tmp_path: Path) -> None:
    assert faults(completed(tmp_path)) == []


@pytest.mark.parametrize("fault", ["uri", "sha256", "bin", "selector"])
def test_a_manifest_that_krew_refuses_is_seen(fault: str, tmp_path: Path) -> None:
    manifest = completed(tmp_path)
    manifest["spec"]["platforms"][0].pop(fault)
    assert faults(manifest) == [fault]


def test_manifest_is_written_with_its_texts_in_lines(tmp_path: Path) -> None:
    manifest = completed(tmp_path)
    text = ARCHIVES.as_text(manifest)
    assert yaml.safe_load(text) == manifest
    assert "  caveats: |\n    Needs Python" in text


def test_manifest_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert MANIFEST["spec"]["version"] == f"v{project['version']}"
    assert MANIFEST["metadata"]["name"] in {name.removeprefix("kubectl-") for name in project["scripts"]}


def test_manifest_names_each_archive_with_its_checksum(tmp_path: Path) -> None:
    platforms = completed(tmp_path)["spec"]["platforms"]
    assert len({platform["uri"] for platform in platforms}) == len(platforms) == len(ARCHIVES.MACHINES)
    for platform in platforms:
        path = tmp_path / platform["uri"].removeprefix(URL)
        assert platform["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert "-".join(platform["selector"]["matchLabels"].values()) == path.read_text(encoding="utf-8")


def test_launcher_manifest_and_build_agree_on_the_versions_of_python() -> None:
    source = ARCHIVES.LAUNCHER.read_text(encoding="utf-8")
    (launched,) = re.findall(r"^PYTHONS = (.*)$", source, re.MULTILINE)
    assert [f"{major}.{minor}" for major, minor in ast.literal_eval(launched)] == list(ARCHIVES.PYTHONS)
    assert f"Python {ARCHIVES.PYTHONS[0]} to {ARCHIVES.PYTHONS[-1]}" in MANIFEST["spec"]["caveats"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert oldest == f">={ARCHIVES.PYTHONS[0]}"


def test_what_is_unpacked_and_linked_as_krew_does_it_runs(tmp_path: Path, own_wheel: Path) -> None:
    ARCHIVES.write_archive(tmp_path / "a.tar.gz", [own_wheel])
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        archive.extractall(tmp_path / "store", filter="data")
    assert (tmp_path / "store" / "LICENSE").exists()
    link = tmp_path / "bin" / "kubectl-dracaena"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "store" / MANIFEST["spec"]["platforms"][0]["bin"])
    # The tests' own Python with the packages of its environment: a link to it would leave them behind.
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    environment = {"PATH": f"{link.parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run([link, "version"], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "store").rglob("dracaena/cli/__pycache__")), "it was not the archive's that ran"
    assert done.stdout == f"dracaena {MANIFEST['spec']['version'].removeprefix('v')}\n"


def test_compiled_modules_for_each_python_lie_side_by_side(tmp_path: Path) -> None:
    for python in ("311", "312"):
        files = {
            "fast/__init__.py": "",
            f"fast/_core.cpython-{python}.so": python,
            "fast-1.0.dist-info/WHEEL": python,
            "fast-1.0.data/scripts/fast": python,
            "kubernetes/aio/client.py": "",
            "kubernetes/client.py": "",
        }
        wheel(tmp_path / python, f"fast-1.0-cp{python}.whl", files)
    wheels = list(tmp_path.glob("*/*.whl"))
    ARCHIVES.write_archive(tmp_path / "a.tar.gz", wheels)
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        modes = {entry.name: entry.mode for entry in archive.getmembers()}
    assert {name for name, mode in modes.items() if mode == 0o755} == {"kubectl-dracaena"}
    assert {name for name in modes if "." not in name.partition("/")[0] and name.startswith("lib/")} == {
        "lib/fast/__init__.py",
        "lib/fast/_core.cpython-311.so",
        "lib/fast/_core.cpython-312.so",
        "lib/fast-1.0.dist-info/WHEEL",
        "lib/kubernetes/client.py",
    }
    ARCHIVES.write_archive(tmp_path / "b.tar.gz", reversed(wheels))
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_a_module_that_differs_between_pythons_under_one_name_is_refused(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path / python, "odd-1.0.whl", {"odd.py": python}) for python in ("311", "312")]
    with pytest.raises(ValueError, match=r"odd\.py is another one"):
        ARCHIVES.write_archive(tmp_path / "a.tar.gz", wheels)


@pytest.mark.parametrize("url", ["", "http://downloads.example/d", "downloads.example"])
def test_build_wants_an_address_where_archives_can_be_found(url: str) -> None:
    command = [sys.executable, "-P", str(FOLDER / "archives.py"), "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected https://HOST/" in done.stderr
