from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.gpu_templates import MANAGED_BY, MANAGER, GpuTemplate, read_gpu_template
from dracaena.validation.syntax import DNS_SUBDOMAIN

DRIVER = "gpu.dracaena.dev"

CLASSES = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,3}", fullmatch=True
)

PROFILES = st.from_regex(r"([1-7]c\.)?[1-7]g\.[1-9][0-9]{0,2}gb(\+me|\+gfx|\+me\.all|-me)?", fullmatch=True)


@given(st.integers(1, 9_999_999_999), CLASSES)
def test_a_name_says_all_that_is_in_the_template(count: int, device_class: str) -> None:
    template = GpuTemplate(count, device_class)
    assert read_gpu_template(template.name) == template


@given(st.integers(1, 9_999_999_999), st.sampled_from(["gpu.dracaena.dev", "a", "mig.example.com"]), PROFILES)
def test_a_name_says_which_profile_mig_devices_have(count: int, driver: str, profile: str) -> None:
    template = GpuTemplate(count, f"mig.{driver}", profile)
    assert read_gpu_template(template.name) == template
    assert DNS_SUBDOMAIN.holds(template.name)


def test_names_of_mig_devices_begin_as_their_extended_resource_ends() -> None:
    assert GpuTemplate(2, f"mig.{DRIVER}", "1g.10gb+me").name == "mig-1g.10gb.me-2.mig.gpu.dracaena.dev"


OTHERS = (
    *("", "gpus", "gpus-1", "gpus-1.", "gpus-0.a", "gpus-01.a", "gpus--1.a", "gpus-1-a"),
    *("my-gpus-1.a", "gpus-one.a", "gpus-12345678901.a", "Gpus-1.a"),
    *("mig-1g.10gb.mig.a", "mig-1g.10gb-0.mig.a", "mig-1g.10gb-1.a", "mig-1g.10gb-1.mig.", "mig-1g-1.mig.a"),
    *("mig-all-1.mig.a", "mig-1g.10gb..me-1.mig.a", 'mig-1g.10gb" || true || "-1.mig.a', "mig-1g.10gb+me-1.mig.a"),
)


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_say_nothing(name: str) -> None:
    assert read_gpu_template(name) is None


def test_the_template_asks_for_that_many_devices_of_the_class() -> None:
    document = GpuTemplate(2, "nvlink.gpu.dracaena.dev").document()
    assert document["metadata"] == {"name": "gpus-2.nvlink.gpu.dracaena.dev", "labels": {MANAGED_BY: MANAGER}}
    (request,) = document["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "nvlink.gpu.dracaena.dev",
        "allocationMode": "ExactCount",
        "count": 2,
    }


def test_the_template_of_mig_devices_selects_their_profile_in_the_drivers_own_class() -> None:
    (request,) = GpuTemplate(2, "mig.gpu.example.com", "1g.10gb+me").spec()["spec"]["devices"]["requests"]
    assert request["exactly"] == {
        "deviceClassName": "mig.gpu.example.com",
        "selectors": [{"cel": {"expression": 'device.attributes["gpu.example.com"].profile == "1g.10gb+me"'}}],
        "allocationMode": "ExactCount",
        "count": 2,
    }
