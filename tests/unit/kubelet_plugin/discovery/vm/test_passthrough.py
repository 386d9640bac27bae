"""Which GPUs may be handed through, against the rule in plain words over random buses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.host.facts.pci import PciAddress
from dracaena.kubelet_plugin.discovery.vm.passthrough import (
    NO_IOMMU,
    HandedThrough,
    IommuGroup,
    PciBus,
    PciFunction,
    RefusedGpu,
    handed_through,
    passthrough_trouble,
)
from support.gpu_lists import gpu_list

GPU = PciFunction(PciAddress(0, 0x18, 0, 0), 0x10DE, 0x2330, 0x0302, "vfio-pci", 7)
AUDIO = PciFunction(PciAddress(0, 0x18, 0, 1), 0x10DE, 0x22BA, 0x0403, "vfio-pci", 7)
BRIDGE = PciFunction(PciAddress(0, 0x17, 0, 0), 0x8086, 0x352A, 0x0604, "pcieport", 7)
NETWORK = PciFunction(PciAddress(0, 0x19, 0, 0), 0x8086, 0x1521, 0x0200, "igb", 7)


def bus_of(*functions: PciFunction, name: str | None = None) -> PciBus:
    groups: dict[int, list[str]] = {}
    for one in functions:
        if one.iommu_group is not None:
            groups.setdefault(one.iommu_group, []).append(str(one.address))
    made = {number: IommuGroup(tuple(sorted(members)), name) for number, members in groups.items()}
    return PciBus({one.address: one for one in functions}, made)


def refusal(*functions: PciFunction, name: str | None = None) -> str:
    found = handed_through(bus_of(*functions, name=name))
    assert found.gpus == ()
    (refused,) = found.refused
    assert refused.address == str(GPU.address)
    return refused.reason


def test_a_gpu_with_its_audio_function_and_a_bridge_can_be_handed_through() -> None:
    (gpu,) = handed_through(bus_of(GPU, AUDIO, BRIDGE)).gpus
    assert (gpu.pci_bus_id, gpu.iommu_group, gpu.driver) == ("0000:18:00.0", 7, "vfio-pci")
    assert (gpu.vendor_id, gpu.device_id, gpu.product_name) == (0x10DE, 0x2330, "NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize("on_demand", [False, True])
def test_a_virtual_function_of_the_same_card_is_not_part_of_its_gpu(*, on_demand: bool) -> None:
    """It may be another virtual machine's."""
    function = dataclasses.replace(AUDIO, pci_class=0x0302, device_id=GPU.device_id, is_virtual=True)
    found = handed_through(bus_of(GPU, function), gpu_list(passthrough="all" if on_demand else ""))
    assert found.gpus == ()
    (refused,) = found.refused
    assert "also holds 0000:18:00.1 (0x10de:0x2330, driver vfio-pci), which is not part of this GPU" in refused.reason


@pytest.mark.parametrize("driver", ["vfio-pci", "vfio_pci", "nvgrace_gpu_vfio_pci"])
def test_variants_of_the_driver_count(driver: str) -> None:
    assert handed_through(bus_of(dataclasses.replace(GPU, driver=driver))).gpus


@pytest.mark.parametrize("driver", ["nvidia", "nouveau", None, "pci-stub", "my-vfio-pci-thing"])
def test_a_gpu_of_another_driver_is_nobodys_business(driver: str | None) -> None:
    assert handed_through(bus_of(dataclasses.replace(GPU, driver=driver))) == HandedThrough()


def test_an_address_that_is_named_and_no_gpu_has_is_refused_by_that_address() -> None:
    bus = bus_of(dataclasses.replace(GPU, driver="nvidia"), AUDIO)
    found = handed_through(bus, gpu_list(passthrough="0000:18:00.0,0000:18:00.1,0000:99:00.0"))
    assert [(gpu.pci_bus_id, gpu.on_demand) for gpu in found.gpus] == [("0000:18:00.0", True)]
    assert [refused.address for refused in found.refused] == ["0000:18:00.1", "0000:99:00.0"]
    assert all("the setting `gpus` selects it" in refused.reason for refused in found.refused)
    assert handed_through(bus, gpu_list(passthrough="all")).refused == ()


def test_a_gpu_that_something_else_has_is_bound_for_no_claim_and_not_refused() -> None:
    bus = bus_of(dataclasses.replace(GPU, driver="nvidia"))
    named = gpu_list(passthrough="0000:18:00.0")
    assert handed_through(bus, named, but={"0000:18:00.0"}) == HandedThrough()


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"has_console": True}, "it drives the display of the machine (boot_vga): use another GPU for that"),
        ({"virtual_functions": 4}, "it has 4 virtual functions: write 0 to its sriov_numvfs first"),
    ],
)
def test_a_gpu_that_the_host_needs_itself_is_not_offered_on_demand_and_the_node_says_why(
    gpu: dict[str, Any], words: str
) -> None:
    """Named by the settings or not: a claim would only get it at prepare, and be refused there."""
    bus = bus_of(dataclasses.replace(GPU, driver="nvidia", **gpu), AUDIO)
    for on_demand in (gpu_list(passthrough="all"), gpu_list(passthrough=str(GPU.address))):
        found = handed_through(bus, on_demand)
        (refused,) = found.refused
        assert (found.gpus, refused.address) == ((), str(GPU.address))
        assert refused.reason.startswith(words)
        assert refused.reason in passthrough_trouble(refused).text
    assert handed_through(bus) == HandedThrough()


def test_a_foreign_device_in_the_group_is_named_with_its_driver() -> None:
    assert "also holds 0000:19:00.0 (0x8086:0x1521, driver igb), which is not part of this GPU" in refusal(GPU, NETWORK)


def test_a_foreign_device_is_refused_whatever_driver_it_has() -> None:
    assert "also holds 0000:19:00.0" in refusal(GPU, dataclasses.replace(NETWORK, driver="vfio-pci"))


def test_two_gpus_in_one_group_are_refused_both() -> None:
    other = dataclasses.replace(GPU, address=PciAddress(0, 0x19, 0, 0))
    found = handed_through(bus_of(GPU, other))
    assert [one.address for one in found.refused] == ["0000:18:00.0", "0000:19:00.0"]
    assert found.gpus == ()


def test_a_function_that_the_host_uses_is_named() -> None:
    words = refusal(GPU, dataclasses.replace(AUDIO, driver="snd_hda_intel"))
    assert "0000:18:00.1 (0x10de:0x22ba, driver snd_hda_intel)" in words
    assert words.endswith("bind that to vfio-pci too")
    assert handed_through(bus_of(GPU, dataclasses.replace(AUDIO, driver=None))).gpus


def test_without_an_iommu_nothing_is_handed_through() -> None:
    assert refusal(dataclasses.replace(GPU, iommu_group=None)).startswith("it is in no IOMMU group: turn the IOMMU on")
    assert "one of VFIO without an IOMMU" in refusal(GPU, name=NO_IOMMU)


def test_a_member_of_which_nothing_is_known_is_refused() -> None:
    bus = PciBus({GPU.address: GPU}, {7: IommuGroup(("0000:18:00.0", "platform-thing"))})
    (refused,) = handed_through(bus).refused
    assert "'platform-thing', of which nothing is known" in refused.reason


def test_a_group_that_does_not_list_its_gpu_is_refused() -> None:
    (refused,) = handed_through(PciBus({GPU.address: GPU}, {7: IommuGroup(())})).refused
    assert "does not list it" in refused.reason


def test_a_domain_that_no_attribute_can_name_is_refused() -> None:
    far = dataclasses.replace(GPU, address=PciAddress(0x10000, 0x18, 0, 0))
    (refused,) = handed_through(bus_of(far)).refused
    assert "more than 16 bits" in refused.reason


def test_what_could_not_be_read_is_refused_beside_the_others() -> None:
    unreadable = RefusedGpu("0000:01:00.0", "says 'zz'")
    found = handed_through(dataclasses.replace(bus_of(GPU), unreadable=(unreadable,)))
    assert (len(found.gpus), found.refused) == (1, (unreadable,))


FUNCTIONS = st.builds(
    PciFunction,
    address=st.builds(PciAddress, st.just(0), st.integers(1, 3), st.just(0), st.integers(0, 1)),
    vendor_id=st.sampled_from([0x10DE, 0x10DE, 0x10DE, 0x8086]),
    device_id=st.sampled_from([0x2330, 0x22BA]),
    pci_class=st.sampled_from([0x0302, 0x0300, 0x0302, 0x0403, 0x0604]),
    driver=st.sampled_from(["vfio-pci", "vfio-pci", "vfio-pci", "nvidia", None]),
    iommu_group=st.sampled_from([1, 1, 1, 2, None]),
    is_virtual=st.sampled_from([False, False, False, True]),
)


def is_safe(gpu: PciFunction, every: list[PciFunction]) -> bool:
    """The rule in plain words: whoever gets the group of this GPU gets this GPU alone."""
    beside = [one for one in every if one.iommu_group == gpu.iommu_group and one.pci_class != 0x0604]
    own = [one for one in beside if (one.address.bus, one.address.device) == (gpu.address.bus, gpu.address.device)]
    used = [one for one in own if one.driver not in ("vfio-pci", None)]
    added = [one for one in own if one.is_virtual]
    return gpu.iommu_group is not None and beside == own and not used and not added


@given(st.lists(FUNCTIONS, max_size=4, unique_by=lambda one: one.address))
def test_exactly_the_gpus_that_come_alone_are_handed_through(functions: list[PciFunction]) -> None:
    found = handed_through(bus_of(*functions))
    asked = sorted(
        (one for one in functions if one.vendor_id == 0x10DE and one.pci_class in (0x0302, 0x0300)
         and not one.is_virtual and one.driver == "vfio-pci"),
        key=lambda one: one.address,
    )  # fmt: skip
    assert [gpu.pci_bus_id for gpu in found.gpus] == [str(one.address) for one in asked if is_safe(one, functions)]
    assert [one.address for one in found.refused] == [str(one.address) for one in asked if not is_safe(one, functions)]
    assert all(one.reason for one in found.refused)
