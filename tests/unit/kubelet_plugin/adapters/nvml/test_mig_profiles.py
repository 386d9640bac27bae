from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pynvml
import pytest

from dracaena.api.mig import EmptyGpuInstance
from dracaena.api.mig_geometry import MigProfile
from dracaena.host.adapters.nvml.library import NvmlLibrary
from dracaena.kubelet_plugin.adapters.nvml.facts import NvmlReader
from dracaena.kubelet_plugin.discovery.build import build_machine
from support.fake_mig import FakeMigHardware, FakeMigNvml
from support.fake_nvml import NOT_SUPPORTED
from support.mig_geometries import A100_40GB, GEOMETRIES, H100_80GB, RTX_PRO_6000, divisible_machine


@contextmanager
def reader_of(fake: FakeMigNvml, *, mig_profiles: bool = True) -> Iterator[NvmlReader]:
    reader = NvmlReader(NvmlLibrary(lambda: fake), mig_profiles=mig_profiles)
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.parametrize("profiles", GEOMETRIES.values(), ids=GEOMETRIES)
def test_all_profiles_are_read_with_their_places(profiles: tuple[MigProfile, ...]) -> None:
    fake = FakeMigNvml(FakeMigHardware(divisible_machine(2, profiles=profiles)))
    with reader_of(fake) as reader:
        facts = reader.read()
    machine = build_machine(facts, name="m")
    assert [sorted(gpu.mig_profiles, key=str) for gpu in machine.gpus] == [sorted(profiles, key=str)] * 2
    assert [out for out in facts.left_out if "Instance" in out.call] == []


def test_nobody_is_asked_for_them_where_they_are_not_wanted_or_cannot_be() -> None:
    machine = divisible_machine(2)
    fake = FakeMigNvml(FakeMigHardware(machine))
    with reader_of(fake, mig_profiles=False) as reader:
        assert {gpu.mig_profiles for gpu in reader.read().gpus} == {()}
    plain = FakeMigNvml(
        FakeMigHardware(replace(machine, gpus=tuple(replace(g, mig_profiles=()) for g in machine.gpus)))
    )
    with reader_of(plain) as reader:
        assert {gpu.mig_profiles for gpu in reader.read().gpus} == {()}
    assert not any("GpuInstanceProfile" in call for call in (*fake.calls, *plain.calls))


def test_what_a_driver_tells_in_mig_mode_only_is_kept() -> None:
    hardware = FakeMigHardware(divisible_machine(1))
    fake = FakeMigNvml(hardware, places_need_mode=True)
    with reader_of(fake) as reader:
        assert reader.read().gpus[0].mig_profiles == ()
        hardware.gpus[0].mode = True
        known = reader.read().gpus[0].mig_profiles
        hardware.gpus[0].mode = False
        fake.calls.clear()
        assert reader.read().gpus[0].mig_profiles == known
    assert len(known) == len(H100_80GB)
    assert not any("GpuInstanceProfile" in call for call in fake.calls), "what is known is not asked again"


def test_another_driver_is_asked_again_and_one_that_does_not_say_its_version_is_the_same() -> None:
    """Numbers of profiles are the driver's own."""
    fake = FakeMigNvml(FakeMigHardware(divisible_machine(1)))
    (gpu,) = fake.machine.gpus
    fake.machine = replace(fake.machine, driver_version="580.10.01")
    with reader_of(fake) as reader:
        known = reader.read().gpus[0].mig_profiles
        renumbered = tuple(replace(each, profile_id=each.profile_id + 100) for each in gpu.mig_profiles)
        fake.machine = replace(fake.machine, gpus=(replace(gpu, mig_profiles=renumbered),))
        fake.refuse("nvmlSystemGetDriverVersion", pynvml.NVML_ERROR_TIMEOUT)
        assert reader.read().gpus[0].mig_profiles == known
        fake.allow()
        assert reader.read().gpus[0].mig_profiles == known
        reader.close()
        fake.machine = replace(fake.machine, driver_version="590.10.01")
        found = reader.read().gpus[0].mig_profiles
    assert [each.profile_id for each in found] == [each.profile_id + 100 for each in known]


@pytest.mark.parametrize(
    "symbol", ["nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlDeviceGetGpuInstancePossiblePlacements_v2"]
)
def test_a_refusal_that_may_pass_is_remembered_and_asked_again(symbol: str) -> None:
    fake = FakeMigNvml(FakeMigHardware(divisible_machine(1)))
    with reader_of(fake) as reader:
        fake.once[symbol] = pynvml.NVML_ERROR_TIMEOUT
        poorer = reader.read()
        assert [out.reason for out in poorer.left_out if "Instance" in out.call] == ["TIMEOUT"]
        assert len(reader.read().gpus[0].mig_profiles) == len(H100_80GB)


@pytest.mark.parametrize("profiles", [A100_40GB, H100_80GB, RTX_PRO_6000])
def test_a_driver_without_names_gets_those_of_nvidia_smi(profiles: tuple[MigProfile, ...]) -> None:
    fake = FakeMigNvml(FakeMigHardware(divisible_machine(1, profiles=profiles)))
    gib = 96 if profiles is RTX_PRO_6000 else 40 if profiles is A100_40GB else 80
    fake.machine = replace(fake.machine, gpus=tuple(replace(g, memory_bytes=gib << 30) for g in fake.machine.gpus))
    fake.missing.add("nvmlDeviceGetGpuInstanceProfileInfoV")
    with reader_of(fake) as reader:
        found = reader.read().gpus[0].mig_profiles
    assert {profile.name for profile in found} == {profile.name for profile in profiles}


def test_a_driver_that_knows_no_placements_gives_no_profiles() -> None:
    fake = FakeMigNvml(FakeMigHardware(divisible_machine(1)))
    fake.refuse("nvmlDeviceGetGpuInstancePossiblePlacements_v2", NOT_SUPPORTED)
    with reader_of(fake) as reader:
        assert reader.read().gpus[0].mig_profiles == ()


def test_a_gpu_instance_without_a_compute_instance_is_read_while_its_gpu_is_in_mig_mode() -> None:
    hardware = FakeMigHardware(divisible_machine(2))
    hardware.put(1, "1g.10gb", 0)
    hardware.put(1, "3g.40gb", 4, compute=False)
    hardware.put(1, "1g.10gb", 2, compute=False)
    fake = FakeMigNvml(hardware)
    uuid = hardware.machine.gpus[1].uuid
    with reader_of(fake) as reader:
        facts = reader.read()
        assert [each.start for each in facts.mig_devices] == [0]
        assert build_machine(facts, name="m").empty_gpu_instances == (
            EmptyGpuInstance(uuid, 3, "1g.10gb", 2, 1),
            EmptyGpuInstance(uuid, 2, "3g.40gb", 4, 4),
        )
        hardware.gpus[1].instances.clear()
        assert reader.read().empty_gpu_instances == ()
    with reader_of(fake, mig_profiles=False) as reader:
        assert reader.read().empty_gpu_instances == ()


def test_a_gpu_whose_instances_the_driver_does_not_list_now_is_not_read_as_free() -> None:
    hardware = FakeMigHardware(divisible_machine(1))
    hardware.put(0, "3g.40gb", 4, compute=False)
    fake = FakeMigNvml(hardware)
    with reader_of(fake) as reader:
        fake.once["nvmlDeviceGetGpuInstances"] = pynvml.NVML_ERROR_TIMEOUT
        assert [(out.call, out.may_pass) for out in reader.read().left_out if "Instances" in out.call] == [
            ("nvmlDeviceGetGpuInstances", True)
        ]
