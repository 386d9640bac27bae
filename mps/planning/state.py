"""What is wanted of a GPU, what was seen of it, and the kinds of steps between the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from dracaena.mps.planning.shm import ShmState
from dracaena.mps.protocol.seen import ClientSeen, ServerSeen, ServerState, ShareLimits

V2, V3 = 2, 3
"""Protocols of nvidia-cuda-mps-control."""


class ComputeMode(IntEnum):
    """Who may have a context on a GPU; the numbers are nvmlComputeMode_t."""

    DEFAULT = 0
    EXCLUSIVE_THREAD = 1
    PROHIBITED = 2
    EXCLUSIVE_PROCESS = 3


class Role(Enum):
    """Which of the driver's programs a process is."""

    CONTROL = "nvidia-cuda-mps-control"
    SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class MpsProcess:
    """A process of MPS below our pipe folder."""

    pid: int
    start_ticks: int
    """Ticks since boot (proc(5), starttime): with the pid it identifies one process forever."""
    role: Role
    uid: int
    folder: str
    """Name of its pipe folder: a GPU's (server_name()), empty for the node's own."""


@dataclass(frozen=True, slots=True)
class ModeJournal:
    """Written before a GPU's compute mode is changed, removed after it was restored."""

    gpu: str
    boot_id: str
    previous: ComputeMode


@dataclass(frozen=True, slots=True)
class WantedGpu:
    """What the requests of a GPU's shares add up to."""

    shares: Mapping[str, ShareLimits]
    """Name → limits, sorted. Empty: nothing is wanted."""
    uid: int = 0
    """Owner of the server."""


NOTHING = WantedGpu({})

NO_LIMITS = ShareLimits()


class PipesState(Enum):
    """What was seen of the sockets of a running daemon (protocol 2)."""

    UNKEPT = "unkept"
    """We hold no further links to them."""
    KEPT = "kept"
    """We do, and each is in its place."""
    CHANGED = "changed"
    """Somebody has removed or replaced one that we hold a link to."""


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """What was seen of one GPU in one look."""

    mode: ComputeMode | None
    """None: the driver does not report it; `trouble` says why."""
    trouble: str = ""
    released: bool = False
    """Whether the driver was not asked, because it is released: `trouble` says by whom, and nothing is known."""
    journal: ModeJournal | None = None
    daemon: bool = False
    """Whether the daemon that serves this GPU answers; with protocol 3 that is the node's."""
    server: ServerSeen | None = None
    clients: tuple[ClientSeen, ...] = ()
    namespaces: Mapping[str, ShareLimits] = field(default_factory=dict)
    """Protocol 3: share → limits."""
    defaults: ShareLimits | None = None
    """Protocol 2: limits of servers that start later; None: not asked."""
    of_server: ShareLimits | None = None
    """Protocol 2: limits of clients that connect later; None: not asked."""
    processes: tuple[MpsProcess, ...] = ()
    """Processes of this GPU's folder, in order of pid; with protocol 3 only servers."""
    folder: bool = False
    """Whether this GPU's folders exist."""
    pipes: PipesState = PipesState.UNKEPT
    """Protocol 2: known while a daemon runs. With CHANGED it was not asked: somebody else might answer."""
    shm: ShmState = ShmState.NONE
    """Protocol 2: what there is of its /dev/shm."""

    @property
    def holds_anything(self) -> bool:
        """Whether something of ours is left on this GPU."""
        has_shm = self.shm is not ShmState.NONE
        return bool(self.journal or self.server or self.namespaces or self.processes or self.folder or has_shm)


class StepKind(Enum):
    """What is done to one GPU, in the order from nothing to shares and back."""

    JOURNAL_MODE = "journal the compute mode"
    SET_MODE = "set the compute mode"
    MAKE_FOLDERS = "make the folders"
    KEEP_PIPES = "keep the daemon's sockets"
    RESTORE_PIPES = "put the daemon's sockets back"
    MOUNT_SHM = "mount the shared memory"
    KILL = "end a process that no daemon owns"
    START_DAEMON = "start the daemon"
    SET_DEFAULTS = "set the limits of later servers"
    START_SERVER = "start the server"
    SET_OF_SERVER = "set the limits of later clients"
    CREATE_NAMESPACE = "make a namespace"
    LIMIT_NAMESPACE = "set a namespace's limits"
    DELETE_NAMESPACE = "remove a namespace"
    STOP_SERVER = "stop the server"
    STOP_DAEMON = "stop the daemon"
    UNMOUNT_SHM = "unmount the shared memory"
    REMOVE_FOLDERS = "remove the folders"
    RESTORE_MODE = "restore the compute mode"
    FORGET_MODE = "remove the journal of the compute mode"


@dataclass(frozen=True, slots=True)
class MpsStep:
    """One effect on the world. Each is idempotent and may be interrupted at any point."""

    kind: StepKind
    gpu: str
    """Empty for steps of the node: the one daemon of protocol 3."""
    share: str = ""
    limits: ShareLimits = NO_LIMITS
    mode: ComputeMode = ComputeMode.DEFAULT
    number: int = 0
    """Process id or user id."""
    process: MpsProcess | None = None

    def __str__(self) -> str:
        of = " ".join(word for word in (self.gpu, self.share, str(self.number or "")) if word)
        return f"{self.kind.value} ({of})" if of else self.kind.value


def serves(server: ServerSeen | None) -> bool:
    """Whether a server takes new clients."""
    return server is not None and server.state is ServerState.READY


def v2_ceiling(shares: Mapping[str, ShareLimits]) -> ShareLimits:
    """Return the limits that no share of a GPU exceeds: all clients of a v2 server have the same."""
    percentages = [limits.thread_percentage for limits in shares.values()]
    memories = [limits.pinned_memory_mib for limits in shares.values()]
    return ShareLimits(
        None if None in percentages else max((each for each in percentages if each is not None), default=None),
        None if None in memories else max((each for each in memories if each is not None), default=None),
    )


def v2_admitted(shares: Mapping[str, ShareLimits], seen: SeenGpu) -> Mapping[str, ShareLimits]:
    """Return the shares that the running v2 daemon can serve: once it has a memory limit it cannot lose it, so a share
    without one must wait until those with one are gone.
    """
    limited = {name: limits for name, limits in shares.items() if limits.pinned_memory_mib is not None}
    stuck = seen.daemon and seen.defaults is not None and seen.defaults.pinned_memory_mib is not None
    return limited if stuck and limited else shares


def effective(limits: ShareLimits) -> ShareLimits:
    """Return limits with 100 for no percentage: a daemon reports 100 for both."""
    return ShareLimits(limits.thread_percentage or 100, limits.pinned_memory_mib)
