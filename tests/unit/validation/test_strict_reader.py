"""The controller's strict reader and the validation agree: what has no error is never left alone as not understood."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.api.objects import ObjectMeta
from dracaena.api.resource_objects import DeviceClass, ResourceClaim
from dracaena.controller.allocation.legal.read.claims import Unsupported, read_claim, read_class
from support.api_documents import claim, device_class, edited, errors

VALUES = st.sampled_from([None, "", "a", "All", "gpus", "a.b/c", 0, 1, 33, -1, True, 1.5]) | st.builds(
    copy.deepcopy, st.sampled_from([[], ["a"], {}, {"a": 1}, [{}], [None]])
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """All values below this one, each as what holds it and its key there."""
    keys = range(len(value)) if isinstance(value, list) else sorted(value) if isinstance(value, dict) else ()
    return [place for key in keys for place in ((value, key), *places(value[key]))]


def stored(spec: Any) -> Any:
    """The spec as the server stores it and the reader meets it: a count of 0 becomes 1, an amount that is null "0"."""
    for holder, key in places(spec):
        if key == "memory" and holder[key] is None:
            holder[key] = "0"
        if key == "count" and holder[key] == 0 and holder[key] is not False:
            holder[key] = 1
    return spec


def is_left_alone(build: object, spec: Any) -> bool:
    meta = ObjectMeta(name="x")
    read = read_claim(ResourceClaim(meta, spec)) if build is claim else read_class(DeviceClass(meta, spec))
    return isinstance(read, Unsupported)


@settings(derandomize=True)
@given(edits=st.lists(st.tuples(st.integers(0, 1000), VALUES, st.booleans()), min_size=1, max_size=3))
@pytest.mark.parametrize("build", [claim, device_class])
def test_what_has_no_error_is_understood_by_the_reader(build: Any, edits: list[tuple[int, Any, bool]]) -> None:
    document = build()
    for number, value, adds in edits:
        found = places(document["spec"])
        if not found:
            break
        holder, key = found[number % len(found)]
        if adds and isinstance(holder, dict):
            holder["newField"] = value
        else:
            holder[key] = value
    if is_left_alone(build, stored(document["spec"])):
        assert errors(document) != []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.devices.requests[0].exactly.newField", 1),
        ("spec.devices.requests[0].exactly.allocationMode", "Some"),
        ("spec.devices.requests[0].exactly.count", -1),
        ("spec.devices.requests[0].exactly.deviceClassName", ""),
        ("spec.devices.requests[0]", {"name": "a"}),
        ("spec.devices.constraints[0]", {"requests": ["gpus"]}),
        ("spec.devices.config[0]", {"requests": ["gpus"]}),
        ("spec.devices.newField", []),
    ],
)
def test_what_the_reader_leaves_alone_is_an_error(path: str, value: Any) -> None:
    document = edited(plain_claim(), path, value)
    assert is_left_alone(claim, document["spec"])
    assert errors(document) != []


def plain_claim() -> dict[str, Any]:
    """A claim with nothing that the reader may not honour yet: that would hide what it cannot read."""
    document = claim()
    devices = document["spec"]["devices"]
    devices["requests"] = [{"name": "gpus", "exactly": {"deviceClassName": "gpu.dracaena.dev", "count": 4}}]
    devices["constraints"] = []
    return document
