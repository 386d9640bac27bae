"""The rules of CDI: a good spec of every kind passes, and each way to break one is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.kubelet_plugin.prepare.cdi.rules import VERSIONS, check_spec, least_version

Document = dict[str, Any]
Change = Callable[[Document], object]

GOOD: Document = {
    "cdiVersion": "0.5.0",
    "kind": "gpu.dracaena.dev/claim",
    "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"], "deviceNodes": [{"path": "/dev/nvidiactl"}]},
    "devices": [{"name": "1-gpu", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
}
FULL: Document = {
    "cdiVersion": "1.1.0",
    "kind": "vendor.example.com/class.v2",
    "annotations": {"example.com/note": "text", "plain": ""},
    "containerEdits": {
        "env": ["A=", "B=x=y"],
        "deviceNodes": [
            {
                "path": "/dev/x",
                "hostPath": "/host/x",
                "type": "c",
                "major": 195,
                "minor": 0,
                "fileMode": 438,
                "permissions": "rwm",
                "uid": 0,
                "gid": 0,
            },
            {"path": "/dev/y", "type": "", "permissions": ""},
        ],
        "netDevices": [{"hostInterfaceName": "eth1", "name": "net0"}, {"hostInterfaceName": "eth2", "name": "net1"}],
        "mounts": [{"hostPath": "/h", "containerPath": "/c", "options": ["ro"], "type": "bind"}],
        "hooks": [
            {"hookName": name, "path": "/bin/hook", "args": ["hook", "x"], "env": ["A=1"], "timeout": 5}
            for name in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
        ],
        "intelRdt": {"closID": "/", "schemata": ["L3:0=f"], "enableMonitoring": True},
        "additionalGids": [0, 44],
    },
    "devices": [
        {"name": "a", "annotations": {"a": "b"}, "containerEdits": {"env": ["A=1"]}},
        {"name": "0_b.c:d-e", "containerEdits": {"additionalGids": [1]}},
    ],
}


def changed(change: Change, document: Document = GOOD) -> Document:
    document = copy.deepcopy(document)
    change(document)
    return document


def edits(**values: object) -> Change:
    return lambda document: document["containerEdits"].update(values)


def device(**values: object) -> Change:
    return lambda document: document["devices"][0].update(values)


@pytest.mark.parametrize(
    "document",
    [
        GOOD,
        FULL,
        changed(lambda d: d.pop("containerEdits")),
        changed(lambda d: d.update(kind="v/" + "c" * 63)),
        changed(lambda d: d.update(kind=f"{'v' * 253}/c")),
        changed(lambda d: d.update(kind="A_b-c.d/E_f-g")),
        *({**GOOD, "cdiVersion": version} for version in VERSIONS[4:]),
        *(changed(edits(intelRdt={"closID": name}), {**GOOD, "cdiVersion": "0.7.0"}) for name in ("/", "gold", "a.b")),
    ],
)
def test_a_good_spec_breaks_no_rule(document: Document) -> None:
    assert check_spec(document) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(cdiVersion="0.9.0"), "cdiVersion: '0.9.0' is unknown"),
        (lambda d: d.update(cdiVersion="v0.5.0"), "cdiVersion: 'v0.5.0' is unknown"),
        (lambda d: d.pop("cdiVersion"), "cdiVersion: '' is unknown"),
        (lambda d: d.update(cdiVersion="0.4.0"), "cdiVersion: 0.4.0 is too old"),
        (edits(netDevices=[{"hostInterfaceName": "e", "name": "n"}]), "too old for what the spec uses, expected 1.1.0"),
        (lambda d: d.pop("kind"), "kind: vendor ''"),
        (lambda d: d.update(kind="/claim"), "kind: vendor ''"),
        (lambda d: d.update(kind="1gpu/claim"), "kind: vendor '1gpu'"),
        (lambda d: d.update(kind="gpu./claim"), "kind: vendor 'gpu.'"),
        (lambda d: d.update(kind=f"{'v' * 254}/c"), "kind: vendor"),
        (lambda d: d.update(kind="gpu."), "kind: class ''"),
        (lambda d: d.update(kind="gpu.dev/"), "kind: class ''"),
        (lambda d: d.update(kind="gpu.dev/a/b"), "kind: class 'a/b'"),
        (lambda d: d.update(kind="gpu.dev/" + "c" * 64), "kind: class"),
        (lambda d: d.update(devices=[]), "devices: there is none"),
        (lambda d: d.pop("devices"), "devices: there is none"),
        (lambda d: d["devices"].append(d["devices"][0]), "device 1-gpu: the name appears twice"),
        (device(name=""), "device '': the name must begin"),
        (device(name="-gpu"), "device '-gpu': the name must begin"),
        (device(name="gpu:"), "device 'gpu:': the name must begin"),
        (device(name="a/b"), "device 'a/b': the name must begin"),
        (device(name="ä"), "device 'ä': the name must begin"),
        (device(containerEdits={}), "containerEdits are empty"),
        (device(containerEdits={"env": []}), "containerEdits are empty"),
        (lambda d: d["devices"][0].pop("containerEdits"), "containerEdits are empty"),
        (edits(env=["A"]), "env 'A' is not NAME=VALUE"),
        (edits(env=["=A"]), "env '=A' is not NAME=VALUE"),
        (edits(env=[""]), "env '' is not NAME=VALUE"),
        (edits(env=[1]), "1 in env is not text"),
        (edits(deviceNodes=[{"path": ""}]), "a device node has no path"),
        (edits(deviceNodes=[{"hostPath": "/x"}]), "a device node has no path"),
        (edits(deviceNodes=[{"path": "/x", "type": "q"}]), "device node type 'q'"),
        (edits(deviceNodes=[{"path": "/x", "permissions": "rx"}]), "permissions 'rx'"),
        (edits(deviceNodes=[{"path": "/x", "permissions": "none"}]), "permissions 'none'"),
        (edits(deviceNodes=[{"path": "/x", "uid": -1}]), "uid -1 is not a number from 0 to 4294967295"),
        (edits(deviceNodes=[{"path": "/x", "fileMode": 1 << 32}]), "fileMode 4294967296 is not a number"),
        (edits(deviceNodes=[{"path": "/x", "major": 1 << 63}]), "major 9223372036854775808 is not a number"),
        (edits(additionalGids=[-1]), "additionalGids -1 is not a number"),
        (edits(additionalGids=["7"]), "additionalGids '7' is not a number"),
        (edits(mounts=[{"hostPath": "/x", "containerPath": "/x", "options": [True]}]), "True in options is not text"),
        (edits(deviceNodes=[{"path": "/x", "fileMode": "0666"}]), "fileMode of a device node is '0666', expected int"),
        (edits(deviceNodes=[{"path": "/x", "minor": True}]), "minor of a device node is True, expected int"),
        (edits(deviceNodes=["/x"]), "a device node is '/x', expected an object"),
        (edits(mounts=[{"hostPath": "/x"}]), "a mount has no containerPath"),
        (edits(mounts=[{"containerPath": "/x"}]), "a mount has no hostPath"),
        (edits(hooks=[{"hookName": "later", "path": "/x"}]), "hook name 'later'"),
        (edits(hooks=[{"hookName": "prestart"}]), "a hook has no path"),
        (edits(hooks=[{"hookName": "prestart", "path": "/x", "env": ["A"]}]), "env 'A' is not NAME=VALUE"),
        (edits(hooks=[{"hookName": "prestart", "path": "/x", "args": [1]}]), "1 in args is not text"),
        (edits(cgroups=[1]), "a containerEdits has no key cgroups"),
        (lambda d: d.update(vendor="x"), "a spec has no key vendor"),
        (device(id="x"), "a device has no key id"),
        (lambda d: d.update(devices={}), "devices of a spec is {}, expected list"),
        (lambda d: d.update(devices=["x"]), "a device is 'x', expected an object"),
    ],
)
def test_each_broken_rule_is_named(change: Change, problem: str) -> None:
    problems = check_spec(changed(change))
    assert any(problem in p for p in problems), problems


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda d: d.update(annotations={"a b": "x"}), "annotation 'a b' is not a qualified name"),
        (lambda d: d.update(annotations={"-a.com/x": "x"}), "annotation '-a.com/x' is not a qualified name"),
        (lambda d: d.update(annotations={"a.com/": "x"}), "annotation 'a.com/' is not a qualified name"),
        (lambda d: d.update(annotations={"a": 1}), "annotation 'a' is 1, expected a text"),
        (lambda d: d.update(annotations={"a": "x" * (256 * 1024)}), "annotations of 262145 bytes"),
        (device(annotations={"": "x"}), "device a: annotation '' is not a qualified name"),
        (edits(netDevices=[{"hostInterfaceName": "e"}]), "a network device has no name"),
        (edits(netDevices=[{"hostInterfaceName": "e", "name": "n"}] * 2), "name 'n' of network devices appears twice"),
        *(
            (edits(intelRdt={"closID": name}), "is not the name of a folder")
            for name in (".", "..", "a/b", "a\n", "x" * 4096)
        ),
        (edits(intelRdt={"closId": "a"}), "a intelRdt has no key closId"),
        (edits(intelRdt={"schemata": [1]}), "1 in schemata is not text"),
    ],
)
def test_each_broken_rule_of_parts_that_we_do_not_write_is_named(change: Change, problem: str) -> None:
    problems = check_spec(changed(change, FULL))
    assert any(problem in p for p in problems), problems


@pytest.mark.parametrize(
    ("change", "version"),
    [
        (device(name="gpu"), "0.3.0"),
        (lambda d: d, "0.5.0"),
        (
            lambda d: d["devices"][0].update(name="gpu") or edits(deviceNodes=[{"path": "/d", "hostPath": "/h"}])(d),
            "0.5.0",
        ),
        (
            lambda d: (
                d["devices"][0].update(name="gpu")
                or edits(mounts=[{"hostPath": "/h", "containerPath": "/c", "type": "bind"}])(d)
            ),
            "0.4.0",
        ),
        (lambda d: d.update(annotations={"a": "b"}), "0.6.0"),
        (device(annotations={"a": "b"}), "0.6.0"),
        (lambda d: d.update(kind="gpu.dev/claim.v2"), "0.6.0"),
        (edits(additionalGids=[7]), "0.7.0"),
        (edits(intelRdt={"closID": "x"}), "0.7.0"),
        (edits(intelRdt={"schemata": []}), "1.1.0"),
        (edits(intelRdt={"enableMonitoring": False}), "1.1.0"),
        (edits(netDevices=[{"hostInterfaceName": "e", "name": "n"}]), "1.1.0"),
    ],
)
def test_least_version_follows_what_is_used(change: Change, version: str) -> None:
    assert least_version(changed(change)) == version


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["devices", "name", "containerEdits", "env", "mounts", "hooks", "intelRdt", "kind", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(derandomize=True)
@given(st.dictionaries(st.sampled_from(["cdiVersion", "kind", "containerEdits", "devices", "annotations"]), _VALUES))
def test_any_document_is_judged_and_never_a_crash(document: Document) -> None:
    assert all(check_spec(document))
    assert all(check_spec({**GOOD, "containerEdits": document}))
