"""How many NVLinks join a pair of GPUs, from what each GPU reports about its own links.

On a direct mesh a pair has the links between the two. Behind NVSwitches every pair shows the whole count of switch
links of a GPU, as `nvidia-smi topo -m` does: one shared uplink, not a sum.

If the two ends disagree: a link works only if both ends have it, so of two complete reports the lower count wins. A
complete report overrides one with gaps (a state or a remote end that the driver did not report) from the other end. Two
reports with gaps leave the pair unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dracaena.host.facts.machine import GpuFacts, NvLinkFacts
from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.nvml_words import (
    FABRIC_COMPLETED,
    NVLINK_GENERATIONS,
    REMOTE_CPU,
    REMOTE_GPU,
    REMOTE_SWITCH,
    SUCCESS,
)

_NO_CLUSTER = frozenset("0-")


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What one GPU reports about its active links, by what is at their other end."""

    address: PciAddress | None
    clique: str | None
    to_gpus: tuple[PciAddress, ...]
    to_switches: int
    complete: bool
    """Whether the state and the other end of every link are known."""


def active_count(gpu: GpuFacts) -> int | None:
    """Return the number of all active NVLinks of a GPU; None if the state of any link is unknown."""
    if gpu.nvlinks is None or any(link.active is None for link in gpu.nvlinks):
        return None
    return sum(1 for link in gpu.nvlinks if link.active)


def generation(gpu: GpuFacts) -> int | None:
    """Return the NVLink generation of the active links; the lowest, should they ever differ."""
    known = [NVLINK_GENERATIONS.get(link.version or 0) for link in gpu.nvlinks or () if link.active]
    return min((number for number in known if number is not None), default=None)


def fabric_clique(gpu: GpuFacts) -> str | None:
    """Return `<clusterUUID>.<cliqueID>` once the GPU has joined a fabric; an all-zero cluster is none."""
    fabric = gpu.fabric
    if fabric is None or fabric.state != FABRIC_COMPLETED or fabric.status != SUCCESS:
        return None
    if set(fabric.cluster_uuid) <= _NO_CLUSTER:
        return None
    return f"{fabric.cluster_uuid}.{fabric.clique_id}"


def link_reports(gpus: Sequence[GpuFacts]) -> tuple[LinkReport, ...]:
    """Return the report of each GPU, in the same order."""
    here = frozenset(gpu.address for gpu in gpus if gpu.address is not None)
    return tuple(_report(gpu, here) for gpu in gpus)


def pair_count(one: LinkReport, other: LinkReport) -> int | None:
    """Return the NVLinks of a pair, None: unknown.

    GPUs in two different cliques cannot reach each other through the fabric (nvmlGpuFabricInfo, cliqueId), so their
    switch links do not count.
    """
    direct, switched = _direct(one, other), _switched(one, other)
    return None if direct is None or switched is None else direct + switched


def _direct(one: LinkReport, other: LinkReport) -> int | None:
    ends = ((one, other.address), (other, one.address))
    return min(
        (report.to_gpus.count(address) for report, address in ends if report.complete and address is not None),
        default=None,
    )


def _switched(one: LinkReport, other: LinkReport) -> int | None:
    if None not in (one.clique, other.clique) and one.clique != other.clique:
        return 0
    if any(report.complete and not report.to_switches for report in (one, other)):
        return 0
    return min(one.to_switches, other.to_switches) if one.complete and other.complete else None


def _report(gpu: GpuFacts, here: AbstractSet[PciAddress]) -> LinkReport:
    links = gpu.nvlinks or ()
    active = [link for link in links if link.active]
    to_gpus = [link.remote_address for link in active if link.remote_type not in (REMOTE_CPU, REMOTE_SWITCH)]
    return LinkReport(
        address=gpu.address,
        clique=fabric_clique(gpu),
        to_gpus=tuple(address for address in to_gpus if address is not None),
        to_switches=sum(1 for link in active if link.remote_type == REMOTE_SWITCH),
        complete=gpu.nvlinks is not None and all(link.active is False or _end_told(link, here) for link in links),
    )


def _end_told(link: NvLinkFacts, here: AbstractSet[PciAddress]) -> bool:
    """Whether it is known where an active link leads. Without a type, the address of a GPU of this node shows it."""
    if not link.active:
        return False
    if link.remote_type in (REMOTE_CPU, REMOTE_SWITCH):
        return True
    return link.remote_address is not None and (link.remote_type == REMOTE_GPU or link.remote_address in here)
