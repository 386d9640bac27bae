"""Where instances lie together, beside a search that tries all layouts of a GPU one by one."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from dracaena.api.mig_geometry import ENGINES, MigPlacement, MigProfile
from dracaena.kubelet_plugin.discovery.mig.packing import Placed, packed
from support.mig_geometries import A30, A100_40GB, GEOMETRIES, H100_80GB

Counts = dict[str, int]


def fits(placed: Sequence[Placed], profiles: Sequence[MigProfile]) -> bool:
    """NVIDIA's rules, one by one: no slice twice, no more of anything than there is, no more than a profile allows."""
    if any(a.overlaps(b) for (_, a), (_, b) in itertools.combinations(placed, 2)):
        return False
    if any(count > profile.max_instances for profile, count in Counter(profile for profile, _ in placed).items()):
        return False
    whole = {each: max(getattr(p, each) * p.max_instances for p in profiles) for each in ENGINES}
    whole["compute_slices"] = max(profile.compute_slices for profile in profiles)
    return all(sum(getattr(profile, each) for profile, _ in placed) <= there for each, there in whole.items())


def all_layouts(profiles: Sequence[MigProfile]) -> Iterator[tuple[Placed, ...]]:
    """Every legal layout, by adding one instance after the other to the right of the last."""
    every = sorted(((p, place) for p in profiles for place in p.placements), key=lambda each: each[1])

    def grow(layout: tuple[Placed, ...], start: int) -> Iterator[tuple[Placed, ...]]:
        yield layout
        for at in range(start, len(every)):
            longer = (*layout, every[at])
            if fits(longer, profiles):
                yield from grow(longer, at + 1)

    yield from grow((), 0)


def counts_of(layout: Sequence[Placed]) -> Counts:
    return dict(Counter(profile.name for profile, _ in layout))


def possible(profiles: Sequence[MigProfile]) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted(counts_of(layout).items())) for layout in all_layouts(profiles)}


def made_up(rng: random.Random) -> tuple[MigProfile, ...]:
    """A product with eight slices or fewer, and profiles as no vendor would sell them."""
    slices = rng.randint(3, 8)
    found = []
    for number in range(rng.randint(1, 4)):
        size = rng.randint(1, slices)
        starts = sorted(rng.sample(range(slices - size + 1), rng.randint(1, slices - size + 1)))
        found.append(
            MigProfile(
                f"p{number}", number, rng.randint(1, size), size << 30, 1, rng.randint(1, slices),
                tuple(MigPlacement(start, size) for start in starts), ofa_engines=rng.randint(0, 1),
            )
        )  # fmt: skip
    return tuple(found)


def disagreement(profiles: Sequence[MigProfile], counts: Counts, known: set[tuple[tuple[str, int], ...]]) -> str | None:
    found = packed(counts, profiles)
    there = tuple(sorted((name, count) for name, count in counts.items() if count)) in known
    if (found is not None) != there:
        return f"{counts}: {found}, expected {'a layout' if there else 'none'}"
    if found is None:
        return None
    if not fits(found, profiles) or any(place not in profile.placements for profile, place in found):
        return f"{counts}: {found} is no layout"
    wanted = {name: count for name, count in counts.items() if count}
    return None if counts_of(found) == wanted else f"{counts}: {found}"


def every_count(profiles: Sequence[MigProfile], most: int) -> Iterator[Counts]:
    ranges = [range(min(most, len(profile.placements)) + 2) for profile in profiles]
    for numbers in itertools.product(*ranges):
        yield {profile.name: count for profile, count in zip(profiles, numbers, strict=True)}


def test_every_combination_of_an_a30_has_a_place_exactly_where_some_layout_has_it() -> None:
    known = possible(A30)
    problems = (disagreement(A30, counts, known) for counts in every_count(A30, most=4))
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize("name", ["A100", "H100", "B200"])
@pytest.mark.parametrize("sample", [150, pytest.param(20_000, marks=pytest.mark.long)])
def test_combinations_of_larger_products_too(name: str, sample: int) -> None:
    profiles, rng = GEOMETRIES[name], random.Random(f"{name} {sample}")
    known = possible(profiles)
    for counts in (dict(each) for each in sorted(known)):
        assert disagreement(profiles, counts, known) is None
    for _ in range(sample):
        counts = {profile.name: rng.choice((0, 0, 0, 1, 1, 2, 3, 7, 8)) for profile in profiles}
        assert disagreement(profiles, counts, known) is None


@pytest.mark.parametrize("products", [30, pytest.param(2_000, marks=pytest.mark.long)])
def test_combinations_of_made_up_products_too(products: int) -> None:
    rng = random.Random(products)
    for _ in range(products):
        profiles = made_up(rng)
        known = possible(profiles)
        for _ in range(12):
            counts = {profile.name: rng.randint(0, 4) for profile in profiles}
            problem = disagreement(profiles, counts, known)
            assert problem is None, (profiles, problem)


def test_the_answer_does_not_depend_on_the_order_of_what_is_given() -> None:
    counts = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
    expected = packed(counts, H100_80GB)
    assert expected is not None
    for order in itertools.permutations(counts):
        assert packed({name: counts[name] for name in order}, tuple(reversed(H100_80GB))) == expected
    assert [(profile.name, place.start) for profile, place in expected] == [
        ("2g.20gb", 0), ("1g.10gb", 2), ("1g.10gb", 3), ("3g.40gb", 4),
    ]  # fmt: skip


def test_nothing_has_a_place_of_its_own() -> None:
    assert packed({}, A100_40GB) == ()
    assert packed({"1g.5gb": 0}, A100_40GB) == ()


def test_a_number_beyond_all_bounds_is_refused_at_once() -> None:
    assert packed({"1g.5gb": 10**12}, A100_40GB) is None


def test_a_profile_that_the_gpu_lacks_is_an_error() -> None:
    with pytest.raises(KeyError):
        packed({"9g.90gb": 1}, A100_40GB)
