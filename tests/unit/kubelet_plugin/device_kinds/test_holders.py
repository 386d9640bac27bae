"""Claims that have no place in common do not conflict, by any of the comparisons."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.names import ClaimUid, DeviceName, GpuUuid, PoolName
from dracaena.api.passthrough import passthrough_device_name
from dracaena.api.vgpu import VGPU_PREFIX
from dracaena.kubelet_plugin.device_kinds.holders import (
    ANYWHERE,
    held_at,
    holders,
    of_another_mode,
    of_unknown_address,
    overdrawn,
)
from dracaena.kubelet_plugin.device_kinds.moved_devices import held_nodes
from dracaena.kubelet_plugin.prepare.effects import MPS_SHARE, TIME_SLICE, Effect
from dracaena.kubelet_plugin.prepare.prepared_claim import (
    ClaimReference,
    PreparedClaim,
    PreparedDevice,
    PublishedPool,
)
from support.plugin import device_name, make_pool

ADDRESSES = ("0000:00:00.0", "0000:10:00.0")


def pool_at_random(rng: random.Random) -> PublishedPool:
    """Two GPUs, each with its address or without."""
    pool = make_pool(2)
    gpus = {
        name: replace(gpu, pci_bus_id=rng.choice((address, None)))
        for (name, gpu), address in zip(pool.gpus.items(), ADDRESSES, strict=True)
    }
    return replace(pool, gpus=gpus)


def _at_random(rng: random.Random, name: str) -> PreparedClaim:
    """A claim on one of two GPUs, in any of the ways in which a GPU can be had, and perhaps not known well."""

    def device() -> PreparedDevice:
        gpu = rng.randrange(2)
        whole = device_name(gpu)
        kind = rng.choice(("whole", "share", "mig", "vfio", "vgpu"))
        address = None if rng.random() < 0.2 else ADDRESSES[gpu]
        facts: dict[str, Any] = {"admin_access": rng.random() < 0.1, "index": rng.choice((gpu, None))}
        names = {
            "whole": whole,
            "share": whole,
            "mig": f"mig-{whole.removeprefix('gpu-')}-1g-10gb-{rng.randrange(3)}",
            "vfio": passthrough_device_name(ADDRESSES[gpu]),
            "vgpu": f"{VGPU_PREFIX}{gpu}-{rng.randrange(3)}",
        }
        if kind == "share":
            facts |= {"share_id": f"{name}-share", "memory_bytes": rng.choice((None, 1, 60 << 30)), "cores": 40}
        if kind == "mig":
            facts |= {
                "access_minors": (gpu, rng.randrange(4)),
                "start": rng.randrange(3),
                "size": rng.choice((1, None)),
            }
        if kind in ("vfio", "vgpu"):
            facts["iommu_group"] = rng.randrange(3)
        return PreparedDevice(
            "r", PoolName("n"), DeviceName(names[kind]), GpuUuid("u"), rng.randrange(2), pci_bus_id=address, **facts
        )

    devices = tuple(device() for _ in range(rng.choice((1, 1, 2))))
    former = tuple(device() for _ in range(rng.choice((0, 0, 0, 1))))
    effects = tuple(
        Effect(rng.choice((MPS_SHARE, TIME_SLICE)), each.device, each.device, each.share_id, {"interval": "Long"})
        for each in devices
        if each.share_id is not None and rng.random() < 0.5
    )
    return PreparedClaim(ClaimReference("n", name, ClaimUid(name)), devices, former=former, wants=effects)


def conflicts(
    wanted: PreparedClaim, others: list[PreparedClaim], pool: PublishedPool
) -> tuple[tuple[object, ...], ...]:
    return (
        holders(wanted, others),
        of_unknown_address(wanted, others, pool),
        overdrawn(wanted, others, pool),
        of_another_mode(wanted, others),
        held_nodes(wanted, others),
    )


@pytest.mark.parametrize("seed", range(20))
def test_no_claim_without_a_place_in_common_conflicts(seed: int) -> None:
    rng, found = random.Random(seed), 0
    for _ in range(100):
        wanted, pool = _at_random(rng, "wanted"), pool_at_random(rng)
        others = [_at_random(rng, f"other-{number}") for number in range(6)]
        places = {*held_at(wanted), ANYWHERE}
        beside = [other for other in others if not places.isdisjoint(held_at(other))]
        every, some = (conflicts(wanted, asked, pool) for asked in (others, beside))
        assert some == every
        found += any(every)
    assert found > 30, "most of these claims do conflict"
