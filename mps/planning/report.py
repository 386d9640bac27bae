"""The reports for the plugin: the status of a share, and faults of a GPU between two looks at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dracaena.api.mps import (
    CLIENT_PIPES,
    CLIENT_SHM,
    MpsFault,
    MpsFaultKind,
    MpsMount,
    MpsPhase,
    MpsShareRequest,
    MpsShareStatus,
)
from dracaena.mps.planning.places import CLIENT_PIPES_ARE_READ_ONLY, MpsPlaces
from dracaena.mps.planning.plan import obstacle, plan_gpu
from dracaena.mps.planning.state import V2, SeenGpu, WantedGpu, serves, v2_admitted
from dracaena.mps.protocol.seen import ServerState

PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
PERCENTAGE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
MEMORY_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


@dataclass(frozen=True, slots=True)
class GpuLook:
    """One GPU at one moment: what is wanted, what was seen, and what went wrong."""

    wanted: WantedGpu
    seen: SeenGpu
    trouble: str = ""
    """The error of the last step or look that failed."""


def share_status(
    name: str, digest: str, request: MpsShareRequest, look: GpuLook, *, protocol: int, places: MpsPlaces,
    fault: MpsFault | None,
) -> MpsShareStatus:  # fmt: skip
    """Return the status of a share that is not refused. It is ready once its server accepts clients and every limit is
    in force, as read from the daemon.
    """
    phase, message = _phase(name, request, look, protocol)
    ready = phase is MpsPhase.READY
    return MpsShareStatus(
        request=digest,
        phase=phase,
        message=message,
        gpu=request.gpu,
        claim_uid=request.claim_uid,
        share_id=request.share_id,
        environment=_environment(request, protocol) if ready else {},
        mounts=_mounts(name, request.gpu, protocol, places) if ready else (),
        server_pid=look.seen.server.pid if ready and look.seen.server is not None else 0,
        fault=fault,
    )


def what_happened(before_pid: int, clients_before: int, seen: SeenGpu) -> tuple[MpsFaultKind, str] | None:
    """Return the fault that hit the clients of a server since it was seen as `before_pid`, None if there was none."""
    if not before_pid:
        return None
    lost = f"{clients_before} client(s) lost the GPU"
    if seen.mode is None and not seen.released:
        return MpsFaultKind.GPU_LOST, f"the GPU does not answer ({seen.trouble}); {lost}"
    if seen.server is not None and seen.server.pid == before_pid:
        if seen.server.state is ServerState.FAULT:
            return MpsFaultKind.SERVER_FAULT, (
                f"a client made a fatal fault, which ends the GPU work of all {clients_before} clients of this GPU; "
                "new ones are refused until all of them have ended"
            )
        return None
    if not seen.daemon:
        return MpsFaultKind.DAEMON_DIED, f"the MPS control daemon died with its server {before_pid}; {lost}"
    return MpsFaultKind.SERVER_DIED, f"the MPS server {before_pid} died; {lost}"


def _phase(name: str, request: MpsShareRequest, look: GpuLook, protocol: int) -> tuple[MpsPhase, str]:
    seen, wanted = look.seen, look.wanted
    if look.trouble:
        return MpsPhase.FAILED, look.trouble
    blocked = obstacle(wanted, seen, protocol)
    if blocked is not None:
        return MpsPhase.FAILED, blocked
    if protocol == V2 and name not in v2_admitted(wanted.shares, seen):
        return MpsPhase.REFUSED, (
            "it has no memory limit, and other shares of this GPU have one, which a daemon of this driver cannot lose "
            "while they are there"
        )
    if seen.server is not None and seen.server.state is ServerState.FAULT:
        return MpsPhase.FAILED, (
            f"the GPU's MPS server is in FAULT and takes no new clients until the {len(seen.clients)} that it has "
            "have left"
        )
    if plan_gpu(request.gpu, wanted, seen, protocol) or not serves(seen.server):
        word = f"it says {seen.server.word}" if seen.server is not None else "it is not there yet"
        return MpsPhase.PENDING, f"the GPU's MPS server is being made ready ({word})"
    return MpsPhase.READY, ""


def _environment(request: MpsShareRequest, protocol: int) -> dict[str, str]:
    """Return the variables that containers need. With protocol 3 the namespace has the limits; with 2 the environment
    has them, below the ceiling that the daemon has for all clients of the GPU.
    """
    environment = {PIPE_VARIABLE: CLIENT_PIPES}
    if protocol == V2:
        if request.thread_percentage is not None:
            environment[PERCENTAGE_VARIABLE] = str(request.thread_percentage)
        if request.pinned_memory_mib is not None:
            environment[MEMORY_VARIABLE] = f"{request.gpu}={request.pinned_memory_mib}M"
    return environment


def _mounts(name: str, gpu: str, protocol: int, places: MpsPlaces) -> tuple[MpsMount, ...]:
    pipes = MpsMount(
        host_path=places.client_pipes(gpu, name, protocol),
        container_path=CLIENT_PIPES,
        read_only=CLIENT_PIPES_ARE_READ_ONLY,
    )
    if protocol == V2:
        return (pipes, MpsMount(host_path=places.shm_of(gpu), container_path=CLIENT_SHM))
    return (pipes,)


def held_gpus(seen: Mapping[str, SeenGpu]) -> tuple[str, ...]:
    """Return the GPUs on which something of ours is left, sorted."""
    return tuple(gpu for gpu in sorted(seen) if seen[gpu].holds_anything)
