"""NVIDIA's hook tool on the host: where it is, and which commands it knows."""

from __future__ import annotations

import mmap
import stat
from dataclasses import dataclass
from pathlib import Path

from dracaena.host.adapters.gpu_driver.root import GpuDriverRoot
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS, FIRST_COMMANDS, HOOK_NAMES, HookTool

HOOK_FOLDERS = (
    "/usr/bin",
    "/usr/local/nvidia/toolkit",
    "/usr/local/bin",
    "/home/kubernetes/bin/nvidia/toolkit",
    "/opt/nvidia/toolkit",
    "/run/current-system/sw/bin",
)
"""Folders of packages, the GPU operator, Talos, GKE, Flatcar, NixOS."""
_REAL = ".real"
"""Before 1.20, the GPU operator's toolkit wraps the program in a script, and appends this to the program's name."""
_SCRIPT = b"#!"


@dataclass(frozen=True, slots=True)
class FoundTool:
    """A tool that exists. While the value is the same, so are its commands."""

    path: str
    """Where the host has it."""
    program: Path
    """Where this process sees the program that has the commands."""
    changed_ns: int
    size_bytes: int


def find_hook_tool(host: GpuDriverRoot, path: str = "") -> FoundTool | None:
    """Return the tool on a host: the one at `path`, otherwise the first in the usual folders; None if there is none.

    It keeps the path where it was found, which stays the same if an upgrade replaces the target.
    """
    places = (path,) if path else (f"{folder}/{name}" for name in HOOK_NAMES for folder in HOOK_FOLDERS)
    found = (_look(host, place) for place in places)
    return next((tool for tool in found if tool is not None), None)


def read_hook_tool(found: FoundTool) -> HookTool:
    """Return a tool with the commands that it knows: a Go program contains the name of each as plain text.

    Cost: one read of the program, some ten megabytes. An unreadable one gets the commands common to all versions.
    """
    try:
        with found.program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program:
            known = frozenset(command for command in COMMANDS if program.find(command.encode()) >= 0)
    except (OSError, ValueError):  # an empty file cannot be mapped
        known = frozenset()
    return HookTool(found.path, known | FIRST_COMMANDS)


def _look(host: GpuDriverRoot, path: str) -> FoundTool | None:
    real = host.resolve(path)
    facts = host.facts(real) if real is not None else None
    if real is None or facts is None or not stat.S_ISREG(facts.st_mode) or not facts.st_mode & 0o111:
        return None
    behind = host.resolve(f"{path}{_REAL}")
    if behind is not None and _is_script(host.on_disk(real)):
        real, facts = behind, host.facts(behind) or facts
    return FoundTool(path, host.on_disk(real), facts.st_mtime_ns, facts.st_size)


def _is_script(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return file.read(len(_SCRIPT)) == _SCRIPT
    except OSError:
        return False
