"""Which vGPUs may be given, against the rule in plain words over random facts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.vm.passthrough import IommuGroup
from dracaena.kubelet_plugin.discovery.vm.vgpus import (
    VgpuBus,
    VgpuFacts,
    VgpuTypeFacts,
    creatable_types,
    existing_vgpus,
    gpus_with_numbered_types,
)

GPUS = (PciAddress(0, 0x18, 0, 0), PciAddress(0, 0x41, 0, 0), PciAddress(0x10000, 0x41, 0, 0))
MDEVS = tuple(f"aa618089-8b16-4d01-a136-25a0f3c7312{n}" for n in range(3))
FUNCTIONS = tuple(f"0000:41:04.{n}" for n in range(3))
MIB = 1 << 20


def mdev(**changes: object) -> VgpuFacts:
    facts: dict[str, object] = {
        "identity": MDEVS[0],
        "parent": GPUS[0],
        "type_id": "nvidia-231",
        "type_name": "GRID T4-2Q",
        "description": "num_heads=4, framebuffer=2048M, max_instance=8",
        "driver": "nvidia-vgpu-vfio",
        "iommu_group": 1,
    }
    return VgpuFacts(**{**facts, **changes})  # type: ignore[arg-type]


def function(**changes: object) -> VgpuFacts:
    facts: dict[str, object] = {
        "identity": FUNCTIONS[0], "parent": GPUS[1], "type_id": "1414", "driver": "nvidia", "iommu_group": 2,
    }  # fmt: skip
    return VgpuFacts(**{**facts, **changes})  # type: ignore[arg-type]


def bus_of(*vgpus: VgpuFacts, types: dict[PciAddress, dict[str, VgpuTypeFacts]] | None = None) -> VgpuBus:
    members: dict[int, set[str]] = {}
    for one in vgpus:
        if one.iommu_group is not None:
            members.setdefault(one.iommu_group, set()).add(one.identity)
    return VgpuBus(vgpus, {number: IommuGroup(tuple(sorted(names))) for number, names in members.items()}, types or {})


def test_the_size_is_what_the_description_says_else_what_the_name_of_a_time_sliced_type_says() -> None:
    for description, size in [
        ("num_heads=4, framebuffer=2047M, max_instance=8", 2047),
        ("framebuffer=1M", 1),
        ("framebuffer=0M", 2048),
        ("framebuffer=2048", 2048),
        ("xframebuffer=7M", 2048),
        ("framebuffer=999999999M", 2048),
        (None, 2048),
    ]:
        (found,) = existing_vgpus(bus_of(mdev(description=description))).vgpus
        assert found.framebuffer_bytes == size * MIB, description


def test_what_the_driver_tells_of_a_type_counts_before_the_lists_of_the_kernel() -> None:
    types = {GPUS[1]: {"1414": VgpuTypeFacts("NVIDIA H200X-1-18C")}}
    told = {GPUS[1]: {"1414": VgpuTypeFacts("NVIDIA H200X-1-18C", 18_000 * MIB)}}
    bus = bus_of(function(), types=types)
    assert existing_vgpus(bus).vgpus[0].framebuffer_bytes is None
    assert existing_vgpus(bus, told).vgpus[0].framebuffer_bytes == 18_000 * MIB
    assert gpus_with_numbered_types(bus_of(mdev(), function())) == (GPUS[1],)


def test_the_list_of_what_can_be_made_is_read_line_by_line() -> None:
    text = "ID    : vGPU Name\n1428  : NVIDIA H200X-141C\n 1414 : NVIDIA H200X-1-18C \n0 : none\nx\n"
    assert creatable_types(text) == {"1428": "NVIDIA H200X-141C", "1414": "NVIDIA H200X-1-18C"}


FACTS = st.one_of(
    st.builds(
        mdev,
        identity=st.sampled_from(MDEVS),
        parent=st.sampled_from(GPUS),
        type_name=st.sampled_from(["GRID T4-2Q", "GRID T4-2Q", "NVIDIA A100-1-5C", "T4", ""]),
        driver=st.sampled_from(["nvidia-vgpu-vfio", "vfio_mdev", "vfio-pci", None]),
        iommu_group=st.sampled_from([1, 2, 3, 4, None]),
    ),
    st.builds(
        function,
        identity=st.sampled_from(FUNCTIONS),
        parent=st.sampled_from(GPUS),
        type_id=st.sampled_from(["1414", "1428"]),
        driver=st.sampled_from(["nvidia", "nvidia", "vfio-pci", None]),
        iommu_group=st.sampled_from([1, 2, 3, 4, None]),
    ),
)
KNOWN = {GPUS[1]: {"1414": VgpuTypeFacts("NVIDIA H200X-1-18C")}}


def is_offered(one: VgpuFacts, every: list[VgpuFacts]) -> bool:
    """The rule in plain words: whoever gets its group gets it alone, and it can be opened and has a name."""
    beside = [other for other in every if other.iommu_group == one.iommu_group and other is not one]
    if one.iommu_group is None or beside or one.parent.domain > 0xFFFF:
        return False
    if one.type_name is None:
        return one.driver == "nvidia" and one.parent == GPUS[1] and one.type_id == "1414"
    return one.driver in ("nvidia-vgpu-vfio", "vfio_mdev") and one.type_name in ("GRID T4-2Q", "NVIDIA A100-1-5C")


@given(st.lists(FACTS, max_size=5, unique_by=lambda one: one.identity))
def test_exactly_the_vgpus_that_come_alone_and_have_a_name_are_offered(facts: list[VgpuFacts]) -> None:
    found = existing_vgpus(bus_of(*facts, types=KNOWN))
    wanted = sorted(one.identity for one in facts if is_offered(one, facts))
    assert sorted(one.identity for one in found.vgpus) == wanted
    assert sorted(one.address for one in found.refused) == sorted(
        one.identity for one in facts if one.identity not in wanted
    )
    assert all(one.reason for one in found.refused)
    assert [(one.parent, one.identity) for one in found.vgpus] == sorted(
        (one.parent, one.identity) for one in found.vgpus
    )


def test_two_of_one_name_are_refused_both() -> None:
    found = existing_vgpus(bus_of(mdev(), mdev(parent=GPUS[1], iommu_group=5)))
    assert (found.vgpus, [one.address for one in found.refused]) == ((), [MDEVS[0]])


def test_a_function_whose_address_no_device_name_has_room_for_is_refused() -> None:
    one = function(identity="10000:41:00.4")
    found = existing_vgpus(bus_of(one, types=KNOWN))
    assert not found.vgpus
    assert "more than 16 bits" in found.refused[0].reason
