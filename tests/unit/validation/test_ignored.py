"""What is accepted and does nothing gets a warning, with the words of the controller; nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dracaena.api import reasons
from dracaena.api.names import DEFAULT_DRIVER_NAME as DRIVER
from dracaena.validation import Severity, render_path, validate_all
from dracaena.validation.ignored import SHIPPED

CLASSES = Path(__file__).resolve().parents[3] / "deploy" / "deviceclasses"

NVIDIA = "gpu.nvidia.com"
TIME_SLICING = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
FOREIGN = {"opaque": {"driver": NVIDIA, "parameters": TIME_SLICING}}
REQUESTS = "spec.devices.requests"


def claim(*requests: dict[str, Any], name: str = "c", **devices: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests), **devices}},
    }


def template(of: dict[str, Any]) -> dict[str, Any]:
    return {**of, "kind": "ResourceClaimTemplate", "spec": {"spec": of["spec"]}}


def exactly(name: str = "r", class_name: str = DRIVER, **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_name, **fields}}


def first_available(*alternatives: dict[str, Any]) -> dict[str, Any]:
    return {"name": "r", "firstAvailable": [{"name": f"a{at}", **one} for at, one in enumerate(alternatives)]}


def cel(expression: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}]}


def device_class(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def pod(*uses: dict[str, Any]) -> dict[str, Any]:
    containers = [{"name": f"c{at}", "resources": {"claims": [use]}} for at, use in enumerate(uses)]
    claims = [{"name": "gpus", "resourceClaimName": "c"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"resourceClaims": claims, "containers": containers},
    }


def warnings(*documents: dict[str, Any]) -> list[tuple[str, str]]:
    found = [finding for findings in validate_all(documents) for finding in findings]
    assert all(finding.severity is Severity.WARNING for finding in found), list(map(str, found))
    return [(render_path(finding.path), finding.message) for finding in found]


DOES_NOTHING = reasons.foreign_config(NVIDIA, DRIVER)
WRONG_DOMAIN = f"no GPU has the attribute {NVIDIA}/productName: did you mean {DRIVER}/productName?"
NO_CLASS = "DeviceClass {} is not in the input: did you mean {}?"
WRONG = f'device.attributes["{NVIDIA}"].productName == "H100"'
RIGHT = f'device.attributes["{DRIVER}"].productName == "H100"'

IGNORED: dict[str, tuple[dict[str, Any], str, str]] = {
    "configuration for another driver": (
        claim(exactly(), config=[FOREIGN]),
        "spec.devices.config[0].opaque.driver",
        DOES_NOTHING,
    ),
    "selector with a wrong domain": (
        claim(exactly(**cel(WRONG))),
        f"{REQUESTS}[0].exactly.selectors[0].cel.expression",
        WRONG_DOMAIN,
    ),
    "guarded selector with a wrong domain": (
        claim(exactly(**cel(f'"productName" in device.attributes["{NVIDIA}"]'))),
        f"{REQUESTS}[0].exactly.selectors[0].cel.expression",
        f"no GPU has attributes of the domain {NVIDIA}: their domains are {DRIVER}, resource.kubernetes.io",
    ),
    "misspelt attribute": (
        claim(exactly(**cel(f'device.attributes["{DRIVER}"].productname == "H100"'))),
        f"{REQUESTS}[0].exactly.selectors[0].cel.expression",
        f"no GPU has the attribute {DRIVER}/productname: did you mean {DRIVER}/productName?",
    ),
    "alternative with a wrong domain": (
        claim(first_available({"deviceClassName": DRIVER, **cel(WRONG)}, {"deviceClassName": DRIVER})),
        f"{REQUESTS}[0].firstAvailable[0].selectors[0].cel.expression",
        WRONG_DOMAIN,
    ),
    "alternative with a misspelt class": (
        claim(first_available({"deviceClassName": "nvlnik.gpu.dracaena.dev"}, {"deviceClassName": DRIVER})),
        f"{REQUESTS}[0].firstAvailable[0].deviceClassName",
        NO_CLASS.format("nvlnik.gpu.dracaena.dev", "nvlink.gpu.dracaena.dev"),
    ),
    "misspelt class": (
        claim(exactly(class_name="gpu.dracaena.dve")),
        f"{REQUESTS}[0].exactly.deviceClassName",
        NO_CLASS.format("gpu.dracaena.dve", "gpu.dracaena.dev"),
    ),
    "capacity that no GPU has": (
        claim(exactly(capacity={"requests": {"lanes": "10"}})),
        f"{REQUESTS}[0].exactly.capacity.requests.lanes",
        "no GPU has the capacity lanes",
    ),
    "capacity with the domain that selectors want": (
        claim(exactly(capacity={"requests": {f"{DRIVER}/memory": "10Gi"}})),
        f'{REQUESTS}[0].exactly.capacity.requests["{DRIVER}/memory"]',
        f"no GPU has the capacity {DRIVER}/memory: did you mean memory?",
    ),
    "constraint on what nobody has": (
        claim(exactly(count=2), constraints=[{"matchAttribute": "example.com/rack"}]),
        "spec.devices.constraints[0].matchAttribute",
        "no GPU has the attribute example.com/rack",
    ),
    "class with a configuration for another driver": (
        device_class(f"shared.{DRIVER}", config=[FOREIGN], **cel(f'device.driver == "{DRIVER}"')),
        "spec.config[0].opaque.driver",
        DOES_NOTHING,
    ),
    "class with a wrong domain": (
        device_class("big", **cel(f'device.driver == "{DRIVER}" && {WRONG}')),
        "spec.selectors[0].cel.expression",
        WRONG_DOMAIN,
    ),
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_does_nothing_is_warned_of(name: str) -> None:
    document, path, message = IGNORED[name]
    assert warnings(document) == [(path, message)]
    if document["kind"] == "ResourceClaim":
        assert warnings(template(document)) == [(f"spec.{path}", message)]


def test_a_configuration_counts_for_the_requests_that_it_names() -> None:
    requests = exactly("a"), exactly("b", class_name="nic.example.com")
    assert warnings(claim(*requests, config=[{**FOREIGN, "requests": ["b"]}])) == []
    found = warnings(claim(*requests, config=[{**FOREIGN, "requests": ["a"]}]))
    assert found == [("spec.devices.config[0].opaque.driver", DOES_NOTHING)]


def test_a_class_of_the_input_tells_whom_its_requests_are_for() -> None:
    ours = device_class("big", **cel(f'device.driver == "{DRIVER}"'))
    theirs = device_class("other", **cel(f'device.driver == "{NVIDIA}"'))
    asked = claim(exactly(class_name="big"), config=[FOREIGN])
    assert warnings(ours, asked) == [("spec.devices.config[0].opaque.driver", DOES_NOTHING)]
    assert warnings(theirs, claim(exactly(class_name="other"), config=[FOREIGN])) == []
    assert warnings(asked) == []


def test_what_may_do_something_is_not_warned_of() -> None:
    both = device_class(f"any.{DRIVER}", config=[FOREIGN], **cel(f'device.driver in ["{DRIVER}", "{NVIDIA}"]'))
    assert (
        warnings(
            both,
            device_class(NVIDIA, **cel(f'device.driver == "{NVIDIA}"')),
            claim(exactly(**cel(RIGHT)), name="right"),
            claim(exactly(class_name="gpu.nvidia.com", **cel(WRONG)), config=[FOREIGN], name="theirs"),
            claim(exactly("a"), exactly("b", class_name="nic.example.com"), config=[FOREIGN], name="mixed"),
            claim(exactly(class_name="h100"), name="unlike"),
            claim(exactly(capacity={"requests": {"memory": "10Gi"}}), name="share"),
            claim(exactly(count=2), constraints=[{"matchAttribute": "resource.kubernetes.io/numaNode"}], name="numa"),
        )
        == []
    )


def test_another_driver_name_has_another_domain() -> None:
    (findings,) = validate_all([claim(exactly(class_name="gpu.example.com", **cel(RIGHT)))], "gpu.example.com")
    assert [finding.message for finding in findings] == [
        f"no GPU has the attribute {DRIVER}/productName: did you mean gpu.example.com/productName?"
    ]


def test_a_misspelt_template_is_warned_of_where_one_of_its_namespace_is_nearly_called_so() -> None:
    def asking(template: str, namespace: str = "default") -> dict[str, Any]:
        entries = [{"name": "gpus", "resourceClaimTemplateName": template}]
        containers = [{"name": "main", "image": "i", "resources": {"claims": [{"name": "gpus"}]}}]
        metadata = {"name": "p", "namespace": namespace}
        spec = {"resourceClaims": entries, "containers": containers}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    devices = {"devices": {"requests": [exactly()]}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    known = [
        {**about, "metadata": {"name": name, "namespace": "default"}, "spec": {"spec": devices}}
        for name in ("eight-gpus", "gpus-1.gpu.dracaena.dev")
    ]
    text = "ResourceClaimTemplate eihgt-gpus is not in the input: did you mean eight-gpus?"
    where = "spec.resourceClaims[0].resourceClaimTemplateName"
    assert warnings(*known, asking("eihgt-gpus")) == [(where, text)]
    assert warnings(*known, asking("eihgt-gpus", "other")) == [], "templates of another namespace are none of its own"
    assert warnings(*known, asking("eight-gpus")) == warnings(*known, asking("four-gpus")) == []
    assert warnings(*known, asking("gpus-2.gpu.dracaena.dev")) == [], "the controller makes it"


def test_a_request_that_no_container_names_is_warned_of_where_the_claim_is_in_the_input() -> None:
    asked, one = claim(exactly("a"), exactly("b")), pod({"name": "gpus", "request": "a"})
    assert warnings(asked, one) == [("spec.resourceClaims[0]", reasons.unused_request("b", "gpus"))]
    assert warnings(one) == []
    assert warnings(asked, pod({"name": "gpus", "request": "a"}, {"name": "gpus", "request": "b"})) == []
    assert warnings(asked, pod({"name": "gpus"})) == []


def test_requests_of_a_claim_that_several_pods_of_the_input_name_are_left_to_them() -> None:
    asked, one = claim(exactly("a"), exactly("b")), pod({"name": "gpus", "request": "a"})
    other = pod({"name": "gpus", "request": "b"}) | {"metadata": {"name": "other"}}
    assert warnings(asked, one, other) == []
    elsewhere = other | {"metadata": {"name": "other", "namespace": "elsewhere"}}
    assert warnings(asked, one, elsewhere) == [("spec.resourceClaims[0]", reasons.unused_request("b", "gpus"))]


def test_a_request_that_is_not_there_is_an_error_with_the_same_words() -> None:
    verdicts = validate_all([claim(exactly("a")), pod({"name": "gpus", "request": "b"}, {"name": "gpus"})])
    (error,) = [finding for findings in verdicts for finding in findings]
    assert error.severity is Severity.ERROR
    assert error.message == reasons.unknown_request("b", "gpus", ["a"])


@pytest.mark.parametrize("value", [None, 3, "x", [], {}, [3], [None], {"x": 3}, [{"opaque": 3}], [{"cel": []}]])
def test_nothing_is_raised_whatever_stands_there(value: Any) -> None:
    for part in ("requests", "config", "constraints"):
        document = claim(exactly())
        document["spec"]["devices"][part] = value
        validate_all([document, {**document, "spec": value}, device_class(DRIVER, config=value, selectors=value)])
        validate_all([document, pod({"name": value, "request": value})])


def test_each_class_of_the_chart_may_be_meant_by_a_misspelt_name() -> None:
    assert {f"{before}{DRIVER}" for before in SHIPPED} == {path.stem for path in CLASSES.glob("*.yaml")}


def test_a_class_of_nvidias_driver_is_reported_unless_the_input_has_it() -> None:
    theirs = claim(exactly(class_name=NVIDIA))
    place = "spec.devices.requests[0].exactly.deviceClassName"
    assert warnings(theirs) == [(place, reasons.class_not_in_input(NVIDIA, [], DRIVER))]
    assert warnings(device_class(NVIDIA, **cel(f'device.driver == "{NVIDIA}"')), theirs) == []
