"""Folders that hold a driver as distributions and driver containers lay it out."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable
from pathlib import Path

from dracaena.kubelet_plugin.prepare.cdi.device_nodes import NodeFacts
from support.elf import library

VERSION = "580.65.06"

CONTROL_NUMBERS = {"nvidiactl": "195:255", "nvidia-uvm": "510:0", "nvidia-uvm-tools": "510:1"}
PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidiactl
226 drm
234 nvidia-caps
510 nvidia-uvm

Block devices:
259 blkext
"""


def put(root: Path, path: str, content: bytes = b"") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return target


def put_gpu_driver(root: Path, folder: str = "/usr/lib64", *, version: str = VERSION) -> None:
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


def put_nodes(root: Path, minors: Iterable[int] = (), **others: str) -> None:
    """Add the driver's device nodes as look_at_text() reads them: making real ones takes root."""
    gpus = {f"nvidia{minor}": f"195:{minor}" for minor in minors}
    for name, numbers in {**CONTROL_NUMBERS, **gpus, **others}.items():
        put(root, f"/dev/{name}", numbers.encode())


def look_at_text(path: str) -> NodeFacts | None:
    """Read a file that holds `major:minor` as if it were the device node; anything else there is none."""
    try:
        facts = Path(path).lstat()
        text = Path(path).read_bytes() if stat.S_ISREG(facts.st_mode) else b""
    except OSError:
        return None
    numbers = re.fullmatch(rb"([0-9]+):([0-9]+)", text)
    return NodeFacts(numbers is not None, *map(int, numbers.groups() if numbers is not None else ()))
