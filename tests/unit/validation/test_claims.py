"""Claims and templates. Each rule has what just passes and what breaks it; limits are those of kube-apiserver 1.36."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation.legal.read.claims import Unsupported, read_claim
from dracaena.validation import Severity, validate_object
from support.api_documents import ABSENT, claim, edited, errors, template, warnings

DEVICES = "spec.devices"
REQUEST = "spec.devices.requests[0]"
EXACTLY = f"{REQUEST}.exactly"
ALTERNATIVES = "spec.devices.requests[1].firstAvailable"
TOLERATION = f"{EXACTLY}.tolerations[0]"


def requests(count: int, each: int = 1) -> list[Any]:
    return [{"name": f"r{index}", "exactly": {"deviceClassName": "c", "count": each}} for index in range(count)]


def alternatives(count: int) -> list[Any]:
    return [{"name": f"a{index}", "deviceClassName": "c"} for index in range(count)]


def constraints(count: int) -> list[Any]:
    return [{"matchAttribute": "example.com/a"}] * count


def alone(*entries: Any) -> dict[str, Any]:
    """A claim's devices with these requests and nothing that refers to them."""
    return {"requests": list(entries)}


GOOD = [
    ("spec", {}),
    (DEVICES, ABSENT),
    (DEVICES, {"requests": requests(32)}),
    (DEVICES, alone(*requests(1, each=32))),
    (f"{REQUEST}.name", "gpus"),
    (f"{EXACTLY}.deviceClassName", "a." + "b" * 251),
    (f"{EXACTLY}.allocationMode", ABSENT),
    (f"{EXACTLY}.allocationMode", ""),
    (f"{EXACTLY}.count", ABSENT),
    (f"{EXACTLY}.count", None),
    (f"{EXACTLY}.adminAccess", True),
    (f"{EXACTLY}.tolerations", [{"operator": "Exists", "key": f"k{index}"} for index in range(17)]),
    (f"{EXACTLY}.capacity.requests", {"a": 4, "b": 1.5, "c": "500m", "d": "1e3", "e": None}),
    (f"{EXACTLY}.capacity", {}),
    (ALTERNATIVES, [{"name": "fast", "deviceClassName": "c"}, *alternatives(7)]),
    (f"{ALTERNATIVES}[1].count", 0),
    (f"{TOLERATION}.operator", ABSENT),
    (f"{TOLERATION}.value", "x" * 63),
    (f"{TOLERATION}.effect", "NoExecute"),
    (f"{TOLERATION}.effect", "None"),
    (f"{TOLERATION}.tolerationSeconds", -5),
    (f"{DEVICES}.constraints", constraints(32)),
    (f"{DEVICES}.constraints[0].requests", []),
    (f"{DEVICES}.constraints[0].matchAttribute", "d" * 63 + "/" + "i" * 32),
    (f"{DEVICES}.constraints[0].matchAttribute", "Example.COM/_a1"),
    (f"{DEVICES}.config[0].requests", ABSENT),
    ("status", {"anything": 1}),
]


@pytest.mark.parametrize(("path", "value"), GOOD)
def test_what_the_server_takes_has_no_error(path: str, value: Any) -> None:
    assert errors(edited(claim(), path, value)) == []


def derived(name: str, expression: str) -> list[dict[str, str]]:
    return [{"name": name, "expression": expression}]


BAD = [
    ("spec", [], "spec: wrong type"),
    ("spec.device", {}, "spec.device: unknown field: {}, expected one of devices"),
    (f"{DEVICES}.request", [], "spec.devices.request: unknown field"),
    (f"{DEVICES}.requests", {}, "spec.devices.requests: wrong type: {}, expected a list"),
    (f"{DEVICES}.requests", requests(33), "spec.devices.requests: too many entries: a list of 33, expected at most 32"),
    (DEVICES, alone(*requests(11, each=3)), "spec.devices.requests: 33 devices in all"),
    (REQUEST, "gpus", f'{REQUEST}: wrong type: "gpus", expected an object'),
    (REQUEST, None, f"{REQUEST}: neither exactly nor firstAvailable"),
    (f"{REQUEST}.name", ABSENT, f"{REQUEST}.name: missing: nothing"),
    (f"{REQUEST}.name", "", f"{REQUEST}.name: missing"),
    (f"{REQUEST}.name", "GPUs", f'{REQUEST}.name: not a DNS label: "GPUs"'),
    (f"{REQUEST}.name", "g" * 64, f"{REQUEST}.name: not a DNS label"),
    (f"{REQUEST}.name", "a\n", f'{REQUEST}.name: not a DNS label: "a\\n"'),
    (f"{REQUEST}.name", 5, f"{REQUEST}.name: wrong type: 5, expected a text"),
    (f"{REQUEST}.name", "nic", "spec.devices.requests[1]: a second request of this name"),
    (EXACTLY, ABSENT, f"{REQUEST}: neither exactly nor firstAvailable"),
    (f"{REQUEST}.firstAvailable", alternatives(1), f"{REQUEST}: both exactly and firstAvailable"),
    (f"{REQUEST}.atLeast", {}, f"{REQUEST}.atLeast: unknown field"),
    (f"{EXACTLY}.deviceClassName", ABSENT, f"{EXACTLY}.deviceClassName: missing"),
    (f"{EXACTLY}.deviceClassName", "a_b", f"{EXACTLY}.deviceClassName: not a DNS name"),
    (f"{EXACTLY}.deviceClassName", "a" * 254, f"{EXACTLY}.deviceClassName: not a DNS name"),
    (f"{EXACTLY}.derivedAttributes", [{}] * 33, f"{EXACTLY}.derivedAttributes: too many entries"),
    (
        f"{EXACTLY}.derivedAttributes",
        derived("a", "1"),
        f"{EXACTLY}.derivedAttributes[0].name: not a fully qualified name",
    ),
    (f"{EXACTLY}.derivedAttributes", derived("a.b/c", "1 +"), f"{EXACTLY}.derivedAttributes[0].expression: CEL: "),
    (
        f"{EXACTLY}.derivedAttributes",
        derived("a.b/c", "1.5"),
        "expected an expression that compiles and yields a value",
    ),
    (
        f"{EXACTLY}.derivedAttributes",
        derived("a.b/c", "1") * 2,
        "derivedAttributes[1]: a second attribute of this name",
    ),
    (
        f"{EXACTLY}.allocationMode",
        "Some",
        f'{EXACTLY}.allocationMode: unknown value: "Some", expected one of ExactCount, All',
    ),
    (f"{EXACTLY}.allocationMode", "All", f"{EXACTLY}.count: a count beside allocationMode All"),
    (f"{EXACTLY}.count", -1, f"{EXACTLY}.count: negative"),
    (f"{EXACTLY}.count", "4", f"{EXACTLY}.count: wrong type"),
    (f"{EXACTLY}.count", True, f"{EXACTLY}.count: wrong type: true, expected a whole number of 64 bits"),
    (f"{EXACTLY}.count", 2**63, f"{EXACTLY}.count: wrong type"),
    (f"{EXACTLY}.count", 4.0, f"{EXACTLY}.count: wrong type"),
    (f"{EXACTLY}.adminAccess", "yes", f"{EXACTLY}.adminAccess: wrong type"),
    (f"{ALTERNATIVES}[0].adminAccess", False, f"{ALTERNATIVES}[0].adminAccess: unknown field"),
    (f"{EXACTLY}.capacity.requests", {"a": "much"}, f'{EXACTLY}.capacity.requests.a: not a quantity: "much"'),
    (f"{EXACTLY}.capacity.requests", {"a/b": True}, f'{EXACTLY}.capacity.requests["a/b"]: wrong type: true'),
    (ALTERNATIVES, alternatives(9), f"{ALTERNATIVES}: too many entries: a list of 9, expected at most 8"),
    (f"{ALTERNATIVES}[1].name", "fast", f"{ALTERNATIVES}[1]: a second alternative of this name"),
    (f"{ALTERNATIVES}[0].name", "", f"{ALTERNATIVES}[0].name: missing"),
    (f"{ALTERNATIVES}[0].count", -1, f"{ALTERNATIVES}[0].count: negative"),
    (f"{TOLERATION}.key", "a/b/c", f"{TOLERATION}.key: not a label key"),
    (f"{TOLERATION}.operator", "Is", f"{TOLERATION}.operator: unknown value"),
    (f"{TOLERATION}.operator", "Exists", f"{TOLERATION}.value: a value beside operator Exists"),
    (f"{TOLERATION}.value", "x" * 64, f"{TOLERATION}.value: not a label value"),
    (f"{TOLERATION}.effect", "PreferNoSchedule", f"{TOLERATION}.effect: unknown value"),
    (f"{TOLERATION}.seconds", 5, f"{TOLERATION}.seconds: unknown field"),
    (f"{DEVICES}.constraints", constraints(33), f"{DEVICES}.constraints: too many entries"),
    (f"{DEVICES}.constraints[0].matchAttribute", ABSENT, "[0]: neither matchAttribute nor distinctAttribute"),
    (f"{DEVICES}.constraints[0].matchAttribute", "pcieRoot", ".matchAttribute: not a fully qualified name"),
    (f"{DEVICES}.constraints[0].matchAttribute", "", ".matchAttribute: not a fully qualified name"),
    (f"{DEVICES}.constraints[0].matchAttribute", "a.b/" + "i" * 33, ".matchAttribute: too long"),
    (f"{DEVICES}.constraints[1].distinctAttribute", "a.b/1a", ".distinctAttribute: not a fully qualified name"),
    (
        f"{DEVICES}.constraints[0].requests[0]",
        "nics",
        'requests[0]: no such request in this claim: "nics", expected one of gpus, nic, nic/any, nic/fast',
    ),
    (f"{DEVICES}.constraints[0].requests[1]", "nic/slow", "requests[1]: no such request in this claim"),
    (f"{DEVICES}.constraints[0].requests[1]", "nic/fast/er", "requests[1]: no such request in this claim"),
    (f"{DEVICES}.constraints[0].requests[1]", "gpus", "requests[1]: named twice"),
    (f"{DEVICES}.constraints[0].requests", ["gpus"] * 33, "requests: too many entries"),
    (f"{DEVICES}.config[0].requests[0]", "gpu", "config[0].requests[0]: no such request"),
    ("metadata.name", ABSENT, "metadata.name: missing"),
    ("extra", 1, "extra: unknown field"),
]


@pytest.mark.parametrize(("path", "value", "found"), BAD)
def test_what_the_server_refuses_is_an_error_with_its_place(path: str, value: Any, found: str) -> None:
    assert any(found in error for error in errors(edited(claim(), path, value)))


MISTAKES = [
    (f"{EXACTLY}.derivedAttributes", derived("a.b/c", "[1]"), "dropped by 1.37 where DRADerivedAttributes is off"),
    (f"{DEVICES}.constraints[0].matchAttribute", "A.b/c", "capitals in the domain, which 1.37 refuses"),
    (f"{EXACTLY}.count", 0, f"{EXACTLY}.count: read as 1 by the server: 0"),
    (f"{EXACTLY}.tolerations", [{"key": "k", "value": "v"}] * 17, "tolerations: more than is documented"),
    (f"{TOLERATION}.key", "", "key: an empty key with operator Equal tolerates this value of every taint"),
    (f"{TOLERATION}.tolerationSeconds", 5, "tolerationSeconds: ignored with effect left out"),
    (f"{EXACTLY}.capacity.requests", {"a/b/c": "1"}, "the key is not a qualified name, no device has such a capacity"),
    (f"{DEVICES}.constraints[0].distinctAttribute", "a.b/c", "distinctAttribute: ignored next to matchAttribute"),
    (f"{DEVICES}.constraints[0].matchAttribute", "a/b/c", "more than one '/', no device has such an attribute"),
]


@pytest.mark.parametrize(("path", "value", "found"), MISTAKES)
def test_what_the_server_takes_by_mistake_is_a_warning_and_no_error(path: str, value: Any, found: str) -> None:
    document = edited(claim(), path, value)
    assert any(found in warning for warning in warnings(document))
    assert errors(document) == []


OF_SHARES = [
    ({"memory": "0"}, "every share takes 1Mi at least"),
    ({"memory": "10G"}, "rounded up to whole MiB"),
    ({"memory": "1Gi", "cores": "101"}, "no GPU has more than 100 percent of its cores"),
    ({"memory": "1Gi", "cores": "500m"}, "rounded up to whole percent"),
    ({"cores": "30"}, "without memory next to it, all memory is taken, and so the whole GPU"),
]


@pytest.mark.parametrize("name", ["gpu.dracaena.dev", "share.gpu.dracaena.dev"])
@pytest.mark.parametrize(("amounts", "found"), OF_SHARES)
def test_an_amount_that_is_not_what_it_seems_is_warned_of(name: str, amounts: dict[str, str], found: str) -> None:
    document = edited(edited(claim(), f"{EXACTLY}.capacity.requests", amounts), f"{EXACTLY}.deviceClassName", name)
    assert any(found in warning for warning in warnings(document))
    assert errors(document) == []
    foreign = edited(document, f"{EXACTLY}.deviceClassName", "gpu.example.com")
    assert not any(found in warning for warning in warnings(foreign))


def test_an_alternative_with_more_cores_than_a_gpu_has_is_never_taken() -> None:
    capacity = {"requests": {"memory": "1Gi", "cores": "101"}}
    alternatives = [
        {"name": "a", "deviceClassName": "gpu.dracaena.dev", "capacity": capacity},
        {"name": "b", "deviceClassName": "gpu.dracaena.dev"},
    ]
    document = edited(claim(), "spec.devices.requests", [{"name": "r", "firstAvailable": alternatives}])
    (told,) = warnings(document)
    assert "this alternative is never taken: no GPU has more than 100 percent of its cores" in told


@pytest.mark.parametrize("amounts", [{"memory": "-1Gi"}, {"memory": "1Gi", "cores": "-1"}, {"lanes": "-500m"}])
def test_an_amount_that_the_controller_refuses_is_an_error(amounts: dict[str, str]) -> None:
    document = edited(claim(), f"{EXACTLY}.capacity.requests", amounts)
    assert any("negative, which the controller refuses" in error for error in errors(document))
    assert isinstance(read_claim(msgspec.convert(document, ResourceClaim)), Unsupported)
    foreign = edited(document, f"{EXACTLY}.deviceClassName", "gpu.example.com")
    assert errors(foreign) == []  # another driver may take it for something


ONE_GPU = {"matchAttribute": "gpu.dracaena.dev/uuid"}


@pytest.mark.parametrize(
    ("entries", "constraint", "told"),
    [
        (requests(1, each=2), ONE_GPU, ["request r0 asks for 2"]),
        (requests(2), ONE_GPU, []),
        (requests(2, each=3), {**ONE_GPU, "requests": ["r1"]}, ["request r1 asks for 3"]),
        (requests(1, each=2), {"matchAttribute": "gpu.dracaena.dev/numa"}, []),
        (requests(1, each=2), {"distinctAttribute": "gpu.dracaena.dev/uuid"}, []),
        (requests(1, each=2), {"matchAttribute": "gpu.example.com/uuid"}, []),
        ([{"name": "r", "firstAvailable": [{**a, "count": 2} for a in alternatives(2)]}], ONE_GPU, ["request r asks"]),
        (
            [{"name": "r", "firstAvailable": [{**a, "count": 1 + n} for n, a in enumerate(alternatives(2))]}],
            ONE_GPU,
            [],
        ),
        ([{"exactly": {"deviceClassName": "c", "count": 2}}], ONE_GPU, []),
    ],
)
def test_several_devices_of_one_request_are_never_one_gpu(
    entries: list[Any], constraint: dict[str, Any], told: list[str]
) -> None:
    found = warnings(edited(claim(), DEVICES, {"requests": entries, "constraints": [constraint]}))
    assert [words in warning for words, warning in zip(told, found, strict=True)] == [True] * len(told)


def test_amounts_of_a_share_have_no_findings() -> None:
    document = edited(claim(), f"{EXACTLY}.capacity.requests", {"memory": "20Gi", "cores": "30"})
    assert errors(document) + warnings(document) == []


def test_a_good_claim_has_no_findings() -> None:
    assert errors(claim()) + warnings(claim()) == []


RACES = [
    {"operator": "Exists"},
    {"key": "gpu.dracaena.dev/controller-allocated", "operator": "Exists"},
    {"key": "gpu.dracaena.dev/controller-allocated", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    {"key": "gpu.dracaena.dev/controller-allocated", "value": "true"},
]
NO_RACES = [
    {"operator": "Exists", "effect": "NoExecute"},
    {"key": "gpu.dracaena.dev/controller-allocated", "operator": "Equal", "value": "false"},
    {"key": "gpu.dracaena.dev/other", "operator": "Exists"},
]


@pytest.mark.parametrize("toleration", RACES)
@pytest.mark.parametrize("place", [f"{EXACTLY}.tolerations", f"{ALTERNATIVES}[0].tolerations"])
def test_a_toleration_of_our_taint_is_warned_of(toleration: dict[str, Any], place: str) -> None:
    found = warnings(edited(claim(), place, [toleration]))
    assert len(found) == 1
    assert "kube-scheduler may give one of our devices to two claims" in found[0]


@pytest.mark.parametrize("toleration", NO_RACES)
def test_a_toleration_of_something_else_is_not_warned_of(toleration: dict[str, Any]) -> None:
    assert warnings(edited(claim(), f"{EXACTLY}.tolerations", [toleration])) == []


def test_the_taint_follows_the_name_of_the_driver() -> None:
    document = edited(claim(), f"{EXACTLY}.tolerations", RACES[1:2])
    assert warnings(document, driver="other.example.com") == []
    other = edited(document, f"{TOLERATION}.key", "other.example.com/controller-allocated")
    assert len(warnings(other, driver="other.example.com")) == 1


def test_a_template_is_checked_like_a_claim_one_step_deeper() -> None:
    document = edited(template(), "spec.spec.devices.requests[0].exactly.count", -1)
    assert [error.split(":")[0] for error in errors(document)] == ["spec.spec.devices.requests[0].exactly.count"]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("spec.metadata.name", "x", 'spec.metadata.name: unknown field: "x", expected one of labels, annotations'),
        ("spec.metadata.labels", {"a": "-"}, "spec.metadata.labels.a: not a label value"),
        ("spec.devices", {}, "spec.devices: unknown field: {}, expected one of metadata, spec"),
        ("status", {}, "status: unknown field"),
    ],
)
def test_a_template_has_rules_of_its_own(path: str, value: Any, found: str) -> None:
    assert any(found in error for error in errors(edited(template(), path, value)))


def test_the_fewest_devices_of_alternatives_count() -> None:
    many = {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c", "count": 9}, *alternatives(1)]}
    assert errors({**claim(), "spec": {"devices": alone(*requests(31), many)}}) == []
    assert (
        len(
            errors(
                {
                    **claim(),
                    "spec": {
                        "devices": alone(*requests(31, each=1), {**many, "firstAvailable": [many["firstAvailable"][0]]})
                    },
                }
            )
        )
        == 1
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{EXACTLY}.selectors", [{"cel": {"expression": 'device.attributes["d"].name.orValue("") == "x"'}}]),
        (f"{EXACTLY}.derivedAttributes", derived("a.b/c", 'device.attributes["d"].name.orValue("")')),
    ],
)
def test_or_value_of_what_is_no_optional_is_a_warning_with_its_place(path: str, value: Any) -> None:
    found = [
        finding
        for finding in validate_object(edited(claim(), path, value), "gpu.dracaena.dev")
        if finding.cel is not None
    ]
    assert [finding.severity for finding in found] == [Severity.WARNING]
    assert "'orValue' needs an optional value" in found[0].message
    assert found[0].cel is not None
    assert (found[0].cel.line, found[0].cel.column) == (1, 36)


@pytest.mark.parametrize(("name", "meant"), [("deviceClasName", ": did you mean deviceClassName?"), ("gpus", "")])
def test_an_unknown_field_is_reported_with_the_one_that_was_meant(name: str, meant: str) -> None:
    (error,) = errors(edited(claim(), f"spec.devices.requests[0].exactly.{name}", "x"))
    assert "unknown field" in error
    assert error.endswith(meant or "adminAccess")
