"""Gather what a release publishes in dist/release: wheels, sdist, chart package, release notes, SBOM and checksums.

Run by `make release` after `make wheels`. It builds nothing itself and reads no clock: the same commit and the same
wheels make the same bytes. The archives of `make krew` are taken along if they are there.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "dracaena"
OUTPUT = ROOT / "dist" / "release"


def main() -> int:
    """Write the folder; return 1 and write nothing if the wheels are missing."""
    wheels = ROOT / "wheels"
    if not list(wheels.glob("dracaena-*.whl")):
        sys.stderr.write("release: no wheel of dracaena in wheels/: run `make wheels` first\n")
        return 1
    gather(OUTPUT, wheels, ROOT / "dist" / "krew")
    sys.stdout.write(OUTPUT.joinpath("SHA256SUMS").read_text(encoding="ascii"))
    return 0


def gather(output: Path, wheels: Path, krew: Path) -> None:
    """Write the folder `output`, replaced whole."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["version"]
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(wheels, output / "wheels")
    if krew.is_dir():
        shutil.copytree(krew, output / "krew")
    (output / f"dracaena-{version}.tgz").write_bytes(chart_package())
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (output / "RELEASE-NOTES.md").write_text(notes(changelog, version), encoding="utf-8")
    bill = json.dumps(bill_of_materials(wheels, version), indent=2, sort_keys=True)
    (output / f"dracaena-{version}.cdx.json").write_text(bill + "\n", encoding="utf-8")
    (output / "SHA256SUMS").write_text(checksums(output), encoding="ascii")


def chart_package() -> bytes:
    """Return the chart with the files that `helm package` takes, and the same bytes for the same files: helm writes
    the time into its archives."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        ignored = (CHART / ".helmignore").read_text(encoding="utf-8").split()
        for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
            if any(path.match(pattern) for pattern in ignored):
                continue
            entry = tarfile.TarInfo(f"dracaena/{path.relative_to(CHART).as_posix()}")
            entry.size, entry.mode = path.stat().st_size, 0o644
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    return packed.getvalue()


def notes(changelog: str, version: str) -> str:
    """Return what the changelog says of one version. Raises ValueError if it says nothing."""
    found = re.search(rf"^## {re.escape(version)}\b.*?(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no heading '## {version}'")
    return found[0].rstrip() + "\n"


def bill_of_materials(wheels: Path, version: str) -> dict[str, Any]:
    """Return the SBOM of the image in the format CycloneDX 1.6: the wheels of its lock file, sorted by file name."""
    locked = re.findall(r"(?m)^([^=\s]+)==", (wheels / "requirements.txt").read_text(encoding="utf-8"))
    components = []
    for path in sorted(wheels.glob("*.whl")):
        name, release = path.name.split("-")[:2]
        name = name.lower().replace("_", "-")
        if name not in locked:
            continue
        digest = {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}
        purl = f"pkg:pypi/{name}@{release}"
        components.append(
            {
                "type": "library",
                "bom-ref": path.name,
                "name": name,
                "version": release,
                "purl": purl,
                "hashes": [digest],
            }
        )
    about = {"component": {"type": "application", "name": "dracaena", "version": version}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": about, "components": components}


def checksums(folder: Path) -> str:
    """Return a line for each file, as `sha256sum --check` reads them, sorted by path."""
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return "".join(f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in files)


if __name__ == "__main__":
    sys.exit(main())
