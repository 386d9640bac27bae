from __future__ import annotations

from dataclasses import replace

from dracaena.api.mig_geometry import MigPlacement
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance, MadeInstance
from dracaena.kubelet_plugin.prepare.journals.layouts import GpuRecord


def test_an_instance_is_known_by_its_place_its_profile_and_its_number_where_that_is_known() -> None:
    made = MadeInstance("1g.10gb", 3, 1)
    record = GpuRecord().having(made)
    found = GpuInstance(5, "1g.10gb", MigPlacement(3, 1), has_compute=False)
    assert record.candidate(found) is not None
    record = record.having(replace(made, number=5))
    assert record.candidate(found) == MadeInstance("1g.10gb", 3, 1, 5)
    for other in (
        replace(found, number=6), replace(found, profile="1g.10gb+me"), replace(found, placement=MigPlacement(4, 1)),
    ):  # fmt: skip
        assert record.candidate(other) is None
    assert record.without(record.made[0]) == GpuRecord()
    assert record.having(made.as_nothing()) == GpuRecord()
