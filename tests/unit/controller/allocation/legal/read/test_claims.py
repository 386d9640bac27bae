"""Reading claims and classes: everything of v1, nothing newer, never an exception."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dracaena.api.objects import ObjectMeta
from dracaena.api.quantity import Quantity
from dracaena.api.resource_objects import DeviceClass as WireClass
from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.legal.read.claims import (
    UNKNOWN,
    Claim,
    ClassRequirements,
    Config,
    Constraint,
    Unsupported,
    read_claim,
    read_class,
)


def read(spec: Any) -> Claim | Unsupported:
    return read_claim(ResourceClaim(metadata=ObjectMeta(name="training", namespace="ml", uid="u"), spec=spec))


def requests(*entries: Any, **devices: Any) -> Any:
    return {"devices": {"requests": list(entries), **devices}}


def exactly(**fields: Any) -> Any:
    return {"name": "gpus", "exactly": {"deviceClassName": "gpu", **fields}}


def test_all_of_a_claim_is_read() -> None:
    claim = read(
        requests(
            exactly(
                allocationMode="ExactCount",
                count=2,
                adminAccess=True,
                selectors=[{"cel": {"expression": "a"}}, {"cel": {"expression": "b"}}],
                tolerations=[{"key": "k", "operator": "Exists", "value": None}],
                capacity={"requests": {"memory": "1Gi", "cores": 5}},
            ),
            {"name": "nic", "firstAvailable": [{"name": "fast", "deviceClassName": "nic", "allocationMode": "All"}]},
            constraints=[
                {"matchAttribute": "a.example/b", "requests": ["gpus", "nic/fast"]},
                {"distinctAttribute": "a.example/c"},
            ],
            config=[{"requests": ["gpus"], "opaque": {"driver": "d", "parameters": {"x": 1}}}],
        )
    )
    assert isinstance(claim, Claim)
    assert claim.key == "ml/training"
    gpus, nic = claim.requests
    wish = gpus.alternatives[0]
    assert (wish.name, wish.main, wish.class_name, wish.count) == ("gpus", "gpus", "gpu", 2)
    assert (wish.selectors, wish.admin_access, wish.all_devices) == (("a", "b"), True, False)
    assert (wish.tolerations[0].key, wish.tolerations[0].operator) == ("k", "Exists")
    assert wish.capacity == {"memory": Quantity(2**30 * 10**9), "cores": Quantity(5 * 10**9)}
    fast = nic.alternatives[0]
    assert (nic.prioritized, gpus.prioritized) == (True, False)
    assert (fast.name, fast.main, fast.all_devices) == ("nic/fast", "nic", True)
    assert claim.constraints == (
        Constraint("a.example/b", requests=frozenset({"gpus", "nic/fast"})),
        Constraint("a.example/c", distinct=True),
    )
    assert claim.configs == (Config("d", msgspec.Raw(b'{"x":1}'), ("gpus",)),)


def test_what_the_api_server_fills_in_is_filled_in() -> None:
    claim = read(requests(exactly()))
    assert isinstance(claim, Claim)
    wish = claim.requests[0].alternatives[0]
    assert (wish.count, wish.all_devices, wish.admin_access, wish.capacity) == (1, False, None, None)


def test_an_empty_claim_asks_for_nothing() -> None:
    assert read({}) == read({"devices": None}) == Claim("ml/training", ())


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"future": 1}, "spec.future"),
        ({"devices": {"future": 1}}, "spec.devices.future"),
        (requests({"name": "a"}), "spec.devices.requests[0]"),
        (requests({"name": "a", "firstAvailable": []}), "spec.devices.requests[0]"),
        (requests({"name": "a", "atMost": {}}), "spec.devices.requests[0].atMost"),
        (requests(exactly(laterAttributes=[])), "spec.devices.requests[0].exactly.laterAttributes"),
        (requests(exactly(allocationMode="Half")), "spec.devices.requests[0].exactly.allocationMode"),
        (requests(exactly(selectors=[{"rego": "x"}])), "spec.devices.requests[0].exactly.selectors[0].rego"),
        (requests(exactly(selectors=[{}])), "spec.devices.requests[0].exactly.selectors[0]"),
        (requests(exactly(tolerations=[{"until": 1}])), "spec.devices.requests[0].exactly.tolerations[0].until"),
        (requests(exactly(capacity={"limits": {}})), "spec.devices.requests[0].exactly.capacity.limits"),
        (
            requests({"name": "a", "firstAvailable": [{"name": "b", "deviceClassName": "c", "adminAccess": True}]}),
            "spec.devices.requests[0].firstAvailable[0].adminAccess",
        ),
        (requests(constraints=[{}]), "spec.devices.constraints[0]"),
        (requests(constraints=[{"sameRack": True}]), "spec.devices.constraints[0].sameRack"),
        (requests(config=[{}]), "spec.devices.config[0]"),
        (requests(config=[{"opaque": {"driver": "d", "secret": 1}}]), "spec.devices.config[0].opaque.secret"),
    ],
)
def test_what_is_newer_than_this_version_leaves_the_claim_alone(spec: Any, path: str) -> None:
    found = read(spec)
    assert isinstance(found, Unsupported)
    assert (found.path, found.why) == (path, UNKNOWN)


REQUEST = "spec.devices.requests[0]"
EXACTLY = f"{REQUEST}.exactly"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (requests(*[exactly()] * 33), "spec.devices.requests: 33 entries: the API allows 32"),
        (
            requests(exactly(selectors=[{}] * 33)),
            f"{EXACTLY}.selectors: 33 entries: the API allows 32",
        ),
        (
            requests({"name": "a", "firstAvailable": [{}] * 9}),
            f"{REQUEST}.firstAvailable: 9 entries: the API allows 8",
        ),
        (
            requests(exactly(tolerations=[{}] * 17)),
            f"{EXACTLY}.tolerations: 17 entries: the API allows 16",
        ),
        (requests(constraints=[{}] * 33), "spec.devices.constraints: 33 entries: the API allows 32"),
        (requests(config=[{}] * 33), "spec.devices.config: 33 entries: the API allows 32"),
        (
            requests({"name": "a", "exactly": {}, "firstAvailable": [{}]}),
            f"{REQUEST}: both exactly and firstAvailable: the API allows one of them",
        ),
        (
            requests(constraints=[{"matchAttribute": "a/b", "distinctAttribute": "a/b"}]),
            "spec.devices.constraints[0]: both matchAttribute and distinctAttribute: the API allows one of them",
        ),
        (requests(exactly(count=-1)), f"{EXACTLY}.count: -1: expected a whole number above 0"),
        (requests(exactly(count="2")), f"{EXACTLY}.count: '2': expected a whole number above 0"),
        (
            requests(exactly(count=True)),
            f"{EXACTLY}.count: True: expected a whole number above 0",
        ),
        (
            requests(exactly(adminAccess="yes")),
            f"{EXACTLY}.adminAccess: 'yes': expected true or false",
        ),
        (
            requests(exactly(capacity={"requests": {"memory": "lots"}})),
            f"{EXACTLY}.capacity.requests[memory]: 'lots': 'lots' is not a quantity",
        ),
        (
            requests(exactly(capacity={"requests": {"memory": "-1"}})),
            f"{EXACTLY}.capacity.requests[memory]: '-1': expected an amount of at least 0",
        ),
        (
            requests(exactly(capacity={"requests": {"memory": [1]}})),
            f"{EXACTLY}.capacity.requests[memory]: [1]: expected a quantity",
        ),
        (
            requests(exactly(tolerations=[{"key": 1}])),
            f"{EXACTLY}.tolerations[0]: a toleration that does not decode: Expected `str`, got `int` - at `$.key`",
        ),
        (requests({"exactly": {}}), f"{REQUEST}.name: None: expected a text that is not empty"),
        (
            requests({"name": "a", "exactly": {}}),
            f"{EXACTLY}.deviceClassName: None: expected a text that is not empty",
        ),
        ({"devices": []}, "spec.devices: a list: expected an object"),
        ({"devices": {"requests": {}}}, "spec.devices.requests: a dict: expected a list"),
    ],
)
def test_what_breaks_the_api_s_own_rules_is_named(spec: Any, text: str) -> None:
    assert str(read(spec)) == text


def test_a_class_is_read() -> None:
    spec = {
        "selectors": [{"cel": {"expression": "a"}}],
        "config": [{"opaque": {"driver": "d", "parameters": {}}}],
        "extendedResourceName": "example.com/gpu",
    }
    found = read_class(WireClass(metadata=ObjectMeta(name="gpu"), spec=spec))
    assert found == ClassRequirements("gpu", ("a",), (Config("d", msgspec.Raw(b"{}")),))


@pytest.mark.parametrize("spec", [{"suitableNodes": {}}, {"selectors": [{}]}, {"config": [{"requests": ["a"]}]}])
def test_a_class_with_more_than_we_know_is_not_read(spec: Any) -> None:
    assert isinstance(read_class(WireClass(metadata=ObjectMeta(name="gpu"), spec=spec)), Unsupported)
