from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.device_kinds.cdi_spec import (
    claim_spec,
    qualified_name,
    spec_file_name,
)
from dracaena.kubelet_plugin.prepare.cdi.device_nodes import ClaimNodes, DrmNode, plain_nodes
from dracaena.kubelet_plugin.prepare.cdi.devices import claim_of_device, devices_in_spec
from dracaena.kubelet_plugin.prepare.cdi.gpu_driver_files import FILE_OPTIONS, GpuDriverEdits
from dracaena.kubelet_plugin.prepare.cdi.hooks import COMMANDS, HookTool
from dracaena.kubelet_plugin.prepare.cdi.spec import DeviceNode, Hook, Mount
from dracaena.kubelet_plugin.prepare.prepared_claim import NO_MINOR, PreparedClaim
from support.plugin import DRIVER, device_name, prepared_claim

Document = dict[str, Any]


CONTROL = (DeviceNode("/dev/nvidiactl"), DeviceNode("/dev/nvidia-uvm"))


def made(
    prepared: PreparedClaim,
    control: tuple[DeviceNode, ...] = (),
    dev_root: str = "/",
    edits: GpuDriverEdits | None = None,
    drm: tuple[DrmNode, ...] = (),
) -> Document:
    nodes = ClaimNodes(
        control, plain_nodes(prepared.devices, dev_root), {device.device: drm for device in prepared.devices}
    )
    document = json.loads(claim_spec(prepared, DRIVER, nodes, edits))
    assert isinstance(document, dict)
    return document


def spec(dev_root: str = "/") -> Document:
    return made(prepared_claim("c", (4, 1)), CONTROL, dev_root)


def test_each_gpu_is_one_device_whose_name_holds_the_claims_uid() -> None:
    document = spec()
    assert document["kind"] == "gpu.dracaena.dev/claim"
    assert [(d["name"], d["containerEdits"]["deviceNodes"]) for d in document["devices"]] == [
        (f"c-uid-{device_name(4)}", [{"path": "/dev/nvidia4"}]),
        (f"c-uid-{device_name(1)}", [{"path": "/dev/nvidia1"}]),
    ]


def test_control_nodes_and_the_void_variable_come_with_every_device() -> None:
    edits = spec()["containerEdits"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


def test_a_host_without_control_nodes_gives_a_valid_spec() -> None:
    assert "deviceNodes" not in made(prepared_claim())["containerEdits"]


def test_host_paths_follow_the_dev_root_and_container_paths_do_not() -> None:
    node = spec("/run/nvidia/driver/")["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert node == {"path": "/dev/nvidia4", "hostPath": "/run/nvidia/driver/dev/nvidia4"}


def test_a_device_that_answers_two_requests_stands_once() -> None:
    twice = prepared_claim("c", (1, 1))
    assert len(made(twice)["devices"]) == 1


def test_names_in_answer_and_spec_are_the_same() -> None:
    uid = ClaimUid("c-uid")
    kind, _, name = qualified_name(DRIVER, uid, device_name(4)).partition("=")
    assert (kind, name) == (spec()["kind"], spec()["devices"][0]["name"])


def test_the_file_is_named_after_vendor_class_and_claim() -> None:
    assert spec_file_name(DRIVER, ClaimUid("abc-1")) == "gpu.dracaena.dev-claim_abc-1.json"


def _spec_of(prepared: PreparedClaim, dev_root: str) -> bytes:
    return claim_spec(prepared, DRIVER, ClaimNodes((), plain_nodes(prepared.devices, dev_root)))


def test_a_spec_tells_which_devices_it_hands_out() -> None:
    data = _spec_of(prepared_claim("c", (4, 1)), "/")
    told = devices_in_spec(data, ClaimUid("c-uid"))
    assert [(device.device, device.minor) for device in told] == [(device_name(4), 4), (device_name(1), 1)]
    assert devices_in_spec(data, ClaimUid("other")) == ()


def test_a_spec_tells_by_which_nodes_a_mig_device_is_opened() -> None:
    data = _spec_of(prepared_claim("c", (4,), access_minors=(66, 67)), "/host")
    assert [d.access_minors for d in devices_in_spec(data, ClaimUid("c-uid"))] == [(66, 67)]


def test_a_device_without_a_node_of_ours_has_no_minor() -> None:
    data = _spec_of(prepared_claim("c", (4,)), "/").replace(b"/dev/nvidia4", b"/dev/other")
    assert [device.minor for device in devices_in_spec(data, ClaimUid("c-uid"))] == [NO_MINOR]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"devices": 1}', b'{"devices": [{}]}', b'{"devices": ["x"]}', b"[" * 100_000]
)
def test_what_is_no_spec_hands_out_nothing(data: bytes) -> None:
    assert devices_in_spec(data, ClaimUid("c-uid")) == ()


def test_a_claim_without_devices_makes_no_spec() -> None:
    with pytest.raises(ValueError, match="there is none, expected at least one"):
        claim_spec(prepared_claim("c", ()), DRIVER, ClaimNodes())


def test_the_driver_comes_with_every_device() -> None:
    edits = GpuDriverEdits(
        ("NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64",),
        (Mount("/run/nvidia/driver/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", FILE_OPTIONS),),
        (Hook("createContainer", "/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook", "update-ldcache"), ("A=1",)),),
    )
    document = made(prepared_claim(), edits=edits)
    assert document["containerEdits"]["mounts"] == [
        {
            "hostPath": "/run/nvidia/driver/usr/bin/nvidia-smi",
            "containerPath": "/usr/bin/nvidia-smi",
            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
        }
    ]
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64"]
    assert document["containerEdits"]["hooks"] == [
        {
            "hookName": "createContainer",
            "path": "/usr/bin/nvidia-cdi-hook",
            "args": ["nvidia-cdi-hook", "update-ldcache"],
            "env": ["A=1"],
        }
    ]


def test_a_mig_device_is_its_parents_node_and_the_two_that_open_it() -> None:
    document = made(prepared_claim(access_minors=(30, 31)), dev_root="/run/nvidia/driver")
    (device,) = document["devices"]
    assert device["containerEdits"]["deviceNodes"] == [
        {"path": path, "hostPath": f"/run/nvidia/driver{path}"}
        for path in ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31")
    ]


DRM = (
    DrmNode(DeviceNode("/dev/dri/card1"), "pci-0000:3b:00.0-card"),
    DrmNode(DeviceNode("/dev/dri/renderD128")),
)


def test_graphics_nodes_come_with_their_links_by_path() -> None:
    tool = HookTool("/usr/bin/nvidia-cdi-hook", COMMANDS)
    prepared = prepared_claim()
    (device,) = made(prepared, edits=GpuDriverEdits(tool=tool, gpu_driver_root="/run/nvidia/driver"), drm=DRM)[
        "devices"
    ]
    edits = device["containerEdits"]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia0", "/dev/dri/card1", "/dev/dri/renderD128"]
    assert [(hook["hookName"], hook["args"][1:]) for hook in edits["hooks"]] == [
        ("createContainer", ["create-symlinks", "--link", "../card1::/dev/dri/by-path/pci-0000:3b:00.0-card"]),
        (
            "createRuntime",
            [
                *("apply-cuda-memory-limits", "--driver-root", "/run/nvidia/driver"),
                *("--gpu-id", prepared.devices[0].uuid),
            ],
        ),
    ]


def test_without_the_hook_tool_a_second_node_stands_for_the_link() -> None:
    (device,) = made(prepared_claim(), drm=DRM)["devices"]
    assert device["containerEdits"]["deviceNodes"][-1] == {
        "path": "/dev/dri/by-path/pci-0000:3b:00.0-card",
        "hostPath": "/dev/dri/card1",
    }


def test_each_share_of_a_gpu_is_a_device_of_its_own() -> None:
    one = prepared_claim("c", (4,), share_id="aa-1")
    both = replace(one, devices=(*one.devices, replace(one.devices[0], share_id="bb-2")))
    names = [device["name"] for device in made(both)["devices"]]
    assert names == [
        qualified_name(DRIVER, ClaimUid("c-uid"), device_name(4), share).partition("=")[2] for share in ("aa-1", "bb-2")
    ]
    assert len(set(names)) == 2
    told = devices_in_spec(_spec_of(both, "/"), ClaimUid("c-uid"))
    assert [(d.device, d.share_id, d.minor) for d in told] == [(device_name(4), "aa-1", 4), (device_name(4), "bb-2", 4)]
    assert claim_of_device(DRIVER, f"{DRIVER}/claim={names[0]}") == ClaimUid("c-uid")
