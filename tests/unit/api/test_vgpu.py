"""Names of vGPUs and of their types."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api.vgpu import (
    VgpuType,
    is_mdev_uuid,
    is_of_virtual_machine,
    vgpu_device_name,
    vgpu_identity_in,
    vgpu_type,
)

UUID = "aa618089-8b16-4d01-a136-25a0f3c73123"
GIB = 1 << 30


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GRID T4-2Q", VgpuType("T4-2Q", None, 2 * GIB)),
        ("GRID M60-0Q", VgpuType("M60-0Q", None, GIB // 2)),
        ("GRID P100-2B4", VgpuType("P100-2B4", None, 2 * GIB)),
        ("NVIDIA A100-40C", VgpuType("A100-40C", None, 40 * GIB)),
        ("NVIDIA A100-1-5C", VgpuType("A100-1-5C", 1, None)),
        ("NVIDIA A100-1-5CME", VgpuType("A100-1-5CME", 1, None)),
        ("NVIDIA H200X-141C", VgpuType("H200X-141C", None, 141 * GIB)),
        ("NVIDIA H200X-7-141C", VgpuType("H200X-7-141C", 7, None)),
        ("NVIDIA RTX 6000 Ada-48Q", VgpuType("RTX 6000 Ada-48Q", None, 48 * GIB)),
        ("NVIDIA RTX Pro 6000 Blackwell DC-1-24QGFX", VgpuType("RTX Pro 6000 Blackwell DC-1-24QGFX", 1, None)),
        ("T4-2Q", VgpuType("T4-2Q", None, 2 * GIB)),
    ],
)
def test_the_name_of_a_type_says_what_it_is(name: str, expected: VgpuType) -> None:
    assert vgpu_type(name) == expected


@pytest.mark.parametrize(
    ("name", "short", "plain"),
    [
        ("NVIDIA RTX Pro 6000 Blackwell DC-1-24QGFX", "DC-1-24QGFX", "DC-1-24Q"),
        ("NVIDIA A100-1-5CME", "A100-1-5CME", "A100-1-5C"),
        ("NVIDIA A100-1-5CNOME", "A100-1-5CNOME", "A100-1-5C"),
        ("NVIDIA A100-1-5CMEALL", "A100-1-5CMEALL", "A100-1-5C"),
        ("GRID P100-2B4", "P100-2B4", "P100-2B4"),
    ],
)
def test_files_have_the_last_word_of_a_type(name: str, short: str, plain: str) -> None:
    found = vgpu_type(name)
    assert found is not None
    assert (found.short_name, found.without_attribute) == (short, plain)


@pytest.mark.parametrize(
    "name",
    ["", "NVIDIA ", "A100", "A100-40", "A100-C", "A100-40D", "-40C", "A100-40C\n", "A100=1-40C", "A/1-4C",
     "A100-40CME2", "T" * 70 + "-4Q", "NVIDIA NVIDIA -4Q"],
)  # fmt: skip
def test_what_is_no_type_has_none(name: str) -> None:
    assert vgpu_type(name) is None


@given(st.text(max_size=80))
def test_no_text_makes_a_type_that_cannot_stand_in_an_attribute_or_a_variable(name: str) -> None:
    found = vgpu_type(name)
    assert found is None or re.fullmatch(r"[A-Za-z0-9 ._-]{1,64}", found.name)


@pytest.mark.parametrize(("identity", "name"), [(UUID, f"vgpu-{UUID}"), ("0000:41:04.1", "vgpu-0000-41-04-1")])
def test_the_name_of_a_device_says_which_it_is(identity: str, name: str) -> None:
    assert vgpu_device_name(identity) == name
    assert vgpu_identity_in(name) == identity


@pytest.mark.parametrize(
    "name", ["", "vgpu-", "vgpu-0000-41-04-8", f"vgpu-{UUID}x", f"gpu-{UUID}", f"vgpu-{UUID.upper()}", UUID]
)
def test_other_names_are_of_no_vgpu(name: str) -> None:
    assert vgpu_identity_in(name) is None


def test_devices_of_virtual_machines_are_distinguished_from_those_that_the_driver_names() -> None:
    assert [is_of_virtual_machine(name) for name in (UUID, "0000:41:04.1", f"GPU-{UUID}", f"MIG-{UUID}", "3")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert not is_mdev_uuid(f"GPU-{UUID}")
