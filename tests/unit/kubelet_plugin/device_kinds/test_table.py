from __future__ import annotations

import pytest

from dracaena.api.names import DeviceName, gpu_device_name
from dracaena.api.resourceslice import encode_devices
from dracaena.kubelet_plugin.device_kinds.device_kind import NO_ROLES
from dracaena.kubelet_plugin.device_kinds.mig_place import MigDeviceKind
from dracaena.kubelet_plugin.device_kinds.share import GpuShare
from dracaena.kubelet_plugin.device_kinds.table import PUBLISHED, kind_of
from dracaena.kubelet_plugin.device_kinds.vfio_gpu import VfioGpu
from dracaena.kubelet_plugin.device_kinds.whole_gpu import WholeGpu
from support.machines import divided_machine
from support.passthrough import passthrough_gpu, with_passthrough


def test_the_kinds_together_publish_what_a_machine_has() -> None:
    machine = with_passthrough(divided_machine(), [passthrough_gpu(0), passthrough_gpu(1)])
    published = [device for kind in PUBLISHED for device in kind.publish(machine, NO_ROLES)]
    assert tuple(published) == encode_devices(machine)
    assert len({device.name for device in published}) == len(machine.gpus) + len(machine.mig_devices) + 2


def test_each_published_device_is_of_the_kind_that_publishes_it() -> None:
    machine = with_passthrough(divided_machine(), [passthrough_gpu(0)])
    for kind in PUBLISHED:
        for device in kind.publish(machine, NO_ROLES):
            assert kind_of(DeviceName(device.name)) is kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (gpu_device_name("GPU-1"), WholeGpu),
        ("mig-1-1g-5gb-0", MigDeviceKind),
        ("vfio-0000-18-00-0", VfioGpu),
        ("no-such", WholeGpu),
    ],
)
def test_the_name_tells_the_kind(name: str, kind: type) -> None:
    assert isinstance(kind_of(DeviceName(name)), kind)


def test_a_shared_gpu_is_another_kind_for_who_has_a_share() -> None:
    assert isinstance(kind_of(gpu_device_name("GPU-1"), "share"), GpuShare)
    assert isinstance(kind_of(DeviceName("mig-1-1g-5gb-0"), "share"), MigDeviceKind)
