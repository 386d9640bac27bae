"""Machines for tests: one with MIG devices, and any that hypothesis makes, with contradictory and unknown links."""

from __future__ import annotations

import uuid
from dataclasses import replace
from itertools import combinations

from hypothesis import strategies as st

from dracaena.api import attributes as table
from dracaena.api.confidential import CC_MODES
from dracaena.api.links import MAX_NVLINKS, Link, LinkLevel
from dracaena.api.machine import Gpu, Machine
from dracaena.api.mig import MigDevice
from dracaena.api.topology import Nic, Topology
from support.topologies import topology_from_matrix

LEVELS = st.none() | st.sampled_from(LinkLevel)
LINKS = st.builds(Link, LEVELS, st.none() | st.integers(0, MAX_NVLINKS))
NUMA_NODES = st.none() | st.integers(0, 3)


def plain_machine(count: int, **facts: object) -> Machine:
    """GPUs without any links to speak of; `facts` are of each."""
    gpus = tuple(
        Gpu(uuid=f"GPU-00000000-0000-4000-8000-{n:012x}", index=n, **facts)  # type: ignore[arg-type]
        for n in range(count)
    )
    pairs = (Link(LinkLevel.SYS, 0),) * (count * (count - 1) // 2)
    return Machine("m", gpus, Topology(count, pairs, (None,) * count))


def first_gpus(machine: Machine, count: int) -> Machine:
    """The machine once all other GPUs have left it. The links of those that stay are as before."""
    topology = machine.topology
    pairs = tuple(topology.link(a, b) for a, b in combinations(range(count), 2))
    nics = tuple(replace(nic, levels=nic.levels[:count]) for nic in topology.nics)
    links = replace(topology, gpu_count=count, pairs=pairs, numa_nodes=topology.numa_nodes[:count], nics=nics)
    return replace(machine, gpus=machine.gpus[:count], topology=links)


def mig_uuid(number: int) -> str:
    return f"MIG-00000000-0000-4000-8000-{number:012x}"


def divided_machine() -> Machine:
    """Two linked GPUs; the second is divided into three MIG devices, two of which share a GPU instance."""
    parts = [("1g.10gb", 0, 3, 0), ("1c.3g.40gb", 4, 1, 0), ("1c.3g.40gb", 4, 1, 1)]
    gpus = tuple(
        Gpu(
            uuid=f"GPU-00000000-0000-4000-8000-{number:012x}",
            index=number,
            minor=number,
            product_name="NVIDIA H100 80GB HBM3",
            architecture="Hopper",
            cuda_compute_capability="9.0",
            pci_bus_id=f"0000:{0x18 + number:02x}:00.0",
            mig_enabled=number == 1,
        )
        for number in range(2)
    )
    migs = [
        MigDevice(
            parent_uuid=gpus[1].uuid,
            uuid=mig_uuid(number),
            gpu_instance_id=gpu_instance,
            compute_instance_id=compute_instance,
            profile=profile,
            start=start,
            size=4 if gpu_instance == 1 else 1,
            memory_bytes=9984 << 20,
            multiprocessors=16,
            access_minors=(30 + number, 40 + number),
        )
        for number, (profile, start, gpu_instance, compute_instance) in enumerate(parts)
    ]
    return Machine(
        "divided",
        gpus,
        topology_from_matrix([["X", "PIX"], ["PIX", "X"]]),
        driver_version="580.65.06",
        mig_devices=tuple(sorted(migs, key=lambda mig: (mig.gpu_instance_id, mig.compute_instance_id))),
    )


@st.composite
def topologies(draw: st.DrawFn, largest: int = 16) -> Topology:
    """Links of 0 to `largest` GPUs and 0 to 3 NICs."""
    count = draw(st.integers(0, largest))
    pairs = count * (count - 1) // 2
    nics = draw(st.integers(0, 3)) if count else 0
    return Topology(
        gpu_count=count,
        pairs=tuple(draw(st.lists(LINKS, min_size=pairs, max_size=pairs))),
        numa_nodes=tuple(draw(st.lists(NUMA_NODES, min_size=count, max_size=count))),
        nics=tuple(
            Nic(f"nic{place}", tuple(draw(st.lists(LEVELS, min_size=count, max_size=count)))) for place in range(nics)
        ),
    )


def _numbers(spec: table.AttributeSpec) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(0, spec.most)


@st.composite
def machines(draw: st.DrawFn, largest: int = 16) -> Machine:
    """Machines whose every value fits into a ResourceSlice."""
    topology = draw(topologies(largest))
    text = st.none() | st.text(max_size=16)
    version = st.none() | st.sampled_from(["535.104.05", "12.2", "570.86.15", "9.0", "1.2.3.4", "unknown"])
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{uuid.UUID(int=draw(st.integers(0, 2**96)) * 16 + place)}",
            index=draw(st.integers(0, 7)) * 16 + place,
            minor=place if draw(st.booleans()) else None,
            product_name=draw(text),
            brand=draw(text),
            architecture=draw(text),
            cuda_compute_capability=draw(version),
            memory_bytes=draw(st.none() | st.integers(0, 2**45)),
            nvlink_count=draw(_numbers(table.NVLINK_COUNT)),
            nvlink_generation=draw(_numbers(table.NVLINK_GENERATION)),
            pcie_generation=draw(_numbers(table.PCIE_GENERATION)),
            pcie_width=draw(_numbers(table.PCIE_WIDTH)),
            fabric_clique=draw(text),
            cc_capable=draw(st.none() | st.booleans()),
            cc_mode=draw(st.none() | st.sampled_from(CC_MODES)),
        )
        for place in range(topology.gpu_count)
    )
    return Machine("made", gpus, topology, driver_version=draw(version), cuda_driver_version=draw(version))
