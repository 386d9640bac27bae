"""The choice where Fabric Manager links whole partitions alone: slow, obvious, written a second time.

A claim's GPUs are linked if they are exactly one partition. All sets are tried, each dealt out in all ways among the
claims and within each among its requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import combinations

from dracaena.api.topology import Topology
from support.slow_choice import Gpus, SlowBox

Requests = Sequence[tuple[int, Gpus]]
"""Of each request of a claim how many GPUs it wants, and which it may have."""


@dataclass(frozen=True)
class SlowClaim:
    requests: Requests
    base: Gpus = frozenset()
    """What it has whatever is chosen."""


Dealing = tuple[tuple[Gpus, ...], ...]
"""Of each claim the part of each request."""


class _LinkedBox(SlowBox):
    def groups(self, free: Gpus, size: int) -> tuple[Fraction, Fraction, int]:
        """What is left is asked of the box with all its partitions, and would be slow to ask twice."""
        return Fraction(0), Fraction(0), 0


@dataclass
class SlowPartitionedBox(SlowBox):
    """`topology` has the NVLinks that there are inside of partitions."""

    partitions: frozenset[Gpus] = frozenset()
    _linked: dict[Gpus, SlowBox] = field(default_factory=dict)

    def linked(self, claim: Gpus) -> SlowBox:
        """The box as it is while one claim has these GPUs."""
        active = claim if claim in self.partitions else frozenset()
        if active not in self._linked:
            pairs = tuple(
                link if {a, b} <= active else replace(link, nvlinks=0)
                for (a, b), link in zip(
                    combinations(range(self.topology.gpu_count), 2), self.topology.pairs, strict=True
                )
            )
            topology: Topology = replace(self.topology, pairs=pairs)
            self._linked[active] = _LinkedBox(topology, self.gpus, self.policy)
        return self._linked[active]

    def works(self, claim: Gpus) -> bool:
        return claim in self.partitions or all(frozenset({gpu}) in self.partitions for gpu in claim)

    def rate(self, chosen: Gpus) -> tuple[Fraction, int]:
        return self.linked(chosen).rate(chosen)

    def ring(self, chosen: Gpus) -> Fraction:
        return self.linked(chosen).ring(chosen)

    # A pod's set, dealt out.

    def all_dealings(self, chosen: Gpus, claims: Sequence[SlowClaim]) -> Iterator[Dealing]:
        if not claims:
            yield ()
            return
        claim, *others = claims
        count = sum(wanted for wanted, _ in claim.requests)
        for mine in map(frozenset, combinations(sorted(chosen), count)):
            if self.works(mine | claim.base):
                for parts in self.linked(mine | claim.base).dealings(mine, claim.requests):
                    for rest in self.all_dealings(chosen - mine, others):
                        yield (parts, *rest)

    def mean(self, sets: Sequence[Gpus]) -> tuple[Fraction, Fraction, int]:
        """Rate and ring of the mean GPU within its claim, and the steps of the mean GPU that has others there."""
        count = sum(map(len, sets))
        several = [gpus for gpus in sets if len(gpus) > 1]
        rate = sum((len(gpus) * self.rate(gpus)[0] for gpus in several), Fraction())
        ring = sum((len(gpus) * self.ring(gpus) for gpus in several), Fraction())
        steps = sum(len(gpus) * self.rate(gpus)[1] for gpus in several)
        return rate / count, ring / count, steps // sum(map(len, several)) if several else 5

    def best_division(self, chosen: Gpus, claims: Sequence[SlowClaim]) -> tuple[Gpus, ...] | None:
        """The GPUs of each claim, dealt out best; None: no way is legal."""
        ways = {
            tuple(frozenset().union(claim.base, *parts) for claim, parts in zip(claims, dealing, strict=True))
            for dealing in self.all_dealings(chosen, claims)
        }
        return max(ways, key=self._sums, default=None)

    def _sums(self, sets: Sequence[Gpus]) -> tuple[Fraction, Fraction, int]:
        several = [gpus for gpus in sets if len(gpus) > 1]
        return (
            sum((len(gpus) * self.rate(gpus)[0] for gpus in several), Fraction()),
            sum((len(gpus) * self.ring(gpus) for gpus in several), Fraction()),
            sum(len(gpus) * self.rate(gpus)[1] for gpus in several),
        )

    def claim_parts(self, free: Gpus, chosen: Gpus, sets: Sequence[Gpus], beside: Gpus) -> dict[str, int]:
        """What counts, by name: less is better."""
        together = chosen | beside
        linked = self.linked(together if tuple(sets) == (together,) else frozenset())
        gb_s, ring_gb_s, near = self.mean(sets)
        damage = {name: value for name, value in self.parts(free, chosen).items() if name.startswith("damage")}
        return {
            **linked.parts(free, chosen, beside),
            **damage,
            "bandwidth_gb_s": -int(gb_s),
            "ring_gb_s": -int(ring_gb_s),
            "bound_level": 10 * (5 - near),
        }

    def choices(self, free: Gpus, claims: Sequence[SlowClaim], beside: Gpus = frozenset()) -> list[SlowSet]:
        """Every legal set, best first, equal ones by their ordinals. `beside`: all that the pod has already."""
        count = sum(wanted for claim in claims for wanted, _ in claim.requests)
        found = []
        for chosen in map(frozenset, combinations(sorted(free), count)):
            sets = self.best_division(chosen, claims)
            if sets is not None:
                found.append(SlowSet(chosen, sets, self.claim_parts(free, chosen, sets, beside)))
        return sorted(found, key=lambda one: (self.key(one.parts), sorted(one.chosen)))


@dataclass(frozen=True)
class SlowSet:
    chosen: Gpus
    sets: tuple[Gpus, ...]
    parts: Mapping[str, int]
