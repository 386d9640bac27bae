"""What `make e2e` needs of the machine and does not build itself. Each thing that is missing gives one line."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
"""Where Debian and most others put the CNI plugins."""

CNI_PLUGINS = ("ptp", "host-local", "loopback")

CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory"))
"""Version 2, and of version 1 the controller that every container is in."""

NAMESPACES = ("--mount", "--pid", "--net", "--ipc", "--uts")
"""Options of unshare(1): everything that the cluster starts, mounts or listens on is in these, and ends with them."""

_PROGRAMS = {
    "runc": "Debian package runc",
    "ip": "Debian package iproute2",
    "unshare": "Debian package util-linux",
    "mount": "Debian package mount",
}

_GO = (1, 26)
"""What the go.mod files below programs/ ask for."""
_FETCHING_GO = (1, 21)
"""From here on Go fetches the version that a go.mod asks for, unless it is told not to."""

_TRIALS = {
    "true": f"namespaces: `unshare {' '.join(NAMESPACES)}` fails here; a container needs --privileged for it",
    "mkdir /run/l /run/u /run/w /run/m; mount -t overlay -o lowerdir=/run/l,upperdir=/run/u,workdir=/run/w o /run/m": (
        "overlay file system: it cannot be mounted here (modprobe overlay)"
    ),
    "mknod /run/null c 1 3; : > /run/null": "device nodes: root may not make and open them here; a container needs "
    "--privileged for it, and must not have user namespaces",
}
"""What root tries in fresh namespaces with an empty /run, and what is missing where it fails."""


def missing(*, built: bool) -> tuple[str, ...]:
    """Return one line for each missing prerequisite, none when the tests can run. Go is needed only to build."""
    if platform.system() != "Linux":
        return (f"Linux: this is {platform.system()}",)
    return (*_missing_programs(), *(() if built else _missing_go()), *_missing_rights())


def missing_to_build(*, built: bool) -> tuple[str, ...]:
    """Return one line for each thing that is missing to build the programs, which needs neither root nor namespaces."""
    return () if built else tuple(_missing_go())


def missing_for_chart() -> tuple[str, ...]:
    """Return one line for each thing that is missing for pods that reach the API server, beside what all tests need."""
    if platform.system() != "Linux" or shutil.which("iptables"):
        return ()
    return ("iptables: not on PATH (Debian package iptables)",)


def cni_folder() -> Path | None:
    """Return the folder that has all the CNI plugins that a pod's network needs."""
    complete = (folder for folder in CNI_FOLDERS if all((folder / plugin).exists() for plugin in CNI_PLUGINS))
    return next(complete, None)


def _missing_programs() -> Iterator[str]:
    for name, source in _PROGRAMS.items():
        if shutil.which(name) is None:
            yield f"{name}: not on PATH ({source})"
    if cni_folder() is None:
        places = " or ".join(map(str, CNI_FOLDERS))
        yield f"CNI plugins {', '.join(CNI_PLUGINS)}: not in {places} (Debian package containernetworking-plugins)"


def _missing_go() -> Iterator[str]:
    wanted = f"Go {_GO[0]}.{_GO[1]} or newer, or {_FETCHING_GO[0]}.{_FETCHING_GO[1]} with leave to fetch it"
    if shutil.which("go") is None:
        yield f"go: not on PATH ({wanted})"
        return
    version, _, toolchain = _run(["go", "env", "GOVERSION", "GOTOOLCHAIN"]).stdout.strip().partition("\n")
    number = re.match(r"go(\d+)\.(\d+)", version)
    if number is None:
        return  # built by somebody from between two releases, who knows what he has
    found = (int(number[1]), int(number[2]))
    if found < _GO and (found < _FETCHING_GO or toolchain == "local"):
        yield f"go: {version} is too old ({wanted})"


def _missing_rights() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "root: containers and mounts need it (sudo make e2e)"
        return
    if shutil.which("unshare") and shutil.which("mount"):
        failed = (line for script, line in _TRIALS.items() if not _works(script))
        yield from itertools.islice(failed, 1)  # without namespaces nothing after them works either
    if not any(os.access(folder / "cgroup.procs", os.W_OK) for folder in CGROUPS):
        yield f"cgroups: none can be made in {' or '.join(map(str, CGROUPS))}; a container needs --privileged for it"


def _works(script: str) -> bool:
    shell = ["sh", "-ec", f"mount -t tmpfs tmpfs /run; {script}"]
    return _run(["unshare", *NAMESPACES, "--fork", "--mount-proc", *shell]).returncode == 0


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
