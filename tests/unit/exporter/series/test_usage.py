from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dracaena.exporter.series.owners import Owner
from dracaena.exporter.series.readings import DeviceUse, GpuProcess, ProcessPlace
from dracaena.exporter.series.usage import ContainerUse, share_out

A, B = Owner("n", "a", "main", "uid-a"), Owner("n", "b", "main", "uid-b")
B2 = Owner("n", "b", "side", "uid-b")
PLACES = {1: ProcessPlace("uid-a"), 2: ProcessPlace("uid-b"), 3: ProcessPlace("uid-x"), 4: ProcessPlace()}


def test_nothing_is_said_where_the_driver_tells_of_no_processes() -> None:
    assert share_out(DeviceUse(), [A], PLACES) is None


def test_who_runs_nothing_uses_nothing() -> None:
    shared = share_out(DeviceUse(processes=(), sm_percent_by_pid={}), [A, B], PLACES)
    assert shared is not None
    assert shared.by_owner == {A: ContainerUse(0, 0, 0.0), B: ContainerUse(0, 0, 0.0)}


def test_several_containers_of_a_pod_are_told_of_the_pod() -> None:
    shared = share_out(DeviceUse(processes=(GpuProcess(2, 10),)), [A, B, B2], PLACES)
    assert shared is not None
    assert shared.by_owner == {A: ContainerUse(), Owner("n", "b", "", "uid-b"): ContainerUse(1, 10)}


def test_memory_that_is_not_told_of_one_process_is_not_told_of_its_container() -> None:
    shared = share_out(DeviceUse(processes=(GpuProcess(1, None), GpuProcess(1, 5))), [A], PLACES)
    assert shared is not None
    assert shared.by_owner[A].memory_bytes is None


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 100), st.integers(0, 120)), max_size=5, unique_by=lambda p: p[0]
    ),
    st.lists(st.sampled_from([A, B, B2]), unique=True),
)
def test_each_process_counts_once(found: list[tuple[int, int, int]], owners: list[Owner]) -> None:
    use = DeviceUse(
        processes=tuple(GpuProcess(pid, memory) for pid, memory, _ in found),
        sm_percent_by_pid={pid: float(sm) for pid, _, sm in found},
    )
    shared = share_out(use, owners, PLACES)
    assert shared is not None
    assert sum(each.processes for each in shared.by_owner.values()) + shared.strangers == len(found)
    uids = {owner.pod_uid for owner in owners}
    mine = [(pid, memory) for pid, memory, _ in found if pid in PLACES and PLACES[pid].pod_uid in uids]
    assert sum(each.memory_bytes or 0 for each in shared.by_owner.values()) == sum(memory for _, memory in mine)
    assert all(0 <= (each.sm_percent or 0) <= 100 for each in shared.by_owner.values())
