"""Metadata of every object that is checked."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_documents import ABSENT, claim, device_class, edited, errors

OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}

GOOD = [
    ("metadata.name", "a" * 253),
    ("metadata.name", "a.b-c.d"),
    ("metadata.namespace", "default"),
    ("metadata.namespace", ""),
    ("metadata.labels", {"example.com/Name_1": ""}),
    ("metadata.labels", {"a" * 253 + "/" + "b" * 63: "x" * 63}),
    ("metadata.annotations", {"Example.com/A": "any text\n"}),
    ("metadata.finalizers", ["example.com/keep", "kubernetes", "orphan", "foregroundDeletion"]),
    ("metadata.ownerReferences", [{**OWNER, "controller": True, "blockOwnerDeletion": True}, OWNER]),
    ("metadata.managedFields", [{"anything": "of the server"}]),
    ("metadata.resourceVersion", "5"),
    ("metadata.creationTimestamp", None),
    ("metadata.generation", 1),
    ("metadata.annotations", {"a": "x" * ((256 << 10) - 1)}),
]


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_what_the_server_takes_has_no_error(path: str, value: Any) -> None:
    assert errors(edited(claim(), path, value)) == []


BAD = [
    ("metadata", ABSENT, "metadata.name: missing"),
    ("metadata", "train", 'metadata: wrong type: "train", expected an object'),
    ("metadata.name", "", "metadata.name: missing"),
    ("metadata.name", "Train", "metadata.name: not a DNS name"),
    ("metadata.name", "a..b", "metadata.name: not a DNS name"),
    ("metadata.name", "a" * 254, "metadata.name: not a DNS name"),
    ("metadata.name", 5, "metadata.name: wrong type"),
    ("metadata.generateName", "a_b-", "metadata.generateName: not the beginning of a DNS name"),
    ("metadata.namespace", "a.b", "metadata.namespace: not a DNS label"),
    ("metadata.nmae", "x", "metadata.nmae: unknown field"),
    ("metadata.labels", {"a": 5}, "metadata.labels.a: wrong type: 5, expected a text"),
    ("metadata.labels", {"a": "x" * 64}, "metadata.labels.a: not a label value"),
    ("metadata.labels", {"-": "x"}, 'metadata.labels["-"]: the key is not a label key'),
    ("metadata.labels", {"a/b/c": "x"}, 'metadata.labels["a/b/c"]: the key is not a label key'),
    ("metadata.labels", {"/b": "x"}, 'metadata.labels["/b"]: the key is not a label key'),
    ("metadata.labels", {"b" * 64: "x"}, "the key is not a label key"),
    ("metadata.labels", ["a"], "metadata.labels: wrong type: a list of 1, expected a map"),
    ("metadata.annotations", {"a b": "x"}, 'metadata.annotations["a b"]: the key is not an annotation key'),
    ("metadata.annotations", {"a": "x" * (256 << 10)}, "metadata.annotations: 262145 bytes"),
    ("metadata.finalizers", ["keep"], "metadata.finalizers[0]: not a finalizer"),
    ("metadata.finalizers", [""], "metadata.finalizers[0]: missing"),
    ("metadata.ownerReferences", [{"kind": "Pod"}], "metadata.ownerReferences[0].apiVersion: missing"),
    ("metadata.ownerReferences", [{**OWNER, "uid": ""}], "metadata.ownerReferences[0].uid: missing"),
    ("metadata.ownerReferences", [{**OWNER, "controller": True}] * 2, "metadata.ownerReferences: 2 controllers"),
    ("metadata.generation", -1, "metadata.generation: negative"),
    ("metadata.uid", 5, "metadata.uid: wrong type"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD)
def test_what_the_server_refuses_is_an_error_with_its_place(path: str, value: Any, found: str) -> None:
    assert any(found in error for error in errors(edited(claim(), path, value)))


@pytest.mark.parametrize("prefix", ["train-", "train", "a.b-"])
def test_a_generated_name_is_a_name(prefix: str) -> None:
    assert errors({**claim(), "metadata": {"generateName": prefix}}) == []


def test_a_class_is_in_no_namespace() -> None:
    assert errors(edited(device_class(), "metadata.namespace", "")) == []
    (error,) = errors(edited(device_class(), "metadata.namespace", "default"))
    assert error.startswith("metadata.namespace: a namespace on an object that is in none")
