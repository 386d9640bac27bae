from __future__ import annotations

from dataclasses import replace

from dracaena.api.mig_geometry import MigPlacement
from dracaena.kubelet_plugin.discovery.mig.instances import GpuInstance, MadeInstance


def test_an_instance_is_known_by_place_and_profile_and_by_number_and_mig_device_once_these_are_noted() -> None:
    made = MadeInstance("1g.10gb", 3, 1)
    found = GpuInstance(5, "1g.10gb", MigPlacement(3, 1), has_compute=True)
    assert made.is_it(found, "MIG-1")
    numbered = replace(made, number=5)
    assert numbered.is_it(found, None)
    for other in (
        replace(found, number=6), replace(found, profile="1g.10gb+me"), replace(found, placement=MigPlacement(4, 1)),
    ):  # fmt: skip
        assert not numbered.is_it(other, None)
    complete = replace(numbered, uuid="MIG-1")
    assert [complete.is_it(found, uuid) for uuid in ("MIG-1", "MIG-2", None)] == [True, False, False]
    assert not made.as_nothing().is_it(found, None)
