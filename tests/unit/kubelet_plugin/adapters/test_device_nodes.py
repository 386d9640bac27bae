"""The control nodes of the driver as they stand below a dev root."""

from __future__ import annotations

from pathlib import Path

import pytest

from dracaena.kubelet_plugin.adapters.device_nodes import DeviceNodesMissingError, read_control_nodes
from dracaena.kubelet_plugin.prepare.cdi import DeviceNode
from support.driver_root import put


def test_nodes_that_exist_are_named_as_containers_and_host_see_them(tmp_path: Path) -> None:
    put(tmp_path, "/dev/nvidiactl")
    put(tmp_path, "/dev/nvidia-uvm")
    put(tmp_path, "/dev/nvidia0")
    assert read_control_nodes(str(tmp_path)) == (
        DeviceNode("/dev/nvidiactl", f"{tmp_path}/dev/nvidiactl"),
        DeviceNode("/dev/nvidia-uvm", f"{tmp_path}/dev/nvidia-uvm"),
    )


def test_gpus_of_a_driver_are_not_given_without_the_node_that_every_call_needs(tmp_path: Path) -> None:
    put(tmp_path, "/dev/nvidia-uvm")
    with pytest.raises(DeviceNodesMissingError, match=f"no /dev/nvidiactl below {tmp_path}: .* set --dev-root"):
        read_control_nodes(str(tmp_path), required=True)
    put(tmp_path, "/dev/nvidiactl")
    assert len(read_control_nodes(str(tmp_path), required=True)) == 2


def test_a_recorded_machine_needs_no_node(tmp_path: Path) -> None:
    assert read_control_nodes(str(tmp_path)) == ()
