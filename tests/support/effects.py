"""Changes of a node that are files: one for each GPU that a server runs for, and one for each device that it serves.

The server of a GPU starts with the first device and stops with the last, as an MPS server does. All file work goes
through FileSteps, so that it can be killed at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dracaena.api.config.v1alpha1 import GpuSharing
from dracaena.api.errors import DracaenaError, TemporaryError
from dracaena.api.names import ClaimUid, DeviceName
from dracaena.host.adapters.files.whole_files import DocumentFolder, FileSteps
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.changes.change import (
    Act,
    End,
    How,
    Note,
    Parameters,
    Thing,
    ThingKind,
    ThingPlan,
    Unreadable,
    Wants,
    one_by_one,
)
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
        parameters: dict[str, Scalar] = {"port": self._port, "client": f"{device.device}+{device.share_id}"}
        return (Effect(SERVED, device.physical_gpu, device.device, device.share_id, parameters),)

    def edits(self, device: PreparedDevice, _effects: Sequence[Effect]) -> ContainerEdits:
        return ContainerEdits((f"SERVER=of-{device.physical_gpu}",), (Mount("/run/host", "/run/in", ("rw", "bind")),))


def served(name: DeviceName, share_id: str | None, *, port: int = 1) -> NodeDeviceKind:
    return ServedGpu(port)


@dataclass
class ServerFiles(ThingKind[str, frozenset[str]]):
    """For SERVED. `fails` holds what is refused: `apply`, `undo`."""

    folder: Path
    steps: FileSteps
    fails: tuple[str, ...] = ()
    name = SERVED
    rank = 1
    noted = str

    def __post_init__(self) -> None:
        self._files = DocumentFolder(self.folder / FOLDER, steps=self.steps, synced=False)

    def asked(self, wants: Wants) -> frozenset[str]:
        return frozenset(client(each) for asked in wants.values() for each in asked)

    def supposed(self, wants: Wants) -> str:
        return ""

    def look(self, thing: Thing, _wants: Wants) -> frozenset[str]:
        return frozenset(name for name in self._files.names("") if name.startswith(f"{thing.name}+"))

    def plan(
        self, wants: Wants, seen: frozenset[str], note: Note[str] | Unreadable | None
    ) -> ThingPlan[str, frozenset[str]]:
        return ThingPlan("", self.asked(wants))

    def do(self, acts: Sequence[Act[frozenset[str]]], left_s: Callable[[], float]) -> Sequence[End[str]]:
        return one_by_one(acts, left_s, self._do)

    def trouble(self, thing: Thing, problem: DracaenaError) -> Trouble | None:
        return None

    def _do(self, act: Act[frozenset[str]]) -> End[str]:
        try:
            self.apply(act) if act.own else self.undo(act)
        except DracaenaError as error:
            return End(How.UNANSWERED, error)
        return End()

    def apply(self, act: Act[frozenset[str]]) -> None:
        """For a claim that begins."""
        if "apply" in self.fails:
            raise TemporaryError("the server does not start")
        self._serve(act)

    def undo(self, act: Act[frozenset[str]]) -> None:
        """For a claim that ends, or for none."""
        if "undo" in self.fails:
            raise TemporaryError("the server does not stop")
        self._serve(act)

    def _serve(self, act: Act[frozenset[str]]) -> None:
        if act.step:
            self._files.write_if_changed(act.thing.name, b"running")
        for name in sorted(act.step):
            self._files.write_if_changed(name, b"served")
        for name in sorted(self.look(act.thing, {}) - act.step):
            self._files.remove(name)
        if not act.step:
            self._files.remove(act.thing.name)


def client(parameters: Parameters) -> str:
    return f"{parameters['client']}+{parameters['port']}"
