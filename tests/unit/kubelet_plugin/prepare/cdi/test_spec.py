"""The rules of CDI: a good spec passes, and each way to break one is named."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.kubelet_plugin.prepare.cdi.spec import (
    NO_EDITS,
    Device,
    DeviceNode,
    Edits,
    Hook,
    Mount,
    Spec,
    broken_rules,
    encode_spec,
)

GPU = Device("1-gpu", Edits(device_nodes=(DeviceNode("/dev/nvidia0"),)))
GOOD = Spec("gpu.dracaena.dev/claim", (GPU,), Edits(env=("A=", "B=x=y"), device_nodes=(DeviceNode("/dev/nvidiactl"),)))
STAGES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


def spec(**changes: Any) -> Spec:
    return msgspec.structs.replace(GOOD, **changes)


def edits(**edits: Any) -> Spec:
    return spec(container_edits=Edits(**edits))


def device(**changes: Any) -> Spec:
    return spec(devices=(msgspec.structs.replace(GPU, **changes),))


@pytest.mark.parametrize(
    "good",
    [
        GOOD,
        spec(container_edits=NO_EDITS),
        spec(kind="v/" + "c" * 63),
        spec(kind=f"{'v' * 253}/c"),
        spec(kind="A_b-c.d/E_f-g"),
        device(name="0_b.c:d-e"),
        edits(hooks=tuple(Hook(stage, "/bin/hook", ("hook", "x"), ("A=1",)) for stage in STAGES)),
        edits(mounts=(Mount("/h", "/c", ("ro",)),)),
    ],
)
def test_a_good_spec_breaks_no_rule(good: Spec) -> None:
    assert list(broken_rules(good)) == []


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (spec(kind=""), "kind: vendor ''"),
        (spec(kind="/claim"), "kind: vendor ''"),
        (spec(kind="1gpu/claim"), "kind: vendor '1gpu'"),
        (spec(kind="gpu./claim"), "kind: vendor 'gpu.'"),
        (spec(kind=f"{'v' * 254}/c"), "kind: vendor"),
        (spec(kind="gpu."), "kind: class ''"),
        (spec(kind="gpu.dev/"), "kind: class ''"),
        (spec(kind="gpu.dev/a/b"), "kind: class 'a/b'"),
        (spec(kind="gpu.dev/claim.v2"), "kind: class 'claim.v2'"),
        (spec(kind="gpu.dev/" + "c" * 64), "kind: class"),
        (spec(devices=()), "devices: there is none"),
        (spec(devices=(GPU, GPU)), "device 1-gpu: the name appears twice"),
        (device(name=""), "device '': the name must begin"),
        (device(name="-gpu"), "device '-gpu': the name must begin"),
        (device(name="gpu:"), "device 'gpu:': the name must begin"),
        (device(name="a/b"), "device 'a/b': the name must begin"),
        (device(name="ä"), "device 'ä': the name must begin"),
        (device(container_edits=Edits()), "device 1-gpu: containerEdits are empty"),
        (device(container_edits=Edits(env=("A",))), "device 1-gpu: env 'A' is not NAME=VALUE"),
        (edits(env=("A",)), "containerEdits: env 'A' is not NAME=VALUE"),
        (edits(env=("=A",)), "env '=A' is not NAME=VALUE"),
        (edits(env=("",)), "env '' is not NAME=VALUE"),
        (edits(device_nodes=(DeviceNode(""),)), "a device node has no path"),
        (edits(mounts=(Mount("/x", "", ()),)), "a mount has no containerPath"),
        (edits(mounts=(Mount("", "/x", ()),)), "a mount has no hostPath"),
        (edits(hooks=(Hook("later", "/x", ()),)), "hook name 'later'"),
        (edits(hooks=(Hook("prestart", "", ()),)), "a hook has no path"),
        (edits(hooks=(Hook("prestart", "/x", (), ("A",)),)), "env 'A' is not NAME=VALUE"),
    ],
)
def test_each_broken_rule_is_named(broken: Spec, problem: str) -> None:
    assert any(problem in each for each in broken_rules(broken))
    with pytest.raises(ValueError, match="CDI spec of claim x"):
        encode_spec(broken, "claim x")


def test_what_is_written_has_the_keys_of_cdi_and_none_that_says_nothing() -> None:
    whole = Edits(
        ("A=1",),
        (DeviceNode("/dev/a"), DeviceNode("/dev/b", "/host/dev/b")),
        (Mount("/h", "/c", ("ro", "bind")),),
        (Hook("prestart", "/bin/hook", ("hook",), ("B=2",)),),
    )
    assert json.loads(encode_spec(spec(container_edits=whole), "a claim")) == {
        "cdiVersion": "0.5.0",
        "kind": "gpu.dracaena.dev/claim",
        "containerEdits": {
            "env": ["A=1"],
            "deviceNodes": [{"path": "/dev/a"}, {"path": "/dev/b", "hostPath": "/host/dev/b"}],
            "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"]}],
            "hooks": [{"hookName": "prestart", "path": "/bin/hook", "args": ["hook"], "env": ["B=2"]}],
        },
        "devices": [{"name": "1-gpu", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    }
    assert "containerEdits" not in json.loads(encode_spec(Spec("a/b", (GPU,)), "a claim"))


_TEXT = st.text(st.sampled_from("aZ1/.-_=:ä "), max_size=5)


@settings(derandomize=True)
@given(_TEXT, st.lists(_TEXT, max_size=3), st.lists(_TEXT, max_size=3))
def test_a_spec_is_written_only_if_it_breaks_no_rule(kind: str, names: list[str], env: list[str]) -> None:
    any_spec = Spec(kind, tuple(Device(name, Edits(env=tuple(env))) for name in names))
    if list(broken_rules(any_spec)):
        with pytest.raises(ValueError, match="CDI spec"):
            encode_spec(any_spec, "a claim")
    else:
        assert msgspec.json.decode(encode_spec(any_spec, "a claim"), type=Spec) == any_spec
