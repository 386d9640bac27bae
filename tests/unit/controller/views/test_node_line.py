"""A node in one line counts as the slow view of the same node does."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.mig import MigDevice
from dracaena.api.node_status import holders_of, node_statuses
from dracaena.api.objects import Node, Taint
from dracaena.api.resource_objects import ResourceClaim, ResourceSlice
from dracaena.controller.views.node_line import (
    FREE,
    NOT_PUBLISHED,
    SHARED,
    TAKEN,
    UNAVAILABLE,
    NodeLine,
    node_line,
    pool_line,
)
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
    assert found.cells == FREE + TAKEN + TAKEN + SHARED
    assert (found.free, found.devices, found.product) == (1, 4, "NVIDIA T4")


def test_a_gpu_that_is_cut_counts_by_its_parts() -> None:
    made = machine("pair", blocks(2, inside="NV12", outside="SYS"), product_name="H100")
    slices = list(mig_slices("n", made, [A100, A100]))
    parts = sorted(device.name for page in slices for device in page.spec.devices if "-1g-" in device.name)
    of_one = [name for name in parts if name.startswith(parts[0].rpartition("-1g-")[0])]
    assert (line(slices, []).free, line(slices, []).devices) == (2, 2)
    claims = [holding(claim(f"c{number}"), "n", name) for number, name in enumerate(of_one[:2])]
    found = line(slices, claims)
    assert (found.free, found.devices) == (1, 3), "two parts that are taken, and the other GPU"
    assert sorted(found.cells) == sorted(FREE + SHARED)


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
    assert (line([told], []).cells, line([sick], []).cells) == (FREE * 4, FREE * 2 + UNAVAILABLE + FREE)
    assert (line([told], []).free, line([sick], []).free) == (4, 3)
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
    assert (found.free, found.devices) == (slow.free, len(slow.devices))
    assert (found.product, found.remarks) == (slow.product, slow.remarks)
    assert found.cells.count(NOT_PUBLISHED) == len(slow.machine.gpus) - len(slow.gpus)
    assert found.cells.count(SHARED) == sum(bool(gpu.shares) for gpu in slow.gpus.values()) + len(
        {mig.parent_uuid for mig in slow.migs if mig.start is not None}
    )
