"""The clusters and the families of the siblings section."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.machines import BenchMachine

PODS: Final = range(2, 9)
"""Of a family."""
MEAN_DURATION_S: Final = 900


@dataclass(frozen=True, slots=True)
class Racks:
    """Nodes of one kind, cut into domains of equal size inside which GPUs of different pods talk over NVLink."""

    name: str
    machine: BenchMachine
    nodes: int
    nodes_of_a_domain: int
    sizes: tuple[int, ...]
    """GPUs of a pod."""

    @property
    def domains(self) -> int:
        return self.nodes // self.nodes_of_a_domain
