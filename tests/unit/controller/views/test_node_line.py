"""A node in one line counts as the slow view of the same node does."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.gpu_quota import QuotaItem
from dracaena.api.gpu_states import (
    CLOSED,
    FAILED,
    FAILED_HELD,
    FREE,
    FULL,
    NOT_PUBLISHED,
    PARTS,
    TAKEN,
)
from dracaena.api.holders import holders_of
from dracaena.api.mig import MigDevice
from dracaena.api.node_status import node_statuses
from dracaena.api.objects import Node, Taint
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.api.topology_levels import TopologyLevels
from dracaena.controller.views.node_line import NodeLine, Room, node_line, pool_line
from support.allocation import DRIVER, blocks, claim, device_name, holding, machine, node, pool_slice
from support.mig_nodes import mig_slices
from support.mig_tables import A100
from support.shares import holding_share, in_shares

FOUR = machine("four", blocks(2, 2, inside="NV12", outside="SYS"), product_name="NVIDIA T4")
NODE = node("n")


def line(slices: list[ResourceSlice], claims: list[ResourceClaim], seen: Node | None = NODE) -> NodeLine:
    return node_line("n", pool_line(DRIVER, slices, seen), holders_of(DRIVER, claims))


def with_mig_devices() -> ResourceSlice:
    parent = replace(FOUR.gpus[0], mig_enabled=True)
    migs = tuple(
        MigDevice(parent.uuid, f"MIG-{number:08x}-0000-0000-0000-000000000000", number, 0, "1g.10gb", number, 1)
        for number in (0, 1)
    )
    return pool_slice("n", replace(FOUR, gpus=(parent, *FOUR.gpus[1:]), mig_devices=migs))


def test_each_gpu_has_a_sign_by_its_ordinal() -> None:
    claims = [
        holding(claim("a"), "n", device_name(FOUR, 1)),
        holding_share("b", "n", device_name(FOUR, 3), {"memory": "20Gi", "cores": "30"}, mode="MPS"),
        holding_share("c", "n", device_name(FOUR, 2), {"memory": "80Gi", "cores": "0"}),
    ]
    found = line([in_shares(pool_slice("n", FOUR))], claims)
    assert found.cells == FREE + TAKEN + TAKEN + PARTS
    assert found.product == "NVIDIA T4"
    assert found.held == ((), ("default",), ("default",), ("default",))
    assert found.holds == {
        "default": {
            QuotaItem("gpus"): 2,
            QuotaItem("gpusByProduct", "NVIDIA T4"): 2,
            QuotaItem("shareMemory"): 20 << 30,
            QuotaItem("shareCores"): 30,
        }
    }
    assert found.share_gib == Room(60, 80)


def test_a_gpu_whose_memory_is_given_out_in_shares_is_full() -> None:
    halves = [
        holding_share(name, "n", device_name(FOUR, 0), {"memory": "40Gi", "cores": "30"}, mode="MPS") for name in "ab"
    ]
    found = line([in_shares(pool_slice("n", FOUR))], halves)
    assert found.cells == FULL + FREE * 3
    assert found.share_gib == Room(0, 80)


def test_a_gpu_that_failed_is_told_from_one_that_an_admin_closed_and_from_one_that_only_informs() -> None:
    def tainted(key: str, effect: str, value: str = "79") -> ResourceSlice:
        return pool_slice("n", FOUR, foreign={1: [Taint(key=key, value=value, effect=effect)]})

    held = [holding(claim("a"), "n", device_name(FOUR, 1))]
    failed = line([tainted(f"{DRIVER}/xid", "NoSchedule")], [])
    assert (failed.cells, failed.sick, failed.told) == (FREE + FAILED + FREE * 2, {1: "xid=79"}, {})
    assert line([tainted(f"{DRIVER}/xid", "NoExecute")], held).cells == FREE + FAILED_HELD + FREE * 2
    informs = line([tainted(f"{DRIVER}/xid", "None", "13")], [])
    assert (informs.cells, informs.sick, informs.told) == (FREE * 4, {}, {1: "xid=13"})
    lost = line([tainted(f"{DRIVER}/gpu-lost", "NoSchedule", "")], [])
    assert lost.sick == {1: "gpu-lost"}
    assert line([tainted("examined", "NoSchedule")], []).cells == FREE + CLOSED + FREE * 2
    assert line([pool_slice("n", FOUR)], held, node("n", unschedulable=True)).cells == CLOSED + TAKEN + CLOSED * 2
    assert line([pool_slice("n", FOUR)], [], node("n", unschedulable=True)).closed


def test_a_gpu_that_an_admin_divided_is_one_gpu_in_a_place_that_no_other_has() -> None:
    whole = with_mig_devices()
    parent = device_name(FOUR, 0)
    devices = [device for device in whole.spec.devices if device.name != parent]
    only = msgspec.structs.replace(whole, spec=msgspec.structs.replace(whole.spec, devices=devices))
    assert line([only], []).cells == PARTS + FREE * 3, "as the plugin publishes it"
    free = line([with_mig_devices()], [])
    assert (free.cells, free.mig_slices) == (PARTS + FREE * 3, Room(2, 2))
    names = sorted(device.name for device in with_mig_devices().spec.devices if "-1g-" in device.name)
    assert len(names) == 2
    one, two = (holding(claim(name), "n", name) for name in names)
    assert line([with_mig_devices()], [one]).cells == PARTS + FREE * 3
    both = line([with_mig_devices()], [one, two])
    assert (both.cells, both.mig_slices, both.holds) == (
        FULL + FREE * 3,
        Room(0, 2),
        {"default": {QuotaItem("migSlices"): 2, QuotaItem("migDevicesByProfile", "1g.10gb"): 2}},
    )


def test_the_rack_is_the_path_of_what_the_node_says() -> None:
    levels = TopologyLevels(("example.com/hall", "example.com/block", "rack"))
    labelled = node("n", labels={"example.com/hall": "h1", "rack": "r7"})
    found = node_line("n", pool_line(DRIVER, [pool_slice("n", FOUR)], labelled, levels), {})
    assert (found.levels, found.rack) == ((("hall", "h1"), ("rack", "r7")), "h1/r7")
    assert line([pool_slice("n", FOUR)], []).rack == ""


def test_a_gpu_that_is_cut_counts_by_its_parts() -> None:
    made = machine("pair", blocks(2, inside="NV12", outside="SYS"), product_name="H100")
    slices = list(mig_slices("n", made, [A100, A100]))
    parts = sorted(device.name for page in slices for device in page.spec.devices if "-1g-" in device.name)
    of_one = [name for name in parts if name.startswith(parts[0].rpartition("-1g-")[0])]
    assert line(slices, []).cells == FREE * 2
    claims = [holding(claim(f"c{number}"), "n", name) for number, name in enumerate(of_one[:2])]
    found = line(slices, claims)
    assert sorted(found.cells) == sorted(FREE + PARTS)
    assert found.mig_slices == Room(5, 7)
    assert found.holds == {"default": {QuotaItem("migSlices"): 2, QuotaItem("migDevicesByProfile", "1g.10gb"): 2}}


def test_a_gpu_that_is_not_published_keeps_its_place() -> None:
    whole = pool_slice("n", FOUR)
    devices = [device for device in whole.spec.devices if device.name != device_name(FOUR, 1)]
    part = msgspec.structs.replace(whole, spec=msgspec.structs.replace(whole.spec, devices=devices))
    assert line([part], []).cells == FREE + NOT_PUBLISHED + FREE + FREE


def test_open_gpus_are_counted_by_nvlink_group_and_only_where_a_pod_could_get_them() -> None:
    whole = pool_slice("n", FOUR)
    taken = [holding(claim("a"), "n", device_name(FOUR, 0))]
    sick = pool_slice("n", FOUR, foreign={2: [Taint(key="sick", value="", effect="NoSchedule")]})
    told = pool_slice("n", FOUR, foreign={2: [Taint(key="xid", value="13", effect="None")]})
    assert line([whole], []).open_gpus == (2, 2)
    assert line([told], []).open_gpus == (2, 2), "the controller gives a GPU whose taint only informs"
    assert (line([told], []).cells, line([sick], []).cells) == (FREE * 4, FREE * 2 + CLOSED + FREE)
    assert line([whole], taken).open_gpus == (2, 1)
    assert line([sick], taken).open_gpus == (1, 1)
    assert line([whole], taken, node("n", unschedulable=True)).open_gpus == ()
    assert line([whole], taken, None).open_gpus == ()
    assert line([pool_slice("n", FOUR, taints=())], []).open_gpus == (), "kube-scheduler gives these"


def test_gpus_without_nvlinks_are_groups_of_one() -> None:
    lonely = machine("lonely", blocks(2, 2, inside="PIX", outside="SYS"))
    assert line([pool_slice("n", lonely)], []).open_gpus == (1, 1, 1, 1)


def with_random_taints(data: st.DataObject, page: ResourceSlice) -> ResourceSlice:
    """The slice with taints on some of its devices."""
    effects = data.draw(st.lists(st.sampled_from(["NoSchedule", "NoExecute", "None"]), max_size=3))
    devices = list(page.spec.devices)
    for place, effect in enumerate(effects[: len(devices)]):
        taints = [*devices[place].taints, Taint(key="xid", value="13", effect=effect)]
        devices[place] = msgspec.structs.replace(devices[place], taints=taints)
    return msgspec.structs.replace(page, spec=msgspec.structs.replace(page.spec, devices=devices))


@given(st.data())
def test_it_counts_as_the_slow_view_does(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(("whole", "shares", "migs", "parts")))
    if kind == "parts":
        made = machine("pairs", blocks(2, inside="NV12", outside="SYS"), product_name="H100")
        slices = list(mig_slices("n", made, [A100, A100]))
    else:
        slices = [
            {"whole": pool_slice("n", FOUR), "shares": in_shares(pool_slice("n", FOUR))}.get(kind, with_mig_devices())
        ]
    names = sorted(device.name for page in slices for device in page.spec.devices)
    held = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=5))
    claims = [
        holding_share(f"c{place}", "n", name, {"memory": data.draw(st.sampled_from(("20Gi", "80Gi"))), "cores": "10"})
        if kind == "shares"
        else holding(claim(f"c{place}"), "n", name)
        for place, name in enumerate(held)
    ]
    slices = [with_random_taints(data, page) for page in slices]
    seen = data.draw(st.sampled_from([node("n"), node("n"), node("n"), node("n", unschedulable=True)]))
    found = line(slices, claims, seen)
    (slow,) = node_statuses(DRIVER, [seen], slices, claims)
    assert found.cells == "".join(gpu.sign for gpu in slow.states)
    assert (found.product, found.remarks) == (slow.product, slow.remarks)
