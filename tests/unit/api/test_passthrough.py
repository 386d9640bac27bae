from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.passthrough import PassthroughGpu, passthrough_device_name, pci_bus_id_in

ADDRESSES = st.builds("{:04x}:{:02x}:{:02x}.{:x}".format, *(st.integers(0, top) for top in (0xFFFF, 0xFF, 0x1F, 7)))


@given(ADDRESSES)
def test_the_name_of_a_device_is_a_dns_label_that_tells_the_address(address: str) -> None:
    name = passthrough_device_name(address)
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name)
    assert pci_bus_id_in(name) == address


@pytest.mark.parametrize(
    "name", ["gpu-0000-18-00-0", "vfio-0000-18-00-8", "vfio-0000-18-00-0-1", "vfio-", "vfio-18-00-0"]
)
def test_other_names_tell_no_address(name: str) -> None:
    assert pci_bus_id_in(name) is None


@pytest.mark.parametrize(
    ("product", "resource"),
    [
        ("NVIDIA H100 80GB HBM3", "nvidia.com/H100_80GB_HBM3"),
        ("Tesla V100-SXM2-16GB", "nvidia.com/Tesla_V100_SXM2_16GB"),
        (None, "nvidia.com/10DE_2330"),
    ],
)
def test_a_product_has_the_name_by_which_virtual_machines_ask_for_it(product: str | None, resource: str) -> None:
    gpu = PassthroughGpu("0000:18:00.0", 0x10DE, 0x2330, 7, "vfio-pci", product_name=product)
    assert gpu.resource == resource
