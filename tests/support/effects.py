"""Effects on a node that are files: one for each GPU that a server runs for, and one for each device that it serves.

The server of a GPU starts with the first device and stops with the last, as an MPS server does. All file work goes
through FileSteps, so that it can be killed at each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.errors import TemporaryError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.kubelet_plugin.device_kinds.device_kind import ContainerEdits, NodeDeviceKind
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu
from dracaena.kubelet_plugin.prepare.cdi.spec import Mount
from dracaena.kubelet_plugin.prepare.effects import Effect, Scalar
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice, PublishedPool

SERVED = "served"
FOLDER = "servers"


class ServedGpu(WholeGpu):
    """A GPU whose containers talk to a server."""

    def __init__(self, port: int = 1) -> None:
        self._port = port

    def effects(
        self, device: PreparedDevice, claim: ClaimUid, pool: PublishedPool, sharing: GpuSharing
    ) -> tuple[Effect, ...]:
        return (Effect(SERVED, device.physical_gpu, device.device, device.share_id, {"port": self._port}),)

    def edits(self, device: PreparedDevice, effects: Sequence[Effect]) -> ContainerEdits:
        (effect,) = effects
        assert effect.outcome is not None
        return ContainerEdits((f"SERVER={effect.outcome['server']}",), (Mount("/run/host", "/run/in", ("rw", "bind")),))


def served(name: DeviceName, share_id: str | None, *, port: int = 1) -> NodeDeviceKind:
    return ServedGpu(port)


@dataclass
class ServerFiles:
    """EffectMeans. `fails` holds what is refused: `apply`, `undo`."""

    folder: Path
    steps: FileSteps
    fails: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._files = DocumentFolder(self.folder / FOLDER, steps=self.steps, synced=False)

    def apply(self, effect: Effect, others: Sequence[Effect]) -> Mapping[str, Scalar]:
        if "apply" in self.fails:
            raise TemporaryError("the server does not start")
        self._files.write_if_changed(effect.gpu, b"running")
        self._files.write_if_changed(client(effect), str(effect.parameters["port"]).encode())
        return {"server": f"of-{effect.gpu}"}

    def undo(self, effect: Effect, others: Sequence[Effect]) -> None:
        if "undo" in self.fails:
            raise TemporaryError("the server does not stop")
        self._files.remove(client(effect))
        if not others:
            self._files.remove(effect.gpu)


def client(effect: Effect) -> str:
    return f"{effect.device}+{effect.share_id}+{effect.parameters['port']}"
