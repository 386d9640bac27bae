"""The table itself, and the forms of single values: versions, quantities, compact strings."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api import attributes as table
from dracaena.api import compact, limits
from dracaena.api.machine import Gpu
from dracaena.api.quantity import format_bytes, parse_bytes
from dracaena.api.versions import is_semver, to_semver

KINDS = [
    (tuple(spec for spec in table.GPU_ATTRIBUTES if spec not in table.GIVING_WAY), table.SHARED_GPU_CAPACITIES),
    (table.MIG_ATTRIBUTES, (table.MULTIPROCESSORS_CAPACITY, table.MEMORY_CAPACITY)),
    (table.MIG_PLACE_ATTRIBUTES, table.MIG_PLACE_CAPACITIES),
]
NAME = re.compile(r"(?:[a-z0-9.-]{1,63}/)?[A-Za-z_][A-Za-z0-9_]{0,31}")


def test_names_are_unique_and_valid() -> None:
    for attributes, capacities in KINDS:
        names = [spec.name for spec in attributes]
        assert len(set(names)) == len(names)
        assert [name for name in (*names, *capacities) if not NAME.fullmatch(name)] == []


@pytest.mark.parametrize(("attributes", "capacities"), KINDS)
def test_each_kind_of_device_stays_within_the_limit_of_attributes_and_capacities(
    attributes: tuple[table.AttributeSpec, ...], capacities: tuple[str, ...]
) -> None:
    assert len(attributes) + len(capacities) <= limits.DEVICE_ATTRIBUTES_AND_CAPACITIES


def test_a_mig_device_carries_its_parent_in_place_of_groups_and_strings() -> None:
    whole = set(table.GPU_ATTRIBUTES) - set(table.MIG_ATTRIBUTES)
    assert {table.NVLINK_GROUP, table.PCIE_SWITCH, table.NUMA_NODE, table.PCIE_LEVELS, table.NVLINKS} <= whole
    assert set(table.MIG_ATTRIBUTES) - set(table.GPU_ATTRIBUTES) == {table.PARENT_UUID, table.PROFILE}


def test_each_fact_about_a_gpu_is_in_the_table() -> None:
    carried = {spec.gpu_field for spec in table.GPU_ATTRIBUTES} - {None}
    assert carried == {field.name for field in fields(Gpu)} - {"memory_bytes", "mig_enabled", "mig_profiles"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("535.104.05", "535.104.5"),
        ("12.2", "12.2.0"),
        ("9", "9.0.0"),
        ("000.1.00", "0.1.0"),
        ("535.54.06-grid", "535.54.6-grid"),
        ("1.2.3+build.7", "1.2.3+build.7"),
        ("1.2.3.4", None),
        ("1.2.3-", None),
        ("1.2.3-01", None),
        ("v1.2", None),
        ("12.2 ", None),
        ("", None),
        ("1.2.99999999999999999999", None),
        ("1.2.3-" + "a" * 64, None),
    ],
)
def test_vendor_versions_become_semver_or_nothing(text: str, version: str | None) -> None:
    assert to_semver(text) == version


@given(st.text(alphabet="0123456789.-+ab ", max_size=80))
def test_whatever_becomes_a_version_is_one(text: str) -> None:
    version = to_semver(text)
    assert version is None or is_semver(version)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (7, "7"),
        (80 * 2**30, "80Gi"),
        (81559 * 2**20, "81559Mi"),
        (3 * 2**10, "3Ki"),
        (1536, "1536"),
        (1000, "1k"),
    ],
)
def test_memory_is_written_as_the_server_would_store_it(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(st.integers(0, 2**60))
def test_memory_is_exact(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count


@pytest.mark.parametrize("text", ["", "-1", "1.5Gi", "1e3", "1X", "Gi", "1 Gi", "٣"])
def test_other_quantities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number of bytes"):
        parse_bytes(text)


@given(st.lists(st.none() | st.integers(-1, 61), max_size=compact.MAX_ENTRIES))
def test_compact_strings_are_lossless_and_fit(entries: list[int | None]) -> None:
    text = compact.encode(entries)
    assert len(text.encode()) <= limits.ATTRIBUTE_VALUE_BYTES
    assert list(compact.decode(text)) == entries


@pytest.mark.parametrize(
    ("text", "seen"),
    [("2000", "version '2'"), ("0-1", "version '0'"), ("", "version ''"), ("1-!", "'!'")],
)
def test_unknown_forms_and_symbols_are_named(text: str, seen: str) -> None:
    with pytest.raises(compact.CompactError, match=re.escape(seen)):
        compact.decode(text)
