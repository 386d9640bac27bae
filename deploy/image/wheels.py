"""Put all that the image holds into one folder: the wheels of the lock file, ours, and a lock file for both.

With --installable also what the image takes out of the Kubernetes client's dependencies: pip wants all of them. Run by
`make wheels` on a machine that reaches a package index; the image is built from the folder alone. Wheels must match the
Python of the image's base, not the one that runs this.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

LOCK = ROOT / "requirements" / "runtime.txt"

ASYNCIO_HALF = frozenset(
    {"aiohappyeyeballs", "aiohttp", "aiohttp-retry", "aiosignal", "frozenlist", "multidict", "propcache", "yarl"}
)
"""What only the asyncio half of the Kubernetes client needs, which the Dockerfile takes out: 13 MB, and a web server
whose advisories would not concern us."""

NEVER_INSTALLED = frozenset({"setuptools"})
"""What the lock file holds for building only."""

NOT_IN_THE_IMAGE = ASYNCIO_HALF | NEVER_INSTALLED
"""What the image's own lock file leaves out."""

SOURCE_TIME = "315532800"
"""Seconds of 1980-01-01, the first that a wheel can hold: the same source makes the same wheel at any time."""

LEFT_OUT = (".*", "tests", "docs", "wheels", "build", "dist", "__pycache__", "*.egg-info")
"""Of the checkout, for the build of our own wheel: it leaves folders behind, so it gets a copy. `deploy` is copied: a
manifest of the demo is a link into it."""

OLDEST_GLIBC_MINOR = 17
NEWEST_GLIBC_MINOR = 36
"""Wheels for glibc 2.17 to 2.36, which is Debian 12's; bases with a newer one take them too."""

MACOS = (*(f"{major}_0" for major in range(15, 10, -1)), *(f"10_{minor}" for minor in range(16, 8, -1)))
"""Versions of macOS whose wheels are taken, newest first. 15, because google-re2 has no wheel for an older one."""


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, metavar="3.N", help="version of Python in the image's base")
    parser.add_argument("--machine", default="x86_64", help="processor, as `uname -m` says (x86_64, aarch64)")
    parser.add_argument("--system", choices=("linux", "darwin"), default="linux", help="what the wheels run on (linux)")
    parser.add_argument("--output", type=Path, default=ROOT / "wheels", help="folder to write; replaced whole")
    installable = "add what the image takes out, so that pip installs dracaena by name from the folder"
    parser.add_argument("--installable", action="store_true", help=installable)
    options = parser.parse_args()
    try:
        takes = platforms(options.system, options.machine)
        make(options.output, options.python, takes, NEVER_INSTALLED if options.installable else NOT_IN_THE_IMAGE)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"wheels: {' '.join(map(str, error.cmd))} ended with {error.returncode}\n")
        return 1
    return 0


def platforms(system: str, machine: str) -> list[str]:
    """Return pip's names of the platforms whose wheels run on a system and processor, best first."""
    if system == "darwin":
        return [f"macosx_{version}_{kind}" for version in MACOS for kind in (machine, "universal2")]
    names = [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC_MINOR, OLDEST_GLIBC_MINOR - 1, -1)]
    # Another name of the last one. Without it pip takes protobuf without its compiled part.
    return [*names, f"manylinux2014_{machine}"]


def make(output: Path, python: str, takes: Sequence[str], without: frozenset[str]) -> None:
    """Write the folder `output`, with wheels of all that LOCK names except `without`.

    Raises CalledProcessError; then `output` is as it was.
    """
    with tempfile.TemporaryDirectory(prefix="dracaena-wheels-") as name:
        wheels, lock = Path(name) / "wheels", Path(name) / "wheels" / "requirements.txt"
        wheels.mkdir()
        blocks = [block for block in _blocks(LOCK.read_text(encoding="utf-8")) if _name(block) not in without]
        lock.write_text("".join(blocks), encoding="utf-8")
        target = f"# for Python {python} on {' '.join(takes)}\n"
        if not _reused(output, target, blocks, wheels):
            _download(lock, wheels, python, takes)
        own = _own_wheel(Path(name) / "source", wheels)
        digest = hashlib.sha256(own.read_bytes()).hexdigest()
        package, version, _ = own.name.split("-", 2)
        image = [block for block in blocks if _name(block) not in NOT_IN_THE_IMAGE]
        lock.write_text("".join([target, *image, f"{package}=={version} --hash=sha256:{digest}\n"]), encoding="utf-8")
        if output.exists():
            shutil.rmtree(output)
        shutil.copytree(wheels, output)


def _reused(earlier: Path, target: str, blocks: Sequence[str], wheels: Path) -> bool:
    """Copy what an earlier run has fetched for the same target, if that is all: each file's hash stands in the lock."""
    lock = earlier / "requirements.txt"
    if not lock.is_file() or not lock.read_text(encoding="utf-8").startswith(target):
        return False
    known = {hashlib.sha256(path.read_bytes()).hexdigest(): path for path in sorted(earlier.glob("*.whl"))}
    found = [[path for digest, path in known.items() if f"sha256:{digest}" in block] for block in blocks]
    if not all(found):
        return False
    for paths in found:
        shutil.copy2(paths[0], wheels)
    return True


def _download(lock: Path, wheels: Path, python: str, takes: Sequence[str]) -> None:
    _pip("download", "--require-hashes", "--no-deps", "--only-binary=:all:", f"--python-version={python}",
         *(f"--platform={platform}" for platform in takes), f"--dest={wheels}", f"--requirement={lock}")  # fmt: skip


def _own_wheel(source: Path, wheels: Path) -> Path:
    """Write the source distribution and the wheel that is built from it, as whoever gets only the former builds it."""
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    build = "import setuptools.build_meta as backend, sys; backend.build_sdist(sys.argv[1])"
    command = [sys.executable, "-P", "-c", build, str(source / "dist")]
    subprocess.run(command, check=True, cwd=source, stdout=subprocess.DEVNULL)  # noqa: S603 - ours
    (built,) = (source / "dist").iterdir()
    _without_times(built, wheels / built.name)
    _pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", f"--wheel-dir={wheels}", str(wheels / built.name))
    return next(wheels.glob("dracaena-*.whl"))


def _without_times(built: Path, target: Path) -> None:
    """Copy an archive, so that equal files make equal bytes: setuptools writes times, owners and the umask into it."""
    with (
        tarfile.open(built) as given,
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for member in sorted((one for one in given if one.isfile()), key=lambda one: one.name):
            entry = tarfile.TarInfo(member.name)
            entry.size, entry.mtime, entry.mode = member.size, int(SOURCE_TIME), 0o644
            archive.addfile(entry, given.extractfile(member))


def _blocks(lock: str) -> list[str]:
    """Return each requirement with its hashes."""
    return re.split(r"(?m)^(?=\S)", lock)[1:]


def _name(block: str) -> str:
    return block.partition("==")[0]


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-P", "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    environment = {"SOURCE_DATE_EPOCH": SOURCE_TIME, **os.environ}
    subprocess.run(command, check=True, env=environment)  # noqa: S603 - ours


if __name__ == "__main__":
    sys.exit(main())
