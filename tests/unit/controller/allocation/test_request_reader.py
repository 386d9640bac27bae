"""Claims and classes are read once for each content, and what is kept read is bounded."""

from __future__ import annotations

import pytest

from dracaena.api.resource_objects import ResourceClaim
from dracaena.controller.allocation import request as request_module
from dracaena.controller.allocation.effort import CLAIM_STEPS, Effort
from dracaena.controller.allocation.legal.read.claims import read_claim
from dracaena.controller.allocation.request import READ_AHEAD_CHARACTERS, ClaimDemand, Refused, RequestReader
from support.allocation import DRIVER, claim, device_class, own_config, policy, request, requests_of


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the claims that were read, one after the other."""
    names: list[str] = []
    genuine = read_claim

    def counted(item: ResourceClaim) -> object:
        names.append(item.metadata.name)
        return genuine(item)

    monkeypatch.setattr(request_module, "read_claim", counted)
    return names


def demand(reader: RequestReader, item: ResourceClaim) -> ClaimDemand:
    found = reader.read([item])
    assert not isinstance(found, Refused)
    return found[0]


def test_claims_with_equal_specs_are_read_once_and_keep_their_names(read: list[str]) -> None:
    reader = requests_of([device_class()])
    first, second = demand(reader, claim("a", request(count=2))), demand(reader, claim("b", request(count=2)))
    assert read == ["a"]
    assert first.read is second.read
    assert [one.spec.key for one in (first, second)] == ["default/a", "default/b"]


def test_a_claim_with_another_spec_is_another_one(read: list[str]) -> None:
    reader = requests_of([device_class()])
    linked = claim("b", request(count=2), configs=[own_config(policy("NVLink"))])
    first, second = demand(reader, claim("a", request(count=2))), demand(reader, linked)
    assert read == ["a", "b"]
    assert first.requests[0][0].policy != second.requests[0][0].policy


def test_what_the_watch_brings_is_read_before_anybody_asks(read: list[str]) -> None:
    reader = requests_of([device_class()])
    reader.see(claim("a"))
    assert read == ["a"]
    effort = Effort()
    assert not isinstance(reader.read([claim("b")], effort), Refused)
    assert read == ["a"]
    assert sum(effort.spent.values()) < CLAIM_STEPS


def test_a_long_claim_is_read_and_charged_when_it_is_decided_for(read: list[str]) -> None:
    reader = requests_of([device_class()])
    requests = [request(f"r{number}", selectors=[{"cel": {"expression": "true " * 40}}]) for number in range(30)]
    long = claim("long", *requests)
    assert len(str(long.spec)) > READ_AHEAD_CHARACTERS
    reader.see(long)
    assert read == []
    effort = Effort()
    assert not isinstance(reader.read([long], effort), Refused)
    assert read == ["long"]
    assert sum(effort.spent.values()) >= CLAIM_STEPS


def test_a_class_that_changes_changes_what_is_asked_for() -> None:
    reader = requests_of([device_class()])
    before = demand(reader, claim("a"))
    assert demand(reader, claim("a")).read is before.read
    reader.set_class(device_class(DRIVER, policy("NVLink")))
    after = demand(reader, claim("a"))
    assert after.read is not before.read
    assert after.requests[0][0].policy != before.requests[0][0].policy
    reader.remove_class(DRIVER)
    gone = reader.read([claim("a")])
    assert isinstance(gone, Refused)
    assert gone.text == f"claim default/a: DeviceClass {DRIVER} does not exist: an admin has to create it"


def test_errors_name_the_claim_that_is_asked_about() -> None:
    reader = requests_of([device_class()])
    broken = own_config({"apiVersion": "gpu.dracaena.dev/v1alpha1", "kind": "TopologyPolicy", "requirement": "best"})
    for name in ("a", "b"):
        found = reader.read([claim(name, configs=[broken])])
        assert isinstance(found, Refused)
        assert found.text.startswith(f"claim default/{name}: spec.devices.config[0]")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch, read: list[str]) -> None:
    monkeypatch.setattr(request_module, "MOST_SPECS", 2)
    reader = requests_of([device_class()])
    for count in (1, 2, 1, 3, 1, 2):
        demand(reader, claim(f"c{count}", request(count=count)))
    assert read == ["c1", "c2", "c3", "c2"]


def test_long_specs_are_kept_by_their_text(monkeypatch: pytest.MonkeyPatch, read: list[str]) -> None:
    """One that is longer than all that may be kept stays until the next one comes."""
    monkeypatch.setattr(request_module, "MOST_CHARACTERS", 400)
    reader = requests_of([device_class()])

    def ask(name: str, length: int) -> None:
        demand(reader, claim(name, request(selectors=[{"cel": {"expression": "1" * length}}])))

    for name, length in (("small", 10), ("long", 1_000), ("long", 1_000), ("small", 10), ("long", 1_000)):
        ask(name, length)
    assert read == ["small", "long", "small", "long"]
