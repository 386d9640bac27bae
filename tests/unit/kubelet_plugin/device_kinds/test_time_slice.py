from __future__ import annotations

import dataclasses

import pytest

from dracaena.api.config.v1alpha1 import TimeSliceInterval
from dracaena.kubelet_plugin.device_kinds.time_slice import interval_in, why_no_time_slices
from support.plugin import device_name, make_pool

LIST = """+--------------------------------------+
| GPU compute policies:                |
| GPU     Name                Value    |
|======================================|
|   0     Timeslice           {}  |
+--------------------------------------+
"""


@pytest.mark.parametrize("interval", TimeSliceInterval)
def test_an_interval_is_read_from_the_list_of_one_gpu(interval: TimeSliceInterval) -> None:
    assert interval_in(LIST.format(interval.value)) is interval
    assert interval_in(LIST.format(interval.value.upper())) is interval


@pytest.mark.parametrize("text", ["", LIST.format("2 ms"), LIST.format("Huge"), LIST.format("Long") * 2, "Timeslice"])
def test_what_is_not_understood_is_not_guessed(text: str) -> None:
    assert interval_in(text) is None


@pytest.mark.parametrize(
    ("capability", "has"), [("6.1", False), ("7.0", True), ("10.3", True), (None, True), ("new", True)]
)
def test_products_before_volta_are_named(capability: str | None, has: bool) -> None:
    gpu = dataclasses.replace(
        make_pool().gpus[device_name(0)], cuda_compute_capability=capability, product_name="Tesla P40"
    )
    told = why_no_time_slices(gpu)
    assert (told is None) is has
    assert has or (told is not None and "Tesla P40 has compute capability 6.1" in told)
