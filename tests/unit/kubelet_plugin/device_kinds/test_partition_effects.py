"""Which partitions a claim needs, by its devices alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dracaena.api.fabric import FabricPartition, PartitionedFabric
from dracaena.api.names import DeviceName, GpuUuid
from dracaena.api.passthrough import PassthroughGpu
from dracaena.kubelet_plugin.device_kinds.device_kind import CannotEnforce
from dracaena.kubelet_plugin.device_kinds.partition_effects import partition_effects
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedDevice, PublishedPool
from support.fake_fabric_manager import HGX_H100
from support.plugin import device_name, gpu_uuid, make_pool, prepared_claim

FABRIC = PartitionedFabric(tuple(FabricPartition(n, frozenset(modules)) for n, modules in sorted(HGX_H100.items())))


def pool_of(fabric: PartitionedFabric | None = FABRIC) -> PublishedPool:
    """Module ids are one more than the numbers of GPUs; a GPU for virtual machines has module 8."""
    pool = make_pool(7)
    gpus = {name: replace(gpu, module_id=gpu.index + 1) for name, gpu in pool.gpus.items()}
    handed = PassthroughGpu("0000:18:00.0", 0x10DE, 0x2330, 40, "vfio-pci", module_id=8)
    return replace(pool, gpus=gpus, passthrough={handed.device_name: handed}, fabric=fabric)


def whole(*numbers: int, **device: object) -> list[PreparedDevice]:
    return list(prepared_claim("c", numbers, **device).devices)


def vfio() -> PreparedDevice:
    (device,) = whole(0)
    return replace(device, device=DeviceName("vfio-0000-18-00-0"), uuid=GpuUuid("0000:18:00.0"))


def needed(devices: list[PreparedDevice], pool: PublishedPool | None = None) -> list[tuple[object, object]]:
    found = partition_effects(devices, pool_of() if pool is None else pool)
    assert not isinstance(found, CannotEnforce), found.reason
    return [(FabricPartition.named(effect.device).id, effect.gpu) for effect in found]


def refused(devices: list[PreparedDevice], pool: PublishedPool) -> str:
    found = partition_effects(devices, pool)
    assert isinstance(found, CannotEnforce)
    return found.reason


def test_the_set_of_whole_gpus_of_either_kind_is_one_partition() -> None:
    assert needed(whole(2, 0)) == [(3, device_name(0))]
    assert needed([*whole(5), vfio()]) == [(6, device_name(5))]
    assert needed(whole(0, 1)) == [(7, device_name(0)), (8, device_name(1))]


def test_parts_need_their_gpu_alone_beside_the_others() -> None:
    share = whole(4, share_id="s", memory_bytes=10 << 30)
    part = whole(3, parent_uuid=GpuUuid(gpu_uuid(3)))
    part = [replace(each, device=DeviceName(f"mig-{gpu_uuid(3).removeprefix('GPU-')}-1g-0")) for each in part]
    assert needed([*share, *whole(0, 2), *part]) == [(3, device_name(0)), (11, device_name(4)), (10, device_name(3))]
    assert needed(whole(0, 2, share_id="s", memory_bytes=80 << 30)) == [(3, device_name(0))]


def test_shares_of_one_claim_on_one_gpu_need_its_partition_once() -> None:
    shares = [whole(4, share_id=each, memory_bytes=10 << 30)[0] for each in "ab"]
    assert needed(shares) == [(11, device_name(4))]


def test_without_partitions_nothing_is_needed() -> None:
    assert needed(whole(0, 1), pool_of(None)) == []
    assert needed([]) == []


def test_what_cannot_be_activated_is_refused_with_the_reason() -> None:
    assert "it does not answer" in refused(whole(0), pool_of(PartitionedFabric(problem="it does not answer")))
    pool = pool_of()
    unknown = replace(pool, gpus={name: replace(gpu, module_id=None) for name, gpu in pool.gpus.items()})
    assert f"which Fabric Manager partitions {device_name(1)} is in" in refused(whole(1), unknown)
    pairs = PartitionedFabric(tuple(each for each in FABRIC.partitions if len(each.modules) == 2))
    assert needed(whole(0, 2), pool_of(pairs)) == [(3, device_name(0))]
    text = refused(whole(0, 1), pool_of(pairs))
    assert text == (
        "Fabric Manager has no partition of module 1, 2 alone, and none of exactly the GPUs of this claim (modules 1 2)"
    )


@pytest.mark.parametrize("problem", ["", "it does not answer"])
def test_vgpus_have_none_here(problem: str) -> None:
    (device,) = whole(0)
    vgpu = replace(device, device=DeviceName("vgpu-0000-18-00-4"))
    assert needed([vgpu], pool_of(PartitionedFabric(problem=problem))) == []
