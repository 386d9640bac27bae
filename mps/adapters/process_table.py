"""Finds and ends the driver's MPS processes by what /proc says about them.

The control daemon inherits CUDA_MPS_PIPE_DIRECTORY from us, and its servers from it. So the environment identifies our
processes without a record of pids, which a crash could lose. A pid is never used alone: with its start time it
identifies one process forever, and a pidfd refers to exactly that one while it is ended.

Any program, even in a pod, can choose its name and environment, but not its cgroup: a process in a foreign pod is never
ours, and the claims of another user's process count only in our own cgroup. The program file would prove nothing: the
container toolkit mounts the driver's own into GPU pods.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

from dracaena.host.facts.pod_cgroups import pod_of_cgroup
from dracaena.mps.planning.state import MpsProcess, Role
from dracaena.mps.ports import ControlError

TERM_S = 2.0
KILL_S = 3.0
"""A process that holds a GPU needs up to some seconds to end: the driver frees its memory first."""

_VARIABLE = b"CUDA_MPS_PIPE_DIRECTORY="
_DAEMON_FLAGS = frozenset({b"-d", b"--daemon", b"-f", b"--foreground"})
"""Without one of these options the control program is a client of a daemon, started by us or a person, not a daemon."""
_ROLES = {role.value.encode(): role for role in Role}
_START_TICKS = 19
"""Field 22 of /proc/<pid>/stat, counted from after the program's name."""

_ZOMBIE = "Z"


class ProcProcessTable:
    """Implements dracaena.mps.ports.MpsProcessTable. `pipes` is the folder below which our pipe folders are."""

    def __init__(self, pipes: str, proc_root: str = "/proc", *, term_s: float = TERM_S) -> None:
        """`term_s`: for how long a process is left to end by itself once it is asked to."""
        self._pipes = pipes.encode()
        self._term_s = term_s
        self._proc = Path(proc_root)
        self._cgroup = self._cgroup_of("self") or ""
        self._users = frozenset({0, os.geteuid()})

    def find(self) -> tuple[MpsProcess, ...]:
        """See MpsProcessTable. Costs some ten microseconds per process of the node."""
        pids = (int(name) for name in os.listdir(self._proc) if name.isdigit())  # noqa: PTH208 - names are enough
        found = (self._ours(pid) for pid in sorted(pids))
        return tuple(process for process in found if process is not None)

    def is_alive(self, process: MpsProcess) -> bool:
        """See MpsProcessTable."""
        return self._start_ticks(process.pid) == process.start_ticks

    def kill(self, process: MpsProcess) -> None:
        """See MpsProcessTable."""
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return  # gone
        try:
            if not self.is_alive(process):
                return
            for number, limit_s in ((signal.SIGTERM, self._term_s), (signal.SIGKILL, KILL_S)):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
                if select.select([descriptor], [], [], limit_s)[0]:
                    return
        finally:
            os.close(descriptor)
        raise ControlError(
            f"{process.role.value} {process.pid} does not end within {self._term_s + KILL_S:g} s: it hangs in the "
            "kernel, look at `dmesg`; only a restart of the node ends it"
        )

    def pod_uid(self, pid: int) -> str:
        """See MpsProcessTable."""
        return pod_of_cgroup(self._cgroup_of(str(pid)) or "") or ""

    def _cgroup_of(self, process: str) -> str | None:
        try:
            return (self._proc / process / "cgroup").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None

    def _ours(self, pid: int) -> MpsProcess | None:
        folder = self._proc / str(pid)
        try:
            program, *arguments = (folder / "cmdline").read_bytes().split(b"\0")
            role = _ROLES.get(program.rpartition(b"/")[2])
            if role is None or (role is Role.CONTROL and not _DAEMON_FLAGS & set(arguments)):
                return None
            values = (folder / "environ").read_bytes().split(b"\0")
            uid = folder.stat().st_uid
        except OSError:
            return None
        pipes = next((value.removeprefix(_VARIABLE) for value in values if value.startswith(_VARIABLE)), b"")
        ticks = self._start_ticks(pid)
        if not self._can_be_ours(pid, role, uid):
            return None
        if ticks is None or not (pipes + b"/").startswith(self._pipes + b"/"):
            return None
        below = pipes.removeprefix(self._pipes).strip(b"/").split(b"/")[0]
        return MpsProcess(pid, ticks, role, uid, below.decode("utf-8", "replace"))

    def _can_be_ours(self, pid: int, role: Role, uid: int) -> bool:
        """Daemons run as root, like us. Servers may run as the one user that they serve, and then are in our cgroup,
        which is that of our container.
        """
        cgroup = self._cgroup_of(str(pid))
        if cgroup is None or pod_of_cgroup(cgroup) not in (None, pod_of_cgroup(self._cgroup)):
            return False
        return uid in self._users or (role is Role.SERVER and cgroup == self._cgroup)

    def _start_ticks(self, pid: int) -> int | None:
        try:
            text = (self._proc / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        fields = text.rpartition(")")[2].split()
        if len(fields) <= _START_TICKS or fields[0] == _ZOMBIE:
            return None
        return int(fields[_START_TICKS])
