"""Partitions of the NVSwitches of one node: which sets of its GPUs Fabric Manager links, once they are activated."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from dracaena.api.errors import BadInputError

HGX_MODULES: Final = (
    (1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4), (5, 6, 7, 8), (1, 3), (2, 4), (5, 7), (6, 8),
    *((module,) for module in range(1, 9)),
)  # fmt: skip
"""Module ids of each partition of an HGX H100, by its id (Fabric Manager's user guide, default partitions)."""

_OF: Final = "-of-"


@dataclass(frozen=True, slots=True)
class FabricPartition:
    """A set of GPUs that are linked to each other, and to no others, while it is active."""

    id: int
    """Fabric Manager's (fmFabricPartitionId_t)."""
    modules: frozenset[int]
    """Module ids of its GPUs (physicalId, from H100 on nvmlDeviceGetModuleId)."""
    nvlinks: int | None = None
    """NVLinks that each of its GPUs has, the lowest count if they differ; None: unknown."""

    @classmethod
    def named(cls, name: str) -> FabricPartition:
        """Return the partition with a `name`. Raises BadInputError for any other text."""
        number, _, modules = name.partition(_OF)
        try:
            return cls(int(number), frozenset(map(int, modules.split("-"))))
        except ValueError:
            raise BadInputError(f"{name!r} does not name a partition, such as 3{_OF}1-3") from None

    @property
    def name(self) -> str:
        """Return its id with the module ids, `3-of-1-3`: Fabric Manager may give the id to another partition later."""
        return f"{self.id}{_OF}{'-'.join(map(str, sorted(self.modules)))}"

    def __str__(self) -> str:
        return f"partition {self.id} (modules {' '.join(map(str, sorted(self.modules)))})"


@dataclass(frozen=True, slots=True)
class PartitionedFabric:
    """The NVSwitches of a node whose partitions have to be activated."""

    partitions: tuple[FabricPartition, ...] = ()
    """The partitions that can be activated, by id."""
    problem: str = ""
    """Why none can be activated now; "" if they can."""
    foreign: frozenset[int] = frozenset()
    """Module ids of the GPUs in active partitions that none of our claims has."""

    def exactly(self, modules: Collection[int]) -> FabricPartition | None:
        """Return the partition of exactly these GPUs; None if there is none."""
        wanted = frozenset(modules)
        return next((each for each in self.partitions if each.modules == wanted), None)

    def of_size(self, module: int, size: int) -> FabricPartition | None:
        """Return a module's partition of `size` GPUs, the one with the lowest id if there are several."""
        found = (each for each in self.partitions if len(each.modules) == size and module in each.modules)
        return next(found, None)

    def joining(self, one: int, other: int) -> tuple[FabricPartition, ...]:
        """Return the partitions that contain two given GPUs."""
        return tuple(each for each in self.partitions if one in each.modules and other in each.modules)

    def sets_of(self, modules: Mapping[int, int]) -> tuple[frozenset[int], ...]:
        """Return the partitions whose GPUs are all there, in the order of their ids. `modules`: number of a GPU, of any
        kind, → its module id; the sets contain these numbers."""
        gpus = {module: gpu for gpu, module in modules.items()}
        return tuple(
            frozenset(gpus[module] for module in each.modules)
            for each in self.partitions
            if each.modules <= gpus.keys()
        )


HGX_FABRIC: Final = PartitionedFabric(
    tuple(FabricPartition(number, frozenset(modules)) for number, modules in enumerate(HGX_MODULES))
)
"""What Fabric Manager says about an HGX H100, so that such a machine can be drawn."""
