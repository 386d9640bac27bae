"""Where other systems put a request for a part of a GPU, on A100 80GB and H100 80GB, by their published rules.

* first fit: kube-scheduler's structured allocator with partitionable devices: the first GPU with room, its lowest start
  that is free.
* HAMi: a GPU that nobody uses takes the first of its templates that holds what is asked for, and keeps it until it is
  empty again. Its templates know four profiles; a request gets the first instance with as much memory and compute.
* static, balanced: every GPU is cut into 1g, 1g, 2g and 3g once for all (`all-balanced` of NVIDIA's MIG manager).
* static, by demand: GPUs are cut once for all, each profile getting the share of slices that its requests ask for.

A request is for a profile. Static layouts and HAMi may give a larger instance, the smallest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dracaena.api.partitions import Left
from dracaena.controller.allocation.score.partitions import PartitionTable
from support.mig_tables import A100, geometry

SIZES: Final[Mapping[str, tuple[int, int]]] = {name: (size, compute) for name, _, size, compute, _ in A100.profiles}
"""Profile → slices of memory and of compute."""

HAMI_TEMPLATES: Final = (
    ("1g.10gb",) * 7,
    ("2g.20gb",) * 3 + ("1g.10gb",),
    ("3g.40gb",) * 2,
    ("7g.80gb",),
)

BALANCED: Final = ("1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb")

LAYOUT_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "1g.10gb": ("1g.10gb",) * 7,
    "1g.20gb": ("1g.20gb",) * 4,
    "2g.20gb": ("2g.20gb",) * 3 + ("1g.10gb",),
    "3g.40gb": ("3g.40gb",) * 2,
    "4g.40gb": ("4g.40gb", "3g.40gb"),
    "7g.80gb": ("7g.80gb",),
}
"""How a GPU is cut that is there for one profile."""

Grant = tuple[int, int]
"""The GPU, and which of its parts: what the rule calls it."""


class Rule(Protocol):
    """One system, with the GPUs of one cluster."""

    def take(self, profile: str) -> Grant | None:
        """Take a part for a request; None: refused."""

    def give_back(self, grant: Grant) -> None:
        """Give a part back."""


@dataclass(slots=True)
class FirstFit:
    """Kubernetes."""

    table: PartitionTable
    lefts: list[Left]

    def take(self, profile: str) -> Grant | None:
        places = self.table.geometry.places
        for gpu, left in enumerate(self.lefts):
            for move in self.table.moves(left):
                if places[move.place].profile == profile:
                    self.lefts[gpu] = move.left
                    return gpu, move.place
        return None

    def give_back(self, grant: Grant) -> None:
        gpu, place = grant
        takes = self.table.geometry.places[place].takes
        self.lefts[gpu] = tuple(map(sum, zip(self.lefts[gpu], takes, strict=True)))


@dataclass(slots=True)
class Templates:
    """GPUs that are cut by templates: for good, or as long as they are in use."""

    layouts: list[tuple[str, ...]]
    """Of each GPU; () where it is free to take any template."""
    templates: tuple[tuple[str, ...], ...] = ()
    """Empty: layouts never change."""
    held: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.held = [set() for _ in self.layouts]

    def take(self, profile: str) -> Grant | None:
        for wanted in sorted(_holding(profile), key=SIZES.__getitem__) if not self.templates else (None,):
            for gpu, layout in enumerate(self.layouts):
                cut = layout or next((one for one in self.templates if _first(one, profile, wanted, set()) >= 0), ())
                part = _first(cut, profile, wanted, self.held[gpu])
                if part >= 0:
                    self.layouts[gpu] = cut
                    self.held[gpu].add(part)
                    return gpu, part
        return None

    def give_back(self, grant: Grant) -> None:
        gpu, part = grant
        self.held[gpu].discard(part)
        if self.templates and not self.held[gpu]:
            self.layouts[gpu] = ()


def _holding(profile: str) -> list[str]:
    """Return the profiles whose instances are at least as large."""
    size, compute = SIZES[profile]
    return [name for name, (more, most) in SIZES.items() if more >= size and most >= compute]


def _first(layout: Sequence[str], profile: str, wanted: str | None, held: set[int]) -> int:
    """Return the first part of a layout that is free and will do; -1 where there is none."""
    able = _holding(profile) if wanted is None else [wanted]
    return next((number for number, name in enumerate(layout) if name in able and number not in held), -1)


def by_demand(gpus: int, weights: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Return layouts that give each profile its share of the slices asked for: one GPU after the other goes to the
    profile that is furthest behind."""
    asked = {name: weight * SIZES[name][0] for name, weight in weights.items() if weight}
    total = sum(asked.values())
    have = dict.fromkeys(asked, 0.0)
    layouts = []
    for number in range(1, gpus + 1):
        behind = max(asked, key=lambda name: asked[name] / total * number * A100.slices - have[name])
        layouts.append(LAYOUT_OF[behind])
        for name in LAYOUT_OF[behind]:
            if name in have:
                have[name] += SIZES[name][0]
    return layouts


def rules(gpus: int, weights: Mapping[str, float]) -> dict[str, Rule]:
    """Return every system with a cluster of its own."""
    table = PartitionTable(geometry(A100))
    return {
        "first fit": FirstFit(table, [table.geometry.there] * gpus),
        "HAMi": Templates([()] * gpus, HAMI_TEMPLATES),
        "static, balanced": Templates([BALANCED] * gpus),
        "static, by demand": Templates(by_demand(gpus, weights)),
    }
