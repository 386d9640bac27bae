"""Folders that hold a driver as distributions and driver containers lay it out."""

from __future__ import annotations

from pathlib import Path

from support.elf import library

VERSION = "580.65.06"


def put(root: Path, path: str, content: bytes = b"") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def put_driver(root: Path, folder: str = "/usr/lib64", *, version: str = VERSION) -> None:
    """Add three libraries of a driver with the usual links; links of another version are replaced."""
    for name, soname in (
        ("libcuda.so", "libcuda.so.1"),
        ("libnvidia-ml.so", "libnvidia-ml.so.1"),
        ("libnvidia-gpucomp.so", f"libnvidia-gpucomp.so.{version}"),
    ):
        target = put(root, f"{folder}/{name}.{version}", library(soname))
        link = target.parent / soname
        if link != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target.name)
