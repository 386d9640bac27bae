"""What the supervisor needs from outside. Adapters implement it; tests have fakes of the same form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from dracaena.api.errors import TemporaryError
from dracaena.api.mps import MpsNodeStatus, MpsShareStatus
from dracaena.mps.planning.shm import ShmState
from dracaena.mps.planning.state import ComputeMode, ModeJournal, MpsProcess, PipesState
from dracaena.mps.planning.wants import ReadRequest
from dracaena.mps.protocol.seen import ControlCommand


class ControlError(TemporaryError):
    """The control program refused a command, or could not be run."""


class ControlSilentError(ControlError):
    """The control program gave no answer in time."""


class DaemonGoneError(ControlError):
    """There is no daemon behind this pipe folder."""


@dataclass(frozen=True, slots=True)
class MissingProgram:
    """Why a node has no nvidia-cuda-mps-control."""

    message: str
    passes: bool
    """Whether the driver itself is missing: its container may still install it. Otherwise it lacks MPS."""


class MpsControl(Protocol):
    """nvidia-cuda-mps-control of this node's GPU driver."""

    def missing(self) -> MissingProgram | None:
        """Return why there is no such program, None if there is one."""
        ...

    def run(self, command: ControlCommand, pipes: str) -> str:
        """Send a command to the daemon that listens in a pipe folder, and return what the program prints.

        Raises ControlSilentError after a time limit, DaemonGoneError, or ControlError.
        """
        ...

    def start(self, command: ControlCommand, pipes: str, logs: str, gpu: str) -> None:
        """Start a daemon. `gpu`: the only one that it and its servers see, and whose tmpfs they have at /dev/shm;
        empty: all GPUs, and the supervisor's own /dev/shm. Raises like run().
        """
        ...

    def last_words(self, logs: str) -> str:
        """Return the last line of a daemon's log, empty if there is none."""
        ...


class MpsProcessTable(Protocol):
    """Processes of MPS on this node, by the pipe folder in their environment."""

    def find(self) -> tuple[MpsProcess, ...]:
        """Return the processes below our pipe folder, in order of pid."""
        ...

    def is_alive(self, process: MpsProcess) -> bool:
        """Whether exactly this process still runs. Costs some microseconds."""
        ...

    def kill(self, process: MpsProcess) -> None:
        """End exactly this process and wait until it is gone; does nothing if it is gone. Raises ControlError."""
        ...

    def pod_uid(self, pid: int) -> str:
        """Return the UID of a process's pod, by its cgroup; empty if it has none there."""
        ...


class DriverReleasedError(TemporaryError):
    """Somebody on this node has asked that the GPU driver be left alone. The text says who."""


class ComputeModes(Protocol):
    """The compute modes of this node's GPUs, which the GPU driver is asked for."""

    def refusal(self) -> str | None:
        """Return who has asked that the driver be left alone, None if nobody has. Costs a look for a file."""
        ...

    def read(self, gpus: Collection[str]) -> Mapping[str, ComputeMode | str]:
        """Return each GPU's mode, or a text why it cannot be read. Without GPUs the driver is not opened.

        Raises DriverReleasedError and nothing else.
        """
        ...

    def set(self, gpu: str, mode: ComputeMode) -> None:
        """Set a GPU's mode. Raises TemporaryError."""
        ...


class MpsShm(Protocol):
    """The /dev/shm of each GPU whose shares use protocol 2."""

    def seen(self) -> Mapping[str, ShmState]:
        """Return what there is, by GPU, sorted; nothing for GPUs of which nothing is left. Never raises."""
        ...

    def mount(self, gpu: str) -> None:
        """Mount a GPU's tmpfs, unless it is mounted. Raises DracaenaError."""
        ...

    def unmount(self, gpu: str) -> None:
        """Remove it with all that is in it. Raises DracaenaError."""
        ...


class MpsFiles(Protocol):
    """The folder that is shared with the plugin, and the journal. Methods raise DracaenaError."""

    def requests(self) -> Mapping[str, ReadRequest]:
        """Return all requests by share."""
        ...

    def requests_changed(self) -> bool:
        """Whether a request was added, removed or changed since the last call of requests(). Costs one look at the
        folder.
        """
        ...

    def statuses(self) -> Mapping[str, MpsShareStatus]:
        """Return all statuses by share; one that cannot be read is removed."""
        ...

    def write_status(self, share: str, status: MpsShareStatus) -> None:
        """Write a share's status, unless it is unchanged."""
        ...

    def remove_status(self, share: str) -> None:
        """Remove a share's status: nothing of the share is left."""
        ...

    def read_node(self) -> MpsNodeStatus | None:
        """Return the last written status of the node; None if there is none, or it cannot be read."""
        ...

    def write_node(self, status: MpsNodeStatus) -> None:
        """Write the status of the node, unless it is unchanged."""
        ...

    def journal(self) -> Mapping[str, ModeJournal]:
        """Return the journaled compute modes by GPU."""
        ...

    def write_journal(self, entry: ModeJournal) -> None:
        """Journal a GPU's compute mode: durable before it returns."""
        ...

    def remove_journal(self, gpu: str) -> None:
        """Remove a GPU's compute mode from the journal."""
        ...

    def folders(self) -> tuple[str, ...]:
        """Return the GPUs that have a pipe folder, sorted."""
        ...

    def make_folders(self, gpu: str) -> None:
        """Make a GPU's pipe and log folders."""
        ...

    def pipes(self, gpu: str) -> PipesState:
        """Return whether the sockets in a GPU's pipe folder are those that keep_pipes() has found."""
        ...

    def keep_pipes(self, gpu: str) -> None:
        """Keep the sockets and named pipes that a daemon has made in a GPU's pipe folder."""
        ...

    def restore_pipes(self, gpu: str) -> None:
        """Put what is kept back into its place, whatever is there."""
        ...

    def forget_pipes(self, gpu: str) -> None:
        """Keep nothing any more: the daemon that had made them is gone."""
        ...

    def remove_folders(self, gpu: str) -> None:
        """Remove them with all that is in them."""
        ...


@dataclass(frozen=True, slots=True)
class MpsPorts:
    """The outside of the supervisor."""

    control: MpsControl
    processes: MpsProcessTable
    modes: ComputeModes
    files: MpsFiles
    shm: MpsShm
