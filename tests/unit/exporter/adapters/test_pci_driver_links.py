from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.exporter.adapters.pci_driver_links import PciDriverLinks
from support.fake_pci import FakePciBus


@pytest.mark.parametrize(
    ("driver", "is_vfio"),
    [("vfio-pci", True), ("nvgrace-gpu-vfio-pci", True), ("nvidia", False), ("vfio-pci-not", False), (None, False)],
)
def test_a_gpu_that_vfio_has_is_told_by_its_driver(tmp_path: Path, driver: str | None, *, is_vfio: bool) -> None:
    FakePciBus(tmp_path).add("0000:3b:00.0", 7, driver=driver)
    assert PciDriverLinks(str(tmp_path)).has_vfio("00000000:3B:00.0") == is_vfio


@pytest.mark.parametrize("address", ["", "00000000:99:00.0", "3b:00.0", "00000000:../..", "\0"])
def test_what_is_not_there_or_no_address_has_none(tmp_path: Path, address: str) -> None:
    FakePciBus(tmp_path).add("0000:3b:00.0", 7, driver="vfio-pci")
    assert not PciDriverLinks(str(tmp_path)).has_vfio(address)
