"""The image of the chart's pods, from the Dockerfile as it is, with a base made of Debian packages.

Both come into the cache, named by all that decides what is in them. No registry is asked; Debian's packages and the
wheels come over the network the first time, so this runs before the tests' own network begins.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[3]

IMAGE = "docker.io/dracaena/dracaena:e2e"

SUITE = "bookworm"
PYTHON = "3.11"
"""What the suite has."""
PACKAGES = "python3,python3-venv,ca-certificates"

BASE = "localhost/dracaena-base:e2e"

NEEDED = {"buildah": "Debian package buildah", "debootstrap": "Debian package debootstrap"}
"""Programs, and where they come from."""

_EMPTIED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/locale", "usr/share/man")
"""Folders of the base that nothing needs at run time; half of what debootstrap makes."""

_BYTECODE = "__pycache__"
"""Folders that Python's own images, the Dockerfile's default, have none of: so the base has none either."""

_SOURCES = ("Dockerfile", ".dockerignore", "pyproject.toml", "setup.py", "requirements/runtime.txt", "deploy/image")
"""What decides about the image beside the packages below src/dracaena."""


class ImageError(Exception):
    """The image could not be built; str() holds what the program said."""


def missing(cache: Path) -> tuple[str, ...]:
    """Return one line for each program that is missing, none where the image is there already."""
    if _archive(cache).exists():
        return ()
    return tuple(f"{name}: not on PATH ({source})" for name, source in NEEDED.items() if shutil.which(name) is None)


def build(cache: Path) -> Path:
    """Return the image as an archive for `ctr images import`, after building it if need be. Raises ImageError."""
    archive = _archive(cache)
    with _lock(archive.parent):
        if not archive.exists():
            for old in archive.parent.glob("image-*"):
                old.unlink()
            _build(archive)
    return archive


def _build(archive: Path) -> None:
    folder = archive.parent
    base = _base(folder)
    _say("building the image (half a minute)")
    started = time.monotonic()
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    try:
        context, store = work / "context", work / "store"
        context.mkdir(parents=True)
        wheels = folder / "wheels"  # kept: what the lock names is fetched once
        script = ROOT / "deploy" / "image" / "wheels.py"
        _run(
            sys.executable, "-P", script, f"--python={PYTHON}", f"--machine={platform.machine()}", f"--output={wheels}"
        )
        shutil.copytree(wheels, context / "wheels")
        buildah = ("buildah", "--root", store, "--runroot", work / "run", "--storage-driver", "vfs")
        container = _run(*buildah, "from", "scratch").strip()
        _run(*buildah, "add", "--quiet", container, base, "/")
        _run(*buildah, "commit", "--quiet", container, BASE)
        file = ROOT / "Dockerfile"
        _run(*buildah, "bud", "--build-arg", f"BASE={BASE}", "--tag", IMAGE, "--file", file, context)
        unfinished = work / "image.tar"
        _run(*buildah, "push", "--quiet", IMAGE, f"docker-archive:{unfinished}:{IMAGE}")
        unfinished.rename(archive)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    _say(f"  took {time.monotonic() - started:.0f} s; {archive.stat().st_size / 1e6:.0f} MB")


def _base(folder: Path) -> Path:
    """Return the base's files as an archive."""
    archive = folder / f"base-{_digest([SUITE, PACKAGES, *_EMPTIED, _BYTECODE, platform.machine()])}.tar"
    if archive.exists():
        return archive
    _say("making the image's base of Debian packages (1 minute)")
    root = folder / "base"
    shutil.rmtree(root, ignore_errors=True)
    try:
        _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root)
        for name in _EMPTIED:
            shutil.rmtree(root / name)
            (root / name).mkdir()
        for cache in sorted(root.rglob(_BYTECODE)):
            shutil.rmtree(cache)
        unfinished = folder / "base.tar"
        _run("tar", "--create", "--file", unfinished, "--directory", root, ".")
        unfinished.rename(archive)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return archive


def _archive(cache: Path) -> Path:
    sources = [path for name in _SOURCES for path in _files(ROOT / name)]
    sources += [path for link in sorted((ROOT / "src" / "dracaena").iterdir()) for path in _files(link.resolve())]
    contents = [f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sources]
    key = _digest([*contents, SUITE, PACKAGES, platform.machine(), Path(__file__).read_text(encoding="utf-8")])
    return cache / "images" / f"image-{key}.tar"


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (one for one in sorted(path.rglob("*")) if one.is_file() and "__pycache__" not in one.parts)


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _run(*command: str | Path) -> str:
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    words = [str(part) for part in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-4000:]
        raise ImageError(f"{' '.join(words[:3])} … ended with {done.returncode}:\n{said}")
    return done.stdout


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    sys.stdout.write(f"e2e: {line}\n")
    sys.stdout.flush()
