"""What Fabric Manager says of its partitions → which GPUs of this node are linked, and under which ids."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from dracaena.api.fabric import FabricPartition, PartitionedFabric
from dracaena.api.links import MAX_NVLINKS, Link
from dracaena.api.machine import Machine
from dracaena.host.facts.pci import PciAddress
from dracaena.host.facts.troubles import Trouble, TroubleKind, trouble


@dataclass(frozen=True, slots=True)
class ToldGpu:
    """One GPU of a partition. From H100 on its UUID is empty and its PCI address empty or zero."""

    module: int
    uuid: str = ""
    pci_bus_id: str = ""
    """As Fabric Manager writes it, `00000000:1B:00.0`."""
    nvlinks: int = 0
    most_nvlinks: int = 0
    """0: its NVLinks are not reported, or the partition has none."""

    @property
    def address(self) -> str:
        """Return its PCI address in our form, "" if it is not reported."""
        found = PciAddress.parse(self.pci_bus_id)
        return "" if found is None or (found.domain, found.bus, found.device) == (0, 0, 0) else str(found)


@dataclass(frozen=True, slots=True)
class ToldPartition:
    """One partition."""

    id: int
    is_active: bool
    gpus: tuple[ToldGpu, ...]

    @property
    def modules(self) -> frozenset[int]:
        """Return the module ids of its GPUs."""
        return frozenset(gpu.module for gpu in self.gpus)


@dataclass(frozen=True, slots=True)
class FabricAnswer:
    """One answer of Fabric Manager in its shared mode."""

    partitions: tuple[ToldPartition, ...]
    unsupported: frozenset[int] = frozenset()
    """Ids of partitions that cannot be activated as the hardware is now."""

    def partition(self, number: int) -> ToldPartition | None:
        """Return the partition with an id, None if there is none."""
        return next((each for each in self.partitions if each.id == number), None)

    @property
    def active(self) -> frozenset[int]:
        """Return the ids of all partitions that are active."""
        return frozenset(each.id for each in self.partitions if each.is_active)

    def gpus_of(self, partitions: Collection[int]) -> frozenset[int]:
        """Return the module ids of all GPUs in some partitions, by their ids."""
        return frozenset[int]().union(*(each.modules for each in self.partitions if each.id in partitions))


def with_partitions(
    machine: Machine, answer: FabricAnswer, remembered: Mapping[str, int], foreign: Collection[int] = ()
) -> Machine:
    """Return the machine as its partitions link it. Links outside of partitions do not count.

    `remembered` are module ids by PCI address, of GPUs that the NVIDIA driver had since the node came up; `foreign` are
    the ids of active partitions that no claim has.
    """
    fabric = PartitionedFabric(_supported(answer), foreign=answer.gpus_of(foreign))
    modules = _certain(machine, _modules(machine, answer, remembered))
    count = len(machine.gpus)
    placed = dataclasses.replace(
        machine,
        gpus=tuple(dataclasses.replace(g, module_id=m) for g, m in zip(machine.gpus, modules[:count], strict=True)),
        passthrough=tuple(
            dataclasses.replace(g, module_id=m) for g, m in zip(machine.passthrough, modules[count:], strict=True)
        ),
        fabric=fabric,
    )
    return _linked(placed, tuple(_pairs(placed, modules, fabric)))


def without_partitions(machine: Machine, problem: str) -> Machine:
    """Return the machine while its partitions are not known: without NVLinks."""
    pairs = tuple(dataclasses.replace(link, nvlinks=0) for link in machine.topology.pairs)
    return _linked(dataclasses.replace(machine, fabric=PartitionedFabric(problem=problem)), pairs)


def without_places(machine: Machine) -> Machine:
    """Return the machine of a node without partitions: without places."""
    return dataclasses.replace(machine, gpus=tuple(dataclasses.replace(gpu, module_id=None) for gpu in machine.gpus))


def places_read(machine: Machine) -> Mapping[str, int]:
    """Return the module ids that the NVIDIA driver reported, by PCI address."""
    return {gpu.pci_bus_id: gpu.module_id for gpu in machine.gpus if gpu.pci_bus_id and gpu.module_id is not None}


def place_troubles(machine: Machine) -> tuple[Trouble, ...]:
    """Return a trouble for each GPU of a machine with partitions whose place is not known: no claim gets these."""
    rows = [(gpu.pci_bus_id or gpu.uuid, gpu.module_id) for gpu in machine.gpus]
    seen = {address for address, _ in rows}
    rows += [(gpu.pci_bus_id, gpu.module_id) for gpu in machine.passthrough if gpu.pci_bus_id not in seen]
    return tuple(
        trouble(
            TroubleKind.FABRIC_PARTITION,
            f"which partition of Fabric Manager's the GPU at {address} is in is not known: the NVIDIA driver has not "
            "had it since the node came up, or does not tell its module id, or tells one that another GPU has too. No "
            "claim can be prepared for it",
            address,
        )
        for address, module in rows
        if module is None
    )


def _supported(answer: FabricAnswer) -> tuple[FabricPartition, ...]:
    found = (each for each in answer.partitions if each.id not in answer.unsupported and each.gpus)
    return tuple(FabricPartition(p.id, p.modules, _nvlinks(p)) for p in sorted(found, key=lambda p: p.id))


def _nvlinks(partition: ToldPartition) -> int | None:
    """Return how many NVLinks each of its GPUs has, None unless all report that."""
    if len(partition.gpus) == 1:
        return 0
    if not all(gpu.most_nvlinks for gpu in partition.gpus):
        return None
    return min(MAX_NVLINKS, *(gpu.nvlinks for gpu in partition.gpus))


def _modules(machine: Machine, answer: FabricAnswer, remembered: Mapping[str, int]) -> Sequence[int | None]:
    """Return the place of each row of the topology. Fabric Manager's own statement about a GPU takes precedence."""
    told = [gpu for partition in answer.partitions for gpu in partition.gpus]
    by_uuid = {gpu.uuid: gpu.module for gpu in told if gpu.uuid}
    by_address = {gpu.address: gpu.module for gpu in told if gpu.address}
    if by_uuid or by_address:  # then the ids are its own, and those of NVML mean something else
        return (
            *(by_uuid.get(gpu.uuid, by_address.get(gpu.pci_bus_id or "")) for gpu in machine.gpus),
            *(by_address.get(gpu.pci_bus_id) for gpu in machine.passthrough),
        )
    read = {**remembered, **places_read(machine)}
    return (
        *(gpu.module_id for gpu in machine.gpus),
        *(read.get(gpu.pci_bus_id) for gpu in machine.passthrough),
    )


def _certain(machine: Machine, modules: Sequence[int | None]) -> Sequence[int | None]:
    """Return the places without those that two GPUs claim: it is not known whose partition that is."""
    names = [*(gpu.pci_bus_id or gpu.uuid for gpu in machine.gpus), *(gpu.pci_bus_id for gpu in machine.passthrough)]
    claimed = Counter(module for _, module in set(zip(names, modules, strict=True)) if module is not None)
    return tuple(module if module is not None and claimed[module] == 1 else None for module in modules)


def _pairs(machine: Machine, modules: Sequence[int | None], fabric: PartitionedFabric) -> Iterator[Link]:
    count = len(machine.gpus)
    for (a, b), link in zip(combinations(range(len(modules)), 2), machine.topology.pairs, strict=True):
        one, other = modules[a], modules[b]
        nvlinks: int | None = 0
        if one is not None and other is not None and (a < count) == (b < count):
            joining = fabric.joining(one, other)
            told = [each.nvlinks for each in joining if each.nvlinks is not None]
            nvlinks = max(told) if told else link.nvlinks if joining else 0
        yield dataclasses.replace(link, nvlinks=nvlinks)


def _linked(machine: Machine, pairs: tuple[Link, ...]) -> Machine:
    return dataclasses.replace(machine, topology=dataclasses.replace(machine.topology, pairs=pairs))
