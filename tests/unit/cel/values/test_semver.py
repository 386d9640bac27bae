from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dracaena.cel.errors import EvaluationError
from dracaena.cel.value import UINT_MAX
from dracaena.cel.values.semver import Semver

# semver.org, 11.4, and some around it.
IN_ORDER = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"]
IN_ORDER += ["1.0.0-rc.1", "1.0.0", "1.0.1-0", "1.0.1", "1.9.0", "1.10.0", "2.0.0"]


def test_versions_are_ordered_as_the_specification_shows() -> None:
    versions = [Semver.parse(text) for text in IN_ORDER]
    for low, version in enumerate(versions):
        for high, other in enumerate(versions):
            assert version.compare(other) == (low > high) - (low < high)


NUMBERS = st.one_of(st.integers(0, 12), st.integers(0, UINT_MAX))
WORDS = st.text("09aZ-", min_size=1, max_size=4).filter(lambda word: not word.isdigit())
VERSIONS = st.builds(
    Semver,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.lists(st.one_of(NUMBERS, WORDS), max_size=3).map(tuple),
    st.lists(st.text("09aZ-", min_size=1, max_size=3), max_size=2).map(tuple),
)


def precedes(one: Semver, other: Semver) -> bool:
    """The rules of semver.org, 11, one after the other."""
    for mine, theirs in zip((one.major, one.minor, one.patch), (other.major, other.minor, other.patch), strict=True):
        if mine != theirs:
            return mine < theirs
    if not one.prerelease or not other.prerelease:
        return bool(one.prerelease) and not other.prerelease
    for mine_, theirs_ in zip(one.prerelease, other.prerelease, strict=False):
        if mine_ == theirs_:
            continue
        if isinstance(mine_, int) and isinstance(theirs_, int):
            return mine_ < theirs_
        if isinstance(mine_, str) and isinstance(theirs_, str):
            return mine_.encode() < theirs_.encode()
        return isinstance(mine_, int)
    return len(one.prerelease) < len(other.prerelease)


@settings(derandomize=True)
@given(VERSIONS, VERSIONS)
def test_the_order_is_that_of_the_specification(one: Semver, other: Semver) -> None:
    assert (one.compare(other) < 0) == precedes(one, other)
    assert (one.compare(other) > 0) == precedes(other, one)
    assert (one == other) == (not precedes(one, other) and not precedes(other, one))
    if one == other:
        assert hash(one) == hash(other)


@settings(derandomize=True)
@given(VERSIONS)
def test_a_version_reads_what_it_writes(version: Semver) -> None:
    again = Semver.parse(str(version))
    assert (again, again.build, str(again)) == (version, version.build, str(version))
    assert Semver.parse_loose(f"v{version}") == version


def test_build_data_has_no_part_in_equality() -> None:
    assert Semver.parse("1.0.0+a") == Semver.parse("1.0.0+b")
    assert Semver.parse("1.0.0") != Semver.parse("1.0.0-a")


@pytest.mark.parametrize(
    ("text", "regular"),
    [
        ("v1", "1.0.0"),
        ("1.2", "1.2.0"),
        ("01.002.0003", "1.2.3"),
        ("00", "0.0.0"),
        ("1.2.03-alpha.1+b", "1.2.3-alpha.1+b"),
        ("1.2.0-a", "1.2.0-a"),
    ],
)
def test_a_loose_version_is_made_regular(text: str, regular: str) -> None:
    assert str(Semver.parse_loose(text)) == regular


@pytest.mark.parametrize("text", ["1.2-alpha", "1+b", "vv1", " 1", "", "v", "1.2.3.4", "x.1", "1..2"])
def test_what_no_regular_version_can_be_made_of_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError):
        Semver.parse_loose(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Version string empty"),
        ("1.2", "No Major.Minor.Patch elements found"),
        ("v1.2.3", 'Invalid character(s) found in major number "v1"'),
        ("01.2.3", 'Major number must not contain leading zeroes "01"'),
        ("1.2.3-01", 'Numeric PreRelease version must not contain leading zeroes "01"'),
        ("1.2.3-a..b", "Prerelease is empty"),
        ("1.2.3+", "Build meta data is empty"),
        ("1.2.3-ä", 'Invalid character(s) found in prerelease "ä"'),
        ("1.2.18446744073709551616", 'strconv.ParseUint: parsing "18446744073709551616": value out of range'),
        ("1.2." + "9" * 5000, "value out of range"),
        ("1.٣.3", "Invalid character(s) found in minor number"),
    ],
)
def test_what_is_no_version_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(EvaluationError) as refused:
        Semver.parse(text)
    assert reason in refused.value.message
