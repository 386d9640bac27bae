"""What `make release` gathers: whole, checked by the usual programs, and the same bytes each time."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.chart import helm, needs_helm

ROOT = Path(__file__).resolve().parents[3]


def script(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / "deploy" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RELEASE = script("release/gather.py")
VERSION = yaml.safe_load((RELEASE.CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]


@pytest.fixture
def released(tmp_path: Path) -> Path:
    (tmp_path / "wheels").mkdir()
    lock = f"google-re2==1.1 --hash=sha256:0\ndracaena=={VERSION} --hash=sha256:0\n"
    (tmp_path / "wheels" / "requirements.txt").write_text(lock)
    names = (f"dracaena-{VERSION}-py3-none-any.whl", "google_re2-1.1-cp313-cp313-linux_x86_64.whl")
    for name in (*names, "aiohttp-3-py3-none-any.whl"):
        with zipfile.ZipFile(tmp_path / "wheels" / name, "w") as archive:
            archive.writestr(zipfile.ZipInfo("x"), name)
    RELEASE.gather(tmp_path / "release", tmp_path / "wheels", tmp_path / "krew")
    return tmp_path / "release"


def test_two_runs_make_the_same_checksums_and_sha256sum_agrees_with_them(released: Path) -> None:
    first = (released / "SHA256SUMS").read_text()
    RELEASE.gather(released, released.parent / "wheels", released.parent / "krew")
    assert (released / "SHA256SUMS").read_text() == first
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(command, cwd=released, check=False).returncode == 0
    listed = {line.split("  ")[1] for line in first.splitlines()}
    assert listed == {p.relative_to(released).as_posix() for p in released.rglob("*") if p.is_file()} - {"SHA256SUMS"}
    (released / "RELEASE-NOTES.md").write_text("changed")
    assert subprocess.run(command, cwd=released, check=False, capture_output=True).returncode != 0


def held(package: Path) -> dict[str, bytes]:
    with tarfile.open(package) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


@needs_helm
def test_the_chart_package_holds_what_helm_would_pack(
    tmp_path: Path, released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = tmp_path / "dracaena"
    shutil.copytree(RELEASE.CHART, chart)
    (chart / "values.yaml.orig").write_text("left by an editor")
    (chart / "files" / ".alerts.yaml.swp").write_text("left by an editor")
    monkeypatch.setattr(RELEASE, "CHART", chart)
    RELEASE.gather(released, tmp_path / "wheels", tmp_path / "krew")
    done = helm("package", chart, "--destination", tmp_path / "by-helm", home=tmp_path)
    assert done.returncode == 0, done.stderr
    ours, theirs = (held(folder / f"dracaena-{VERSION}.tgz") for folder in (released, tmp_path / "by-helm"))
    written_again = "dracaena/Chart.yaml"  # helm sorts its keys and leaves out comments
    assert yaml.safe_load(ours.pop(written_again)) == yaml.safe_load(theirs.pop(written_again))
    assert ours == theirs


def test_the_sbom_names_what_the_image_holds_as_the_package_index_does(released: Path) -> None:
    bill = json.loads((released / f"dracaena-{VERSION}.cdx.json").read_text())
    assert [part["purl"] for part in bill["components"]] == [f"pkg:pypi/dracaena@{VERSION}", "pkg:pypi/google-re2@1.1"]


def test_the_folder_holds_what_an_install_by_name_asks_for() -> None:
    """Followed by what the packages themselves say, with the markers of the image's Python."""
    wheels = script("image/wheels.py")
    held = {wheels._name(block) for block in wheels._blocks(wheels.LOCK.read_text(encoding="utf-8"))}
    asked, last = {("dracaena", extra) for extra in ("", "programs", "demo", "completion")}, set[tuple[str, str]]()
    while asked != last:
        last, asked = asked, asked | {one for name, extra in asked for one in required(name, extra)}
    names = {name for name, _ in asked} - {"dracaena"}
    assert {"aiohttp", "yarl", "google-re2", "shtab"} <= names
    assert names <= held - wheels.NEVER_INSTALLED


def required(name: str, extra: str) -> Iterator[tuple[str, str]]:
    environment = {"extra": extra, "python_version": "3.13", "python_full_version": "3.13.0"}
    for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield from ((canonicalize_name(requirement.name), one) for one in ("", *requirement.extras))


def test_an_install_that_lacks_a_package_fails_the_release(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / f"dracaena-{VERSION}-py3-none-any.whl", "w") as archive:
        for name, text in {
            "METADATA": f"Metadata-Version: 2.1\nName: dracaena\nVersion: {VERSION}\nRequires-Dist: left-out-of-it\n",
            "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            archive.writestr(f"dracaena-{VERSION}.dist-info/{name}", text)
    command = [sys.executable, "-P", str(ROOT / "deploy" / "release" / "try_install.py"), sys.executable]
    done = subprocess.run([*command, "--wheels", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "install --quiet --no-index" in done.stderr
    assert "No matching distribution found for left-out-of-it" in done.stderr


def test_archives_for_krew_are_taken_along_if_they_are_there(released: Path) -> None:
    (released.parent / "krew").mkdir()
    (released.parent / "krew" / "dracaena.yaml").write_text("x")
    RELEASE.gather(released, released.parent / "wheels", released.parent / "krew")
    assert "  krew/dracaena.yaml\n" in (released / "SHA256SUMS").read_text()


def test_notes_are_those_of_one_version() -> None:
    changelog = "# Changelog\n\n## 0.2.0\n\nnew\n\n## 0.1.0 (unreleased)\n\n### x\n\nold\n"
    assert RELEASE.notes(changelog, "0.2.0") == "## 0.2.0\n\nnew\n"
    assert RELEASE.notes(changelog, "0.1.0") == "## 0.1.0 (unreleased)\n\n### x\n\nold\n"
    with pytest.raises(ValueError, match=r"no heading '## 0\.3\.0'"):
        RELEASE.notes(changelog, "0.3.0")
