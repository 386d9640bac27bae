"""Containers of a real runtime for the tests on a real GPU: containerd, runc, and CDI as containerd itself applies it.

containerd, containerd-shim-runc-v2, ctr and runc must be on the PATH, a C compiler too. Everything is in one folder.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "cc")
CDI_FOLDER = Path("/var/run/cdi")
"""Where ctr looks for CDI specs; it has no flag for that."""

UP_S = 20.0
DOWN_S = 20.0
RUN_S = 60.0

_C_LIBRARY = ("libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")

_CONFIG = """\
version = 3
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
  address = "{folder}/containerd.sock"
"""


def missing_programs() -> list[str]:
    """Return what is not on the PATH."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def build_probe(folder: Path) -> Path:
    """Compile cuda_probe.c and return the program."""
    program = folder / "cuda_probe"
    source = Path(__file__).with_name("cuda_probe.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-ldl"], check=True)
    return program


@dataclass(frozen=True)
class Ended:
    """What a container's program said."""

    status: int
    answer: Mapping[str, Any]
    errors: str = ""


@dataclass
class Container:
    """A container that runs."""

    id: str
    process: subprocess.Popen[str]

    def first_line(self) -> dict[str, Any]:
        """Wait for the probe's line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def end(self) -> Ended:
        """Wait for its end."""
        out, errors = self.process.communicate(timeout=RUN_S)
        return Ended(self.process.returncode, json.loads(out) if out.strip() else {}, errors)


@dataclass
class Runtime:
    """containerd between start() and stop(). Images are not needed: a container's files are a folder."""

    folder: Path
    probe: Path
    _daemon: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def log(self) -> str:
        """What containerd said."""
        return (self.folder / "containerd.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        config = self.folder / "config.toml"
        config.write_text(_CONFIG.format(folder=self.folder))
        with (self.folder / "containerd.log").open("ab") as log:
            self._daemon = subprocess.Popen(["containerd", "--config", config], stdout=log, stderr=log)
        until_s = time.monotonic() + UP_S
        while subprocess.run([*self._ctr(), "version"], capture_output=True, check=False).returncode != 0:
            assert self._daemon.poll() is None, self.log
            assert time.monotonic() < until_s, self.log
            time.sleep(0.1)

    def stop(self) -> None:
        """End the daemon."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(timeout=DOWN_S)

    def run(
        self, devices: Iterable[str], arguments: Sequence[str] = (), *, cgroup: str = "", user: str = ""
    ) -> Container:
        """Start the probe in a new container with CDI devices, named in full."""
        name = secrets.token_hex(32)
        cgroups = ["--cgroup", f"{cgroup}/{name}"] if cgroup else []
        users = ["--user", user] if user else []
        given = [part for device in devices for part in ("--device", device)]
        command = [
            *self._ctr(), "run", "--rm", *cgroups, *users, *given, "--rootfs", str(self._root_folder(name)), name,
            "/bin/cuda_probe", *arguments,
        ]  # fmt: skip
        pipes = subprocess.PIPE
        return Container(name, subprocess.Popen(command, stdout=pipes, stderr=pipes, text=True))

    def _ctr(self) -> tuple[str, ...]:
        return ("ctr", "--address", f"{self.folder}/containerd.sock")

    def _root_folder(self, name: str) -> Path:
        """Make a root folder as of a small image: the probe, the C library, and nothing of the driver."""
        root = self.folder / "roots" / name[:12]
        for part in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr/lib", "usr/lib64", "var"):
            (root / part).mkdir(parents=True)
        (root / "lib").symlink_to("usr/lib")
        (root / "lib64").symlink_to("usr/lib64")
        (root / "run").mkdir()
        shutil.copy(self.probe, root / "bin")
        for library in _libraries(self.probe):
            place = root / library.relative_to("/").parent
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, place / library.name)
        return root


def offer_specs(folder: Path) -> list[str]:
    """Copy the CDI specs of a folder to where ctr finds them; return the full names of all their devices."""
    CDI_FOLDER.mkdir(parents=True, exist_ok=True)
    names = []
    for spec in sorted(folder.glob("*.json")):
        document = json.loads(spec.read_bytes())
        shutil.copy(spec, CDI_FOLDER)
        names += [f"{document['kind']}={device['name']}" for device in document["devices"]]
    return names


def withdraw_specs(folder: Path) -> None:
    """Take the copies away."""
    for spec in folder.glob("*.json"):
        (CDI_FOLDER / spec.name).unlink(missing_ok=True)


def _libraries(program: Path) -> list[Path]:
    """Return what the loader opens for a program, the loader among them, and all of the C library: libcuda needs it."""
    out = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    found = [Path(path) for path in re.findall(r"(/\S+) \(0x", out)]
    (folder,) = {path.parent for path in found if path.name == "libc.so.6"}
    return sorted({*found, *(folder / name for name in _C_LIBRARY)})


def children_of(pid: int) -> list[int]:
    """Return the processes that a process started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(one) for one in text.split()]


def is_root() -> bool:
    """Whether this process may start containers."""
    return os.geteuid() == 0
