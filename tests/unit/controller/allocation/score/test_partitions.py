"""What parts of a GPU stay possible, against NVIDIA's tables tried out layout by layout (support.mig_tables)."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from dracaena.api.partitions import Left, PartitionGeometry, PartitionPlace
from dracaena.controller.allocation.score import partitions
from dracaena.controller.allocation.score.partitions import PartitionTable
from support.mig_tables import (
    A30,
    A100,
    A100_WITH_MEDIA,
    PRODUCTS,
    Layout,
    Product,
    geometry,
    layouts,
    most_possible,
    possible,
)
from support.partition_tables import best_move, cut_states, footprint_slices
from support.seeds import sampled

EVERY = pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.name)


def left_of(product: Product, layout: Layout) -> Left:
    cut, parts = geometry(product), product.parts()
    taken = [cut.places[parts.index(part)].takes for part in layout]
    return tuple(there - sum(one[counter] for one in taken) for counter, there in enumerate(cut.there))


def states(product: Product) -> Mapping[Left, Layout]:
    """Every state with one of the layouts that lead to it."""
    return {left_of(product, layout): layout for layout in layouts(product)}


def allowed(product: Product, profile: str) -> int:
    return sum(1 << number for number, part in enumerate(product.parts()) if part.profile == profile)


def profiles(product: Product) -> list[str]:
    return [profile for profile, *_ in product.profiles]


@pytest.mark.parametrize(
    ("product", "places", "state_count", "layout_count", "worth"),
    [(A100, 18, 336, 723, 41), (A100_WITH_MEDIA, 25, 656, 2_319, 41), (A30, 7, 16, 26, 12)],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_published_placements_make_so_many_states_and_layouts(
    product: Product, places: int, state_count: int, layout_count: int, worth: int
) -> None:
    table = PartitionTable(geometry(product))
    assert len(table.geometry.places) == places
    assert len(cut_states(table)) == state_count
    assert len(layouts(product)) == layout_count
    assert footprint_slices(table.worth(table.geometry.there)) == worth


@EVERY
def test_the_table_has_every_state_that_layouts_lead_to_and_what_fits_there(product: Product) -> None:
    table, parts = PartitionTable(geometry(product)), product.parts()
    known = states(product)
    assert set(cut_states(table)) == set(known)
    for layout in layouts(product):
        moves = table.moves(left_of(product, layout))
        assert [parts[move.place] for move in moves] == list(possible(product, layout))
        for move in moves:
            assert move.left == left_of(product, layout | {parts[move.place]})


@EVERY
def test_in_every_state_the_best_place_of_every_profile_leaves_the_most_of_the_largest_possible(
    product: Product,
) -> None:
    table, parts = PartitionTable(geometry(product)), product.parts()
    for left, layout in states(product).items():
        for profile in profiles(product):
            best = most_possible(product, [layout], profile)
            move = best_move(table, left, allowed(product, profile))
            assert (move is None) == (not best)
            assert move is None or (0, parts[move.place]) in best, (profile, layout)


@EVERY
@pytest.mark.parametrize("seed", sampled(range(200), 4))
def test_over_several_gpus_the_least_loss_leaves_the_most_of_the_largest_possible(product: Product, seed: int) -> None:
    chance = random.Random(seed)
    table, parts, known = PartitionTable(geometry(product)), product.parts(), list(states(product).items())
    for _ in range(100):
        gpus = [chance.choice(known) for _ in range(chance.randint(2, 5))]
        profile = chance.choice(profiles(product))
        moves = [(best_move(table, left, allowed(product, profile)), gpu) for gpu, (left, _) in enumerate(gpus)]
        ways = [(move.loss, gpu, move.place) for move, gpu in moves if move is not None]
        best = most_possible(product, [layout for _, layout in gpus], profile)
        assert bool(ways) == bool(best)
        if ways:
            _, gpu, place = min(ways)
            assert (gpu, parts[place]) in best, (profile, gpus)


def test_a_part_of_a_gpu_in_use_never_costs_as_much_as_the_first_of_a_fresh_one() -> None:
    """So "the fewest GPUs that are broken up" and "the least loss" never contradict each other among equal GPUs."""
    for product in PRODUCTS:
        table = PartitionTable(geometry(product))
        for profile in profiles(product):
            fresh = best_move(table, table.geometry.there, allowed(product, profile))
            assert fresh is not None
            for left in cut_states(table)[1:]:
                move = best_move(table, left, allowed(product, profile))
                assert move is None or move.loss < fresh.loss


def test_the_lowest_start_is_worse_in_a_third_of_the_cases_where_there_is_a_choice() -> None:
    table, parts = PartitionTable(geometry(A100)), A100.parts()
    choices = worse = 0
    for left in cut_states(table):
        for profile in profiles(A100):
            losses = [move.loss for move in table.moves(left) if parts[move.place].profile == profile]
            choices += len(losses) > 1
            worse += len(losses) > 1 and losses[0] > min(losses)
    assert (worse, choices) == (130, 412)


@pytest.mark.parametrize(("profile", "start"), [("1g.10gb", 6), ("1g.20gb", 6), ("2g.20gb", 4), ("3g.40gb", 4)])
def test_on_a_fresh_gpu_start_0_is_kept_for_the_large_profile(profile: str, start: int) -> None:
    table = PartitionTable(geometry(A100))
    move = best_move(table, table.geometry.there, allowed(A100, profile))
    assert move is not None
    assert A100.parts()[move.place].start == start


def test_of_equal_places_the_plain_one_is_taken_before_the_one_with_media_extensions() -> None:
    table, parts = PartitionTable(geometry(A100_WITH_MEDIA)), A100_WITH_MEDIA.parts()
    for left in cut_states(table):
        move = best_move(table, left, allowed(A100_WITH_MEDIA, "1g.10gb") | allowed(A100_WITH_MEDIA, "1g.10gb+me"))
        assert move is None or parts[move.place].profile == "1g.10gb"


def test_slices_that_somebody_else_has_are_no_state_of_the_table_and_are_counted_all_the_same() -> None:
    """A GPU instance that nobody of ours made takes slices without a place of ours being held."""
    table, parts = PartitionTable(geometry(A100)), A100.parts()
    half = (*(0,) * 4, *(1,) * 4, 2, 1)  # four slices of memory and five of compute are gone
    assert half not in cut_states(table)
    assert {parts[move.place].profile for move in table.moves(half)} == {"1g.10gb", "1g.20gb", "2g.20gb"}


def test_a_product_that_nobody_knows_is_worked_out_from_its_places() -> None:
    halves = PartitionGeometry(
        2,
        (1, 1, 2),
        (
            PartitionPlace("half", 0, 1, 1, (1, 0, 1)),
            PartitionPlace("half", 1, 1, 1, (0, 1, 1)),
            PartitionPlace("all", 0, 2, 2, (1, 1, 2)),
        ),
    )
    table = PartitionTable(halves)
    assert set(cut_states(table)) == {(1, 1, 2), (0, 1, 1), (1, 0, 1), (0, 0, 0)}
    assert footprint_slices(table.worth(halves.there)) == 4
    assert best_move(table, (0, 0, 0), 0b111) is None


def test_a_table_that_forgets_states_answers_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = PartitionTable(geometry(A100))
    expected = {left: (whole.worth(left), whole.moves(left)) for left in cut_states(whole)}
    monkeypatch.setattr(partitions, "MOST_STATES", 10)
    small = PartitionTable(geometry(A100))
    for left, told in expected.items():
        assert (small.worth(left), small.moves(left)) == told
        assert max(len(small._worths), len(small._moves)) <= 10
