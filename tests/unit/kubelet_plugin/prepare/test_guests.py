"""What pods in virtual machines can be given, by their RuntimeClass."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dracaena.kubelet_plugin.prepare.guests import NO_GUESTS, GuestRuntimes, fitted_to_pods
from support.passthrough import passthrough_gpu
from support.plugin import make_pod, prepared_claim

KATA = GuestRuntimes.parse("kata,kata-*")
VFIO: dict[str, Any] = {"device": passthrough_gpu(0).device_name, "request": "vm", "minor": -1, "iommu_group": 40}


@pytest.mark.parametrize(
    ("text", "name", "runs"),
    [
        ("kata,kata-*", "kata", True),
        ("kata,kata-*", "kata-qemu-nvidia-gpu-snp", True),
        ("kata,kata-*", "katas", False),
        ("kata,kata-*", "nvidia", False),
        ("kata,kata-*", "", False),
        ("contrast-cc*", "contrast-cc-k3s", True),
        ("*", "anything", True),
        ("*", "", False),
        ("", "kata", False),
    ],
)
def test_a_runtime_class_is_known_by_its_name(text: str, name: str, runs: bool) -> None:
    assert GuestRuntimes.parse(text).run(make_pod(runtime_class=name)) is runs


def test_a_pod_of_the_host_changes_nothing() -> None:
    none: dict[str, Any] = {}
    for device in (none, VFIO):  # KubeVirt's launcher is a pod of the host with a GPU for its virtual machine
        plan = prepared_claim(**device)
        assert fitted_to_pods(plan, [make_pod(), make_pod("other", runtime_class="nvidia")], KATA) is plan
    plan = prepared_claim()
    assert fitted_to_pods(plan, [make_pod(runtime_class="kata-qemu")], NO_GUESTS) is plan


def test_a_pod_in_a_virtual_machine_gets_gpus_of_vfio_alone() -> None:
    plan = prepared_claim(**VFIO)
    assert fitted_to_pods(plan, [make_pod(runtime_class="kata-qemu")], KATA) == dataclasses.replace(plan, in_guest=True)


@pytest.mark.parametrize("changes", [{}, {"admin_access": True}, {"share_id": "s"}])
def test_a_gpu_of_the_hosts_driver_is_of_no_use_in_a_virtual_machine(changes: dict[str, Any]) -> None:
    pod = make_pod(runtime_class="kata-qemu")
    refusal = fitted_to_pods(prepared_claim(**changes), [pod], KATA)
    assert isinstance(refusal, str)
    assert refusal.startswith(
        "pod default/pod runs in a virtual machine (RuntimeClass kata-qemu), in which there is no"
    )
    for fits in ("class vfio.<driver name>", "class vgpu.<driver name>"):
        assert fits in refusal


def test_one_claim_is_not_for_a_pod_of_each_kind() -> None:
    pods = [make_pod("a"), make_pod("b", runtime_class="kata")]
    refusal = fitted_to_pods(prepared_claim(**VFIO), pods, KATA)
    assert isinstance(refusal, str)
    assert "pod default/b runs in a virtual machine (RuntimeClass kata) and pod default/a does not" in refusal
