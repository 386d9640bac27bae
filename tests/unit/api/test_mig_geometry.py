from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dracaena.api import limits
from dracaena.api.mig_geometry import ENGINES, MigPlace, MigPlacement, MigProfile, consumption, counters, places
from support.mig_geometries import A30, A100_40GB, B200, GB200, GB300, GEOMETRIES, H100_80GB, RTX_PRO_6000

PARENT = "GPU-72544d34-f24e-599b-9b93-b5ba76e367e2"
LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def fits(chosen: Sequence[MigPlace], there: Mapping[str, int]) -> bool:
    """Whether counters allow these places beside each other, as the API judges it."""
    return allows(there, [consumption(place, there) for place in chosen])


def allows(there: Mapping[str, int], taken: Sequence[Mapping[str, int]]) -> bool:
    left = dict(there)
    for one in taken:
        for name, amount in one.items():
            left[name] -= amount
    return min(left.values()) >= 0


def lawful(chosen: Sequence[MigPlace], profiles: Sequence[MigProfile]) -> bool:
    """Whether NVIDIA allows them: no memory slice twice, no more compute slices and engines than the GPU has, no more
    instances of a profile than NVML says."""
    apart = all(
        not one.placement.overlaps(other.placement) for at, one in enumerate(chosen) for other in chosen[at + 1 :]
    )
    resources = ("compute_slices", *ENGINES)
    enough = all(sum(getattr(place.profile, name) for place in chosen) <= has(profiles, name) for name in resources)
    few = all(sum(1 for place in chosen if place.profile is profile) <= profile.max_instances for profile in profiles)
    return apart and enough and few


def has(profiles: Sequence[MigProfile], resource: str) -> int:
    """How much of a resource the GPU certainly has: enough for one instance of any profile, and for as many of it as
    NVML says, where that is about engines. Compute slices may be what limits them."""
    alone = [int(getattr(profile, resource)) for profile in profiles]
    together = [int(getattr(profile, resource)) * profile.max_instances for profile in profiles]
    return max(alone if resource == "compute_slices" else together)


def layouts(every: Sequence[MigPlace], there: Mapping[str, int]) -> Iterator[tuple[tuple[MigPlace, ...], bool]]:
    """Yield all sets of places that counters allow, and each once that they refuse and that is one place too large;
    each with whether they allow it."""
    takes = [consumption(place, there) for place in every]  # once, not in each of the thousands of sets

    def grow(chosen: tuple[int, ...]) -> Iterator[tuple[tuple[MigPlace, ...], bool]]:
        allowed = allows(there, [takes[number] for number in chosen])
        yield tuple(every[number] for number in chosen), allowed
        if allowed:
            for number in range(chosen[-1] + 1 if chosen else 0, len(every)):
                yield from grow((*chosen, number))

    return grow(())


@pytest.mark.parametrize("product", GEOMETRIES)
def test_counters_allow_exactly_the_layouts_that_nvidia_allows(product: str) -> None:
    profiles = GEOMETRIES[product]
    there = counters(profiles)
    is_small = product in ("A30", "RTX PRO 6000")
    plain = [place for place in places(PARENT, profiles) if is_small or "+me" not in place.profile.name]
    seen = [(allowed, lawful(chosen, profiles)) for chosen, allowed in layouts(plain, there)]
    assert [pair for pair in seen if pair[0] != pair[1]] == []
    if not is_small:
        assert sum(allowed for allowed, _ in seen) == 723  # as counted in NVIDIA's own terms, the empty GPU included


@pytest.mark.parametrize("product", ["A100", "H100", "H200", "B200", "GB200", "GB300"])
def test_one_instance_with_the_media_engines_fits_next_to_others_and_a_second_one_does_not(product: str) -> None:
    profiles = GEOMETRIES[product]
    there = counters(profiles)
    by_name = {(place.profile.name, place.placement.start): place for place in places(PARENT, profiles)}
    plain, media = profiles[0].name, profiles[1].name
    assert fits([by_name[media, 0], *(by_name[plain, start] for start in range(1, 7))], there)
    assert not fits([by_name[media, 0], by_name[media, 6]], there)


def test_only_engines_that_instances_compete_for_are_counted() -> None:
    slices = {f"memory-slice-{number}": 1 for number in range(8)}
    assert counters(H100_80GB) == {**slices, "compute-slices": 7, "ofa-engines": 1}
    assert counters(A100_40GB) == {
        **slices, "compute-slices": 7, "decoders": 5, "jpeg-engines": 1, "ofa-engines": 1
    }  # fmt: skip
    assert counters(A30) == {
        **{f"memory-slice-{number}": 1 for number in range(4)}, "compute-slices": 4, "jpeg-engines": 1, "ofa-engines": 1
    }  # fmt: skip
    assert counters(()) == {}


def test_a_gpu_of_which_each_profile_lists_one_engine_has_one_for_each_instance() -> None:
    slices = {f"memory-slice-{number}": 1 for number in range(8)}
    assert counters(B200) == {**slices, "compute-slices": 7, "ofa-engines": 1}


@pytest.mark.parametrize("profiles", [GB200, GB300])
def test_without_numbers_of_engines_the_profile_with_them_is_counted_by_itself(
    profiles: tuple[MigProfile, ...],
) -> None:
    slices = {f"memory-slice-{number}": 1 for number in range(8)}
    own = f"instances-{profiles[1].name.replace('.', '-').replace('+', '-')}"
    assert counters(profiles) == {**slices, "compute-slices": 7, own: 1}


def test_profiles_with_media_engines_exclude_what_nvidia_says_they_exclude() -> None:
    there = counters(RTX_PRO_6000)
    assert there == {
        **{f"memory-slice-{number}": 1 for number in range(12)},
        "compute-slices": 4, "decoders": 4, "encoders": 4, "jpeg-engines": 4, "ofa-engines": 1,
    }  # fmt: skip
    by_name = {(place.profile.name, place.placement.start): place for place in places(PARENT, RTX_PRO_6000)}
    small = [by_name["1g.24gb", start] for start in (0, 3, 6, 9)]
    assert fits(small, there)
    assert fits([by_name["1g.24gb+gfx", 0], *small[1:]], there), "graphics and compute side by side"
    everything, none = by_name["1g.24gb+me.all", 0], [by_name["1g.24gb-me", start] for start in (3, 6, 9)]
    assert fits([everything, *none], there)
    assert not fits([everything, small[1]], there)
    assert not fits([by_name["1g.24gb+me", 0], by_name["1g.24gb+me", 3]], there)
    assert not fits([by_name["1g.24gb+me", 0], by_name["2g.48gb+me.all", 6]], there)
    assert fits([by_name["2g.48gb-me", 0], by_name["2g.48gb+me.all", 6]], there)


def test_a_profile_of_which_the_driver_allows_fewer_than_have_room_has_a_counter_of_its_own() -> None:
    odd = dataclasses.replace(H100_80GB[0], name="1g.10gb-me", max_instances=2)
    there = counters((odd, *H100_80GB[2:]))
    assert there["instances-1g-10gb-nome"] == 2
    odd_places = [place for place in places(PARENT, [odd]) if place.placement.start < 3]
    assert fits(odd_places[:2], there)
    assert not fits(odd_places, there)


def test_places_come_small_before_large_and_are_named_like_the_mig_devices_that_lie_there() -> None:
    found = places(PARENT, reversed(H100_80GB))
    names = [f"{place.profile.name}@{place.placement.start}" for place in found]
    assert names[:8] == [*(f"1g.10gb@{start}" for start in range(7)), "1g.10gb+me@0"]
    assert names[-4:] == ["3g.40gb@0", "3g.40gb@4", "4g.40gb@0", "7g.80gb@0"]
    assert len(found) == len({place.device_name for place in found}) == 25
    assert found[0].device_name == "mig-72544d34-f24e-599b-9b93-b5ba76e367e2-1g-10gb-0"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"placements": ()}, "ascending"),
        ({"placements": (MigPlacement(1, 1), MigPlacement(0, 1))}, "ascending"),
        ({"placements": (MigPlacement(0, 1), MigPlacement(0, 2))}, "share one start"),
        ({"placements": (MigPlacement(-1, 1),)}, "outside"),
        ({"placements": (MigPlacement(0, 0),)}, "outside"),
        ({"compute_slices": 0}, "too small"),
        ({"max_instances": 0}, "too small"),
        ({"decoders": -1}, "too small"),
    ],
)
def test_a_profile_that_cannot_be_is_named(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        dataclasses.replace(H100_80GB[0], **changes).check()  # type: ignore[arg-type]


@st.composite
def geometries(draw: st.DrawFn) -> tuple[MigProfile, ...]:
    slices = draw(st.integers(1, 5))
    small = st.integers(0, 3)

    def profile(number: int) -> MigProfile:
        size = draw(st.integers(1, slices))
        starts = draw(st.sets(st.integers(0, slices - size), min_size=1))
        engines = {engine: draw(small) for engine in ("decoders", "jpeg_engines")}
        return MigProfile(
            f"{number}g.1gb", number, draw(st.integers(1, 4)), 1, 1, draw(st.integers(1, 5)),
            tuple(MigPlacement(start, size) for start in sorted(starts)), **engines,
        )  # fmt: skip

    return tuple(profile(number) for number in range(draw(st.integers(1, 3))))


@given(geometries())
def test_counters_of_any_product_allow_exactly_what_its_numbers_allow(profiles: tuple[MigProfile, ...]) -> None:
    there = counters(profiles)
    assert len(there) <= limits.COUNTER_SET_COUNTERS
    assert [name for name in there if not LABEL.fullmatch(name)] == []
    for chosen, allowed in layouts(places(PARENT, profiles), there):
        assert allowed == lawful(chosen, profiles), [place.device_name for place in chosen]
