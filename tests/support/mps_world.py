"""A node for the MPS supervisor, in this process: control program, processes, compute modes; and a place to die at.

Daemons and servers are those of mps_model.py. `before_effect` is called before and after each thing that changes the
world: a test raises there what a kill -9 would be.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dracaena.api.errors import TemporaryError
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.shm import ShmState
from dracaena.mps.planning.state import ComputeMode, MpsProcess, Role
from dracaena.mps.ports import ControlError, ControlSilentError, DaemonGoneError, DriverReleasedError, MissingProgram
from dracaena.mps.protocol.seen import ControlCommand
from support.mps_model import USAGE_2, USAGE_3, MpsModel

_READS = ("get_", "list", "-h")


class Killed(BaseException):
    """kill -9: nothing catches it."""


@dataclass
class Daemon:
    pid: int
    model: MpsModel
    pipes: str
    tmpfs: int = 0
    """Number of the tmpfs that it has at /dev/shm."""
    socket: tuple[int, int] | None = None
    """Device and inode of the file through which it is reached; None: always."""


@dataclass
class MpsWorld:
    """Implements MpsControl, MpsProcessTable and ComputeModes of dracaena.mps.ports."""

    places: MpsPlaces
    gpus: tuple[str, ...]
    protocol: int = 3
    modes: dict[str, ComputeMode] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    has_mps: bool = True
    has_driver: bool = True
    hangs: set[str] = field(default_factory=set)
    """Pipe folders whose daemon gives no answer."""
    babbles: set[str] = field(default_factory=set)
    """Pipe folders whose daemon answers rubbish."""
    released: str | None = None
    """Who has asked that the driver be left alone."""
    refuses: str = ""
    """Words of commands to which no daemon gives an answer; empty: none."""
    dies_at_start: bool = False
    slow_start: bool = False
    effect: Callable[[str], None] = lambda _what: None
    """Called before and after each change of the world with its name."""
    asking: Callable[[str], None] = lambda _command: None
    """Called before each command of the control program with its words."""
    impostor: MpsModel | None = None
    """Who answers at a socket that took the place of a daemon's; None: nobody."""
    tmpfs: dict[str, int] = field(default_factory=dict)
    """Pipe folder of a GPU → number of its tmpfs, 0: only the folder is there."""
    daemons: dict[str, Daemon] = field(default_factory=dict)
    processes: dict[int, MpsProcess] = field(default_factory=dict)
    pods: dict[int, str] = field(default_factory=dict)
    misled: bool = False
    """Whether something was said to whoever had replaced a socket."""
    asked: set[str] = field(default_factory=set)
    """GPUs whose compute mode was asked for."""
    commands: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _pids: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))

    def __post_init__(self) -> None:
        self.modes = {gpu: self.modes.get(gpu, ComputeMode.DEFAULT) for gpu in self.gpus}

    @property
    def present(self) -> set[str]:
        return set(self.gpus) - self.lost

    # MpsControl

    def missing(self) -> MissingProgram | None:
        if self.has_mps:
            return None
        return MissingProgram("this node's GPU driver has no nvidia-cuda-mps-control", passes=not self.has_driver)

    def run(self, command: ControlCommand, pipes: str) -> str:
        text = str(command)
        self.commands.append(text)
        self.asking(text)
        if pipes in self.hangs or (self.refuses and self.refuses in text):
            raise ControlSilentError(f"no answer to `{text}`")
        if command.arguments[-1:] == ("-h",):
            if self.protocol == 2:
                raise ControlError(USAGE_2)
            return USAGE_3
        if pipes in self.babbles:
            return "!?\x00 segmentation violation"
        daemon = self.daemons.get(pipes)
        if daemon is not None and daemon.socket is not None and _file(pipes) != daemon.socket:
            self.misled |= _file(pipes) is not None
            if _file(pipes) is not None and self.impostor is not None:
                return self.impostor.command(list(command.arguments), command.standard_input)[1]
            daemon = None
        if daemon is None:
            raise DaemonGoneError("Cannot find MPS control daemon process")
        reads = any(text.startswith(word) or f" {word}" in text for word in _READS)
        if reads:
            code, answer = daemon.model.command(list(command.arguments), command.standard_input)
        else:
            self.effect(text)
            code, answer = daemon.model.command(list(command.arguments), command.standard_input)
            if daemon.model.ended:
                self._daemon_gone(daemon)
            self.effect(text)
        if code:
            raise ControlError(answer)
        return answer

    def start(self, command: ControlCommand, pipes: str, logs: str, gpu: str) -> None:
        self.effect(f"start {pipes}")
        if pipes in self.daemons:
            raise ControlError("an instance of this daemon is already running")
        number = self.tmpfs.get(pipes, 0) if gpu else -1
        if not number:
            raise ControlError("a daemon of one GPU needs its tmpfs")
        if not self.dies_at_start:
            folder = pipes.removeprefix(self.places.pipes).strip("/")
            pid = self._begin(Role.CONTROL, folder, 0)
            model = MpsModel(
                3 if "3" in command.arguments else 2,
                visible=(gpu,) if gpu else self.gpus,
                present=lambda: self.present,
                spawn=lambda uid: self._begin(Role.SERVER, folder, uid),
                reap=self._reap,
                multi_user=any("multiuser" in each for each in command.arguments),
                slow_start=self.slow_start,
            )
            self.daemons[pipes] = Daemon(pid, model, pipes, number, _made_file(pipes) if gpu else None)
        self.effect(f"start {pipes}")

    def last_words(self, logs: str) -> str:
        return "Failed to bind" if self.dies_at_start else ""

    def _begin(self, role: Role, folder: str, uid: int) -> int:
        pid = next(self._pids)
        self.processes[pid] = MpsProcess(pid, pid * 7, role, uid, folder)
        return pid

    def _reap(self, pid: int) -> None:
        self.processes.pop(pid, None)

    def _daemon_gone(self, daemon: Daemon) -> None:
        self.daemons.pop(daemon.pipes, None)
        self.processes.pop(daemon.pid, None)
        self.hangs.discard(daemon.pipes)
        self.babbles.discard(daemon.pipes)

    # MpsProcessTable

    def find(self) -> tuple[MpsProcess, ...]:
        return tuple(self.processes[pid] for pid in sorted(self.processes))

    def is_alive(self, process: MpsProcess) -> bool:
        return self.processes.get(process.pid) == process

    def kill(self, process: MpsProcess) -> None:
        if not self.is_alive(process):
            return
        self.effect(f"kill {process.role.value}")
        self.end(process.pid)
        self.effect(f"kill {process.role.value}")

    def pod_uid(self, pid: int) -> str:
        return self.pods.get(pid, "")

    def end(self, pid: int) -> None:
        """kill -9 of one process from outside: a daemon's servers go on."""
        self.processes.pop(pid, None)
        for daemon in list(self.daemons.values()):
            if daemon.pid == pid:
                self._daemon_gone(daemon)
            daemon.model.server_died(pid)

    # ComputeModes

    def refusal(self) -> str | None:
        return self.released

    def read(self, gpus: Collection[str]) -> Mapping[str, ComputeMode | str]:
        if self.released is not None:
            raise DriverReleasedError(self.released)
        self.asked.update(gpus)
        return {gpu: "it has fallen off the bus" if gpu in self.lost else self.modes[gpu] for gpu in sorted(gpus)}

    def set(self, gpu: str, mode: ComputeMode) -> None:
        self.effect(f"mode {mode.name}")
        if self.released is not None:
            raise DriverReleasedError(self.released)
        if gpu in self.lost:
            raise TemporaryError("it has fallen off the bus")
        self.modes[gpu] = mode
        self.effect(f"mode {mode.name}")

    # What happens to a node

    def kill_daemons(self) -> None:
        for daemon in list(self.daemons.values()):
            self.end(daemon.pid)

    def spoil_sockets(self, *, replace: bool) -> None:
        """Somebody removes the sockets of all daemons of one GPU, or puts others in their place."""
        for daemon in self.daemons.values():
            if daemon.socket is not None:
                Path(daemon.pipes, "control").unlink(missing_ok=True)
                if replace:
                    Path(daemon.pipes, "other").touch()
                    Path(daemon.pipes, "other").rename(Path(daemon.pipes, "control"))

    def kill_all(self) -> None:
        """What the end of a container does: every process of its cgroup is ended."""
        for pid in list(self.processes):
            self.end(pid)

    def reload_driver(self) -> None:
        """The driver is unloaded and loaded: nothing that used it lives, and modes are the driver's default."""
        self.kill_all()
        self.modes = dict.fromkeys(self.gpus, ComputeMode.DEFAULT)

    def server_model(self, gpu: str) -> MpsModel | None:
        """Return the daemon that serves a GPU."""
        daemon = self.daemons.get(self.places.pipes) or self.daemons.get(self.places.pipes_of(gpu))
        return daemon.model if daemon is not None else None


def _file(pipes: str) -> tuple[int, int] | None:
    try:
        found = Path(pipes, "control").lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _made_file(pipes: str) -> tuple[int, int] | None:
    path = Path(pipes, "control")
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return _file(pipes)


@dataclass(frozen=True)
class FakeShm:
    """Implements MpsShm of dracaena.mps.ports."""

    world: MpsWorld

    def seen(self) -> Mapping[str, ShmState]:
        gpus = {gpu: self.world.tmpfs.get(self.world.places.pipes_of(gpu)) for gpu in self.world.gpus}
        return {
            gpu: ShmState.MOUNTED if number else ShmState.FOLDER for gpu, number in gpus.items() if number is not None
        }

    def mount(self, gpu: str) -> None:
        folder = self.world.places.pipes_of(gpu)
        self.world.effect("make the folder of a tmpfs")
        self.world.tmpfs.setdefault(folder, 0)
        self.world.effect("mount")
        self.world.tmpfs[folder] = self.world.tmpfs[folder] or next(self.world.numbers)
        self.world.effect("mount")

    def unmount(self, gpu: str) -> None:
        folder = self.world.places.pipes_of(gpu)
        assert folder not in self.world.daemons, "a daemon still has it"
        self.world.effect("unmount")
        if folder in self.world.tmpfs:
            self.world.tmpfs[folder] = 0
        self.world.effect("unmount")
        self.world.tmpfs.pop(folder, None)
        self.world.effect("remove the folder of a tmpfs")
