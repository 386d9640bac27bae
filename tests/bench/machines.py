"""The machines that all measurements run over, as our engine and as the baselines see them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from bench.baselines.answer import Links
from dracaena.api.machine import Gpu, Machine
from dracaena.controller.allocation.score.box import Box
from dracaena.controller.allocation.score.nominal_rates import make_box
from dracaena.kubelet_plugin.adapters.recorded.machine import machine_names, read_machine
from dracaena.kubelet_plugin.discovery.topo.layouts import TopoTextError
from dracaena.kubelet_plugin.discovery.topo.nvidia_smi_topo import decode_text, machine_from_matrix, parse_topo_matrix

TOPOLOGIES_VARIABLE: Final = "DRACAENA_TOPOLOGIES"
"""Folder that holds a folder `topologies` of real `nvidia-smi topo -m` texts; more machines where it is set."""

MOST_NVLINKS: Final = {1: 4, 2: 6, 3: 12, 4: 18, 5: 18, 6: 36}
"""Links of the largest GPU of each NVLink generation, for a recording that does not tell."""
USUAL_MOST_NVLINKS: Final = 18

_FIXTURES: Final = Path(__file__).parents[1] / "fixtures"


@dataclass(frozen=True, slots=True, eq=False)
class BenchMachine:
    """One machine of two GPUs or more."""

    name: str
    machine: Machine
    box: Box
    links: Links

    @property
    def gpu_count(self) -> int:
        return self.links.gpu_count


@lru_cache(maxsize=1)
def all_machines() -> tuple[BenchMachine, ...]:
    """Return the recorded machines and those of the printed matrices among the tests' fixtures, sorted by name.

    Of machines that nobody can tell apart only the first is kept.
    """
    machines = [read_machine(name) for name in machine_names()]
    machines += _printed(_FIXTURES)
    if folder := os.environ.get(TOPOLOGIES_VARIABLE):
        machines += _printed(Path(folder))
    kept: dict[tuple[object, ...], BenchMachine] = {}
    for machine in machines:
        made = bench_machine(machine)
        same = (machine.topology, *(_what_it_is(gpu) for gpu in machine.gpus))
        if made.gpu_count > 1:
            kept.setdefault(same, made)
    return tuple(kept.values())


def _what_it_is(gpu: Gpu) -> tuple[object, ...]:
    return (
        gpu.product_name,
        gpu.nvlink_count,
        gpu.nvlink_generation,
        gpu.pcie_generation,
        gpu.pcie_width,
    )


def recorded(name: str) -> BenchMachine:
    """Return a recorded machine."""
    return next(machine for machine in all_machines() if machine.name == name)


def bench_machine(machine: Machine) -> BenchMachine:
    """Return a machine as both sides see it. A level that the recording does not know is assumed as our engine assumes
    it, so that baselines which ask NVML for it are not worse off.
    """
    topology = machine.topology
    box = make_box(topology, dict(enumerate(machine.gpus)))
    gpus = range(topology.gpu_count)
    links = Links(
        levels=tuple(tuple(None if a == b else topology.level_or_assumed(a, b) for b in gpus) for a in gpus),
        nvlinks=tuple(tuple(0 if a == b else topology.link(a, b).nvlinks or 0 for b in gpus) for a in gpus),
        numa_nodes=topology.numa_nodes,
        switched=_are_switched(machine),
        product=machine.gpus[0].product_name if machine.gpus else None,
    )
    return BenchMachine(machine.name, machine, box, links)


def _are_switched(machine: Machine) -> bool:
    """Return whether the NVLinks that some GPU shows to its peers add up to more than it has, so that they must end at
    switches.
    """
    for ordinal, gpu in enumerate(machine.gpus):
        shown = sum(
            machine.topology.link(ordinal, peer).nvlinks or 0 for peer in machine.topology.nvlink_peers(ordinal)
        )
        if shown > (gpu.nvlink_count or MOST_NVLINKS.get(gpu.nvlink_generation or 0, USUAL_MOST_NVLINKS)):
            return True
    return False


def _printed(folder: Path) -> Iterator[Machine]:
    for file in sorted((folder / "topologies").iterdir()):
        try:
            yield machine_from_matrix(parse_topo_matrix(decode_text(file.read_bytes())), file.stem)
        except TopoTextError:
            continue  # among the fixtures are texts that must be refused
