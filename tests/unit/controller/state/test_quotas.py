"""What a namespace may hold: what counts, who waits, and what is said."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from dracaena.api.attributes import MEMORY_CAPACITY
from dracaena.api.device_id import DeviceId
from dracaena.api.gpu_quota import QuotaItem
from dracaena.api.mig import mig_device_name
from dracaena.api.quantity import NANO
from dracaena.api.resource_objects import Device, DeviceAttribute
from dracaena.controller.allocation.allocator import NoFit
from dracaena.controller.allocation.legal.books import Holding
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation
from dracaena.controller.allocation.state.quota_usage import PublishedGpu, QuotaUsage
from dracaena.controller.state.answers import Behind
from dracaena.controller.state.quotas import Quotas
from support.allocation import (
    allocated,
    blocks,
    claim,
    device_class,
    device_name,
    holding,
    machine,
    node,
    pod,
    pool_slice,
    request,
)
from support.bare_cluster import bare_cluster, decide, write
from support.quota_nodes import Wish
from support.quota_world import NAMESPACES, QuotaWorld, moved, namespace
from support.shares import in_shares, share
from support.starving_world import World
from support.watched_cluster import WatchedCluster

A100, H100 = "NVIDIA A100", "NVIDIA H100"
FOUR = blocks(4, inside="PIX", outside="PIX")
OLD = machine("old", FOUR, product_name=A100, memory_bytes=80 << 30)
NEW = machine("new", FOUR, product_name=H100, memory_bytes=80 << 30)
PARENT = OLD.gpus[3].uuid


def cluster_of(
    quota: dict[str, Any] | str | None, woken: list[str] | None = None, *, shared: bool = False
) -> WatchedCluster:
    """Two nodes of four GPUs, and a quota of namespace default."""
    cluster = bare_cluster((woken if woken is not None else []).append)
    for name, made in (("a", OLD), ("h", NEW)):
        item = pool_slice(name, made)
        cluster.intake.node_changed(None, node(name))
        cluster.intake.slice_changed(None, in_shares(item) if shared else item)
    cluster.intake.class_changed(None, device_class())
    set_quota(cluster, quota)
    return cluster


def set_quota(cluster: WatchedCluster, quota: dict[str, Any] | str | None) -> None:
    text = json.dumps(quota) if isinstance(quota, dict) else quota
    cluster.intake.namespace_changed(None, namespace("default", text))


def ask(cluster: WatchedCluster, name: str, *requests: dict[str, Any]) -> object:
    asked, waiting = claim(name, *requests), pod(name, name)
    cluster.intake.claim_changed(None, asked)
    cluster.intake.pod_changed(None, waiting)
    return decide(cluster, waiting, asked)


def again(cluster: WatchedCluster, name: str) -> object:
    known = cluster.claim(f"default/{name}")
    assert known is not None
    return decide(cluster, pod(name, name), known)


def words(decision: object) -> str:
    assert isinstance(decision, Refused), decision
    assert decision.kind is RefusalKind.QUOTA
    assert decision.concerns_us
    return decision.text


def held(cluster: WatchedCluster) -> dict[QuotaItem, int]:
    (state,) = cluster.quotas()
    return {one: amount for one, (_, amount) in state.limits.items()}


def test_a_pod_beyond_the_quota_waits_and_learns_the_numbers() -> None:
    cluster = cluster_of({"gpus": 3})
    assert isinstance(ask(cluster, "p", request(count=2)), Allocation)
    assert words(ask(cluster, "q", request(count=2))) == ("namespace default may have 3 GPUs, holds 2, the pod wants 2")
    assert isinstance(ask(cluster, "r", request(count=1)), Allocation)


def test_other_products_are_tried_where_one_is_used_up() -> None:
    cluster = cluster_of({"gpusByProduct": {A100: 1, H100: 1}})
    first, second = ask(cluster, "p"), ask(cluster, "q")
    assert isinstance(first, Allocation)
    assert isinstance(second, Allocation)
    assert {first.node, second.node} == {"a", "h"}
    text = words(ask(cluster, "r"))
    assert text.startswith("namespace default may have 1 GPUs of product NVIDIA ")
    assert text.endswith(", holds 1, the pod wants 1; other GPUs do not suit it now")


def test_products_that_are_not_named_are_not_limited() -> None:
    cluster = cluster_of({"gpusByProduct": {A100: 0}})
    decision = ask(cluster, "p", request(count=4))
    assert isinstance(decision, Allocation)
    assert decision.node == "h"


def test_a_share_counts_its_memory_and_cores_and_is_no_gpu() -> None:
    cluster = cluster_of({"gpus": 1, "shareMemory": "30Gi", "shareCores": 50}, shared=True)
    assert isinstance(ask(cluster, "p", share("gpus", "20Gi", 30)), Allocation)
    assert held(cluster) == {QuotaItem("gpus"): 0, QuotaItem("shareMemory"): 20 << 30, QuotaItem("shareCores"): 30}
    assert words(ask(cluster, "q", share("gpus", "20Gi"))) == (
        "namespace default may have 30Gi of memory in shares of GPUs, holds 20Gi, the pod wants 20Gi"
    )
    assert words(ask(cluster, "r", share("gpus", "10Gi", 30))) == (
        "namespace default may have 50 % of the cores of a GPU in shares, holds 30 %, the pod wants 30 %"
    )
    assert isinstance(ask(cluster, "s", share("gpus", "10Gi", 20)), Allocation)


def test_a_share_of_all_the_memory_is_a_whole_gpu() -> None:
    cluster = cluster_of({"gpus": 1, "shareMemory": "0"}, shared=True)
    assert isinstance(ask(cluster, "p", request()), Allocation)
    assert held(cluster) == {QuotaItem("gpus"): 1, QuotaItem("shareMemory"): 0}
    assert words(ask(cluster, "q", request())).startswith("namespace default may have 1 GPUs, holds 1")


def test_mig_devices_count_slices_and_profile_and_no_gpu() -> None:
    cluster = cluster_of({"gpus": 0, "migSlices": 8, "migDevicesByProfile": {"3g.40gb": 2, "1g.10gb+me": 1}})
    names = [mig_device_name(PARENT, profile, start) for profile, start in (("3g.40gb", 0), ("1g.10gb+me", 4))]
    cluster.intake.claim_changed(None, holding(claim("m"), "a", *names))
    assert held(cluster) == {
        QuotaItem("gpus"): 0,
        QuotaItem("migSlices"): 4,
        QuotaItem("migDevicesByProfile", "3g.40gb"): 1,
        QuotaItem("migDevicesByProfile", "1g.10gb+me"): 1,
    }


def test_a_gpu_for_a_virtual_machine_is_a_whole_gpu_of_its_product() -> None:
    cluster = cluster_of({"gpus": 8, "gpusByProduct": {A100: 8}})
    base = pool_slice("a", OLD, generation=2)
    machines = [msgspec.structs.replace(base.spec.devices[0], name="vfio-0000-18-00-0"), *base.spec.devices[1:]]
    spec = msgspec.structs.replace(base.spec, devices=machines)
    cluster.intake.slice_changed(None, msgspec.structs.replace(base, spec=spec))
    cluster.intake.claim_changed(None, holding(claim("m"), "a", "vfio-0000-18-00-0"))
    assert held(cluster) == {QuotaItem("gpus"): 1, QuotaItem("gpusByProduct", A100): 1}


def test_a_vgpu_is_one_of_the_gpus_and_of_no_product() -> None:
    cluster = cluster_of({"gpus": 8, "gpusByProduct": {A100: 8}})
    identity = "aa618089-8b16-4d01-a136-25a0f3c73123"
    name = f"vgpu-{identity}"
    told = {"type": "vgpu", "vgpuType": "A100-40C", "resource.kubernetes.io/mDevUUID": identity}
    attributes = {key: DeviceAttribute(string=value) for key, value in told.items()}
    base = pool_slice("a", OLD, generation=2)
    vgpu = Device(name=name, attributes=attributes, taints=base.spec.devices[0].taints)
    spec = msgspec.structs.replace(base.spec, devices=[*base.spec.devices, vgpu])
    cluster.intake.slice_changed(None, msgspec.structs.replace(base, spec=spec))
    cluster.intake.claim_changed(None, holding(claim("m"), "a", name))
    assert held(cluster) == {QuotaItem("gpus"): 1, QuotaItem("gpusByProduct", A100): 0}


def test_devices_of_other_drivers_and_admin_access_do_not_count() -> None:
    cluster = cluster_of({"gpus": 4})
    cluster.intake.claim_changed(None, holding(claim("nic"), "a", "nic-0", driver="nic.example.com"))
    admin = {"request": "gpus", "driver": "gpu.dracaena.dev", "pool": "a", "device": device_name(OLD, 0)}
    document = {"devices": {"results": [{**admin, "adminAccess": True}]}}
    cluster.intake.claim_changed(None, allocated(claim("admin"), document))
    assert held(cluster) == {QuotaItem("gpus"): 0}


def test_a_claim_of_several_pods_counts_once() -> None:
    cluster = cluster_of({"gpus": 2})
    first = ask(cluster, "c", request(count=2))
    assert isinstance(first, Allocation)
    (stored,) = write(cluster, first, pod("c", "c"))
    second = pod("second", "c")
    cluster.intake.pod_changed(None, second)
    decide(cluster, second, stored)
    assert held(cluster) == {QuotaItem("gpus"): 2}


def test_what_is_decided_and_not_written_counts_and_what_is_lost_does_not() -> None:
    world = QuotaWorld(random.Random(1))
    world.set_quota(NAMESPACES[0], '{"gpus": 1}')
    for _ in range(2):
        world.come(NAMESPACES[0], Wish())
    world.decide_first()
    world.decide_first()
    assert (world.served, world.refused) == (1, {"gpus": 1})
    world.lose(next(iter(world.in_flight)))
    world.decide_first()
    assert world.served == 2


@pytest.mark.parametrize("text", ['{"gpu": 1}', "gpus: 1", ""])
def test_the_last_quota_that_could_be_read_stays_in_force(text: str) -> None:
    cluster = cluster_of({"gpus": 1})
    assert isinstance(ask(cluster, "p"), Allocation)
    set_quota(cluster, text)
    (state,) = cluster.quotas()
    assert state.limits == {QuotaItem("gpus"): (1, 1)}
    assert "expected" in state.problem
    assert words(ask(cluster, "q")).startswith("namespace default may have 1 GPUs")
    set_quota(cluster, {"gpus": 2})
    assert cluster.quotas()[0].problem == ""


def test_without_any_that_could_be_read_nothing_more_is_given() -> None:
    cluster = cluster_of('{"gpu": 1}')
    assert words(ask(cluster, "p")) == (
        "the quota of namespace default cannot be read: gpu: unknown, expected one of gpus, gpusByProduct, "
        "shareMemory, shareCores, migSlices, migDevicesByProfile"
    )
    set_quota(cluster, None)
    assert isinstance(again(cluster, "p"), Allocation)


@pytest.mark.parametrize("quota", [{"gpus": 1}, '{"gpu": 1}'])
def test_a_quota_goes_with_its_namespace(quota: dict[str, int] | str) -> None:
    """What it holds meanwhile counts again once a namespace of that name has a quota, and nothing counts twice."""
    cluster = cluster_of({"gpus": 1})
    decision = ask(cluster, "p")
    assert isinstance(decision, Allocation)
    write(cluster, decision, pod("p", "p"))
    set_quota(cluster, quota)
    gone = namespace("default", quota if isinstance(quota, str) else json.dumps(quota))
    for _ in range(2):  # one that is not there any more does no harm
        cluster.intake.namespace_changed(gone, None)
        assert cluster.quotas() == ()
    assert isinstance(ask(cluster, "q"), Allocation)
    set_quota(cluster, {"gpus": 2})
    assert held(cluster) == {QuotaItem("gpus"): 2}
    assert words(ask(cluster, "r")) == "namespace default may have 2 GPUs, holds 2, the pod wants 1"


def test_a_quota_below_what_is_held_takes_nothing_back() -> None:
    cluster = cluster_of(None)
    decision = ask(cluster, "p", request(count=4))
    assert isinstance(decision, Allocation)
    (stored,) = write(cluster, decision, pod("p", "p"))
    set_quota(cluster, {"gpus": 1})
    assert held(cluster) == {QuotaItem("gpus"): 4}
    assert words(ask(cluster, "q")) == "namespace default may have 1 GPUs, holds 4, the pod wants 1"
    known = cluster.claim(stored.key)
    assert known is not None
    assert known.status.allocation is not None


def test_waiting_pods_are_asked_again_when_the_quota_grows_or_something_is_let_go() -> None:
    woken: list[str] = []
    cluster = cluster_of({"gpus": 1}, woken)
    decision = ask(cluster, "p")
    assert isinstance(decision, Allocation)
    (stored,) = write(cluster, decision, pod("p", "p"))
    ask(cluster, "q")
    woken.clear()
    set_quota(cluster, {"gpus": 2})
    assert woken == ["default/q"]
    set_quota(cluster, {"gpus": 1})
    words(again(cluster, "q"))
    woken.clear()
    cluster.intake.claim_changed(stored, None)
    assert "default/q" in woken


def test_a_device_whose_node_has_gone_wakes_who_waits_for_the_quota() -> None:
    woken: list[str] = []
    cluster = cluster_of({"gpus": 1}, woken)
    gone = holding(claim("gone"), "vanished", "gpu-x")
    cluster.intake.claim_changed(None, gone)
    words(ask(cluster, "q"))
    woken.clear()
    cluster.intake.claim_changed(gone, None)
    assert "default/q" in woken


def test_gpus_whose_product_is_not_known_count_against_each_until_it_is() -> None:
    cluster = bare_cluster()
    cluster.intake.namespace_changed(None, namespace("default", json.dumps({"gpusByProduct": {A100: 1, H100: 1}})))
    cluster.intake.claim_changed(None, holding(claim("c"), "a", device_name(OLD, 0)))
    assert set(held(cluster).values()) == {1}
    cluster.intake.node_changed(None, node("a"))
    cluster.intake.slice_changed(None, pool_slice("a", OLD))
    assert held(cluster) == {QuotaItem("gpusByProduct", A100): 1, QuotaItem("gpusByProduct", H100): 0}
    cluster.intake.slice_changed(pool_slice("a", OLD), None)
    assert held(cluster) == {QuotaItem("gpusByProduct", A100): 1, QuotaItem("gpusByProduct", H100): 0}


def test_gpus_that_are_published_as_another_product_count_against_that() -> None:
    woken: list[str] = []
    cluster = cluster_of({"gpusByProduct": {A100: 2, H100: 0}}, woken)
    cluster.intake.claim_changed(None, holding(claim("c"), "a", device_name(OLD, 0), device_name(OLD, 1)))
    assert held(cluster) == {QuotaItem("gpusByProduct", A100): 2, QuotaItem("gpusByProduct", H100): 0}
    renamed = replace(OLD, gpus=tuple(replace(gpu, product_name=H100) for gpu in OLD.gpus))
    words(ask(cluster, "q"))
    woken.clear()
    cluster.intake.slice_changed(pool_slice("a", OLD), pool_slice("a", renamed))
    assert held(cluster) == {QuotaItem("gpusByProduct", A100): 0, QuotaItem("gpusByProduct", H100): 2}
    assert "default/q" in woken
    cluster.intake.claim_changed(holding(claim("c"), "a", device_name(OLD, 0), device_name(OLD, 1)), None)
    assert set(held(cluster).values()) == {0}


def test_a_share_of_a_gpu_that_has_other_memory_by_now_is_counted_by_that() -> None:
    driver = "gpu.example.com"
    gpu = DeviceId(driver, "a", "gpu-0")
    facts = {gpu: PublishedGpu("p", "80Gi")}
    usage = QuotaUsage(driver, facts.get)
    usage.begin("ml", [])
    part = Holding("ml/c", gpu, "share", ((MEMORY_CAPACITY, (40 << 30) * NANO),))
    usage.hold("ml/c", frozenset({gpu}), frozenset({part}))
    assert usage.held("ml") == {QuotaItem("shareMemory"): 40 << 30, QuotaItem("shareCores"): 0}
    assert usage.count_again({"a", "b"}) == frozenset()
    facts[gpu] = PublishedGpu("p", "40Gi")
    assert usage.count_again({"a"}) == {"ml"}
    one = {QuotaItem("gpus"): 1, QuotaItem("gpusByProduct", "p"): 1}
    assert {item: count for item, count in usage.held("ml").items() if count} == one
    del facts[gpu]
    assert usage.count_again({"a"}) == frozenset(), "no slice says anything now"
    usage.hold("ml/c", frozenset(), frozenset())
    assert not any(usage.held("ml").values())
    assert usage._by_pool == {}


def test_gpus_that_are_published_without_a_product_count_against_none() -> None:
    cluster = bare_cluster()
    plain = machine("plain", FOUR)
    cluster.intake.node_changed(None, node("n"))
    cluster.intake.slice_changed(None, pool_slice("n", plain))
    cluster.intake.class_changed(None, device_class())
    set_quota(cluster, {"gpus": 3, "gpusByProduct": {A100: 1, H100: 0}})
    assert isinstance(ask(cluster, "p", request(count=2)), Allocation)
    assert held(cluster) == {
        QuotaItem("gpus"): 2,
        QuotaItem("gpusByProduct", A100): 0,
        QuotaItem("gpusByProduct", H100): 0,
    }
    assert words(ask(cluster, "q", request(count=2))) == "namespace default may have 3 GPUs, holds 2, the pod wants 2"


def test_a_pool_that_is_known_again_because_another_of_its_node_has_gone_is_counted_again() -> None:
    woken: list[str] = []
    cluster = cluster_of({"gpusByProduct": {A100: 4, H100: 1}}, woken)
    sibling = pool_slice("second", NEW)
    sibling = msgspec.structs.replace(sibling, spec=msgspec.structs.replace(sibling.spec, node_name="a"))
    cluster.intake.slice_changed(None, sibling)
    cluster.intake.claim_changed(None, holding(claim("c"), "a", device_name(OLD, 0)))
    assert set(held(cluster).values()) == {1}
    words(ask(cluster, "q"))
    woken.clear()
    cluster.intake.slice_changed(sibling, None)
    assert held(cluster) == {QuotaItem("gpusByProduct", A100): 1, QuotaItem("gpusByProduct", H100): 0}
    assert "default/q" in woken


def test_a_pod_beyond_its_quota_does_not_hold_others_back() -> None:
    cluster = cluster_of({"gpus": 0})
    words(ask(cluster, "p", request(count=4)))
    other = msgspec.structs.replace(
        claim("o"), metadata=msgspec.structs.replace(claim("o").metadata, namespace="elsewhere")
    )
    waiting = msgspec.structs.replace(
        pod("o", "o"), metadata=msgspec.structs.replace(pod("o", "o").metadata, namespace="elsewhere")
    )
    cluster.intake.claim_changed(None, other)
    cluster.intake.pod_changed(None, waiting)
    assert isinstance(decide(cluster, waiting, other), Allocation)


def test_pods_that_ask_alike_wait_behind_one_another_also_where_their_quota_is_the_reason() -> None:
    woken: list[str] = []
    cluster = cluster_of({"gpusByProduct": {A100: 0, H100: 0}}, woken)
    taken = [
        moved(holding(claim(f"on-{name}-{place}"), name, device_name(made, place)), "elsewhere")
        for name, made in (("a", OLD), ("h", NEW))
        for place in range(4)
    ]
    for one in taken:
        cluster.intake.claim_changed(None, one)
    text = words(ask(cluster, "p00"))
    for number in range(1, 20):
        behind = ask(cluster, f"p{number:02}")
        assert isinstance(behind, Behind)
        assert words(behind.refusal) == text
    for freed in taken[:3]:
        woken.clear()
        cluster.intake.claim_changed(freed, None)
        assert "default/p00" in woken
        text = words(again(cluster, "p00"))
        assert set(woken) <= {"default/p00", freed.key}
        behind = again(cluster, "p07")
        assert isinstance(behind, Behind)
        assert words(behind.refusal) == text
        cluster.intake.claim_changed(None, freed)
        words(again(cluster, "p00"))
        assert set(woken) <= {"default/p00", freed.key}


def starving(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.step()


def test_no_node_is_kept_for_a_pod_that_its_quota_would_not_let_have_it() -> None:
    world = World(30, node_count=1)
    world.come("busy", 2, 10_000)
    world.work()
    world.cluster.intake.namespace_changed(None, namespace("default", '{"gpus": 3}'))
    world.come("large", 4, 100)
    starving(world, 40)
    assert world.kept() is None
    world.cluster.intake.namespace_changed(None, namespace("default", '{"gpus": 4}'))
    starving(world, 70)
    assert world.kept() == ("default/large", "n0")
    world.cluster.intake.namespace_changed(None, namespace("default", '{"gpus": 3}'))
    starving(world, 2)
    assert world.kept() is None


def test_without_a_quota_nothing_is_counted_and_with_one_each_decision_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[str] = []
    from dracaena.controller.allocation.state import quota_usage

    count = quota_usage.count_amounts

    def noted(*args: Any) -> Any:
        counted.append("count")
        return count(*args)

    monkeypatch.setattr(quota_usage, "count_amounts", noted)
    cluster = cluster_of(None)
    for number in range(3):
        assert isinstance(ask(cluster, f"p{number}"), Allocation)
    assert counted == []
    set_quota(cluster, {"gpus": 9})
    assert len(counted) == 3
    counted.clear()
    assert isinstance(ask(cluster, "q"), Allocation)
    assert len(counted) == 1, "what it was asked about is what it holds then"


def two_products(world: World) -> None:
    """Node a has four free GPUs of a product that the quota does not let namespace default have, n0 those that it
    does."""
    world.cluster.intake.node_changed(None, node("a"))
    world.cluster.intake.slice_changed(None, pool_slice("a", OLD))
    world.cluster.intake.namespace_changed(None, namespace("default", json.dumps({"gpusByProduct": {A100: 0}})))


@pytest.mark.parametrize("limit", [{"gpus": 9}, {"gpus": 9, "shareMemory": "1Gi", "shareCores": 0}])
def test_no_node_is_looked_for_where_a_pod_of_whole_gpus_is_far_from_its_quota(
    monkeypatch: pytest.MonkeyPatch, limit: dict[str, Any]
) -> None:
    looked_for: list[str] = []
    find = Quotas.node_to_keep

    def noted(self: Quotas, allocator: Any, pod: Any, *args: Any, **options: Any) -> Any:
        looked_for.append(pod.metadata.name)
        return find(self, allocator, pod, *args, **options)

    monkeypatch.setattr(Quotas, "node_to_keep", noted)
    cluster = cluster_of(limit, shared=True)
    for name, made in (("a", OLD), ("h", NEW)):
        taken = holding(claim(f"on-{name}"), name, *(device_name(made, place) for place in range(4)))
        cluster.intake.claim_changed(None, moved(taken, "elsewhere"))
    assert isinstance(ask(cluster, "whole", request(count=2)), NoFit)
    assert looked_for == []
    ask(cluster, "share", share("gpus", "2Gi", 10))
    assert looked_for == (["share"] if "shareMemory" in limit else [])


def test_a_node_is_kept_for_a_pod_whose_other_product_is_used_up() -> None:
    world = World(30, node_count=1)
    two_products(world)
    for number in range(4):
        world.come(f"busy-{number}", 1, 10 + number)
    world.work()
    world.come("large", 4, 100)
    world.work()
    assert "default/large" not in world.served_s
    for number in range(60):
        world.come(f"small-{number}", 1, 15)
        world.step()
    assert 30 < world.served_s["default/large"] < 60


def test_the_node_that_is_kept_has_no_product_that_is_used_up() -> None:
    world = World(30, node_count=1)
    for number in range(2):
        world.come(f"busy-{number}", 1, 10_000)
    world.work()
    two_products(world)
    world.come("large", 4, 100)
    starving(world, 32)
    assert world.kept() == ("default/large", "n0")
    refused = decide(world.cluster, world.pods["default/large"], world.claims["default/large"])
    assert words(refused).endswith(", the pod wants 4; other GPUs do not suit it now")
    world.cluster.intake.namespace_changed(
        None, namespace("default", json.dumps({"gpusByProduct": {A100: 0}, "gpus": 3}))
    )
    starving(world, 2)
    assert world.kept() is None


def test_a_pod_beyond_its_quota_learns_so_also_while_the_cluster_is_full() -> None:
    cluster = cluster_of({"gpus": 2})
    for name, made, places in (("a", OLD, range(4)), ("h", NEW, range(2))):
        for place in places:
            taken = holding(claim(f"on-{name}-{place}"), name, device_name(made, place))
            cluster.intake.claim_changed(None, moved(taken, "elsewhere"))
    assert isinstance(ask(cluster, "mine", request(count=2)), Allocation)
    assert words(ask(cluster, "p")) == "namespace default may have 2 GPUs, holds 2, the pod wants 1"
    assert isinstance(ask(cluster, "z-huge", request(count=5)), NoFit), "no node could ever serve it"
    set_quota(cluster, {"gpus": 3})
    assert isinstance(again(cluster, "p"), NoFit)
    set_quota(cluster, {"gpus": 3, "gpusByProduct": {A100: 0, H100: 2}})
    assert words(again(cluster, "p")).startswith("namespace default may have ")
    set_quota(cluster, {"gpus": 3, "gpusByProduct": {A100: 0, H100: 3}})
    assert isinstance(again(cluster, "p"), NoFit), "others hold what it may have"
