from __future__ import annotations

from dataclasses import replace

from dracaena.api.names import DeviceName
from dracaena.kubelet_plugin.device_kinds.plan import plan_claim
from dracaena.kubelet_plugin.prepare.prepared_claim import PreparedClaim
from dracaena.kubelet_plugin.wiring.vgpu_layout_parts import is_of_address
from support.passthrough import passthrough_gpu
from support.vgpus import mediated, vgpu_claim, vgpu_pool


def test_a_vgpu_is_of_its_gpu_and_one_of_an_unknown_gpu_may_be_of_any() -> None:
    plan = plan_claim(vgpu_claim(vgpus=[mediated(0)]), vgpu_pool(mediated(0)))
    assert isinstance(plan, PreparedClaim)
    (device,) = plan.devices
    gpu, other = DeviceName(passthrough_gpu(0).pci_bus_id), DeviceName(passthrough_gpu(1).pci_bus_id)
    assert (is_of_address(device, gpu), is_of_address(device, other)) == (True, False)
    unknown = replace(device, pci_bus_id=None)
    assert (is_of_address(unknown, gpu), is_of_address(unknown, other)) == (True, True)
    whole = replace(unknown, device=DeviceName("gpu-4711"))
    assert not is_of_address(whole, gpu)
