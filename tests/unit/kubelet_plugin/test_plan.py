from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.config.v1alpha1 import decode_config
from dracaena.api.names import PoolName, gpu_device_name
from dracaena.api.objects import ResourceClaim
from dracaena.kubelet_plugin.allocatable import node_pool
from dracaena.kubelet_plugin.prepare.plan import PreparedClaim, Refusal, holders, plan_claim
from support.machines import divided_machine
from support.plugin import DRIVER, NODE, claim_of, device_name, gpu_uuid, make_claim, make_pool, prepared_claim

MIGS = divided_machine().mig_devices
MIG_POOL = node_pool(divided_machine(), DRIVER, PoolName(NODE))


def planned(claim: ResourceClaim) -> PreparedClaim:
    plan = plan_claim(claim, make_pool(), decode_config)
    assert isinstance(plan, PreparedClaim)
    return plan


def refused(claim: ResourceClaim, **pool: Any) -> str:
    plan = plan_claim(claim, make_pool(**pool), decode_config)
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
    assert [(d.device, h.claim.name) for d, h in held] == [(device_name(1), "other")]


def test_a_claim_does_not_stand_in_its_own_way() -> None:
    assert holders(prepared_claim("mine"), [prepared_claim("mine")]) == ()


def test_admin_access_and_shares_neither_hold_nor_are_held() -> None:
    for free in ({"admin_access": True}, {"share_id": "one"}):
        assert holders(prepared_claim("mine", **free), [prepared_claim("other")]) == ()
        assert holders(prepared_claim("mine"), [prepared_claim("other", **free)]) == ()


@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=4), st.sets(st.integers(0, 5), min_size=1))
def test_holders_are_the_overlaps(others: list[set[int]], mine: set[int]) -> None:
    prepared = [prepared_claim(f"other-{n}", sorted(devices)) for n, devices in enumerate(others)]
    held = holders(prepared_claim("mine", sorted(mine)), prepared)
    assert {d.device for d, _ in held} == {device_name(n) for n in mine if any(n in o for o in others)}
    for device, holder in held:
        assert device.device in {d.device for d in holder.devices}


def mig_claim(number: int, **fields: Any) -> ResourceClaim:
    return claim_of("c", {"results": [result(MIGS[number].device_name, **fields)]})


def test_a_mig_device_is_prepared_with_its_own_uuid_and_its_parents_minor() -> None:
    plan = plan_claim(mig_claim(1), MIG_POOL, decode_config)
    assert isinstance(plan, PreparedClaim)
    (device,) = plan.devices
    assert (device.uuid, device.minor, device.access_minors) == (MIGS[1].uuid, 1, MIGS[1].access_minors)


def test_a_divided_gpu_is_not_prepared_as_a_whole() -> None:
    plan = plan_claim(
        claim_of("c", {"results": [result(gpu_device_name(MIGS[0].parent_uuid))]}), MIG_POOL, decode_config
    )
    assert isinstance(plan, Refusal)
    assert "is divided into MIG devices, so it cannot be used as a whole" in str(plan)


def test_a_mig_device_that_is_gone_is_refused() -> None:
    plan = plan_claim(mig_claim(1), replace(MIG_POOL, mig_devices={}), decode_config)
    assert isinstance(plan, Refusal)
    assert f"this node has no device {MIGS[1].device_name} (it has 2 devices)" in str(plan)
