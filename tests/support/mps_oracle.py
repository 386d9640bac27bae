"""What a node must look like when the supervisor has nothing to do: worked out from the shares that are asked for, with
no look at how the supervisor comes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dracaena.api.mps import STATUS, MpsPhase
from dracaena.mps.planning.shm import ShmState
from dracaena.mps.planning.state import ComputeMode, Role
from dracaena.mps.protocol.v3 import server_name
from support.mps_model import OK, MpsModel
from support.mps_node import MpsNode


@dataclass(frozen=True)
class Asked:
    gpu: str
    percentage: int | None = 50
    memory: int | None = 1024


def differences(node: MpsNode, asked: Mapping[str, Asked]) -> list[str]:
    """Return what is not as it must be: nothing missing, nothing left over. GPUs that are lost are left out."""
    world, wrong = node.world, []
    shared = {each.gpu for each in asked.values()}
    statuses = node.statuses()
    if statuses.keys() != asked.keys():
        wrong.append(f"statuses of {sorted(statuses)}, asked {sorted(asked)}")
    wrong += [
        f"{name} is {status.phase.value}: {status.message}"
        for name, status in statuses.items()
        if status.phase is not MpsPhase.READY and name in asked
    ]
    for gpu in world.gpus:
        wanted = ComputeMode.EXCLUSIVE_PROCESS if gpu in shared else ComputeMode.DEFAULT
        if world.modes[gpu] is not wanted:
            wrong.append(f"{gpu} is in mode {world.modes[gpu].name}, expected {wanted.name}")
    wrong += _processes(node, shared)
    wrong += _files(node, shared)
    wrong += _shm(node, shared)
    if not wrong and world.protocol == 2:
        wrong += [problem for gpu in sorted(shared) for problem in _defaults(node, gpu, asked)]
    if not wrong:
        wrong += [problem for name, each in asked.items() for problem in _client(node, name, each)]
    return wrong


def _processes(node: MpsNode, shared: set[str]) -> list[str]:
    found = node.world.find()
    servers = sum(process.role is Role.SERVER for process in found)
    controls = sorted(process.folder for process in found if process.role is Role.CONTROL)
    expected = sorted(map(server_name, shared)) if node.world.protocol == 2 else [""] if shared else []
    wrong = [] if servers == len(shared) else [f"{servers} servers for {len(shared)} GPUs with shares"]
    return wrong if controls == expected else [*wrong, f"daemons of {controls}, expected {expected}"]


def _files(node: MpsNode, shared: set[str]) -> list[str]:
    root = Path(node.places.root)
    journalled = {path.stem for path in (root / "journal").glob("*")}
    folders = {path.name for folder in ("pipe", "log") for path in (root / folder).glob("*")}
    hidden = [path.name for path in (root / STATUS).glob(".*")]
    wrong = [] if journalled == shared else [f"journal of {sorted(journalled)}, expected {sorted(shared)}"]
    if folders - set(map(server_name, shared)):
        wrong.append(f"folders {sorted(folders)} left for {sorted(shared)}")
    return [*wrong, f"half-written files: {hidden}"] if hidden else wrong


def _shm(node: MpsNode, shared: set[str]) -> list[str]:
    """Protocol 2: each GPU with shares has a tmpfs, the one that its daemon has, and no other GPU has any."""
    expected = dict.fromkeys(sorted(shared), ShmState.MOUNTED) if node.world.protocol == 2 else {}
    found = dict(node.shm.seen())
    if found != expected:
        return [f"tmpfs {found}, expected {expected}"]
    daemons = node.world.daemons
    return [
        f"{gpu}: its daemon has another tmpfs at /dev/shm than its containers"
        for gpu in expected
        if (pipes := node.places.pipes_of(gpu)) in daemons and daemons[pipes].tmpfs != node.world.tmpfs[pipes]
    ]


def _defaults(node: MpsNode, gpu: str, asked: Mapping[str, Asked]) -> list[str]:
    """A server that dies is started anew by the daemon when a client comes, with the daemon's defaults: they must not
    be wider than the widest share.
    """
    model = node.world.server_model(gpu)
    percentages = [each.percentage or 100 for each in asked.values() if each.gpu == gpu]
    if model is None or model.defaults.percentage == max(percentages):
        return []
    return [f"{gpu}: a later server would allow {model.defaults.percentage} %, expected {max(percentages)} %"]


def _client(node: MpsNode, name: str, asked: Asked) -> list[str]:
    """Start a client as a container of this share would, and look at what it may use."""
    status = node.statuses()[name]
    model = node.world.server_model(asked.gpu)
    if model is None:
        return [f"{name}: no daemon"]
    pid = 900_000
    code = model.connect(pid, 0, server=server_name(asked.gpu), namespace=name)
    if code != OK:
        return [f"{name}: a client gets {code}"]
    percentage, memory = _limits_of(model, pid, asked.gpu)
    model.disconnect(pid)
    if model.protocol == 2:  # the environment may only lower what the daemon allows
        own = status.environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        percentage = min(percentage, float(own or 100))
        limit = status.environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
        if limit:
            lower = float(limit.removeprefix(f"{asked.gpu}=").removesuffix("M"))
            memory = min(memory if memory is not None else lower, lower)
    wrong = [] if percentage == (asked.percentage or 100) else [f"{name}: {percentage} %, expected {asked.percentage}"]
    return wrong if memory == asked.memory else [*wrong, f"{name}: {memory} MiB, expected {asked.memory}"]


def _limits_of(model: MpsModel, pid: int, gpu: str) -> tuple[float, float | None]:
    client = next(server.clients[pid] for server in model.servers.values() if pid in server.clients)
    return client.limits.percentage, model.memory_mib(pid, gpu)
