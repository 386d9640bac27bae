"""What is made of the lists of a cluster, for `dracaena status` and the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from dracaena.api.gpu_states import gpu_sums
from dracaena.api.holders import HIDDEN
from dracaena.api.mig import MigDevice
from dracaena.api.mig_layout import CONDITION, ConditionedNode, ConditionedStatus
from dracaena.api.node_status import PublishedNode, node_document, node_statuses, tree_lines
from dracaena.api.objects import Node, ObjectMeta, PodCondition, Taint
from dracaena.api.resource_objects import (
    Device,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from support.allocation import DRIVER, allocated, blocks, claim, device_name, holding, machine, node, pod, pool_slice
from support.mig_nodes import mig_slices, part_name
from support.mig_tables import A100, MigPart
from support.shares import holding_share, in_shares

XIDS = (("79", "NoSchedule"), ("13", "None"))
FOUR = machine("four", blocks(2, 2, inside="PIX", outside="SYS"), product_name="NVIDIA T4")


def status(
    slices: Iterable[ResourceSlice], claims: Iterable[ResourceClaim] = (), nodes: Iterable[Node] = (node("n"),)
) -> PublishedNode:
    found = node_statuses(DRIVER, nodes, slices, claims)
    assert len(found) == 1
    return found[0]


def counts(found: PublishedNode) -> dict[str, int]:
    return {name: count for name, count in gpu_sums(state.sign for state in found.states).items() if count}


def held_gpu(ordinal: int) -> ResourceClaim:
    return holding(claim("c"), "n", device_name(FOUR, ordinal))


def with_devices(item: ResourceSlice, devices: list[Device]) -> ResourceSlice:
    return msgspec.structs.replace(item, spec=msgspec.structs.replace(item.spec, devices=devices))


def test_devices_of_claims_are_held_with_the_pods_that_use_them() -> None:
    shared = holding(claim("shared"), "n", device_name(FOUR, 1))
    assert shared.status.allocation is not None
    document = msgspec.to_builtins(shared.status.allocation)
    used = allocated(claim("shared"), document, pod("b"), pod("a"))
    lonely = holding(claim("lonely"), "n", device_name(FOUR, 3))
    found = status([pool_slice("n", FOUR)], [used, lonely, holding(claim("other-node"), "m", device_name(FOUR, 0))])
    held = {ordinal: [str(holder) for holder in device.holders] for ordinal, device in found.gpus.items()}
    assert held == {0: [], 1: ["default/shared for a, b"], 2: [], 3: ["default/lonely, no pod"]}
    assert (counts(found), found.product, found.remarks) == ({"gpus": 4, "free": 2, "used": 2}, "NVIDIA T4", ())


def test_who_shares_a_device_is_reported_in_the_same_order_whatever_order_the_claims_come_in() -> None:
    claims = [holding(claim(name), "n", device_name(FOUR, 2)) for name in ("d", "a", "c", "b")]
    found = status([pool_slice("n", FOUR)], claims)
    assert [holder.claim for holder in found.gpus[2].holders] == [f"default/{name}" for name in "abcd"]
    assert found == status([pool_slice("n", FOUR)], reversed(claims))


def test_admin_access_and_devices_of_other_drivers_hold_nothing() -> None:
    base = holding(claim("watcher"), "n", device_name(FOUR, 0))
    assert base.status.allocation is not None
    document = msgspec.to_builtins(base.status.allocation)
    document["devices"]["results"][0]["adminAccess"] = True
    foreign = holding(claim("nic"), "n", device_name(FOUR, 1), driver="nic.example.com")
    found = status([pool_slice("n", FOUR)], [allocated(claim("watcher"), document), foreign])
    assert counts(found) == {"gpus": 4, "free": 4}


def test_of_a_pool_only_the_newest_generation_counts() -> None:
    old = machine("old", blocks(2, inside="PIX", outside="PIX"))
    found = status([pool_slice("n", old, generation=1), pool_slice("n", FOUR, generation=2)])
    assert counts(found)["gpus"] == 4


def test_what_keeps_free_devices_from_being_given_is_said() -> None:
    sick = Taint(key="sick", value="", effect="NoSchedule")
    whole = pool_slice("n", FOUR, foreign={0: [sick], 2: [sick]})
    pool = msgspec.structs.replace(whole.spec.pool, resource_slice_count=2)
    partial = msgspec.structs.replace(whole, spec=msgspec.structs.replace(whole.spec, pool=pool))
    assert status([partial], nodes=[node("n", unschedulable=True)]).remarks == (
        "cordoned",
        "generation 1 has 1 of 2 slices: being updated",
        "taint sick:NoSchedule on 2 of its devices",
    )
    assert status([pool_slice("n", FOUR, taints=())], nodes=()).remarks == (
        "there is no such Node",
        "kube-scheduler allocates here",
    )


def test_a_dead_gpu_is_not_free_and_one_whose_xid_only_informs_is() -> None:
    dead, told = (Taint(key="gpu.dracaena.dev/xid", value=value, effect=effect) for value, effect in XIDS)
    found = status([pool_slice("n", FOUR, foreign={1: [dead], 2: [told], 3: [dead]})], [held_gpu(3)])
    assert counts(found) == {"gpus": 4, "free": 2, "failed": 2}
    assert found.remarks == (
        "taint gpu.dracaena.dev/xid=13:None on 1 of its devices, which keeps no pod off",
        "taint gpu.dracaena.dev/xid=79:NoSchedule on 2 of its devices",
    )
    labels = [f"[{line.partition('[')[2]}" for line in tree_lines(found) if "GPU" in line and "[" in line]
    assert labels == [
        "[free]",
        "[failed: taint gpu.dracaena.dev/xid=79:NoSchedule]",
        "[free; reported: gpu.dracaena.dev/xid=13:None]",
        "[default/c, no pod; failed: taint gpu.dracaena.dev/xid=79:NoSchedule]",
    ]
    document = node_document(found)
    assert document["counts"]["free"] == 2
    keys = ("state", "fault", "reported", "why")
    why = "taint gpu.dracaena.dev/xid=79:NoSchedule"
    assert [tuple(gpu.get(key) for key in keys) for gpu in document["gpus"]] == [
        ("free", None, None, None),
        ("failed", "xid=79", None, why),
        ("free", None, "xid=13", None),
        ("failed", "xid=79", None, why),
    ]
    assert document["gpus"][2]["taints"] == [{"key": "gpu.dracaena.dev/xid", "value": "13", "effect": "None"}]
    assert "taints" not in document["gpus"][0]


def test_a_node_that_gives_nothing_has_no_free_gpus() -> None:
    whole = pool_slice("n", FOUR)
    gone = Taint(key="node.kubernetes.io/unreachable", value="", effect="NoExecute")
    for nodes in ([node("n", unschedulable=True)], [], [node("n", taints=[gone])]):
        assert counts(status([whole], nodes=nodes)) == {"gpus": 4, "closed": 4}
    admins = Taint(key="dedicated", value="gpu", effect="NoSchedule")
    assert counts(status([whole], nodes=[node("n", taints=[admins])]))["free"] == 4, "pods for GPUs tolerate that"


def test_the_taints_of_rules_count_and_are_shown() -> None:
    rule = DeviceTaintRule(
        metadata=ObjectMeta(name="maintenance"),
        spec=DeviceTaintRuleSpec(
            taint=Taint(key="maintenance", value="", effect="NoSchedule"),
            device_selector=DeviceTaintSelector(driver=DRIVER, pool="n", device=device_name(FOUR, 2)),
        ),
    )
    (found,) = node_statuses(DRIVER, [node("n")], [pool_slice("n", FOUR)], [], [rule])
    assert counts(found) == {"gpus": 4, "free": 3, "closed": 1}
    assert found.gpus[2].unavailable == "taint maintenance:NoSchedule"
    assert found.remarks == ("taint maintenance:NoSchedule on 1 of its devices",)


def test_many_different_taints_are_counted_and_not_all_named() -> None:
    taints = [Taint(key=f"t{number}", value="", effect="None") for number in range(12)]
    remarks = status([pool_slice("n", FOUR, foreign={0: taints})]).remarks
    assert len(remarks) == 9
    assert remarks[-1] == "4 more taints on its devices"


def test_a_gpu_that_is_not_published_keeps_its_place() -> None:
    whole = pool_slice("n", FOUR)
    devices = [device for device in whole.spec.devices if device.name != device_name(FOUR, 1)]
    found = status([with_devices(whole, devices)])
    assert sorted(found.gpus) == [0, 2, 3]
    assert counts(found) == {"gpus": 4, "free": 3, "unpublished": 1}
    assert [bool(gpu.uuid) for gpu in found.machine.gpus] == [True, False, True, True]
    assert found.product == "NVIDIA T4"


def test_nodes_are_in_the_order_of_their_names_and_only_those_with_our_devices() -> None:
    found = node_statuses(DRIVER, [node("z"), node("b")], [pool_slice("b", FOUR), pool_slice("a", FOUR)], ())
    assert [each.name for each in found] == ["a", "b"]
    assert node_statuses("other.example.com", (), [pool_slice("a", FOUR)], ()) == ()


def test_mig_devices_are_devices_with_a_profile_in_the_place_of_their_gpu() -> None:
    parent = replace(FOUR.gpus[0], mig_enabled=True)
    migs = tuple(
        MigDevice(parent.uuid, f"MIG-{number:08x}-0000-0000-0000-000000000000", number, 0, "1g.10gb", number, 1)
        for number in (0, 1)
    )
    divided = replace(FOUR, gpus=(parent, *FOUR.gpus[1:]), mig_devices=migs)
    published = [item for item in pool_slice("n", divided).spec.devices if item.name != device_name(FOUR, 0)]
    found = status(
        [with_devices(pool_slice("n", divided), published)], [holding(claim("part"), "n", migs[1].device_name)]
    )
    assert sorted(found.gpus) == [1, 2, 3]
    assert [(mig.profile, [holder.claim for holder in mig.holders]) for mig in found.migs] == [
        ("1g.10gb", []),
        ("1g.10gb", ["default/part"]),
    ]
    assert counts(found) == {"gpus": 4, "free": 3, "partial": 1}
    assert str(found.states[0].parts) == "2 MIG devices, 1 of 2 slices free"


def test_parts_say_their_taints_whoever_has_them() -> None:
    made = machine("pairs", blocks(2, inside="NV12", outside="SYS"), product_name="H100")
    lost, told = (Taint(key="gpu.dracaena.dev/xid", value=value, effect=effect) for value, effect in XIDS)
    pages = mig_slices("a", made, [A100, A100])
    names = [part_name(made, ordinal, MigPart("4g.40gb", 0, 4, 4)) for ordinal in range(2)]
    devices = [
        msgspec.structs.replace(device, taints=[*device.taints, lost if device.name == names[0] else told])
        for device in pages[0].spec.devices
    ]
    claims = [holding(claim(f"c{number}"), "a", name) for number, name in enumerate(names)]
    (found,) = node_statuses(DRIVER, [node("a")], [with_devices(pages[0], devices), *pages[1:]], claims)
    drawn = "\n".join(tree_lines(found))
    assert "4g.40gb at 0  [default/c0, no pod; taint gpu.dracaena.dev/xid=79:NoSchedule]" in drawn
    assert "4g.40gb at 0  [default/c1, no pod; taint gpu.dracaena.dev/xid=13:None]" in drawn


def test_a_mig_layout_is_reported_next_to_the_node_and_nothing_where_there_is_none() -> None:
    condition = PodCondition(type=CONDITION, status="True", reason="Applied", message="MIG layout m: all GPUs have it")
    conditioned = ConditionedNode(metadata=node("n").metadata, status=ConditionedStatus(conditions=(condition,)))
    found = status([pool_slice("n", FOUR)], nodes=[conditioned])
    assert "  MigLayoutApplied: MIG layout m: all GPUs have it" in tree_lines(found)
    assert found.remarks == ()
    assert node_document(found)["migLayout"]["state"] == "Applied"
    plain = status([pool_slice("n", FOUR)])
    assert not any("layout" in line for line in tree_lines(plain))
    assert "migLayout" not in node_document(plain)


def test_a_gpu_in_shares_says_what_they_take_together_and_who_has_them() -> None:
    taken = [("a", {"memory": "20Gi", "cores": "30"}), ("b", {"memory": "10Gi", "cores": "10"})]
    shares = [holding_share(name, "n", device_name(FOUR, 3), consumed, mode="MPS") for name, consumed in taken]
    everything = holding_share("whole", "n", device_name(FOUR, 0), {"memory": "80Gi", "cores": "0"})
    found = status([in_shares(pool_slice("n", FOUR))], [*shares, everything])
    assert counts(found) == {"gpus": 4, "free": 2, "partial": 1, "used": 1}
    lines = "\n".join(tree_lines(found))
    assert "[2 shares by MPS: 30 of 80 GiB, 40 % of the cores; default/a, no pod; default/b, no pod]" in lines
    assert "[default/whole, no pod]" in lines
    document = node_document(found)
    assert document["gpus"][3]["heldBy"][0] == {
        "claim": "default/a",
        "pods": [],
        "consumedCapacity": {"memory": "20Gi", "cores": "30"},
        "sharing": "MPS",
    }
    assert document["gpus"][0]["capacity"] == {"memory": "80Gi", "cores": "100"}


def test_a_gpu_that_is_cut_on_demand_is_drawn_with_its_slices() -> None:
    made = machine("pairs", blocks(2, inside="NV12", outside="SYS"), product_name="H100")
    parts = (MigPart("4g.40gb", 0, 4, 4), MigPart("1g.10gb", 6, 1, 1))
    names = [part_name(made, 1, one) for one in parts]
    claims = [holding(claim(f"c{number}"), "a", name) for number, name in enumerate(names)]
    (found,) = node_statuses(DRIVER, [node("a")], mig_slices("a", made, [A100, A100]), claims)
    assert counts(found) == {"gpus": 2, "free": 1, "partial": 1}, "a GPU that is cut is one GPU"
    drawn = "\n".join(tree_lines(found))
    assert "GPU0  H100  NV12 to GPU1  [free]" in drawn
    assert "GPU1  H100  NV12 to GPU0  [cut into 2 parts, 2 of 7 slices free]" in drawn
    assert f"  {made.gpus[1].uuid}  [4g───────── ·  ·  1g ·]\n    4g.40gb at 0  [default/c0, no pod]" in drawn
    (document,) = [one for one in node_document(found)["migDevices"] if one["profile"] == "1g.10gb"]
    assert (document["start"], document["size"], document["parentUUID"]) == (6, 1, made.gpus[1].uuid)


def test_a_holder_whose_names_are_hidden_is_somebody_in_text_and_document() -> None:
    found = status([pool_slice("n", FOUR)], [holding(claim("secret"), "n", device_name(FOUR, 0))])
    (holder,) = found.gpus[0].holders
    hidden = replace(found.gpus[0], holders=(replace(holder, hidden=True),))
    states = (replace(found.states[0], holders=hidden.holders), *found.states[1:])
    shown = replace(found, gpus={**found.gpus, 0: hidden}, states=states)
    assert f"[{HIDDEN}]" in "\n".join(tree_lines(shown))
    assert node_document(shown)["gpus"][0]["heldBy"] == [{"hidden": True}]
    assert "secret" not in str([*tree_lines(shown), node_document(shown)])
