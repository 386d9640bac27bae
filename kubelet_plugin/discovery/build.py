"""MachineFacts → Machine: orders the facts, names devices and pairs them. What is not known stays unknown."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from dracaena.api.limits import DNS_LABEL_BYTES
from dracaena.api.links import Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import EmptyGpuInstance, MigDevice
from dracaena.api.passthrough import PassthroughGpu
from dracaena.api.topology import Nic, Topology
from dracaena.host.facts.machine import (
    ConfidentialFacts,
    GpuFacts,
    LeftOut,
    MachineFacts,
    MigFacts,
    NicFacts,
    PassthroughFacts,
)
from dracaena.host.facts.pci import PciAddress, PciFacts, pci_level
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble
from dracaena.kubelet_plugin.discovery.confidential import cc_capable, cc_mode
from dracaena.kubelet_plugin.discovery.nvlinks import (
    active_count,
    fabric_clique,
    generation,
    link_reports,
    pair_count,
)
from dracaena.kubelet_plugin.discovery.nvml_words import ARCHITECTURES, BRANDS
from dracaena.kubelet_plugin.discovery.vm.passthrough import RefusedGpu, passthrough_trouble

_LAST = PciAddress(1 << 32, 0, 0, 0)
"""Sort key of a GPU without an address: after all that have one, by index."""

NAMING_CALLS = frozenset({"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"})
"""Calls without whose answer there is no device."""

_LEVELS = {level.value: level for level in LinkLevel}
"""nvmlGpuTopologyLevel_t; a number that is not here is an unknown level."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a node: its machine, and what does not fit into a Machine."""

    machine: Machine
    left_out: tuple[LeftOut, ...] = ()
    missing: tuple[str, ...] = ()
    """PCI addresses of GPUs that the kernel shows and the driver does not list."""
    refused: tuple[RefusedGpu, ...] = ()
    """GPUs that a VFIO driver has and that cannot be given to a virtual machine."""
    refused_vgpus: tuple[RefusedGpu, ...] = ()
    """vGPUs that cannot be given to a virtual machine."""
    troubles: tuple[Trouble, ...] = ()
    """What else an admin should know about it."""

    @property
    def unanswered(self) -> int:
        """How many unanswered questions may be answered later."""
        return sum(1 for left_out in self.left_out if left_out.may_pass)


def read_facts(facts: MachineFacts, *, name: str, source: str = "") -> Reading:
    """Return everything that the facts say. Raises TopologyError like build_machine."""
    return Reading(build_machine(facts, name=name, source=source), facts.left_out, _missing(facts))


def reading_troubles(reading: Reading, kept: Machine) -> tuple[Trouble, ...]:
    """Return what an admin should know about a reading: GPUs that are missing from it and from the current machine.

    A GPU that was there before and is lost now is a device with a fault, which its health reports.
    """
    known = {gpu.pci_bus_id for gpu in kept.gpus}
    refusals = [str(left_out) for left_out in reading.left_out if left_out.call in NAMING_CALLS]
    why = f" ({'; '.join(refusals)})" if refusals else ""
    refused = (
        *map(passthrough_trouble, reading.refused),
        *(
            trouble(TroubleKind.VGPU_REFUSED, f"vGPU {each.address} is not published: {each.reason}", each.address)
            for each in reading.refused_vgpus
        ),
    )
    missing = tuple(
        trouble(
            TroubleKind.GPU_MISSING,
            f"the GPU at {address} is on the PCI bus but cannot be used through the driver{why}: it is not published",
            address,
        )
        for address in reading.missing
        if address not in known
    )
    return (*reading.troubles, *refused, *missing)


def _missing(facts: MachineFacts) -> tuple[str, ...]:
    """Return nothing if any GPU has no known address: it may be any of them."""
    listed = {gpu.address for gpu in facts.gpus}
    if None in listed:
        return ()
    # A node all of whose GPUs are the vGPU manager's may have no NVML.
    return tuple(str(address) for address in sorted(set(facts.pci_gpus) - listed - facts.vgpu_parents))


def build_machine(facts: MachineFacts, *, name: str, source: str = "") -> Machine:
    """Return the node's GPUs by PCI address, with their links. Raises TopologyError for contradictory facts.

    Two GPUs with one UUID or PCI address are such a contradiction: no choice may be based on them.
    """
    gpus = sorted(facts.gpus, key=lambda gpu: (gpu.address or _LAST, gpu.index))
    pci = {device.address: device for device in facts.pci}
    places = [*(_pci_of(gpu, pci) for gpu in gpus), *(each.pci for each in facts.passthrough)]
    machine = Machine(
        name=name,
        gpus=tuple(_gpu(gpu, _pci_of(gpu, pci), facts.confidential) for gpu in gpus),
        topology=Topology(
            gpu_count=len(places),
            pairs=_all_pairs(gpus, places, facts),
            numa_nodes=tuple(map(_numa, places)),
            nics=_nics(places, facts.nics),
        ),
        driver_version=facts.driver_version,
        cuda_driver_version=_cuda_version(facts.cuda_driver_version),
        source=source,
        mig_devices=_mig_devices(gpus, facts.mig_devices),
        empty_gpu_instances=_empty_gpu_instances(gpus, facts.empty_gpu_instances),
        passthrough=tuple(map(_passthrough_gpu, facts.passthrough)),
        vgpus=facts.vgpus,
        vgpu_parents=frozenset(map(str, facts.vgpu_parents)),
    )
    machine.check()
    return machine


def _mig_devices(gpus: Sequence[GpuFacts], migs: Iterable[MigFacts]) -> tuple[MigDevice, ...]:
    """Return the MIG devices that can be named, by parent in ordinal order, then by GPU and compute instance."""
    ordinals = {gpu.uuid: ordinal for ordinal, gpu in enumerate(gpus)}
    devices = (_mig_device(facts) for facts in migs)
    return tuple(
        sorted(
            (device for device in devices if device is not None),
            key=lambda mig: (ordinals[mig.parent_uuid], mig.gpu_instance_id, mig.compute_instance_id),
        )
    )


def _empty_gpu_instances(gpus: Sequence[GpuFacts], found: Iterable[EmptyGpuInstance]) -> tuple[EmptyGpuInstance, ...]:
    ordinals = {gpu.uuid: ordinal for ordinal, gpu in enumerate(gpus)}
    return tuple(sorted(found, key=lambda each: (ordinals[each.parent_uuid], each.start, each.gpu_instance_id)))


def _mig_device(facts: MigFacts) -> MigDevice | None:
    if facts.profile is None or facts.start is None or facts.size is None:
        return None
    mig = MigDevice(
        parent_uuid=facts.parent_uuid,
        uuid=facts.uuid,
        gpu_instance_id=facts.gpu_instance_id,
        compute_instance_id=facts.compute_instance_id,
        profile=facts.profile,
        start=facts.start,
        size=facts.size,
        memory_bytes=facts.memory_bytes,
        multiprocessors=facts.multiprocessors,
        access_minors=facts.access_minors,
        attributes=facts.attributes,
    )
    return mig if len(mig.device_name) <= DNS_LABEL_BYTES else None


def _gpu(facts: GpuFacts, pci: PciFacts | None, confidential: ConfidentialFacts) -> Gpu:
    capability = facts.cuda_compute_capability
    return Gpu(
        uuid=facts.uuid,
        index=facts.index,
        minor=facts.minor,
        product_name=facts.product_name,
        brand=BRANDS.get(facts.brand) if facts.brand is not None else None,
        architecture=ARCHITECTURES.get(facts.architecture) if facts.architecture is not None else None,
        cuda_compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        memory_bytes=facts.memory_bytes,
        pci_bus_id=str(facts.address) if facts.address is not None and facts.address.is_short else None,
        pcie_root=pci.root if pci is not None else None,
        pcie_generation=facts.pcie_generation,
        pcie_width=facts.pcie_width,
        nvlink_count=active_count(facts),
        nvlink_generation=generation(facts),
        fabric_clique=fabric_clique(facts),
        mig_enabled=facts.mig_enabled,
        cc_capable=cc_capable(confidential),
        cc_mode=cc_mode(confidential),
        mig_profiles=facts.mig_profiles,
        module_id=facts.module_id,
    )


def _pairs(gpus: Sequence[GpuFacts], facts: MachineFacts) -> tuple[Link, ...]:
    levels = {frozenset((pair.one, pair.other)): _LEVELS.get(pair.level) for pair in facts.pair_levels}
    reports = dict(zip((gpu.uuid for gpu in gpus), link_reports(gpus), strict=True))
    return tuple(
        Link(
            level=levels.get(frozenset((one.uuid, other.uuid))),
            nvlinks=pair_count(reports[one.uuid], reports[other.uuid]),
        )
        for one, other in combinations(gpus, 2)
    )


def _passthrough_gpu(facts: PassthroughFacts) -> PassthroughGpu:
    return dataclasses.replace(facts.gpu, pcie_root=None if facts.pci is None else facts.pci.root)


def _all_pairs(gpus: Sequence[GpuFacts], places: Sequence[PciFacts | None], facts: MachineFacts) -> tuple[Link, ...]:
    """Return the links of all pairs; `places` are those of the GPUs, then of the passthrough GPUs.

    Of a GPU with a VFIO driver only its place on the PCI bus is known. No program can use it together with a GPU of the
    NVIDIA driver, so there are no usable NVLinks between the two kinds.
    """
    known = iter(_pairs(gpus, facts))
    return tuple(
        next(known) if b < len(gpus) else Link(level=_level(places[a], places[b]), nvlinks=0 if a < len(gpus) else None)
        for a, b in combinations(range(len(places)), 2)
    )


def _level(one: PciFacts | None, other: PciFacts | None) -> LinkLevel | None:
    return None if one is None or other is None else pci_level(one, other)


def _nics(places: Sequence[PciFacts | None], nics: Sequence[NicFacts]) -> tuple[Nic, ...]:
    """Return the cards by PCI address, each with its level to every GPU by the paths in sysfs."""
    ordered = sorted(nics, key=lambda nic: (nic.pci.address, nic.name))
    return tuple(
        Nic(
            name=nic.name,
            levels=tuple(_level(nic.pci, place) for place in places),
            numa_node=nic.pci.numa_node,
        )
        for nic in ordered
    )


def _pci_of(gpu: GpuFacts, pci: Mapping[PciAddress, PciFacts]) -> PciFacts | None:
    return pci.get(gpu.address) if gpu.address is not None else None


def _numa(pci: PciFacts | None) -> int | None:
    return pci.numa_node if pci is not None else None


def _cuda_version(number: int | None) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if number else None
