"""What `make e2e` needs of the machine and does not build itself. Each thing that is missing gives one line."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
"""Where Debian and most others put the CNI plugins."""

CNI_PLUGINS = ("ptp", "host-local", "loopback")

NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts")
"""Options of unshare(1): everything that the cluster starts, mounts or listens on is in these, and ends with them."""

_PROGRAMS = {
    "etcd": "Debian package etcd-server",
    "runc": "Debian package runc",
    "ip": "Debian package iproute2",
    "unshare": "Debian package util-linux",
    "mount": "Debian package mount",
}

_BUILD_PROGRAMS = {"go": "Go 1.26 or newer"}


def missing(*, built: bool) -> tuple[str, ...]:
    """Return one line for each missing prerequisite, none when the tests can run. Go is needed only to build."""
    if platform.system() != "Linux":
        return (f"Linux: this is {platform.system()}",)
    return tuple(_missing(_PROGRAMS if built else {**_PROGRAMS, **_BUILD_PROGRAMS}))


def cni_folder() -> Path | None:
    """Return the folder that has all the CNI plugins that a pod's network needs."""
    complete = (folder for folder in CNI_FOLDERS if all((folder / plugin).exists() for plugin in CNI_PLUGINS))
    return next(complete, None)


def _missing(programs: dict[str, str]) -> Iterator[str]:
    for name, source in programs.items():
        if shutil.which(name) is None:
            yield f"{name}: not on PATH ({source})"
    if cni_folder() is None:
        places = " or ".join(map(str, CNI_FOLDERS))
        yield f"CNI plugins {', '.join(CNI_PLUGINS)}: not in {places} (Debian package containernetworking-plugins)"
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="ascii").split():
        yield "overlay file system: the kernel has none (modprobe overlay)"
    if os.geteuid() != 0:
        yield "root: containers and mounts need it (sudo make e2e)"
    elif shutil.which("unshare") and not _namespaces_work():
        yield f"namespaces: `unshare {' '.join(NAMESPACES)}` fails here; a container needs --privileged for it"


def _namespaces_work() -> bool:
    command = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "mount", "-t", "tmpfs", "tmpfs", "/run"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
