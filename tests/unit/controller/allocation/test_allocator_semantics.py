"""What the controller makes of claims that ask for more than a number of whole GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from dracaena.api.machine import Machine
from dracaena.api.mig import MigDevice
from dracaena.api.objects import Taint
from dracaena.api.resource_objects import (
    AllocationResult,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimStatus,
    ResourceSlice,
)
from dracaena.controller.allocation.allocator import Allocator, NoFit, Settled
from dracaena.controller.allocation.request import RefusalKind, Refused
from dracaena.controller.allocation.result import Allocation, allocated_claim, allocation_document, commit
from dracaena.controller.allocation.state.inventory import Inventory
from support.allocation import (
    DRIVER,
    blocks,
    claim,
    device_class,
    device_name,
    give_back,
    holding,
    machine,
    node,
    own_config,
    pod,
    policy,
    pool_slice,
    request,
)
from support.bare_cluster import abandon, bare_cluster
from support.bare_cluster import decide as decide_watched
from support.inventories import filled

NIC_DRIVER = "nic.example.com"
SEVEN = machine("seven", blocks(3, 4, inside="PIX", outside="PHB", numa=True), pcie_generation=4, pcie_width=16)
PAIR = machine("pair", blocks(2, inside="PIX", outside="PIX"), pcie_generation=4)


def cel(*expressions: str) -> list[dict[str, Any]]:
    return [{"cel": {"expression": expression}} for expression in expressions]


CLASSES = (
    device_class(selectors=cel(f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "gpu"')),
    device_class("mig", selectors=cel(f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "mig"')),
    device_class("nic", selectors=cel(f'device.driver == "{NIC_DRIVER}"')),
    device_class("faulty", selectors=cel(f'device.attributes["{DRIVER}"].missing == 1')),
    device_class("linked", policy("PIX"), selectors=cel(f'device.driver == "{DRIVER}"')),
)


def cluster(
    slices: Sequence[ResourceSlice],
    claims: Sequence[ResourceClaim] = (),
    names: Sequence[str] = ("n",),
    allowed_drivers: Sequence[str] = (),
    **beside: Any,
) -> Inventory:
    nodes = [node(name) for name in names]
    empty = Inventory(DRIVER, allowed_drivers)
    made = filled(empty, nodes=nodes, slices=slices, claims=claims, classes=CLASSES, **beside)
    made.check()
    return made


def constrained(made: ResourceClaim, *constraints: dict[str, Any]) -> ResourceClaim:
    made.spec["devices"]["constraints"] = list(constraints)
    return made


def decide(inventory: Inventory, *claims: ResourceClaim, allocator: Allocator | None = None) -> Any:
    names = (asked.metadata.name for asked in claims)
    return (allocator or Allocator()).allocate(inventory, pod("p", *names), claims)


def given(decision: Any) -> list[tuple[str, str]]:
    assert isinstance(decision, Allocation), decision
    return [(result.request, result.device) for entry in decision.claims for result in entry.results]


def ordinals(decision: Any) -> list[int]:
    every = [device_name(SEVEN, ordinal) for ordinal in range(7)]
    return [every.index(name) for _, name in given(decision)]


def nic_slice(*names: str, node_name: str = "n", root: str = "pci0") -> ResourceSlice:
    attributes = {"resource.kubernetes.io/pcieRoot": {"string": root}}
    spec = {
        "driver": NIC_DRIVER,
        "pool": {"name": f"nics-{node_name}", "generation": 1, "resourceSliceCount": 1},
        "nodeName": node_name,
        "devices": [{"name": name, "attributes": attributes} for name in names],
    }
    return msgspec.convert({"metadata": {"name": f"nics-{node_name}"}, "spec": spec}, ResourceSlice)


# selectors


def test_a_selector_of_a_request_narrows_the_choice() -> None:
    inventory = cluster([pool_slice("n", SEVEN)])
    selectors = cel('device.attributes["resource.kubernetes.io"].numaNode == 1')
    assert ordinals(decide(inventory, claim("c", request(count=2, selectors=selectors)))) == [3, 4]
    assert isinstance(decide(inventory, claim("c", request(count=5, selectors=selectors))), NoFit)


def test_a_selector_on_an_identity_finds_the_one_device_among_equal_nodes() -> None:
    twin = machine("twin", SEVEN.topology, pcie_generation=4, pcie_width=16)
    inventory = cluster([pool_slice("a", SEVEN), pool_slice("b", twin)], names=("a", "b"))
    assert len(inventory.buckets) == 1
    uuid = twin.gpus[5].uuid
    decision = decide(inventory, claim("c", request(selectors=cel(f'device.attributes["{DRIVER}"].uuid == "{uuid}"'))))
    assert decision.node == "b"
    assert given(decision) == [("gpus", device_name(twin, 5))]


def test_a_selector_without_an_answer_is_a_refusal_that_names_class_expression_and_message() -> None:
    refused = decide(cluster([pool_slice("n", SEVEN)]), claim("c", request(device_class="faulty")))
    assert isinstance(refused, Refused)
    assert refused.kind is RefusalKind.SELECTOR
    assert "DeviceClass faulty" in refused.text
    assert f'device.attributes["{DRIVER}"].missing == 1' in refused.text
    assert "no such key: missing" in refused.text


def test_an_expression_that_does_not_compile_is_a_refusal_that_names_the_request() -> None:
    refused = decide(cluster([pool_slice("n", SEVEN)]), claim("c", request("train", selectors=cel("device."))))
    assert isinstance(refused, Refused)
    assert refused.kind is RefusalKind.SELECTOR
    assert refused.text.startswith("claim default/c, request train: selector 'device.'")


def test_more_selectors_than_are_compiled_for_one_pod_are_a_refusal_before_any_is_compiled() -> None:
    inventory = cluster([pool_slice("n", SEVEN)])
    long = [f"{'true || ' * 1_400}{number} > 0" for number in range(1, 8)]
    twice = (request(name, selectors=cel(*long[:4])) for name in ("r1", "r2"))
    assert not isinstance(decide(inventory, claim("c", *twice)), Refused)  # 45 KB: equal ones count once
    refused = decide(inventory, claim("c", request(selectors=cel(*long, "device."))))
    assert isinstance(refused, Refused)
    assert refused.kind is RefusalKind.SELECTOR
    assert "have 78442 characters in all, and the controller compiles at most 65536 for one pod" in refused.text


# whose claims


def test_a_claim_for_another_drivers_devices_is_left_alone_in_silence() -> None:
    refused = decide(cluster([pool_slice("n", SEVEN)]), claim("c", request(device_class="nic")))
    assert isinstance(refused, Refused)
    assert refused.kind is RefusalKind.OTHER_DRIVER
    assert not refused.concerns_us


def test_next_to_a_claim_for_another_drivers_devices_ours_is_served() -> None:
    inventory = cluster([pool_slice("n", SEVEN)])
    ours, theirs = claim("ours", request(count=2)), claim("theirs", request(device_class="nic"))
    decision = decide(inventory, theirs, ours)
    assert [entry.claim.key for entry in decision.claims] == ["default/ours"]
    commit(inventory, decision)
    written = allocated_claim(decision, decision.claims[0], "2026-01-01T00:00:00Z")
    assert isinstance(decide(inventory, theirs, written), Settled)


def test_one_claim_for_gpus_and_another_drivers_devices_is_refused_until_that_driver_is_allowed() -> None:
    asked = claim("c", request("gpus", 2), request("nic", 1, "nic"))
    slices = [pool_slice("n", SEVEN), nic_slice("nic-0")]
    refused = decide(cluster(slices), asked)
    assert isinstance(refused, Refused)
    assert refused.kind is RefusalKind.OTHER_DRIVER
    assert refused.text == (
        f"claim default/c: request nic: DeviceClass nic matches no device of {DRIVER}, and kube-scheduler allocates "
        "the devices of other drivers: ask for them in a claim of their own"
    )
    decision = decide(cluster(slices, allowed_drivers=[NIC_DRIVER]), asked)
    assert [name for name, _ in given(decision)] == ["gpus", "gpus", "nic"]
    assert given(decision)[2] == ("nic", "nic-0")


def test_gpus_and_a_nic_that_must_agree_are_chosen_together() -> None:
    roots = ["pci0", "pci0", "pci0", "pci1", "pci1", "pci1", "pci1"]
    item = pool_slice("n", SEVEN)
    key = "resource.kubernetes.io/pcieRoot"
    devices = [
        msgspec.convert(
            {**msgspec.to_builtins(one), "attributes": {**msgspec.to_builtins(one.attributes), key: {"string": root}}},
            type(one),
        )
        for one, root in zip(item.spec.devices, roots, strict=True)
    ]
    item = msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))
    asked = constrained(claim("c", request("gpus", 2), request("nic", 1, "nic")), {"matchAttribute": key})
    inventory = cluster([item, nic_slice("nic-0", root="pci1")], allowed_drivers=[NIC_DRIVER])
    decision = decide(inventory, asked)
    every = [device_name(SEVEN, ordinal) for ordinal in range(7)]
    assert [every.index(name) for request_name, name in given(decision) if request_name == "gpus"] == [3, 4]
    commit(inventory, decision)
    inventory.check()
    assert isinstance(decide(inventory, asked), NoFit)
    give_back(inventory, decision)
    assert given(decide(inventory, asked)) == given(decision)


# modes


def test_admin_access_takes_nothing_from_others() -> None:
    holder = holding(claim("h"), "n", *(device_name(SEVEN, ordinal) for ordinal in range(7)))
    inventory = cluster([pool_slice("n", SEVEN)], [holder])
    decision = decide(inventory, claim("c", request("look", allocationMode="All", adminAccess=True)))
    assert len(given(decision)) == 7
    document = allocation_document(decision, decision.claims[0], "2026-01-01T00:00:00Z", decision.claims[0].claim)
    assert all(result["adminAccess"] is True for result in document["devices"]["results"])
    assert decision.devices(decision.claims[0]) == frozenset()
    commit(inventory, decision)
    inventory.check()


def test_mode_all_needs_every_device_free() -> None:
    asked = claim("c", {"name": "r", "exactly": {"deviceClassName": DRIVER, "allocationMode": "All"}})
    assert len(given(decide(cluster([pool_slice("n", SEVEN)]), asked))) == 7
    busy = cluster([pool_slice("n", SEVEN)], [holding(claim("h"), "n", device_name(SEVEN, 6))])
    assert isinstance(decide(busy, asked), NoFit)
    why = Allocator().explain(busy, pod("p", "c"), [asked])
    assert str(why) == "0/1 nodes fit: 1 where claim default/c, request r: 1 in use (n)"


@pytest.mark.parametrize("count", [3, 4])
def test_a_requirement_of_the_policy_holds_for_mode_all_too(count: int) -> None:
    topology = blocks(3, 4, inside="PIX", outside="PHB") if count == 4 else blocks(4, inside="PIX", outside="PIX")
    made = machine("m", topology, pcie_generation=4)
    asked = claim("c", {"name": "r", "exactly": {"deviceClassName": "linked", "allocationMode": "All"}})
    decision = decide(cluster([pool_slice("n", made)]), asked)
    assert isinstance(decision, NoFit if count == 4 else Allocation)


def test_the_first_alternative_that_any_node_can_serve_wins_over_a_better_linked_one() -> None:
    entries = [
        {"name": "eight", "deviceClassName": DRIVER, "count": 8},
        {"name": "five", "deviceClassName": DRIVER, "count": 5},
        {"name": "four", "deviceClassName": DRIVER, "count": 4},
    ]
    configs = [own_config({**policy("PHB")}, "r/five"), own_config(policy("PIX"), "r/four")]
    asked = claim("c", {"name": "r", "firstAvailable": entries}, configs=configs)
    decision = decide(cluster([pool_slice("n", SEVEN)]), asked)
    assert {name for name, _ in given(decision)} == {"r/five"}
    document = allocation_document(decision, decision.claims[0], "2026-01-01T00:00:00Z", decision.claims[0].claim)
    assert [entry.get("requests") for entry in document["devices"]["config"]] == [["r/five"], None]
    assert msgspec.convert(document, AllocationResult).devices.results[0].request == "r/five"


def test_of_more_alternatives_than_can_be_gone_through_the_one_that_a_node_can_serve_is_found() -> None:
    """8 × 8 × 8 ways, of which only the last one is possible on each of two nodes."""
    entries = [{"name": f"s{number}", "deviceClassName": DRIVER, "count": 9 - number} for number in range(8)]
    requests = [{"name": f"r{number}", "firstAvailable": entries} for number in range(3)]
    three = machine("three", blocks(3, inside="PIX", outside="PIX"), pcie_generation=4)
    six = machine("six", blocks(6, inside="PIX", outside="PIX"), pcie_generation=4)
    slices = [pool_slice("a", three), pool_slice("b", six)]
    asked = claim("c", *requests)
    few = decide(cluster(slices[:1], names=("a",)), asked)
    assert isinstance(few, NoFit), "two GPUs is the least that an alternative asks for"
    both = decide(cluster(slices, names=("a", "b")), asked)
    assert both.node == "b"
    assert {name for name, _ in given(both)} == {"r0/s7", "r1/s7", "r2/s7"}
    assert len(given(both)) == 6


def test_ways_that_only_nodes_come_to_are_taken_in_the_order_of_preference() -> None:
    entries = [{"name": f"s{number}", "deviceClassName": DRIVER, "count": 9 - number} for number in range(8)]
    requests = [{"name": f"r{number}", "firstAvailable": entries} for number in range(3)]
    seven = cluster([pool_slice("a", PAIR), pool_slice("b", SEVEN)], names=("a", "b"))
    served = decide(seven, claim("c", *requests))
    assert [name for name, _ in given(served)] == ["r0/s6", "r0/s6", "r0/s6", "r1/s7", "r1/s7", "r2/s7", "r2/s7"]


def test_a_gpu_that_is_named_by_its_uuid_is_given_from_the_node_that_has_it() -> None:
    slices = [pool_slice(name, machine(name, blocks(4, inside="PIX", outside="PIX"))) for name in ("a", "b", "c")]
    inventory = cluster(slices, names=("a", "b", "c"))
    uuid = slices[1].spec.devices[2].attributes["uuid"].string
    by_uuid = cel(f'device.attributes["{DRIVER}"].uuid == "{uuid}"')
    allocator = Allocator()
    found = decide(inventory, claim("c", request(selectors=by_uuid)), allocator=allocator)
    assert (found.node, [name for _, name in given(found)]) == ("b", [slices[1].spec.devices[2].name])
    commit(inventory, found)
    again = pod("q", "d")
    asked = claim("d", request(selectors=by_uuid))
    assert isinstance(allocator.allocate(inventory, again, [asked]), NoFit)
    why = str(allocator.explain(inventory, again, [asked]))
    assert "2 without enough devices that the selectors name by their identity (a, c)" in why
    assert "1 without enough free devices that the selectors name by their identity (b)" in why
    give_back(inventory, found)
    assert decide(inventory, asked, allocator=allocator).node == "b"


def test_a_gpu_that_comes_back_under_another_uuid_is_asked_again() -> None:
    before = pool_slice("a", machine("a", blocks(2, inside="PIX", outside="PIX")))
    after = pool_slice("a", machine("other", blocks(2, inside="PIX", outside="PIX")), generation=2)
    uuid = after.spec.devices[0].attributes["uuid"].string
    assert uuid not in {device.attributes["uuid"].string for device in before.spec.devices}
    inventory = cluster([before], names=("a",))
    allocator = Allocator()
    asked = claim("c", request(selectors=cel(f'device.attributes["{DRIVER}"].uuid == "{uuid}"')))
    assert isinstance(decide(inventory, asked, allocator=allocator), NoFit)
    inventory.change_slice(before, after)
    assert given(decide(inventory, asked, allocator=allocator)) == [("gpus", after.spec.devices[0].name)]


def test_first_fit_takes_the_first_devices_of_the_first_node_and_keeps_the_policy() -> None:
    inventory = cluster([pool_slice("a", SEVEN), pool_slice("b", SEVEN)], names=("a", "b"))
    allocator = Allocator(first_fit=True)
    assert ordinals(decide(inventory, claim("c", request(count=4)), allocator=allocator)) == [0, 1, 2, 3]
    linked = decide(inventory, claim("c", request(count=4, device_class="linked")), allocator=allocator)
    assert (linked.node, ordinals(linked)) == ("a", [3, 4, 5, 6])


# taints


def test_a_taint_rule_keeps_devices_from_claims_until_it_goes() -> None:
    rule = msgspec.convert(
        {
            "metadata": {"name": "repair"},
            "spec": {
                "deviceSelector": {"driver": DRIVER, "device": device_name(SEVEN, 3)},
                "taint": {"key": "repair", "effect": "NoSchedule"},
            },
        },
        DeviceTaintRule,
    )
    inventory = cluster([pool_slice("n", SEVEN)], taint_rules=[rule])
    assert isinstance(decide(inventory, claim("c", request(count=7))), NoFit)
    assert ordinals(decide(inventory, claim("c", request(count=4)))) != [3, 4, 5, 6]
    inventory.remove_taint_rule("repair")
    inventory.check()
    assert ordinals(decide(inventory, claim("c", request(count=4)))) == [3, 4, 5, 6]


def test_untainted_devices_of_ours_are_never_given_whatever_is_asked() -> None:
    inventory = cluster([pool_slice("n", SEVEN, taints=(Taint(key="other", effect="None"),))])
    asked = claim("c", request(count=2, tolerations=[{"operator": "Exists"}]))
    assert isinstance(decide(inventory, constrained(asked, {"distinctAttribute": f"{DRIVER}/uuid"})), NoFit)


# shares


def shared_slice(memory: str = "8") -> ResourceSlice:
    """A node whose first GPU can be shared."""
    item = pool_slice("n", PAIR)
    first, *rest = item.spec.devices
    document = {
        **msgspec.to_builtins(first),
        "allowMultipleAllocations": True,
        "capacity": {"memory": {"value": memory}},
    }
    devices = [msgspec.convert(document, type(first)), *rest]
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


def test_shares_of_a_device_come_with_an_id_and_what_they_take_until_nothing_is_left() -> None:
    allocator = Allocator()
    inventory = cluster([shared_slice()])
    selectors = cel("device.allowMultipleAllocations")
    for number in range(2):
        asked = claim(f"c{number}", request(selectors=selectors, capacity={"requests": {"memory": "4"}}))
        decision = decide(inventory, asked, allocator=allocator)
        document = allocation_document(decision, decision.claims[0], "2026-01-01T00:00:00Z", decision.claims[0].claim)
        (result,) = document["devices"]["results"]
        assert result["consumedCapacity"] == {"memory": "4"}
        assert result["shareID"] == f"00000000-0000-4000-8000-{number:012x}"
        commit(inventory, decision)
        inventory.check()
    asked = claim("c2", request(selectors=selectors, capacity={"requests": {"memory": "4"}}))
    assert isinstance(decide(inventory, asked, allocator=allocator), NoFit)
    give_back(inventory, decision)
    assert isinstance(decide(inventory, asked, allocator=allocator), Allocation)


def test_what_claims_hold_in_the_api_counts_for_shares() -> None:
    result = {"request": "gpus", "driver": DRIVER, "pool": "n", "device": device_name(PAIR, 0)}
    held = {**result, "shareID": "11111111-1111-1111-1111-111111111111", "consumedCapacity": {"memory": "6"}}
    allocation = msgspec.convert({"devices": {"results": [held]}}, AllocationResult)
    holder = msgspec.structs.replace(claim("h"), status=ResourceClaimStatus(allocation=allocation))
    inventory = cluster([shared_slice()], [holder])
    selectors = cel("device.allowMultipleAllocations")
    small, large = (
        claim("c", request(selectors=selectors, capacity={"requests": {"memory": amount}})) for amount in ("2", "4")
    )
    assert isinstance(decide(inventory, small), Allocation)
    assert isinstance(decide(inventory, large), NoFit)
    assert given(decide(inventory, claim("c", request()))) == [("gpus", device_name(PAIR, 1))]


# MIG devices


def mig_machine() -> Machine:
    parent = PAIR.gpus[0].uuid
    parts = tuple(
        MigDevice(parent, f"MIG-{number:08x}-0000-0000-0000-000000000000", number, 0, "1g.10gb", number, 1)
        for number in range(2)
    )
    return dataclasses.replace(PAIR, mig_devices=parts)


def test_mig_devices_are_given_by_their_class_and_never_as_gpus() -> None:
    inventory = cluster([pool_slice("n", mig_machine())])
    names = [part.device_name for part in mig_machine().mig_devices]
    decision = decide(inventory, claim("c", request("part", 2, "mig")))
    assert [name for _, name in given(decision)] == names
    assert not decision.is_scored
    commit(inventory, decision)
    inventory.check()
    assert isinstance(decide(inventory, claim("d", request("part", 1, "mig"))), NoFit)
    give_back(inventory, decision)
    assert isinstance(decide(inventory, claim("d", request("part", 1, "mig"))), Allocation)
    assert isinstance(decide(inventory, claim("e", request(count=3))), NoFit)


# the cluster


def test_the_cluster_passes_selection_and_drivers_on_and_wakes_for_their_slices_and_rules() -> None:
    woken: list[str] = []
    watched = bare_cluster(woken.append, allowed_drivers=[NIC_DRIVER], first_fit=True)
    watched.intake.node_changed(None, node("n"))
    for made in CLASSES:
        watched.intake.class_changed(None, made)
    watched.intake.slice_changed(None, pool_slice("n", SEVEN))
    asked = claim("c", request("gpus", 4), request("nic", 1, "nic"))
    watched.intake.claim_changed(None, asked)
    assert isinstance(decide_watched(watched, pod("p", "c"), asked), NoFit)
    woken.clear()
    watched.intake.slice_changed(None, nic_slice("nic-0"))
    assert woken == ["default/p"]
    decision = decide_watched(watched, pod("p", "c"), asked)
    every = [device_name(SEVEN, ordinal) for ordinal in range(7)]
    assert [name for name, _ in given(decision)] == ["gpus"] * 4 + ["nic"]
    assert [every.index(name) for _, name in given(decision)[:4]] == [0, 1, 2, 3]
    other = claim("d", request("gpus", 1), request("nic", 1, "nic"))
    watched.intake.claim_changed(None, other)
    assert isinstance(decide_watched(watched, pod("q", "d"), other), NoFit)
    abandon(watched, asked)
    assert isinstance(decide_watched(watched, pod("q", "d"), other), Allocation)
    watched.check()


def test_a_decision_by_the_rules_names_the_node_that_it_was_preferred_to() -> None:
    """Selectors on identities are asked node by node."""
    slices = [pool_slice("a", PAIR), pool_slice("b", SEVEN), pool_slice("c", SEVEN)]
    inventory = cluster(slices, names=("a", "b", "c"))
    asked = claim("c", request(count=3, selectors=cel(f'device.attributes["{DRIVER}"].uuid.startsWith("GPU-")')))
    found = decide(inventory, asked)
    assert found.node == "b"
    assert (found.runner_up.pool.node, found.runner_up.lost_by) == ("c", "node_name")
    alone = decide(cluster(slices[:2], names=("a", "b")), asked)
    assert alone.runner_up is None, "no other node has three GPUs"
