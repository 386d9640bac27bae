"""Names of MIG devices."""

from __future__ import annotations

import re
from itertools import product

import pytest

from dracaena.api.limits import DNS_LABEL_BYTES
from dracaena.api.mig import MigDevice, profile_in, slices_in

PARENT = "GPU-72544D34-f24e-599b-9b93-b5ba76e367e2"
PROFILES = ("1g.5gb", "1g.5gb+me", "1g.5gb-me", "1g.10gb", "1g.10gb+me.all", "1g.12gb+gfx", "2g.10gb", "7g.141gb")
SHARED = ("1c.2g.10gb", "1c.3g.20gb", "2c.3g.20gb", "1c.7g.141gb")


def mig(profile: str, start: int = 0, compute_instance: int = 0) -> MigDevice:
    return MigDevice(PARENT, "MIG-1", 1, compute_instance, profile, start, 1)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (mig("1g.10gb", 4), "mig-72544d34-f24e-599b-9b93-b5ba76e367e2-1g-10gb-4"),
        (mig("1g.10gb+me"), "mig-72544d34-f24e-599b-9b93-b5ba76e367e2-1g-10gb-me-0"),
        (mig("1g.10gb-me"), "mig-72544d34-f24e-599b-9b93-b5ba76e367e2-1g-10gb-nome-0"),
        (mig("1c.3g.20gb", 4, 1), "mig-72544d34-f24e-599b-9b93-b5ba76e367e2-1c-3g-20gb-4-1"),
    ],
)
def test_the_name_says_parent_profile_and_place(device: MigDevice, name: str) -> None:
    assert device.device_name == name


def test_names_are_dns_labels_and_no_two_are_equal() -> None:
    devices = [mig(profile, start) for profile, start in product(PROFILES, range(8))]
    devices += [mig(profile, start, instance) for profile, start, instance in product(SHARED, range(8), range(7))]
    names = [device.device_name for device in devices]
    assert len(set(names)) == len(names)
    for name in names:
        assert len(name) <= DNS_LABEL_BYTES
        assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name)


@pytest.mark.parametrize("profile", [*PROFILES, *SHARED])
def test_the_profile_is_read_back_from_the_name(profile: str) -> None:
    assert {profile_in(mig(profile, start, 2).device_name) for start in (0, 4, 12)} == {profile}


@pytest.mark.parametrize(
    "name", ["gpu-72544d34-f24e-599b-9b93-b5ba76e367e2", "mig-1g-10gb-0", "mig-", "", "mig-x" * 20]
)
def test_other_names_have_no_profile(name: str) -> None:
    assert profile_in(name) is None


def test_the_slices_of_a_profile_are_in_its_name() -> None:
    assert [slices_in(name) for name in ("1g.10gb+me", "3g.40gb", "7g.80gb", "2c.3g.40gb", "x")] == [1, 3, 7, 2, 0]
