from __future__ import annotations

from dataclasses import replace

from dracaena.api.mig_geometry import MigPlacement
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord, MadeInstance
from support.mig_geometries import H100_80GB


def test_an_instance_is_known_by_its_place_its_profile_and_its_number_where_that_is_known() -> None:
    profile = H100_80GB[0]
    record = GpuRecord().making(profile, MigPlacement(3, 1))
    found = GpuInstance(5, "1g.10gb", MigPlacement(3, 1), has_compute=False)
    assert record.candidate(found) is not None
    record = record.identified(5)
    assert record.candidate(found) == MadeInstance("1g.10gb", 3, 1, 5)
    for other in (
        replace(found, number=6), replace(found, profile="1g.10gb+me"), replace(found, placement=MigPlacement(4, 1)),
    ):  # fmt: skip
        assert record.candidate(other) is None
    assert record.without(record.made[0]) == GpuRecord()
