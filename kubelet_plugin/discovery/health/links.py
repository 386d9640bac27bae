"""Which NVLinks of a GPU are down: compared with what it had before, and with its peers at the NVSwitches.

NVML says which links are active, not which should be: links that lead nowhere, to a bridge that nobody plugged in, say,
look the same as links that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dracaena.api.machine import Machine


@dataclass(frozen=True, slots=True)
class KnownLinks:
    """What is known about the NVLinks of a node's GPUs, by UUID."""

    most: Mapping[str, int] = field(default_factory=dict)
    """The most links that a GPU was seen to have."""
    down: Mapping[str, int] = field(default_factory=dict)
    """How many of them are missing now, for GPUs of which any are."""


def links_of(machine: Machine, before: KnownLinks) -> KnownLinks:
    """Return what is known once a machine was read.

    A GPU in MIG mode is left out, and so is a GPU whose links are unknown. No link counts as down where links come and
    go as GPUs are given out: with Fabric Manager's partitions, and on a machine without NVSwitches while a virtual
    machine has a GPU at their other end.
    """
    if machine.fabric is not None:
        return before
    counts = {
        gpu.uuid: gpu.nvlink_count for gpu in machine.gpus if gpu.nvlink_count is not None and not gpu.mig_enabled
    }
    at_switches = _most_at_switches(machine)
    expected = {
        gpu.uuid: max(before.most.get(gpu.uuid, 0), counts.get(gpu.uuid, 0), at_switches.get(gpu.product_name, 0))
        for gpu in machine.gpus
    }
    come_and_go = not at_switches and any(gpu.is_bound for gpu in machine.passthrough)
    down = {} if come_and_go else {uuid: expected[uuid] - count for uuid, count in counts.items()}
    return KnownLinks({**before.most, **expected}, {uuid: count for uuid, count in down.items() if count})


def _most_at_switches(machine: Machine) -> Mapping[str | None, int]:
    """Return, by product, how many links a GPU has whose links lead to switches. All of them lead to all others there,
    so that its pairs show more links than it has.
    """
    found: dict[str | None, int] = {}
    for ordinal, gpu in enumerate(machine.gpus):
        if gpu.nvlink_count and _links_of_pairs(machine, ordinal) > gpu.nvlink_count:
            found[gpu.product_name] = max(found.get(gpu.product_name, 0), gpu.nvlink_count)
    return found


def _links_of_pairs(machine: Machine, ordinal: int) -> int:
    others = (other for other in range(len(machine.gpus)) if other != ordinal)
    return sum(machine.topology.link(ordinal, other).nvlinks or 0 for other in others)
