"""Static MIG layouts on a fake driver, through the real pynvml and real files: one process after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dracaena.api.machine import Gpu
from dracaena.api.names import DeviceName
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.kubelet_plugin.adapters.nvml.mig_control import NvmlMigControl
from dracaena.kubelet_plugin.changes.engine import ChangeEngine
from dracaena.kubelet_plugin.changes.kinds.mig_instances import LAYOUT, MigInstances
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.mig_hand import MigHand
from dracaena.kubelet_plugin.discovery.mig.layouts import GpuLayout
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.labels.mig_changes import MigLayoutChanges
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord
from support.changed_node import ClaimsOfNode
from support.clock import FakeClock
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.mig_geometries import divisible_machine
from support.mig_node import access_minors, ask_at_once

BOOT = "boot-1"


class OpenLock:
    """Implements NodeLock for one thread."""

    def hold(self, _within_s: float | None = None) -> AbstractContextManager[None]:
        return nullcontext()


class StepFolder(DocumentFolder):
    """Tells of each write before and after it."""

    step: Callable[[str], None] = staticmethod(lambda _what: None)

    def write(self, name: str, data: bytes) -> None:
        self.step(f"before writing {name}")
        super().write(name, data)
        self.step(f"after writing {name}")

    def remove(self, name: str) -> None:
        self.step(f"before removing {name}")
        super().remove(name)
        self.step(f"after removing {name}")


@dataclass
class LayoutNode:
    """`fake` is what the process of now has open."""

    hardware: FakeMigHardware
    folder: Path
    fake: FakeMigNvml = field(init=False)
    library: NvmlLibrary = field(init=False)
    ledger: Ledger = field(init=False)
    notes: LayoutNotes[GpuRecord] = field(init=False)
    engine: ChangeEngine = field(init=False)
    changes: MigLayoutChanges = field(init=False)
    user: str | None = None
    """Which claim has something of the GPU."""
    ask: Callable[..., object] = ask_at_once

    def __post_init__(self) -> None:
        self.start()

    def start(self, step: Callable[[str], None] = lambda _what: None, boot: str = BOOT) -> None:
        """Start a process of the plugin; the one before was stopped or killed. `step` is told of what it changes."""
        self.fake = FakeMigNvml(self.hardware)
        self.fake.before_change = lambda symbol: step(f"before {symbol}")
        self.fake.after_change = lambda symbol: step(f"after {symbol}")
        self.library = NvmlLibrary(lambda: self.fake)
        files = StepFolder(self.folder, synced=False)
        files.step = step
        self.ledger = Ledger(files, OpenLock(), boot)
        self.notes = LayoutNotes(self.ledger, OpenLock(), LAYOUT, GpuRecord())
        hand = MigHand(NvmlMigControl(self.library), self._asked)
        instances = MigInstances(hand, self._read_gpu, access_minors, self.ledger, FakeClock())
        claims: Any = ClaimsOfNode()
        self.engine = ChangeEngine(ledger=self.ledger, kinds=[instances], claims=claims, gpu_lock=self._gpu_lock)
        self.changes = MigLayoutChanges(hand, instances, self.engine, self.notes, self._gpu_lock)

    def _read_gpu(self, uuid: str) -> Gpu:
        return next(gpu for gpu in self.hardware.machine.gpus if gpu.uuid == uuid)

    def _asked(self, what: str, work: Callable[[], object], deadline_s: float) -> object:
        return self.ask(what, work, deadline_s)

    def _gpu_lock(self, _gpu: DeviceName) -> OpenLock:
        return OpenLock()

    def gpu(self, ordinal: int = 0) -> Gpu:
        return self.hardware.machine.gpus[ordinal]

    def bring(self, layout: GpuLayout, ordinal: int = 0) -> None:
        """Bring a GPU into a layout, and read it."""
        self.changes.change(self.gpu(ordinal), layout, lambda: self.user)
        self.notes.rest(self.gpu(ordinal).uuid, layout)

    def counts(self, ordinal: int = 0) -> dict[str, int]:
        found: dict[str, int] = {}
        for profile, _start, _compute in self.hardware.layout(ordinal):
            found[profile] = found.get(profile, 0) + 1
        return found

    def made(self, ordinal: int = 0) -> list[tuple[str, int]]:
        """What is noted of the GPU's instances that were made for it, or may have been, by profile and start."""
        noted = self.changes.made(self.gpu(ordinal)).values()
        return sorted((each.profile, each.start) for each in noted if each.is_asked_for)

    def is_at_rest(self) -> bool:
        return not self.notes.changing()


@contextmanager
def layout_node(folder: Path, architecture: str = "Hopper") -> Iterator[LayoutNode]:
    node = LayoutNode(FakeMigHardware(divisible_machine(2, architecture)), folder)
    try:
        yield node
    finally:
        node.library.close()


def layout(enabled: bool = True, **counts: int) -> GpuLayout:
    """A layout of an H100: `g1=7` for seven 1g.10gb."""
    names = {"g1": "1g.10gb", "g1_me": "1g.10gb+me", "g1_double": "1g.20gb", "g2": "2g.20gb", "g3": "3g.40gb",
             "g4": "4g.40gb", "g7": "7g.80gb"}  # fmt: skip
    return GpuLayout("mine", enabled, {names[each]: count for each, count in counts.items()})


WHOLE = GpuLayout("all-disabled", enabled=False)
