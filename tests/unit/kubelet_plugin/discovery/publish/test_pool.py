"""What is written for a pool (kubelet_plugin/discovery/publish/pool.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.names import NodeName, PoolName
from dracaena.api.objects import ObjectMeta, Taint
from dracaena.api.resource_objects import (
    Counter,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceAttribute,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
)
from dracaena.kubelet_plugin.discovery.publish.pool import (
    Page,
    PoolIdentity,
    PoolWrites,
    page_of,
    plan_pool,
    same_page,
    uncounted,
    untainted,
    with_known_times,
)

POOL = PoolIdentity("gpu.dracaena.dev", PoolName("node-1"), NodeName("node-1"))
TAINT = Taint("gpu.dracaena.dev/controller-allocated", "true", "NoSchedule")


def device(name: str, **fields: Any) -> Device:
    return Device(name, taints=[TAINT], **fields)


def page(*names: str) -> Page:
    return tuple(device(name) for name in names)


def patched(spec: ResourceSliceSpec, patch: Mapping[str, Any]) -> ResourceSliceSpec:
    """A merge patch: what it does not name stays."""
    return msgspec.convert({**msgspec.to_builtins(spec), **patch}, ResourceSliceSpec)


def apply(published: Sequence[ResourceSlice], writes: PoolWrites) -> list[ResourceSlice]:
    """What a server holds after the writes."""
    gone = {s.metadata.name for s in writes.delete}
    updated = {u.published.metadata.name: u.spec for u in writes.update}
    kept = [s for s in published if s.metadata.name not in gone]
    result = [
        ResourceSlice(metadata=s.metadata, spec=patched(s.spec, updated[s.metadata.name]))
        if s.metadata.name in updated
        else s
        for s in kept
    ]
    for creation in writes.create:
        spec = msgspec.convert(creation.spec, ResourceSliceSpec)
        result.append(ResourceSlice(metadata=ObjectMeta(creation.generate_name[:58] + "x7k2p"), spec=spec))
    return result


def published(*pages: Page) -> list[ResourceSlice]:
    return apply([], plan_pool(POOL, pages, []))


def generations(slices: Sequence[ResourceSlice]) -> set[int]:
    return {s.spec.pool.generation for s in slices}


def test_the_first_publication_has_generation_1_and_counts_its_slices() -> None:
    writes = plan_pool(POOL, [page("a"), page("b")], [])
    assert [c.generate_name for c in writes.create] == [
        "00000-gpu.dracaena.dev-node-1-",
        "00001-gpu.dracaena.dev-node-1-",
    ]
    assert [c.spec["pool"] for c in writes.create] == [
        {"name": "node-1", "generation": 1, "resourceSliceCount": 2},
        {"name": "node-1", "generation": 1, "resourceSliceCount": 2},
    ]


def test_equal_pools_cause_no_write() -> None:
    assert not plan_pool(POOL, [page("a"), page("b")], published(page("a"), page("b")))


def test_when_a_taint_was_added_does_not_count_as_a_change() -> None:
    stored = published(page("a"))
    dated = msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:00Z")
    spec = msgspec.structs.replace(stored[0].spec, devices=[Device("a", taints=[dated])])
    assert not plan_pool(POOL, [page("a")], [msgspec.structs.replace(stored[0], spec=spec)])


def test_one_changed_slice_keeps_the_generation_and_the_times_of_its_taints() -> None:
    dated = msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:00Z")
    stored = published((Device("a", taints=[dated]),), page("b"))
    changed = (device("a", attributes={"index": DeviceAttribute(int_value=1)}),)
    writes = plan_pool(POOL, [changed, page("b")], stored)
    assert (writes.generation, [u.index for u in writes.update], writes.create, writes.delete) == (1, [0], (), ())
    assert writes.update[0].spec["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    assert with_known_times(page("b"), stored) == page("b")


def test_a_device_that_moves_to_another_page_keeps_the_times_of_its_taints() -> None:
    dated = msgspec.structs.replace(TAINT, time_added="2026-01-01T00:00:00Z")
    stored = published((Device("a", taints=[dated]), Device("b", taints=[dated])))
    writes = plan_pool(POOL, [page("a"), page("b")], stored)
    assert writes.create[0].spec["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


def test_two_changed_slices_raise_the_generation_of_all() -> None:
    writes = plan_pool(POOL, [page("x"), page("y"), page("c")], published(page("a"), page("b"), page("c")))
    assert writes.generation == 2
    assert [u.index for u in writes.update] == [0, 1, 2]


def test_a_shrink_that_leaves_one_changed_slice_keeps_the_generation() -> None:
    writes = plan_pool(POOL, [page("a")], published(page("a"), page("b")))
    assert (writes.generation, len(writes.update), len(writes.delete)) == (1, 1, 1)


def test_a_deleted_slice_is_made_again_with_a_new_generation() -> None:
    stored = published(page("a"), page("b"))[:1]
    after = apply(stored, plan_pool(POOL, [page("a"), page("b")], stored))
    assert generations(after) == {2}


def test_all_slices_deleted_start_again_at_1() -> None:
    assert plan_pool(POOL, [page("a")], []).generation == 1


def test_no_device_is_one_empty_slice_that_empties_the_old_one() -> None:
    writes = plan_pool(POOL, (), published(page("a")))
    assert writes.update[0].spec["devices"] == []
    assert plan_pool(POOL, (), []).create[0].spec["pool"]["resourceSliceCount"] == 1


def test_older_generations_foreign_names_other_pools_and_doubles_are_deleted() -> None:
    good = published(page("a"))[0]
    spec = good.spec
    pool = spec.pool
    odd = {
        "older": (good.metadata.name + "0", msgspec.structs.replace(pool, generation=0)),
        "foreign": ("mine", pool),
        "other pool": (good.metadata.name + "1", ResourcePool("else", 9, 1)),
        "double": (good.metadata.name + "2", pool),
        "other index": ("00007-gpu.dracaena.dev-node-1-x7k2p", pool),
    }
    stored = [good]
    stored += [
        ResourceSlice(metadata=ObjectMeta(name), spec=msgspec.structs.replace(spec, pool=p)) for name, p in odd.values()
    ]
    writes = plan_pool(POOL, [page("a")], stored)
    assert {s.metadata.name for s in writes.delete} == {name for name, _ in odd.values()}
    assert (writes.update, writes.create) == ((), ())


def test_long_node_names_that_the_server_cuts_are_still_ours() -> None:
    long = PoolIdentity("gpu.dracaena.dev", PoolName("n" * 200), NodeName("n" * 200))
    stored = apply([], plan_pool(long, [page("a"), page("b")], []))
    assert not plan_pool(long, [page("a"), page("b")], stored)


def test_an_incomplete_pool_counts_more_slices_than_there_are() -> None:
    stored = apply([], plan_pool(POOL, [page("a")], [], missing=1))
    assert stored[0].spec.pool.resource_slice_count == 2
    writes = plan_pool(POOL, [page("a")], stored)
    assert (writes.generation, len(writes.update)) == (1, 1)


@pytest.mark.parametrize(("may_land", "beyond"), [(0, 2), (1, 2), (2, 2), (3, 3), (9, 9)])
def test_to_outdate_what_may_still_land_all_is_written_beyond_its_generation(may_land: int, beyond: int) -> None:
    stored = published(page("a"), page("b"))
    assert {one.spec.pool.generation for one in stored} == {1}
    writes = plan_pool(POOL, [page("a"), page("b")], stored, may_land=may_land)
    assert [update.spec["pool"]["generation"] for update in writes.update] == [beyond + 1] * 2
    assert not plan_pool(POOL, [page("a"), page("b")], apply(stored, writes))


def test_missing_taints_are_seen() -> None:
    assert untainted(page("a", "b"), [device("a"), Device("b")]) == ("b",)
    assert untainted((Device("a"),), [Device("a")]) == ()


def test_the_order_of_devices_counts() -> None:
    (stored,) = published(page("b", "a"))
    assert not same_page(page("a", "b"), stored)
    assert same_page(page("b", "a"), stored)


def counters(*names: str) -> Page:
    return tuple(CounterSet(name, {"memory-slice-0": Counter("1")}) for name in names)


def test_a_slice_holds_devices_or_counter_sets_whatever_it_held_before() -> None:
    stored = published(page("a"), counters("x", "y"))
    assert [(len(s.spec.devices), len(s.spec.shared_counters)) for s in stored] == [(1, 0), (0, 2)]
    writes = plan_pool(POOL, [counters("x"), page("a")], stored)
    first, second = (update.spec for update in writes.update)
    assert (first["devices"], len(first["sharedCounters"])) == ([], 1), "a patch must empty what is there"
    assert (len(second["devices"]), second["sharedCounters"]) == (1, [])
    assert [page_of(s) for s in apply(stored, writes)] == [counters("x"), page("a")]


def test_a_counter_that_changes_is_one_write_of_the_same_generation() -> None:
    stored = published(page("a"), counters("x"))
    left = (CounterSet("x", {"memory-slice-0": Counter("0")}),)
    writes = plan_pool(POOL, [page("a"), left], stored)
    assert [update.index for update in writes.update] == [1]
    assert writes.generation == 1


def test_dropped_counters_of_devices_and_of_sets_are_noticed() -> None:
    taking = (device("a", consumes_counters=[CounterConsumption("x", {"memory-slice-0": Counter("1")})]),)
    (whole,), (bare,) = published(taking), published(page("a"))
    assert (uncounted(taking, whole), uncounted(taking, bare), uncounted(page("a"), bare)) == (False, True, False)
    (kept,), (empty,) = published(counters("x")), published(())
    assert (uncounted(counters("x"), kept), uncounted(counters("x"), empty)) == (False, True)


pages = st.lists(
    st.lists(st.sampled_from("abcdef"), max_size=3, unique=True).map(lambda n: page(*n))
    | st.lists(st.sampled_from("xyz"), min_size=1, unique=True).map(lambda n: counters(*n)),
    max_size=4,
)


@settings(derandomize=True)
@given(st.lists(pages, min_size=1, max_size=4), st.data())
def test_any_history_ends_as_wanted_in_one_step(history: list[list[Page]], data: st.DataObject) -> None:
    stored: list[ResourceSlice] = []
    for wanted in history:
        if stored:
            stored.remove(data.draw(st.sampled_from(stored)))  # somebody deletes one
        before = max(generations(stored), default=0)
        writes = plan_pool(POOL, wanted, stored)
        stored = apply(stored, writes)
        assert not plan_pool(POOL, wanted, stored)
        assert generations(stored) == {writes.generation}
        assert writes.generation >= before
        assert {s.spec.pool.resource_slice_count for s in stored} == {max(len(wanted), 1)}
        in_order = sorted(stored, key=lambda s: s.metadata.name)
        assert [page_of(s) for s in in_order] == (list(wanted) or [()])
