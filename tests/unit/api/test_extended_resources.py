"""The words for pods that ask for extended resources of GPUs."""

from __future__ import annotations

import pytest

from dracaena.api.extended_resources import advice, gpu_resources, is_extended_gpu_resource, seen

DRIVER = "gpu.dracaena.dev"
LABEL = f"the label {DRIVER}/rewrite=true on the namespace"
MIG_CLASS = f"a ResourceClaim or ResourceClaimTemplate of class mig.{DRIVER}"
SELECTOR = f'device.attributes["{DRIVER}"].profile'
IMPLICIT = "deviceclass.resource.kubernetes.io/"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nvidia.com/gpu", LABEL),
        ("nvidia.com/mig-1g.10gb.me", f'{MIG_CLASS} with the selector {SELECTOR} == "1g.10gb+me", or {LABEL}, if the'),
        ("nvidia.com/mig-1c.2g.20gb", "value rewrite.resourceNames has nvidia.com/mig-1c.2g.20gb: then new pods get"),
        ("nvidia.com/mig-small", f"{MIG_CLASS}, with a selector for the profile"),
        ("nvidia.com/gpu.shared", f"a claim of class share.{DRIVER} with capacity.requests"),
        ("nvidia.com/gpumem", f"class share.{DRIVER} with capacity.requests, where gpumem: 3000 is memory: 3000Mi"),
        ("nvidia.com/gpumem-percentage", "memory: 40Gi"),
        ("nvidia.com/gpucores", 'cores: "30"'),
        ("tencent.com/vcuda-memory", "memory: 4Gi"),
        ("tencent.com/vcuda-core", 'cores: "30"'),
        ("nvidia.com/gpu-other", "for a part of a GPU one with capacity.requests"),
        (f"{IMPLICIT}{DRIVER}", f"a ResourceClaim or ResourceClaimTemplate of class {DRIVER}: "),
        (f"{IMPLICIT}nvlink.{DRIVER}", f"of class nvlink.{DRIVER}: by this name kube-scheduler gives"),
    ],
)
def test_each_resource_of_gpus_has_an_advice_that_helps(name: str, words: str) -> None:
    assert is_extended_gpu_resource(name, DRIVER)
    assert seen(name) == f"asks for the extended resource {name}, for which Dracaena gives no devices"
    assert words in advice(name, DRIVER)
    rewritten = name == "nvidia.com/gpu" or (name.startswith("nvidia.com/mig-") and name != "nvidia.com/mig-small")
    assert (LABEL in advice(name, DRIVER)) is rewritten, "the label makes claims of no other name"


@pytest.mark.parametrize(
    "name",
    ["cpu", "example.com/gpu", "nvidia.com/hostdev", f"{IMPLICIT}net.example.com", f"{IMPLICIT}my{DRIVER}", DRIVER],
)
def test_what_others_serve_is_none_of_ours(name: str) -> None:
    assert not is_extended_gpu_resource(name, DRIVER)


def test_the_class_follows_the_name_of_the_driver() -> None:
    name = f"{IMPLICIT}gpu.example.com"
    assert is_extended_gpu_resource(name, "gpu.example.com")
    assert not is_extended_gpu_resource(name, DRIVER)
    assert "gpu.example.com/rewrite=true" in advice("nvidia.com/gpu", "gpu.example.com")


@pytest.mark.parametrize(
    ("asked", "explained"),
    [
        (["cpu", "nvidia.com/gpu"], ["nvidia.com/gpu"]),
        (["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"], ["nvidia.com/gpucores", "nvidia.com/gpumem"]),
        (["nvidia.com/mig-1g.10gb", "nvidia.com/gpu"], ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]),
    ],
)
def test_who_asks_for_a_part_of_a_gpu_is_not_led_to_a_whole_one(asked: list[str], explained: list[str]) -> None:
    assert gpu_resources(asked, DRIVER) == explained
