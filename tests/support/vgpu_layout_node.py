"""vGPU layouts on a fake /sys and real files: one process of the plugin after the other."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from dracaena.api.names import DeviceName
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.adapters.sysfs.vgpu_gpus import SysfsVgpuGpus
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.discovery.vm.vgpu_layouts import VgpuGpu, VgpuLayout
from dracaena.kubelet_plugin.discovery.vm.vgpus import VgpuTypeFacts
from dracaena.kubelet_plugin.labels.layout_notes import LayoutNotes
from dracaena.kubelet_plugin.labels.vgpu_changes import VgpuLayoutChanges
from dracaena.kubelet_plugin.ports import OpeningProcess, WriteHangsError
from dracaena.kubelet_plugin.prepare.journals.vgpu_layouts import NOTHING_KNOWN, VgpuRecord
from support.fake_pci import FakePciBus, UnbindHangsError
from support.fake_vgpu import A100_MIG_TYPES, H200_TYPES, T4_TYPES, FakeVgpus
from support.layout_node import BOOT, OpenLock, StepFolder

T4, A100, H200 = "0000:21:00.0", "0000:41:00.0", "0000:81:00.0"
"""Mediated devices of the GPU itself; of virtual functions, and MIG-backed; and virtual functions with types."""

ALL = (T4, A100, H200)
FUNCTIONS = 5


class VgpuLayoutNode:
    """`step` of start() is told of each write of a process, before and after it."""

    def __init__(self, folder: Path, *gpus: str) -> None:
        """`gpus`: those that are there; none: all."""
        self.folder = folder
        self.vgpus = FakeVgpus(FakePciBus(folder / "sys"))
        if T4 in (gpus or ALL):
            self.vgpus.add_gpu(T4, T4_TYPES)
        if A100 in (gpus or ALL):
            self.vgpus.add_gpu(A100, A100_MIG_TYPES, mdev=False, group=2)
            self.vgpus.add_functions(A100, FUNCTIONS, mdev=True)
        if H200 in (gpus or ALL):
            self.vgpus.add_gpu(H200, H200_TYPES, mdev=False, group=3)
            self.vgpus.add_functions(H200, FUNCTIONS)
        self.told = {
            PciAddress(0, 0x81, 0, 0): {str(t.number): VgpuTypeFacts(t.name, None, t.most) for t in H200_TYPES}
        }
        self.user: str | None = None
        """Which claim has a vGPU of the GPU."""
        self.held: dict[str, list[int]] = {}
        """Identity → processes that have a vGPU open."""
        self.look: Callable[[str], Sequence[OpeningProcess]] = self._who
        self._uuids = random.Random(7)
        self.start()

    def start(self, step: Callable[[str], None] = lambda _what: None, boot: str = BOOT) -> None:
        """Start a process; the one before was stopped or killed."""
        self._step = step
        files = StepFolder(self.folder / "plugin", synced=False)
        files.folder.mkdir(exist_ok=True)
        files.step = step
        ledger = Ledger(files, OpenLock(), boot)
        self.notes: LayoutNotes[VgpuRecord] = LayoutNotes(ledger, OpenLock(), "vgpu-layouts", NOTHING_KNOWN)
        self.changes = VgpuLayoutChanges(self.gpus, self, self._holders, self.notes, self._gpu_lock, self._new_uuid)

    def gpus(self) -> tuple[VgpuGpu, ...]:
        return SysfsVgpuGpus(str(self.vgpus.root)).read(self.told)

    def gpu(self, address: str) -> VgpuGpu:
        return next(gpu for gpu in self.gpus() if gpu.address == address)

    def is_writing(self, _gpu: str) -> bool:
        """See SysfsWrites."""
        return self.vgpus.is_hanging()

    def write(self, gpu: str, path: str, text: str) -> None:
        """See SysfsWrites."""
        if self.is_writing(gpu):
            raise WriteHangsError("an earlier write has not ended")
        self._step(f"before writing {path}")
        try:
            self.vgpus.write(path, text)
        except UnbindHangsError as error:
            raise WriteHangsError(f"writing {text!r} to {path} waits in the kernel") from error
        self._step(f"after writing {path}")

    def _holders(self, folder: str, _group: int | None) -> Sequence[OpeningProcess]:
        return self.look(folder.rsplit("/", 1)[-1])

    def _who(self, identity: str) -> Sequence[OpeningProcess]:
        return [OpeningProcess(pid, "qemu-kvm") for pid in self.held.get(identity, [])]

    def open(self, identity: str, pid: int = 4711) -> None:
        """Let a virtual machine have a vGPU."""
        self.held.setdefault(identity, []).append(pid)
        self.vgpus.open_by.add(identity)

    def close(self, identity: str) -> None:
        self.held.pop(identity, None)
        self.vgpus.close(identity)

    def _gpu_lock(self, _gpu: DeviceName) -> OpenLock:
        return OpenLock()

    def _new_uuid(self) -> str:
        return str(UUID(int=self._uuids.getrandbits(128), version=4))

    def bring(self, address: str, **counts: int) -> None:
        """Bring a GPU into a layout, and read it: `A100_1_5C=2`."""
        wanted = vgpu_layout(**counts)
        self.changes.change(address, wanted, lambda: self.user)
        self.notes.rest(address, wanted)

    def there(self, address: str) -> dict[str, str]:
        return self.vgpus.there(address)

    def counts(self, address: str) -> dict[str, int]:
        return dict(Counter(self.there(address).values()))

    def ours(self, address: str) -> set[str]:
        return {each.identity for each in self.notes.of(address).made}

    def is_at_rest(self) -> bool:
        return not self.notes.changing()


def vgpu_layout(**counts: int) -> VgpuLayout:
    return VgpuLayout("mine", {name.replace("_", "-"): count for name, count in counts.items() if count})
