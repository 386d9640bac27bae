"""A node whose GPUs are had whole, in shares, in MIG devices or by virtual machines, each when a claim gets it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dracaena.api.machine import Machine
from dracaena.api.mig_geometry import places
from dracaena.api.names import PoolName, gpu_device_name
from dracaena.api.passthrough import passthrough_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.host.adapters.files.whole_files import DocumentFolder
from dracaena.kubelet_plugin.adapters.sysfs.pci import SysfsPci
from dracaena.kubelet_plugin.changes.change import AnyThingKind
from dracaena.kubelet_plugin.changes.kinds.vfio_gpus import VfioGpus
from dracaena.kubelet_plugin.changes.ledger import Ledger
from dracaena.kubelet_plugin.changes.pci_hand import PciHand
from dracaena.kubelet_plugin.discovery.mig.on_demand import as_published, divided_gpus
from dracaena.kubelet_plugin.discovery.vm.passthrough import handed_through
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.effects import VFIO_BIND
from dracaena.kubelet_plugin.prepare.journals.checkpoint import State
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from dracaena.kubelet_plugin.wiring.gpu_means import make_whole
from support.fake_mig import FakeMigHardware
from support.fake_pci import AUDIO_CLASS, NVIDIA, FakePciBus
from support.fake_pci_drivers import FakePciDrivers
from support.gpu_lists import gpu_list
from support.killed_steps import KilledSteps
from support.mig_geometries import divisible_machine
from support.mig_node import MigNode
from support.plugin import BEST_EFFORT, DRIVER, NODE, FakeClaims, PluginNode, ThreadLock, claim_for_devices, share_of

NEVER = 1 << 30


@contextmanager
def vfio_node(folder: Path) -> Iterator[VfioNode]:
    """Two GPUs of Hopper, each with a sound card in its IOMMU group."""
    machine = divisible_machine(2)
    gpus = tuple(dataclasses.replace(g, pci_bus_id=f"0000:{0x18 + g.index:02x}:00.0") for g in machine.gpus)
    mig = MigNode(FakeMigHardware(dataclasses.replace(machine, gpus=gpus)))
    try:
        yield VfioNode(folder, mig)
    finally:
        mig.library.close()


class VfioNode:
    """One plugin after the other on one hardware. restart() is a kill: files, drivers and instances stay."""

    def __init__(self, folder: Path, mig: MigNode) -> None:
        self.folder, self.mig = folder, mig
        self.machine = mig.hardware.machine
        self.addresses = [str(gpu.pci_bus_id) for gpu in self.machine.gpus]
        self.bus = FakePciBus(folder / "sys")
        for number, address in enumerate(self.addresses):
            self.bus.add(address, 40 + number, driver="nvidia")
            self.bus.add(
                f"{address[:-1]}1", 40 + number, driver="snd_hda_intel", ids=(NVIDIA, 0x22BA), pci_class=AUDIO_CLASS
            )
        self.bus.load("vfio_pci")
        self.claims, self.boot = FakeClaims(), 1
        self.kind: type[VfioGpus] = VfioGpus
        self.moved = 0
        """How often NVML was opened anew because GPUs moved."""
        self.divided = "all"
        """Words that select GPUs to be divided; empty: an admin alone divides GPUs."""
        self.restart()

    def restart(self) -> None:
        self.steps = KilledSteps(NEVER)
        notes = DocumentFolder(self.folder / "ledger", steps=self.steps, synced=False)
        self.mig.ledger = Ledger(notes, ThreadLock(), f"boot-{self.boot}")
        self.mig.start()
        self.drivers = FakePciDrivers(self.bus)
        kind = self.kind(
            self.drivers,
            PciHand(self.drivers, self.drivers.holders),
            self.drivers.without_gpu_driver,
            make_whole=lambda address: make_whole(self.node.pool, self.mig.whole, address),
            changed=self._changed,
        )
        self.node = PluginNode(
            self.folder,
            self.claims,
            pool=self.read(),
            boot_id=f"boot-{self.boot}",
            steps=self.steps,
            kinds=[self.mig.instances, self.mig.whole, kind, *self.more_kinds()],
        )
        if self.folder.exists():
            self.node.ledger_files.remove_half_written()

    def give_back(self) -> int:
        """Sweep what VFIO has for no claim."""
        return self.node.engine.sweep(VFIO_BIND, self.node._told_of)

    def noted(self) -> set[str]:
        """Device names of the GPUs that the ledger names."""
        return {thing.name for thing in self.node.ledger.things(VFIO_BIND)}

    def _changed(self) -> None:
        self.moved += 1

    def reboot(self) -> None:
        """Cut the power: drivers are bound as they are by themselves, and there is no MIG device."""
        self.boot += 1
        self.bus.boot("nvidia", "snd_hda_intel", "vfio_pci")
        for gpu in self.mig.hardware.gpus:
            gpu.instances.clear()
        self.restart()
        self.node.recovery.enter_boot()

    def read(self) -> PublishedPool:
        """What a reading says now; the plugin works with it from look() on."""
        handed = handed_through(SysfsPci(str(self.bus.root)).read(), gpu_list(passthrough="all")).gpus
        gpus = tuple(
            dataclasses.replace(gpu, mig_enabled=self.mig.hardware.gpus[gpu.index].mode)
            for gpu in self.machine.gpus
            if self.bus.driver_of(str(gpu.pci_bus_id)) == "nvidia"
        )
        self.mig.left_out = {gpu.uuid for gpu in self.machine.gpus} - {gpu.uuid for gpu in gpus}
        divided = divided_gpus(gpu_list(mig=self.divided), self.machine)
        now = as_published(dataclasses.replace(self.machine, gpus=gpus, passthrough=handed, mig_devices=()), divided)
        return node_pool(self.linked(now), DRIVER, PoolName(NODE), divided=divided)

    def more_kinds(self) -> Sequence[AnyThingKind]:
        """Further kinds of things, made anew at each start."""
        return ()

    def linked(self, machine: Machine) -> Machine:
        """The machine with what a further part of the node says of it."""
        return machine

    def look(self) -> None:
        self.node.pool = self.read()

    def claim(self, name: str, *devices: str, config: Any = None, **result: Any) -> ResourceClaim:
        claim = claim_for_devices(name, *devices, config=config, **result)
        self.claims.put(claim)
        return claim

    def whole(self, name: str, ordinal: int = 0) -> ResourceClaim:
        return self.claim(name, gpu_device_name(self.machine.gpus[ordinal].uuid))

    def share(self, name: str, ordinal: int = 0) -> ResourceClaim:
        fields = share_of("10Gi", share_id=f"share-{name}")
        return self.claim(name, gpu_device_name(self.machine.gpus[ordinal].uuid), config=BEST_EFFORT, **fields)

    def part(self, name: str, ordinal: int = 0, start: int = 0) -> ResourceClaim:
        gpu = self.machine.gpus[ordinal]
        found = places(gpu.uuid, gpu.mig_profiles)
        return self.claim(
            name,
            next(p.device_name for p in found if (p.profile.name, p.placement.start) == ("1g.10gb", start)),
        )

    def vfio(self, name: str, *ordinals: int) -> ResourceClaim:
        return self.claim(name, *(passthrough_device_name(self.addresses[number]) for number in ordinals or (0,)))

    def done(self) -> list[PreparedClaim]:
        found = self.node.node_claims.current()
        return [checkpoint.prepared for checkpoint in found if checkpoint.state is State.DONE]

    def drivers_of(self, ordinal: int) -> tuple[str | None, str | None]:
        """The drivers of a GPU and of its sound card."""
        address = self.addresses[ordinal]
        return self.bus.driver_of(address), self.bus.driver_of(f"{address[:-1]}1")
