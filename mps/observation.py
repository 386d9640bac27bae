"""One look at the node: running processes, the daemons' answers, the compute mode of each GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dracaena.api.errors import TemporaryError
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.shm import ShmState
from dracaena.mps.planning.state import V2, V3, ComputeMode, MpsProcess, PipesState, Role, SeenGpu
from dracaena.mps.ports import (
    ComputeModes,
    ControlError,
    ControlSilentError,
    DaemonGoneError,
    DriverReleasedError,
    MpsControl,
    MpsFiles,
    MpsShm,
)
from dracaena.mps.protocol import v2, v3
from dracaena.mps.protocol.seen import ClientSeen, ControlAnswerError, ControlCommand, ServerSeen, ShareLimits
from dracaena.mps.protocol.v3 import server_name


@dataclass(frozen=True, slots=True)
class NodeLook:
    """Everything that was seen in one look."""

    gpus: Mapping[str, SeenGpu]
    troubles: Mapping[str, str] = field(default_factory=dict)
    """GPU → why its daemon could not be asked: nothing is done to such a GPU."""
    silent: frozenset[str] = frozenset()
    """Of those, the GPUs whose daemon gives no readable answer."""
    unasked: frozenset[str] = frozenset()
    """Of those, the GPUs whose daemon was not asked within the pause after a failure."""
    answers: bool = False
    """Whether the node's daemon (protocol 3) answers."""
    node_processes: tuple[MpsProcess, ...] = ()
    """Processes of the node's own pipe folder."""


@dataclass(frozen=True, slots=True)
class _Limits:
    server_pid: int
    defaults: ShareLimits
    of_server: ShareLimits | None


class Observer:
    """Looks at the node. Remembers the limits of protocol 2, which only we change, while the same server runs and
    forget() is not called: it is after each step, and only a step starts a daemon.
    """

    def __init__(
        self, control: MpsControl, modes: ComputeModes, files: MpsFiles, shm: MpsShm, places: MpsPlaces
    ) -> None:
        self._control, self._modes, self._files, self._shm, self._places = control, modes, files, shm, places
        self._limits: dict[str, _Limits] = {}

    def forget(self, gpu: str) -> None:
        """Read a GPU's limits again at the next look."""
        self._limits.pop(gpu, None)

    def look(
        self, wanted: Collection[str], processes: tuple[MpsProcess, ...], protocol: int, paused: Collection[str]
    ) -> NodeLook:
        """Look at the wanted GPUs and at all on which something of ours is left. `paused` are GPUs whose own daemon
        (protocol 2) is not asked for now.
        """
        journal = self._files.journal()
        folders = set(self._files.folders())
        shm = self._shm.seen()
        by_folder: dict[str, list[MpsProcess]] = {}
        for process in processes:
            by_folder.setdefault(process.folder, []).append(process)
        of_node = tuple(by_folder.pop("", ()))
        named = {gpu for gpu in map(v3.gpu_of, by_folder) if gpu is not None}
        gpus = sorted({*wanted, *journal, *folders, *shm, *named})
        modes, released = self._read_modes([gpu for gpu in gpus if gpu in journal or gpu in wanted])
        look = NodeLook(
            {
                gpu: _bare(modes.get(gpu), SeenGpu(
                    None,
                    released=released and gpu in modes,
                    journal=journal.get(gpu),
                    processes=tuple(by_folder.get(server_name(gpu), ())),
                    folder=gpu in folders,
                    shm=shm.get(gpu, ShmState.NONE),
                ))
                for gpu in gpus
            },
            node_processes=of_node,
        )  # fmt: skip
        return self._ask_node(look) if protocol == V3 else self._ask_each(look, paused) if protocol == V2 else look

    def _read_modes(self, gpus: Sequence[str]) -> tuple[Mapping[str, ComputeMode | str], bool]:
        """Return modes as ComputeModes.read() does, and whether the driver was not asked because it is released."""
        try:
            return self._modes.read(gpus), False
        except DriverReleasedError as error:
            return dict.fromkeys(gpus, str(error)), True

    def _ask_node(self, look: NodeLook) -> NodeLook:
        if not any(process.role is Role.CONTROL for process in look.node_processes):
            return look
        try:
            servers = v3.read_servers(self._run(v3.list_servers()))
            namespaces = v3.read_namespaces(self._run(v3.list_namespaces())) if servers else {}
            clients = v3.read_clients(self._run_for_report(v3.list_clients())) if servers else {}
        except DaemonGoneError:
            return look
        except TemporaryError as error:
            silent = frozenset(look.gpus) if isinstance(error, ControlSilentError | ControlAnswerError) else frozenset()
            return replace(look, troubles=dict.fromkeys(look.gpus, str(error)), silent=silent)
        gpus = dict(look.gpus)
        for gpu in sorted({*gpus, *servers}):
            gpus[gpu] = replace(
                gpus.get(gpu) or SeenGpu(None, "it is not asked for"),
                daemon=True,
                server=servers.get(gpu),
                clients=clients.get(gpu, ()),
                namespaces={share: limits for (of, share), limits in namespaces.items() if of == gpu},
            )
        return replace(look, gpus=dict(sorted(gpus.items())), answers=True)

    def _ask_each(self, look: NodeLook, paused: Collection[str]) -> NodeLook:
        gpus, troubles, silent, unasked = dict(look.gpus), {}, set(), set()
        for gpu, seen in look.gpus.items():
            if not any(process.role is Role.CONTROL for process in seen.processes):
                continue
            if gpu in paused:
                troubles[gpu] = "it is not asked within the pause after a failure"
                unasked.add(gpu)
                continue
            try:
                gpus[gpu] = self._ask_through_pipes(gpu, seen)
            except DaemonGoneError:
                continue
            except TemporaryError as error:
                troubles[gpu] = str(error)
                if isinstance(error, ControlSilentError | ControlAnswerError):
                    silent.add(gpu)
        return replace(look, gpus=gpus, troubles=troubles, silent=frozenset(silent), unasked=frozenset(unasked))

    def _ask_through_pipes(self, gpu: str, seen: SeenGpu) -> SeenGpu:
        """Ask a daemon. Its sockets are looked at before and after: if somebody changed them meanwhile, an error does
        not say that the daemon is gone, and an answer may be another program's.
        """
        pipes = self._files.pipes(gpu)
        if pipes is not PipesState.CHANGED:
            try:
                answered = self._ask_daemon(gpu, seen)
            except TemporaryError:
                if self._files.pipes(gpu) is not PipesState.CHANGED:
                    raise
            else:
                pipes = self._files.pipes(gpu)
                if pipes is not PipesState.CHANGED:
                    return replace(answered, pipes=pipes)
        self.forget(gpu)
        return replace(seen, pipes=PipesState.CHANGED)

    def _ask_daemon(self, gpu: str, seen: SeenGpu) -> SeenGpu:
        pids = v2.read_servers(self._run(v2.list_servers(), gpu))
        server: ServerSeen | None = None
        clients: tuple[ClientSeen, ...] = ()
        if pids:
            owners = {process.pid: process.uid for process in seen.processes}
            server = v2.read_status(pids[0], self._run(v2.server_status(pids[0]), gpu))
            server = replace(server, uid=owners.get(pids[0]))
            listed = v2.read_clients(pids[0], self._run_for_report(v2.list_clients(pids[0]), gpu))
            clients = tuple(ClientSeen(pid) for pid in listed)
        limits = self._limits_of(gpu, server)
        return replace(
            seen, daemon=True, server=server, clients=clients, defaults=limits.defaults, of_server=limits.of_server
        )

    def _limits_of(self, gpu: str, server: ServerSeen | None) -> _Limits:
        server_pid = server.pid if server is not None else 0
        known = self._limits.get(gpu)
        if known is not None and known.server_pid == server_pid:
            return known
        percentage, memory = v2.ask_defaults(gpu)
        defaults = self._read_limits(gpu, percentage, memory)
        of_server = self._read_limits(gpu, *v2.ask_of_server(server_pid, gpu)) if server_pid else None
        found = _Limits(server_pid, defaults, of_server)
        self._limits[gpu] = found
        return found

    def _read_limits(self, gpu: str, percentage: ControlCommand, memory: ControlCommand) -> ShareLimits:
        return ShareLimits(
            v2.read_percentage(percentage, self._run(percentage, gpu)),
            v2.read_memory_mib(memory, self._run(memory, gpu)),
        )

    def _run_for_report(self, command: ControlCommand, gpu: str = "") -> str:
        """Return an answer that is only needed for reports, "" if there is none: no action depends on it."""
        try:
            return self._run(command, gpu)
        except ControlError:
            return ""

    def _run(self, command: ControlCommand, gpu: str = "") -> str:
        return self._control.run(command, self._places.pipes_of(gpu) if gpu else self._places.pipes)


def _bare(mode: ComputeMode | str | None, seen: SeenGpu) -> SeenGpu:
    if isinstance(mode, ComputeMode):
        return replace(seen, mode=mode)
    return replace(seen, trouble=mode or "it is not asked for")
