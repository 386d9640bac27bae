"""The first devices that fit.

* kube-scheduler's structured allocator takes its first solution, in the order in which the slices name the devices; the
  `simple` policy of go-gpuallocator takes the lowest indices; FGD and KAI choose a node and leave the set to these.
* Volcano's vGPU sharing walks the cards from the highest index down.
"""

from __future__ import annotations

from bench.baselines.answer import REFUSED, Answer, Links, granted


def lowest_first(links: Links, free: tuple[int, ...], count: int) -> Answer:
    return granted(free[:count]) if len(free) >= count else REFUSED


def highest_first(links: Links, free: tuple[int, ...], count: int) -> Answer:
    return granted(free[len(free) - count :]) if len(free) >= count else REFUSED
