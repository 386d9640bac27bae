"""A node with a supervisor in this process, and the plugin's half of the folder."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dracaena.api import mps
from dracaena.api.mps import MpsPhase, MpsShareRequest, MpsShareStatus
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.mps.adapters.shared_folder import SharedFolder
from dracaena.mps.metrics import MpsMetrics
from dracaena.mps.planning.places import MpsPlaces
from dracaena.mps.planning.state import ComputeMode
from dracaena.mps.ports import MpsPorts, MpsShm
from dracaena.mps.protocol.v3 import server_name
from dracaena.mps.supervisor import Supervisor
from support.clock import FakeClock
from support.mps_model import MpsModel
from support.mps_world import FakeShm, MpsWorld

GPU = "GPU-11111111-2222-3333-4444-5555555555{:02d}"
GPUS = tuple(GPU.format(number) for number in range(4))
BOOT = "boot-1"
UNSETTLED = {MpsPhase.PENDING, MpsPhase.FAILED}

BOTH = pytest.mark.parametrize("protocol", [2, 3])


class EffectSteps(FileSteps):
    """Tells the world of each change of a file."""

    def __init__(self, world: MpsWorld) -> None:
        self._world = world

    def rename(self, source: Path, target: Path, folder: int) -> None:
        self._world.effect(f"write {target.parent.name}")
        super().rename(source, target, folder)
        self._world.effect(f"write {target.parent.name}")

    def remove(self, path: Path, folder: int) -> None:
        self._world.effect(f"remove {path.parent.name}")
        super().remove(path, folder)
        self._world.effect(f"remove {path.parent.name}")


class _Folder(SharedFolder):
    """The real folder, whose changes of pipe folders the world is told of too."""

    def __init__(self, world: MpsWorld) -> None:
        super().__init__(world.places, EffectSteps(world))
        self._world = world

    def make_folders(self, gpu: str) -> None:
        self._world.effect("make folders")
        super().make_folders(gpu)
        self._world.effect("make folders")

    def keep_pipes(self, gpu: str) -> None:
        self._world.effect("keep sockets")
        super().keep_pipes(gpu)
        self._world.effect("keep sockets")

    def restore_pipes(self, gpu: str) -> None:
        self._world.effect("restore sockets")
        super().restore_pipes(gpu)
        self._world.effect("restore sockets")

    def remove_folders(self, gpu: str) -> None:
        self._world.effect("remove folders")
        super().remove_folders(gpu)
        self._world.effect("remove folders")


class MpsNode:
    """`start()` begins a supervisor, as often as one is wanted: the one before is dead then."""

    def __init__(self, root: Path, protocol: int = 3, *, gpus: tuple[str, ...] = GPUS, multi_user: bool = True) -> None:
        self.places = MpsPlaces(str(root))
        self.world = MpsWorld(self.places, gpus, protocol)
        self.shm: MpsShm = FakeShm(self.world)
        self.clock = FakeClock()
        self.boot = BOOT
        self.multi_user = multi_user
        self.registry = CollectorRegistry()
        self._requests = DocumentFolder(root / mps.REQUESTS, synced=False)
        self._statuses = DocumentFolder(root / mps.STATUS, synced=False)
        self.start()

    def start(self) -> None:
        self.registry = CollectorRegistry()
        self.files = _Folder(self.world)
        self.files.prepare()
        self.supervisor = Supervisor(
            MpsPorts(self.world, self.world, self.world, self.files, self.shm),
            self.places,
            self.clock,
            MpsMetrics(self.registry),
            boot_id=self.boot,
            multi_user=self.multi_user,
        )
        self.supervisor.resume()

    def ask(
        self, number: int, share: str, *, percentage: int | None = 50, memory: int | None = 1024, uid: int | None = None
    ) -> str:
        """Ask for a share as the plugin does, and return its name."""
        gpu = self.world.gpus[number]
        name = mps.share_name(gpu, f"claim-{share}", share)
        request = MpsShareRequest(
            boot_id=self.boot, gpu=gpu, claim_uid=f"claim-{share}", share_id=share,
            thread_percentage=percentage, pinned_memory_mib=memory, client_uid=uid,
        )  # fmt: skip
        self._requests.write(name + mps.SUFFIX, mps.encode(request))
        return name

    def write(self, name: str, data: bytes) -> None:
        """Write a request that nobody of ours would."""
        self._requests.write(name + mps.SUFFIX, data)

    def withdraw(self, name: str) -> None:
        self._requests.remove(name + mps.SUFFIX)

    def settle(self, rounds: int = 60) -> None:
        """Let time go by until there is nothing to do, at most some minutes."""
        for _ in range(rounds):
            self.supervisor.step()
            if self.supervisor.due_s == inf and not {one.phase for one in self.statuses().values()} & UNSETTLED:
                return
            self.clock.advance(5.0)

    def statuses(self) -> Mapping[str, MpsShareStatus]:
        names = self._statuses.names(mps.SUFFIX)
        return {name.removesuffix(mps.SUFFIX): mps.decode_status(self._statuses.read(name) or b"") for name in names}

    def phase(self, name: str) -> MpsPhase | None:
        status = self.statuses().get(name)
        return status.phase if status is not None else None

    def left(self) -> list[str]:
        """Return everything that is there besides what a node without shares has."""
        root = Path(self.places.root)
        files = [
            str(path.relative_to(root))
            for folder in (mps.STATUS, "journal", "pipe", "log", "kept")
            for path in sorted((root / folder).rglob("*"))
        ]
        modes = [f"{gpu} {mode.name}" for gpu, mode in self.world.modes.items() if mode is not ComputeMode.DEFAULT]
        processes = [str(process) for process in self.world.find()]
        shm = [f"tmpfs of {gpu}: {state.value}" for gpu, state in self.shm.seen().items()]
        return files + modes + processes + shm


def model_of(node: MpsNode, number: int = 0) -> MpsModel:
    model = node.world.server_model(GPUS[number])
    assert model is not None
    return model


def join(node: MpsNode, share: str, pid: int, uid: int = 0) -> int:
    return model_of(node).connect(pid, uid, server=server_name(GPUS[0]), namespace=share)
