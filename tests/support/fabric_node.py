"""A node with an HGX board of 8 GPUs, whose NVSwitches Fabric Manager divides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Machine
from dracaena.api.names import gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.api.topology import Topology
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.host.facts.troubles import Trouble
from dracaena.kubelet_plugin.changes.change import AnyThingKind
from dracaena.kubelet_plugin.changes.fabric_readings import FabricReadings
from dracaena.kubelet_plugin.changes.kinds.fabric_partition import FabricPartitions
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.discovery.build import Reading
from dracaena.kubelet_plugin.discovery.fabric_partitions import FabricAnswer, ToldGpu, ToldPartition
from dracaena.kubelet_plugin.ports import FabricManagerError
from support.clock import FakeClock
from support.fake_fabric_manager import DOWN, FakeFabricManager, SilentError
from support.fake_mig import FakeMigHardware
from support.killed_steps import StopError
from support.mig_geometries import divisible_machine
from support.mig_node import MigNode
from support.plugin import ThreadLock, node_claims, reference_to
from support.vfio_node import NEVER, VfioNode

MODULES = (3, 1, 4, 2, 7, 5, 8, 6)
"""Module ids in the order of the PCI addresses, which is another one on real boards too."""


@dataclass
class FabricPort:
    """ports.FabricManager in this process. `left`: how many steps the process lives, of two for each call that changes
    something: before Fabric Manager sees it, and after.
    """

    manager: FakeFabricManager
    clock: FakeClock
    left: int = NEVER
    talk_s: float = 0.0
    change_s: float = 0.0
    """How long an activation or deactivation takes, and any other call."""

    def read(self) -> FabricAnswer:
        self._ask("fmConnect", self.manager.connect)
        ids: list[int] = []

        def supported() -> int:
            code, found = self.manager.supported()
            ids.extend(found)
            return code

        self._ask("fmGetSupportedFabricPartitions", supported)
        self.clock.advance(self.talk_s)
        return FabricAnswer(tuple(map(self._told, ids)), frozenset(self.manager.unsupported))

    def activate(self, partition: int) -> None:
        self.clock.advance(self.change_s)
        self._change("fmActivateFabricPartition", lambda: self.manager.activate(partition))

    def deactivate(self, partition: int) -> None:
        self.clock.advance(self.change_s)
        self._change("fmDeactivateFabricPartition", lambda: self.manager.deactivate(partition))

    def set_active(self, partitions: Sequence[int]) -> None:
        self._change("fmSetActivatedFabricPartitions", lambda: self.manager.set_active(partitions))

    def _told(self, number: int) -> ToldPartition:
        modules = self.manager.partitions[number]
        nvlinks = self.manager.nvlinks if len(modules) > 1 else 0
        gpus = (
            ToldGpu(module, *self.manager.named.get(module, ("", "")), nvlinks=nvlinks, most_nvlinks=nvlinks)
            for module in modules
        )
        return ToldPartition(number, number in self.manager.active, tuple(gpus))

    def _change(self, name: str, call: Callable[[], int]) -> None:
        self._ask("fmConnect", self.manager.connect)
        self._count()
        self._ask(name, call)
        self._count()

    def _ask(self, name: str, call: Callable[[], int]) -> None:
        try:
            code = call()
        except SilentError:
            raise FabricManagerError(f"{name} has not answered in 10 s") from None
        if code:
            raise FabricManagerError(f"{name} says {code}", code)

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise StopError


@contextmanager
def fabric_node(folder: Path) -> Iterator[FabricNode]:
    machine = divisible_machine(8)
    gpus = tuple(
        dataclasses.replace(gpu, pci_bus_id=f"0000:{0x18 + gpu.index:02x}:00.0", module_id=module)
        for gpu, module in zip(machine.gpus, MODULES, strict=True)
    )
    mig = MigNode(FakeMigHardware(dataclasses.replace(machine, gpus=gpus)))
    try:
        yield FabricNode(folder, mig)
    finally:
        mig.library.close()


class FabricNode(VfioNode):
    """As VfioNode, with Fabric Manager as the hardware's other part: it stays through restarts."""

    def __init__(self, folder: Path, mig: MigNode) -> None:
        self.manager, self.clock = FakeFabricManager(), FakeClock()
        self.fabric_troubles: tuple[Trouble, ...] = ()
        self.fabric_kind: type[FabricPartitions] = FabricPartitions
        super().__init__(folder, mig)

    def restart(self) -> None:
        self.is_followed, self.fabric_lock = False, ThreadLock()
        super().restart()
        self.is_followed = True
        self.look()

    def reboot(self) -> None:
        self.manager.restart(resuming=False)
        self.manager.silent, self.manager.late, self.manager.fails, self.manager.fails_after = [], [], {}, {}
        super().reboot()

    def more_kinds(self) -> Sequence[AnyThingKind]:
        self.port = FabricPort(self.manager, self.clock)
        claims = node_claims(self.folder, f"boot-{self.boot}")
        ledger = Ledger(
            DocumentFolder(self.folder / "ledger", steps=self.steps, synced=False, in_place_if_full=True),
            claims,
            f"boot-{self.boot}",
        )
        partitions = self.fabric_kind(self.port, self.fabric_lock, ledger, self.clock)
        self.readings = FabricReadings(self.port, partitions, ledger, claims)
        return [partitions]

    def noted_partitions(self) -> list[int]:
        """Ids of the partitions that the ledger names."""
        return sorted(self.readings.partitions.noted_numbers())

    def look(self) -> None:
        """A reading, and what follows it."""
        super().look()
        renewed: list[Trouble] = []
        self.readings.renew(self.node.engine, renewed.extend)
        self.fabric_troubles = (*self.fabric_troubles, *renewed)

    def linked(self, machine: Machine) -> Machine:
        if not self.is_followed:
            return machine  # the first reading comes with the rest of the plugin
        count = len(machine.gpus) + len(machine.passthrough)
        pairs = tuple(
            Link(LinkLevel.SYS, 18 if b < len(machine.gpus) else None) for _, b in combinations(range(count), 2)
        )
        machine = dataclasses.replace(machine, topology=Topology(count, pairs, (None,) * count))
        reading = self.readings.read(Reading(machine))
        self.fabric_troubles = reading.troubles
        return reading.machine

    def whole_of(self, name: str, *modules: int) -> ResourceClaim:
        return self.claim(name, *(gpu_device_name(self.machine.gpus[MODULES.index(m)].uuid) for m in modules))

    def vfio_of(self, name: str, *modules: int) -> ResourceClaim:
        return self.vfio(name, *(MODULES.index(module) for module in modules))

    def is_up(self) -> bool:
        return self.manager.life != DOWN


def prepare(node: FabricNode, *claims: ResourceClaim) -> None:
    for claim in claims:
        node.node.state.prepare(reference_to(claim))


def unprepare(node: FabricNode, *claims: ResourceClaim) -> None:
    for claim in claims:
        node.node.state.unprepare(reference_to(claim))


def active(node: FabricNode) -> list[int]:
    return sorted(node.manager.active)


def break_checkpoint(node: FabricNode, claim: ResourceClaim) -> None:
    (node.folder / "claims" / f"{claim.metadata.uid}.json").write_bytes(b"torn")
    node.restart()


def told(node: FabricNode) -> list[tuple[str, str]]:
    return [(trouble.reason, trouble.subject) for trouble in node.fabric_troubles]
