from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from dracaena.api.names import ClaimUid
from dracaena.kubelet_plugin.prepare.cdi import (
    DeviceNode,
    check_spec,
    claim_spec,
    device_names,
    least_version,
    qualified_name,
    spec_file_name,
)
from support.plugin import DRIVER, device_name, prepared_claim

Document = dict[str, Any]

GOOD: Document = {
    "cdiVersion": "0.5.0",
    "kind": "gpu.dracaena.dev/claim",
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{"path": "/dev/nvidiactl"}]},
    "devices": [{"name": "1-gpu", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}


def changed(change: Callable[[Document], object]) -> Document:
    document = copy.deepcopy(GOOD)
    change(document)
    return document


def spec(dev_root: str = "/") -> Document:
    nodes = (DeviceNode("/dev/nvidiactl"), DeviceNode("/dev/nvidia-uvm"))
    document = json.loads(claim_spec(prepared_claim("c", (4, 1)), DRIVER, nodes, dev_root))
    assert isinstance(document, dict)
    return document


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
    document = json.loads(claim_spec(prepared_claim(), DRIVER, (), "/"))
    assert "deviceNodes" not in document["containerEdits"]
    assert check_spec(document) == ()


def test_host_paths_follow_the_dev_root_and_container_paths_do_not() -> None:
    node = spec("/run/nvidia/driver/")["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert node == {"path": "/dev/nvidia4", "hostPath": "/run/nvidia/driver/dev/nvidia4"}


def test_a_device_that_answers_two_requests_stands_once() -> None:
    twice = prepared_claim("c", (1, 1))
    assert len(json.loads(claim_spec(twice, DRIVER, (), "/"))["devices"]) == 1


def test_names_in_answer_and_spec_are_the_same() -> None:
    uid = ClaimUid("c-uid")
    kind, _, name = qualified_name(DRIVER, uid, device_name(4)).partition("=")
    assert (kind, name) == (spec()["kind"], spec()["devices"][0]["name"])


def test_the_file_is_named_after_vendor_class_and_claim() -> None:
    assert spec_file_name(DRIVER, ClaimUid("abc-1")) == "gpu.dracaena.dev-claim_abc-1.json"


def test_a_spec_tells_which_devices_it_hands_out() -> None:
    data = claim_spec(prepared_claim("c", (4, 1)), DRIVER, (), "/")
    assert device_names(data, ClaimUid("c-uid")) == (device_name(4), device_name(1))
    assert device_names(data, ClaimUid("other")) == ()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"devices": 1}', b'{"devices": [{}]}', b'{"devices": ["x"]}'])
def test_what_is_no_spec_hands_out_nothing(data: bytes) -> None:
    assert device_names(data, ClaimUid("c-uid")) == ()


def test_a_claim_without_devices_makes_no_spec() -> None:
    with pytest.raises(ValueError, match="there is none, expected at least one"):
        claim_spec(prepared_claim("c", ()), DRIVER, (), "/")


def test_the_good_spec_breaks_no_rule() -> None:
    assert check_spec(GOOD) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(cdiVersion="0.9.0"), "cdiVersion: '0.9.0' is unknown"),
        (lambda d: d.update(cdiVersion="0.4.0"), "cdiVersion: 0.4.0 is too old"),
        (lambda d: d.update(kind="/claim"), "kind: vendor ''"),
        (lambda d: d.update(kind="1gpu/claim"), "kind: vendor '1gpu'"),
        (lambda d: d.update(kind="gpu."), "kind: vendor 'gpu.'"),
        (lambda d: d.update(kind="gpu.dev/"), "kind: class ''"),
        (lambda d: d.update(kind="gpu.dev/" + "c" * 64), "kind: class"),
        (lambda d: d.update(devices=[]), "devices: there is none"),
        (lambda d: d["devices"].append(d["devices"][0]), "device 1-gpu: the name stands twice"),
        (lambda d: d["devices"][0].update(name="-gpu"), "device '-gpu': the name must begin"),
        (lambda d: d["devices"][0].update(name="a/b"), "device 'a/b': the name must begin"),
        (lambda d: d["devices"][0].update(containerEdits={}), "containerEdits are empty"),
        (lambda d: d["devices"][0].update(containerEdits={"env": []}), "containerEdits are empty"),
        (lambda d: d["containerEdits"].update(env=["A"]), "env 'A' is not NAME=VALUE"),
        (lambda d: d["containerEdits"].update(env=["=A"]), "env '=A' is not NAME=VALUE"),
        (lambda d: d["containerEdits"].update(deviceNodes=[{"path": ""}]), "a device node has no path"),
        (lambda d: d["containerEdits"].update(deviceNodes=[{"path": "/x", "type": "q"}]), "device node type 'q'"),
        (lambda d: d["containerEdits"].update(deviceNodes=[{"path": "/x", "permissions": "rx"}]), "permissions 'rx'"),
        (lambda d: d["containerEdits"].update(mounts=[{"hostPath": "/x"}]), "a mount has no containerPath"),
        (lambda d: d["containerEdits"].update(hooks=[{"hookName": "later", "path": "/x"}]), "hook name 'later'"),
        (lambda d: d["containerEdits"].update(hooks=[{"hookName": "prestart"}]), "a hook has no path"),
        (lambda d: d["containerEdits"].update(cgroups=[1]), "cgroups is an edit that this check does not know"),
    ],
)
def test_each_broken_rule_is_named(change: Callable[[Document], object], problem: str) -> None:
    problems = check_spec(changed(change))
    assert any(problem in p for p in problems), problems


@pytest.mark.parametrize(
    ("change", "version"),
    [
        (lambda d: d["devices"][0].update(name="gpu"), "0.3.0"),
        (lambda d: d, "0.5.0"),
        (
            lambda d: d["devices"][0].update(name="gpu") or d["containerEdits"]["deviceNodes"][0].update(hostPath="/h"),
            "0.5.0",
        ),
        (
            lambda d: (
                d["devices"][0].update(name="gpu")
                or d["containerEdits"].update(mounts=[{"hostPath": "/h", "containerPath": "/c", "type": "bind"}])
            ),
            "0.4.0",
        ),
        (lambda d: d.update(annotations={"a": "b"}), "0.6.0"),
        (lambda d: d.update(kind="gpu.dev/claim.v2"), "0.6.0"),
        (lambda d: d["containerEdits"].update(additionalGids=[7]), "0.7.0"),
        (lambda d: d["containerEdits"].update(intelRdt={"closID": "x"}), "0.7.0"),
        (lambda d: d["containerEdits"].update(intelRdt={"schemata": []}), "1.1.0"),
        (lambda d: d["containerEdits"].update(netDevices=[{"hostInterfaceName": "e", "name": "n"}]), "1.1.0"),
    ],
)
def test_least_version_follows_what_is_used(change: Callable[[Document], object], version: str) -> None:
    assert least_version(changed(change)) == version
