"""Build the archives that krew installs as `kubectl dracaena`, one for each platform, and the manifest that names them.

Run by `make krew` on a machine that reaches a package index. An archive holds the command with all its packages for
each Python that it knows: compiled modules have the version of Python in their names, so that they lie side by side.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MANIFEST = HERE / "dracaena.yaml"
LAUNCHER = HERE / "kubectl-dracaena"
WHEELS = ROOT / "deploy" / "image" / "wheels.py"

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Versions of Python that the launcher starts: those that every package has a wheel for."""

MACHINES = {
    ("linux", "amd64"): "x86_64",
    ("linux", "arm64"): "aarch64",
    ("darwin", "amd64"): "x86_64",
    ("darwin", "arm64"): "arm64",
}
"""Go's names of a system and processor, which krew selects by → the processor in names of wheels."""

LEFT_OUT = ("kubernetes/aio/",)
"""The asyncio half of the Kubernetes client, which nothing of ours imports; its packages are in no folder of wheels."""


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="https:// address of the folder where the archives will be found")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "krew", help="folder to write; replaced whole")
    options = parser.parse_args()
    if urlsplit(options.url).scheme != "https" or not urlsplit(options.url).netloc:
        parser.error(f"--url: expected https://HOST/..., got {options.url!r}")
    try:
        build(options.output, options.url)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"krew: {' '.join(map(str, error.cmd))} ended with {error.returncode}\n")
        return 1
    return 0


def build(output: Path, url: str) -> None:
    """Write archives and manifest into the folder `output`. Raises CalledProcessError; then `output` is as it was."""
    manifest = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="dracaena-krew-") as name:
        finished = Path(name) / "finished"
        finished.mkdir()
        archives = {}
        for system, arch in platforms(manifest):
            sys.stdout.write(f"krew: {system} on {arch}\n")
            sys.stdout.flush()
            archives[system, arch] = finished / archive_name(manifest, system, arch)
            write_archive(archives[system, arch], _wheels(Path(name) / f"{system}-{arch}", system, arch))
        (finished / MANIFEST.name).write_text(as_text(complete(manifest, archives, url)), encoding="utf-8")
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(finished, output)


def platforms(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return system and processor of each platform of the manifest."""
    labels = [platform["selector"]["matchLabels"] for platform in manifest["spec"]["platforms"]]
    return [(label["os"], label["arch"]) for label in labels]


def archive_name(manifest: Mapping[str, Any], system: str, arch: str) -> str:
    """Return the name of an archive's file."""
    return f"kubectl-dracaena-{manifest['spec']['version']}-{system}-{arch}.tar.gz"


def complete(manifest: Mapping[str, Any], archives: Mapping[tuple[str, str], Path], url: str) -> dict[str, Any]:
    """Return the manifest with the address and the checksum of each archive."""
    found = []
    for key, platform in zip(platforms(manifest), manifest["spec"]["platforms"], strict=True):
        digest = hashlib.sha256(archives[key].read_bytes()).hexdigest()
        found.append({**platform, "uri": f"{url.rstrip('/')}/{archives[key].name}", "sha256": digest})
    return {**manifest, "spec": {**manifest["spec"], "platforms": found}}


def as_text(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as YAML with its texts in lines, as people write them."""

    class Lines(yaml.SafeDumper):
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Lines.add_representer(str, text)
    return yaml.dump(manifest, Dumper=Lines, sort_keys=False, width=120)


def write_archive(path: Path, wheels: Iterable[Path]) -> None:
    """Write the launcher, the license and what the wheels hold; the same input makes the same bytes.

    Raises ValueError if a module is not the same in the wheels of each Python.
    """
    files = {"LICENSE": ROOT.joinpath("LICENSE").read_bytes(), LAUNCHER.name: LAUNCHER.read_bytes()}
    for wheel in sorted(wheels):
        for name, content in _files(wheel):
            if files.setdefault(name, content) != content and ".dist-info/" not in name:
                raise ValueError(f"{wheel.name}: {name} is another one for another version of Python")
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o755 if name == LAUNCHER.name else 0o644
            archive.addfile(entry, io.BytesIO(content))


def _files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what a wheel holds to import, and its metadata with the license."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/") and ".data/" not in name and not name.startswith(LEFT_OUT):
                yield f"lib/{name}", archive.read(name)


def _wheels(folder: Path, system: str, arch: str) -> list[Path]:
    for python in PYTHONS:
        command = [sys.executable, "-P", WHEELS, f"--python={python}", f"--system={system}"]
        machine = MACHINES[system, arch]
        subprocess.run([*command, f"--machine={machine}", f"--output={folder / python}"], check=True)  # noqa: S603 - ours
    return list(folder.glob("*/*.whl"))


if __name__ == "__main__":
    sys.exit(main())
