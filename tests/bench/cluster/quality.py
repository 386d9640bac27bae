"""How well linked are the GPUs that pods got: bandwidth ÷ the best that an empty machine gives for that count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.machines import BenchMachine, recorded
from bench.ours import bandwidth_gb_s, ideal_gb_s
from e2e.made_up_nodes import DRIVER, GPUS, KINDS, MadeUpNode

Device = tuple[str, str]
"""Pool and device name."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """What a side gave."""

    share_of_ideal: float | None
    """Mean over the claims of two GPUs and more; None without any."""
    claims: int
    nodes: int
    """Nodes of which at least one GPU is in use."""
    twice: int
    """Devices that two claims hold: must be none."""


class Judge:
    """Knows the machines of the made-up nodes. Bandwidth by our engine, which tests/bench/worth.py checks."""

    def __init__(self, nodes: int) -> None:
        self._machines: Mapping[str, BenchMachine] = {kind: recorded(kind) for kind in KINDS}
        self._places: dict[Device, tuple[str, int]] = {}
        for number in range(nodes):
            node = MadeUpNode(number)
            for ordinal in range(GPUS):
                self._places[node.name, f"gpu-{number:08x}-0000-4000-8000-{ordinal:012x}"] = node.kind, ordinal

    def judge(self, claims: Iterable[Any]) -> Allocated:
        """Judge ResourceClaims as the API holds them. Raises KeyError for a device that was never published."""
        seen: set[Device] = set()
        pools: set[str] = set()
        shares: list[float] = []
        count = twice = 0
        for claim in claims:
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
            devices = [(result["pool"], result["device"]) for result in results if result["driver"] == DRIVER]
            if not devices:
                continue
            count += 1
            twice += sum(device in seen for device in devices)
            seen.update(devices)
            pools.update(pool for pool, _ in devices)
            if len(devices) > 1:
                kind = self._places[devices[0]][0]
                gpus = tuple(sorted(self._places[device][1] for device in devices))
                machine = self._machines[kind]
                shares.append(bandwidth_gb_s(machine, gpus) / ideal_gb_s(machine, len(gpus)))
        return Allocated(sum(shares) / len(shares) if shares else None, count, len(pools), twice)
