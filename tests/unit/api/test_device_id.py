from __future__ import annotations

from dracaena.api.device_id import DeviceId, PoolId


def test_devices_of_one_pool_and_name_are_distinguished_by_their_drivers() -> None:
    ours, theirs = DeviceId("gpu.example.com", "node-1", "gpu-0"), DeviceId("nic.example.com", "node-1", "gpu-0")
    assert ours != theirs
    assert ours.pool_id == PoolId("gpu.example.com", "node-1") != theirs.pool_id


def test_they_are_shown_as_in_messages_of_kubernetes() -> None:
    device = DeviceId("gpu.example.com", "node-1", "gpu-0")
    assert str(device) == "gpu.example.com/node-1/gpu-0"
    assert str(device.pool_id) == "gpu.example.com/node-1"


def test_they_sort_by_driver_pool_and_device() -> None:
    ids = [DeviceId(*names) for names in ("bba", "aab", "baa", "aaa")]
    assert ["".join(each) for each in sorted(ids)] == ["aaa", "aab", "baa", "bba"]
