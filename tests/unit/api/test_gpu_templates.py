from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.gpu_templates import MANAGED_BY, MANAGER, GpuTemplate, read_gpu_template

CLASSES = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,3}", fullmatch=True
)


@given(st.integers(1, 9_999_999_999), CLASSES)
def test_a_name_says_all_that_is_in_the_template(count: int, device_class: str) -> None:
    template = GpuTemplate(count, device_class)
    assert read_gpu_template(template.name) == template


OTHERS = (
    *("", "gpus", "gpus-1", "gpus-1.", "gpus-0.a", "gpus-01.a", "gpus--1.a", "gpus-1-a"),
    *("my-gpus-1.a", "gpus-one.a", "gpus-12345678901.a", "Gpus-1.a"),
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
