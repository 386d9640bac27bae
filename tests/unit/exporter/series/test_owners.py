"""Who has what, beside a slow version that looks every name of every device up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.podlist import PodlistEntry
from dracaena.exporter.series.owners import Owner, find_owners
from dracaena.exporter.series.readings import DeviceUse, GpuReading, MigInstance


def gpu(index: int, minor: int | None, *instances: int) -> GpuReading:
    mig = tuple(MigInstance(f"MIG-{index}-{number}", number, "1g.10gb") for number in instances)
    return GpuReading(index, f"GPU-{index}", "", minor, "", DeviceUse(), mig)


GPUS = [gpu(0, 1), gpu(1, 0, 7, 9), gpu(2, None)]
NAMES = {
    "GPU-0": ["GPU-0", "0", "nvidia1"],
    "GPU-1": ["GPU-1", "1", "nvidia0"],
    "GPU-2": ["GPU-2", "2"],
    "MIG-1-7": ["MIG-1-7", "1-7", "nvidia0/gi7"],
    "MIG-1-9": ["MIG-1-9", "1-9", "nvidia0/gi9"],
}
entries = st.builds(
    PodlistEntry,
    name=st.sampled_from(["a", "b"]),
    namespace=st.just("n"),
    container=st.sampled_from(["c", "d"]),
    gpu_list=st.lists(
        st.sampled_from([*(name for names in NAMES.values() for name in names), "GPU-9", "7", ""]), max_size=3
    ).map(tuple),
)


@given(st.lists(entries, max_size=4))
def test_all_that_have_a_device_are_found_by_any_of_its_names(listed: list[PodlistEntry]) -> None:
    owners = find_owners(listed, GPUS)
    for uuid, names in NAMES.items():
        expected = {
            Owner(each.namespace, each.name, each.container) for each in listed if set(names) & set(each.gpu_list)
        }
        assert set(owners.of([uuid])) == expected
    known = {name for names in NAMES.values() for name in names}
    assert set(owners.unknown) == {name for each in listed for name in each.gpu_list} - known


def test_without_devices_all_names_are_unknown() -> None:
    assert find_owners([PodlistEntry("a", "n", "c", ("GPU-0",))], []).unknown == ("GPU-0",)


def test_a_gpu_for_a_virtual_machine_is_none_that_the_driver_should_list() -> None:
    listed = ("0000:18:00.0", "0000:18:00.0-3", "0000:18:00", "GPU-9")
    owners = find_owners([PodlistEntry("a", "n", "c", listed)], GPUS)
    assert owners.unknown == ("0000:18:00", "0000:18:00.0-3", "GPU-9")
