from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.mig_geometry import places
from dracaena.api.names import DeviceName, PoolName, gpu_device_name
from dracaena.api.resource_objects import ResourceClaim
from dracaena.kubelet_plugin.device_kinds.holders import holders
from dracaena.kubelet_plugin.device_kinds.plan import Refusal, plan_claim
from dracaena.kubelet_plugin.discovery.mig.on_demand import divided_gpus
from dracaena.kubelet_plugin.node.pool import node_pool
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim, PublishedPool
from support.gpu_lists import gpu_list
from support.machines import divided_machine
from support.mig_geometries import divisible_machine
from support.plugin import (
    BEST_EFFORT,
    DRIVER,
    NODE,
    claim_of,
    device_name,
    gpu_uuid,
    make_claim,
    make_pool,
    prepared_claim,
    share_of,
    sharing_config,
)

MIGS = divided_machine().mig_devices
MIG_POOL = node_pool(divided_machine(), DRIVER, PoolName(NODE))


def planned(claim: ResourceClaim) -> PreparedClaim:
    plan = plan_claim(claim, make_pool())
    assert isinstance(plan, PreparedClaim)
    return plan


def refused(claim: ResourceClaim, **pool: Any) -> str:
    plan = plan_claim(claim, make_pool(**pool))
    assert isinstance(plan, Refusal)
    return str(plan)


def result(device: str, **fields: Any) -> dict[str, Any]:
    return {"request": "gpus", "driver": DRIVER, "pool": NODE, "device": device, **fields}


def opaque(parameters: dict[str, Any], driver: str = DRIVER, source: str = "FromClaim") -> dict[str, Any]:
    return {"source": source, "opaque": {"driver": driver, "parameters": parameters}}


def test_each_result_of_ours_becomes_a_device_in_the_order_of_the_allocation() -> None:
    plan = planned(make_claim(devices=(5, 2), reserved_for={"b": "uid-b", "a": "uid-a"}))
    assert [(d.uuid, d.minor) for d in plan.devices] == [(gpu_uuid(5), 5), (gpu_uuid(2), 2)]
    assert plan.consumers == ("uid-a", "uid-b")
    plan.check()


def test_devices_of_other_drivers_are_left_to_them() -> None:
    allocated = {"results": [result("nic-1", driver="nic.example.com", pool="x"), result(device_name(1))]}
    assert [d.device for d in planned(claim_of("c", allocated)).devices] == [device_name(1)]


def test_a_sub_request_counts_as_its_request_for_kubelet() -> None:
    plan = planned(make_claim(request="gpus/four"))
    assert (plan.devices[0].request, plan.devices[0].request_name) == ("gpus/four", "gpus")


def test_a_claim_without_allocation_is_refused() -> None:
    assert "claim default/c is not allocated" in refused(claim_of("c", None))


def test_a_claim_with_devices_of_others_only_is_refused() -> None:
    assert "holds no device of driver gpu.dracaena.dev" in refused(
        claim_of("c", {"results": [result("nic-1", driver="nic.example.com")]})
    )


def test_a_device_of_another_node_is_refused_and_named() -> None:
    text = refused(claim_of("c", {"results": [result(device_name(0), pool="node-2")]}))
    assert "is of pool node-2, but this node serves pool node-1" in text


def test_an_unknown_device_is_refused_and_named() -> None:
    assert "this node has no device gpu-gone (it has 8 devices)" in refused(
        claim_of("c", {"results": [result("gpu-gone")]})
    )


def test_a_gpu_without_minor_is_refused_instead_of_guessed() -> None:
    assert f"the minor number of GPU {gpu_uuid(3)} is not known" in refused(
        make_claim(devices=(3,)), without_minor=(3,)
    )


def test_all_reasons_are_told_at_once() -> None:
    text = refused(claim_of("c", {"results": [result("gpu-a"), result(device_name(0)), result("gpu-b")]}))
    assert "gpu-a" in text
    assert "gpu-b" in text


def test_a_broken_config_for_us_is_refused_with_path_value_and_expectation() -> None:
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "GpuConfig", "colour": "red"}
    text = refused(claim_of("c", {"results": [result(device_name(0))], "config": [opaque(parameters)]}))
    assert text.startswith("opaque config 0 of the allocation (from the claim): $")
    assert "colour" in text


def test_a_config_of_nvidias_group_for_us_is_refused_with_the_line_to_write() -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "MPS"}}
    text = refused(claim_of("c", {"results": [result(device_name(0))], "config": [opaque(parameters)]}))
    assert "`parameters: {apiVersion: gpu.dracaena.dev/v1alpha1, kind: GpuConfig, sharing: {strategy: MPS}}`" in text


def test_a_config_of_an_unknown_kind_names_its_class() -> None:
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "MpsConfig"}
    config = [opaque(parameters, source="FromClass")]
    text = refused(claim_of("c", {"results": [result(device_name(0))], "config": config}))
    assert "(from its DeviceClass)" in text
    assert "MpsConfig" in text


def test_good_configs_and_those_of_other_drivers_do_not_hinder() -> None:
    good = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "GpuConfig"}
    config = [opaque(good), opaque({"nonsense": 1}, driver="nic.example.com")]
    planned(claim_of("c", {"results": [result(device_name(0))], "config": config}))


def test_a_device_that_another_claim_holds_is_named_with_its_holder() -> None:
    held = holders(prepared_claim("mine", (0, 1)), [prepared_claim("other", (1, 2))])
    assert [(d.device, h.claim.name) for d, _, h in held] == [(device_name(1), "other")]


def test_a_claim_does_not_stand_in_its_own_way() -> None:
    assert holders(prepared_claim("mine"), [prepared_claim("mine")]) == ()


WHOLE: dict[str, Any] = {}
SHARE: dict[str, Any] = {"share_id": "one"}
OTHER_SHARE: dict[str, Any] = {"share_id": "two"}
ADMIN: dict[str, Any] = {"admin_access": True}


@pytest.mark.parametrize(
    ("mine", "theirs", "refused"),
    [
        (WHOLE, WHOLE, True),
        (WHOLE, SHARE, True),
        (SHARE, WHOLE, True),
        (SHARE, OTHER_SHARE, False),
        (ADMIN, WHOLE, False),
        (ADMIN, SHARE, False),
        (WHOLE, ADMIN, False),
        (SHARE, ADMIN, False),
        (ADMIN, ADMIN, False),
    ],
)
def test_a_whole_device_and_a_share_of_it_refuse_each_other(
    mine: dict[str, Any], theirs: dict[str, Any], refused: bool
) -> None:
    held = holders(prepared_claim("mine", **mine), [prepared_claim("other", **theirs)])
    assert bool(held) is refused


def test_a_share_of_a_gpu_and_a_part_of_it_refuse_each_other() -> None:
    whole, part = f"gpu-{PARENT}", f"mig-{PARENT}-1g-5gb-0"
    for mine, theirs in ((whole, part), (part, whole)):
        assert holders(parts("mine", mine, **SHARE), [parts("other", theirs, **OTHER_SHARE)])


@settings(derandomize=True)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=4), st.sets(st.integers(0, 5), min_size=1))
def test_holders_are_the_overlaps(others: list[set[int]], mine: set[int]) -> None:
    prepared = [prepared_claim(f"other-{n}", sorted(devices)) for n, devices in enumerate(others)]
    held = holders(prepared_claim("mine", sorted(mine)), prepared)
    assert {d.device for d, _, _ in held} == {device_name(n) for n in mine if any(n in o for o in others)}
    for device, theirs, holder in held:
        assert device.device == theirs.device
        assert device.device in {d.device for d in holder.devices}


def mig_claim(number: int, **fields: Any) -> ResourceClaim:
    return claim_of("c", {"results": [result(MIGS[number].device_name, **fields)]})


def test_a_mig_device_is_prepared_with_its_own_uuid_and_its_parents_minor() -> None:
    plan = plan_claim(mig_claim(1), MIG_POOL)
    assert isinstance(plan, PreparedClaim)
    (device,) = plan.devices
    assert (device.uuid, device.minor, device.access_minors) == (MIGS[1].uuid, 1, MIGS[1].access_minors)


def test_a_divided_gpu_is_not_prepared_as_a_whole() -> None:
    plan = plan_claim(claim_of("c", {"results": [result(gpu_device_name(MIGS[0].parent_uuid))]}), MIG_POOL)
    assert isinstance(plan, Refusal)
    assert "is divided into MIG devices, so it cannot be used as a whole" in str(plan)


def test_a_mig_device_that_is_gone_is_refused() -> None:
    plan = plan_claim(mig_claim(1), replace(MIG_POOL, mig_devices={}))
    assert isinstance(plan, Refusal)
    assert f"this node has no device {MIGS[1].device_name} (it has 2 devices)" in str(plan)


def test_a_device_keeps_what_tells_it_to_people_and_monitoring() -> None:
    plan = plan_claim(mig_claim(1), MIG_POOL)
    assert isinstance(plan, PreparedClaim)
    (device,) = plan.devices
    parent = next(gpu for gpu in divided_machine().gpus if gpu.uuid == MIGS[1].parent_uuid)
    told = (device.parent_uuid, device.index, device.gpu_instance_id, device.pci_bus_id)
    assert told == (parent.uuid, parent.index, MIGS[1].gpu_instance_id, parent.pci_bus_id)
    whole = planned(make_claim(devices=(5,))).devices[0]
    assert (whole.parent_uuid, whole.index, whole.gpu_instance_id) == (None, 5, None)


PARENT = "00000000-0000-0000-0000-00000000000a"


def parts(claim: str, *names: str, **device: Any) -> PreparedClaim:
    """A prepared claim with devices of these names and nothing else known: as a broken checkpoint leaves it."""
    one = prepared_claim(claim, (0,), **device)
    return replace(one, devices=tuple(replace(one.devices[0], device=DeviceName(name)) for name in names))


def test_a_whole_gpu_and_its_parts_hold_each_other_and_parts_do_not() -> None:
    whole, first, second = f"gpu-{PARENT}", f"mig-{PARENT}-1g-5gb-0", f"mig-{PARENT}-1g-5gb-1"
    for mine, theirs in ((whole, first), (first, whole), (first, first)):
        ((device, other, holder),) = holders(parts("mine", mine), [parts("other", theirs)])
        assert (device.device, other.device, holder.claim.name) == (mine, theirs, "other")
    assert holders(parts("mine", first), [parts("other", second)]) == ()
    assert holders(parts("mine", first), [parts("other", f"gpu-{PARENT[:-1]}b")]) == ()
    assert holders(parts("mine", whole, admin_access=True), [parts("other", first)]) == ()


NAMES = st.sampled_from(
    [
        f"{kind}-{PARENT[:-1]}{gpu}{tail}"
        for gpu in "abc"
        for kind, tail in [("gpu", ""), ("mig", "-1g-5gb-0"), ("mig", "-1g-5gb-1")]
    ]
)


@settings(derandomize=True)
@given(st.lists(st.sets(NAMES, min_size=1, max_size=3), max_size=4), st.sets(NAMES, min_size=1, max_size=3))
def test_no_two_claims_ever_have_a_slice_of_a_gpu_in_common(others: list[set[str]], mine: set[str]) -> None:
    def slices(name: str) -> set[str]:
        gpu = name[4:40]
        return {f"{gpu}/0", f"{gpu}/1"} if name.startswith("gpu") else {f"{gpu}/{name[-1]}"}

    taken = set().union(*(slices(name) for other in others for name in other))
    held = holders(parts("mine", *sorted(mine)), [parts(f"o{n}", *sorted(o)) for n, o in enumerate(others)])
    assert {d.device for d, _, _ in held} == {name for name in mine if slices(name) & taken}


# shares


def share_plan(
    memory: str = "10Gi", cores: int = 0, *config: dict[str, Any], pool: PublishedPool | None = None, **fields: Any
) -> PreparedClaim | Refusal:
    share = result(device_name(0), **{**share_of(memory, cores), **fields})
    return plan_claim(claim_of("c", {"results": [share], "config": list(config)}), pool or make_pool())


def test_a_share_is_what_the_allocation_says_it_consumes() -> None:
    plan = share_plan("10Gi", 30, BEST_EFFORT)
    assert isinstance(plan, PreparedClaim)
    (device,) = plan.devices
    assert (device.share_id, device.memory_bytes, device.cores, device.minor) == ("share", 10 << 30, 30, 0)
    assert plan.wants == ()


@pytest.mark.parametrize(
    ("memory", "cores", "what"),
    [
        ("10Gi", 0, ["10Gi of memory"]),
        ("10Gi", 30, ["10Gi of memory", "30 % of the cores"]),
        ("80Gi", 1, ["1 % of the cores"]),
        ("81919Mi", 0, ["81919Mi of memory"]),
    ],
)
@pytest.mark.parametrize("config", [(), (sharing_config(enforcement="Required"),)])
def test_a_share_that_nothing_enforces_is_refused_unless_its_config_allows_that(
    memory: str, cores: int, what: list[str], config: tuple[dict[str, Any], ...]
) -> None:
    plan = share_plan(memory, cores, *config)
    told, _, way_out = str(plan).removeprefix("request gpus: ").rpartition("; ")
    assert way_out == "with GpuConfig `sharing.enforcement: BestEffort` it is prepared without"
    begin = "nothing on this node enforces "
    assert [each.partition(":")[0] for each in told.split("; ")] == [f"{begin}{w} of {device_name(0)}" for w in what]
    assert told.endswith("strategy MPS alone does")
    assert isinstance(share_plan(memory, cores, BEST_EFFORT), PreparedClaim)


def test_a_share_of_everything_is_the_whole_gpu_and_needs_no_enforcing() -> None:
    assert isinstance(share_plan("80Gi"), PreparedClaim)
    assert isinstance(share_plan("80Gi", 100), PreparedClaim)
    assert isinstance(share_plan("80Gi", 99), Refusal)
    odd = make_pool()
    odd = replace(odd, gpus={name: replace(gpu, memory_bytes=(80 << 30) + 5) for name, gpu in odd.gpus.items()})
    assert isinstance(share_plan("80Gi", pool=odd), PreparedClaim)


@pytest.mark.parametrize("strategy", ["MPS", "TimeSlicing"])
@pytest.mark.parametrize("allocated", [share_of("10Gi"), share_of("80Gi"), {}])
def test_a_strategy_that_is_not_to_be_had_is_refused_by_name(strategy: str, allocated: dict[str, Any]) -> None:
    required = {"results": [result(device_name(0), **allocated)], "config": [sharing_config(strategy=strategy)]}
    text = refused(claim_of("c", required))
    assert f"request gpus: GpuConfig requires sharing strategy {strategy} for {device_name(0)}" in text
    assert ("was not shared when the claim got it" in text) is (allocated == {})
    allowed = sharing_config(strategy=strategy, enforcement="BestEffort")
    planned(claim_of("c", {**required, "config": [allowed]}))


def test_a_strategy_for_a_mig_device_is_refused_by_name() -> None:
    allocated = {"results": [result(MIGS[1].device_name)], "config": [sharing_config(strategy="MPS")]}
    plan = plan_claim(claim_of("c", allocated), MIG_POOL)
    assert f"requires sharing strategy MPS, which MIG device {MIGS[1].device_name} does not offer" in str(plan)


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        ([sharing_config(requests=["gpus"], enforcement="BestEffort")], True),
        ([sharing_config(requests=["gpus/small"], enforcement="BestEffort")], True),
        ([sharing_config(requests=["other"], enforcement="BestEffort")], False),
        ([sharing_config(requests=["gpus/large"], enforcement="BestEffort")], False),
        ([sharing_config("FromClass", enforcement="BestEffort")], True),
        # Whatever the order in the list, the claim has the last word.
        ([BEST_EFFORT, sharing_config("FromClass", enforcement="Required")], True),
        ([sharing_config(enforcement="Required"), sharing_config("FromClass", enforcement="BestEffort")], False),
        ([BEST_EFFORT, sharing_config(enforcement="Required")], False),
    ],
)
def test_configs_hold_for_their_requests_those_of_classes_first(config: list[dict[str, Any]], allowed: bool) -> None:
    plan = share_plan("10Gi", 0, *config, request="gpus/small")
    assert isinstance(plan, PreparedClaim if allowed else Refusal)


@pytest.mark.parametrize(
    "consumed",
    [
        None, {}, {"memory": "10Gi"}, {"cores": "0"}, {"memory": "much", "cores": "0"}, {"memory": "-1", "cores": "0"},
        {"memory": "1Gi", "cores": "-5"},
    ],
)  # fmt: skip
def test_a_share_that_cannot_be_counted_is_refused(consumed: dict[str, str] | None) -> None:
    fields = {} if consumed is None else {"consumedCapacity": consumed}
    share = {**result(device_name(0)), "shareID": "s", **fields}
    text = refused(claim_of("c", {"results": [share], "config": [BEST_EFFORT]}))
    assert f"does not say what share s consumes of device {device_name(0)}" in text
    assert "expected amounts of memory and cores" in text


def test_names_of_our_capacities_may_have_our_domain_and_amounts_are_rounded_up() -> None:
    consumed = {f"{DRIVER}/memory": "1500m", f"{DRIVER}/cores": "30"}
    plan = share_plan("1Gi", 0, BEST_EFFORT, consumedCapacity=consumed)
    assert isinstance(plan, PreparedClaim)
    assert (plan.devices[0].memory_bytes, plan.devices[0].cores) == (2, 30)


def test_a_share_id_that_is_none_is_refused() -> None:
    assert "shareID '../../etc' of device" in str(share_plan("1Gi", 0, BEST_EFFORT, shareID="../../etc"))


def test_shares_of_a_gpu_of_unknown_memory_are_not_counted_by_guess() -> None:
    pool = make_pool()
    pool = replace(pool, gpus={name: replace(gpu, memory_bytes=None) for name, gpu in pool.gpus.items()})
    plan = share_plan("1Gi", 0, BEST_EFFORT, pool=pool)
    assert "it is not known how much memory GPU" in str(plan)


def test_a_claim_whose_own_shares_are_more_than_the_gpu_is_refused() -> None:
    shares = [result(device_name(0), **share_of("50Gi", share_id=share)) for share in ("a", "b")]
    text = refused(claim_of("c", {"results": shares, "config": [BEST_EFFORT]}))
    assert f"100Gi of the memory of {device_name(0)} do not fit" in text


def test_admin_access_to_a_shared_gpu_is_neither_counted_nor_enforced() -> None:
    plan = share_plan("10Gi", 0, sharing_config(strategy="MPS"), adminAccess=True, consumedCapacity={})
    assert isinstance(plan, PreparedClaim)


def test_admin_access_to_a_mig_device_that_only_its_claim_makes_is_refused() -> None:
    """Whoever looks makes nothing, and of what is there the place does not tell the numbers."""
    machine = divisible_machine(1)
    (gpu,) = machine.gpus
    pool = node_pool(machine, DRIVER, PoolName(NODE), divided=divided_gpus(gpu_list(mig="all"), machine))
    place, whole = places(gpu.uuid, gpu.mig_profiles)[0].device_name, gpu_device_name(gpu.uuid)
    plan = plan_claim(claim_of("c", {"results": [result(place, adminAccess=True)]}), pool)
    assert isinstance(plan, Refusal)
    assert str(plan) == (
        f"request gpus: MIG device {place} is made for the claim that gets it, so admin access to it shows nothing; "
        "admin access to its whole GPU can be asked for"
    )
    for fine in (result(place), result(whole, adminAccess=True)):
        assert isinstance(plan_claim(claim_of("c", {"results": [fine]}), pool), PreparedClaim)
