from __future__ import annotations

from typing import Any

import pytest

from dracaena.validation import Finding, Severity, validate_all

DRIVER = "gpu.dracaena.dev"
NO_NVLINK = {"linkBandwidth": {"NVLink": 0}}
WANTS_NVLINK = {"requirement": "NVLink"}


def config(policy: dict[str, Any], driver: str = DRIVER, **entry: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", **policy}
    return {"opaque": {"driver": driver, "parameters": parameters}, **entry}


def device_class(*configs: dict[str, Any]) -> dict[str, Any]:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], "config": list(configs)}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "fast"}, "spec": spec}


def devices(*configs: dict[str, Any]) -> dict[str, Any]:
    requests = [
        {"name": "one", "exactly": {"deviceClassName": "fast"}},
        {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "fast"}]},
    ]
    return {"devices": {"requests": requests, "config": list(configs)}}


def claim(*configs: dict[str, Any]) -> dict[str, Any]:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    return {**kind, "metadata": {"name": "c"}, "spec": devices(*configs)}


def template(*configs: dict[str, Any]) -> dict[str, Any]:
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**kind, "metadata": {"name": "c"}, "spec": {"spec": devices(*configs)}}


def findings(*documents: dict[str, Any]) -> list[Finding]:
    return [finding for found in validate_all(documents) for finding in found]


@pytest.mark.parametrize(("make", "steps"), [(claim, ("spec",)), (template, ("spec", "spec"))])
def test_class_and_claim_that_contradict_each_other_are_an_error_at_each_request(make: Any, steps: Any) -> None:
    one, alternative = findings(device_class(config(NO_NVLINK)), make(config(WANTS_NVLINK)))
    assert one.severity is alternative.severity is Severity.ERROR
    assert one.path == (*steps, "devices", "requests", 0, "exactly")
    assert alternative.path == (*steps, "devices", "requests", 1, "firstAvailable", 0)
    assert one.message == (
        "the policies of this request and of DeviceClass fast contradict each other: linkBandwidth.NVLink"
    )
    assert one.expected == "more than 0 together with requirement NVLink"


def test_policies_of_one_claim_contradict_each_other_without_the_class() -> None:
    found = findings(claim(config(NO_NVLINK), config(WANTS_NVLINK)))
    assert [finding.message for finding in found] == [
        "the policies of this request contradict each other: linkBandwidth.NVLink"
    ] * 2


@pytest.mark.parametrize(("name", "at"), [("one", 0), ("any", 1), ("any/a", 1)])
def test_a_policy_counts_for_the_requests_that_it_names(name: str, at: int) -> None:
    found = findings(claim(config(NO_NVLINK), config(WANTS_NVLINK, requests=[name])))
    assert [finding.path[3] for finding in found] == [at]


def test_a_class_that_a_claim_can_still_put_right_is_a_warning() -> None:
    broken = device_class(config(NO_NVLINK), config(WANTS_NVLINK))
    assert [finding.severity for finding in findings(broken)] == [Severity.WARNING]
    mended = findings(broken, claim(config({"requirement": "BestEffort"})))
    assert [finding.severity for finding in mended] == [Severity.WARNING]
    left = findings(broken, claim())
    assert [finding.severity for finding in left] == [Severity.WARNING, Severity.ERROR, Severity.ERROR]


@pytest.mark.parametrize(
    "documents",
    [
        (device_class(config(NO_NVLINK)), claim()),
        (device_class(config(NO_NVLINK)), claim(config({"minBandwidth": 5}))),
        (device_class(config(NO_NVLINK, driver="other.example.com")), claim(config(WANTS_NVLINK))),
        (claim(config(WANTS_NVLINK)),),
    ],
)
def test_policies_that_go_together_are_no_finding(documents: tuple[dict[str, Any], ...]) -> None:
    assert [found for found in findings(*documents) if "does nothing" not in found.message] == []


@pytest.mark.parametrize(
    "wrong", [None, 3, [], [3], {}, {"config": 3}, {"requests": 3}, {"requests": [{"exactly": 3}]}]
)
def test_what_is_of_another_form_is_passed_over(wrong: Any) -> None:
    for document in (claim(), template(), device_class()):
        document["spec"] = {"devices": wrong, "spec": {"devices": wrong}, "config": wrong}
        assert not [finding for finding in findings(document) if "contradict" in finding.message]


@pytest.mark.parametrize(
    ("sharing", "warned"),
    [
        ({"strategy": "MPS"}, False),
        ({"strategy": "MPS", "interval": "Long"}, True),
        ({"strategy": "TimeSlicing"}, False),
        ({"strategy": "TimeSlicing", "interval": "Long"}, False),
        ({"interval": "Short"}, False),
    ],
)
def test_an_interval_that_says_nothing_is_warned_of(sharing: dict[str, str], warned: bool) -> None:
    gpu_config = config({"kind": "GpuConfig", "sharing": sharing})
    findings = [each for found in validate_all([device_class(), claim(gpu_config)]) for each in found]
    told = [each for each in findings if "an interval says nothing with strategy MPS" in each.message]
    assert [each.severity for each in told] == ([Severity.WARNING] if warned else [])
