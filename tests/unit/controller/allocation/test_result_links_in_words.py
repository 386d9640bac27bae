"""How a set of GPUs is linked, as users are told."""

from __future__ import annotations

import random

import pytest

from dracaena.api.links import Link, LinkLevel
from dracaena.api.topology import Topology
from dracaena.controller.allocation.result import links_in_words, worst_link
from dracaena.controller.allocation.score.box import mask_of
from dracaena.controller.allocation.score.nominal_rates import make_box

LEVELS = (None, *LinkLevel)


def random_topology(seed: int, gpu_count: int) -> Topology:
    chance = random.Random(seed)
    count = gpu_count * (gpu_count - 1) // 2
    pairs = tuple(Link(chance.choice(LEVELS), chance.choice((None, 0, 2, 4, 12))) for _ in range(count))
    return Topology(gpu_count, pairs, (None,) * gpu_count)


def slow_worst(topology: Topology, ordinals: list[int]) -> str:
    """Name the worst of all pairs: those without NVLinks by their level, an unknown one last."""
    links = [topology.link(a, b) for a in ordinals for b in ordinals if a < b]
    worst = max(links, key=lambda link: 0 if link.nvlinks else LEVELS.index(link.level) or len(LEVELS))
    return "NVLink" if worst.nvlinks else "unknown" if worst.level is None else worst.level.name


def slow_words(topology: Topology, ordinals: list[int]) -> str:
    """Ask each pair of the set for its link, and count the tokens as they come: NVLinks first, then near before far."""
    links = [topology.link(a, b) for a in ordinals for b in ordinals if a < b]
    links.sort(key=lambda link: (-(link.nvlinks or 0), LEVELS.index(link.level) or len(LEVELS)))
    tokens = [link.token for link in links]
    counts = ((tokens.count(token), token) for token in dict.fromkeys(tokens))
    return ", ".join(f"{count} pair{'s' if count > 1 else ''} {token}" for count, token in counts)


@pytest.mark.parametrize("seed", range(20))
def test_the_pairs_of_a_set_are_counted_by_their_links_best_first(seed: int) -> None:
    chance = random.Random(seed)
    topology = random_topology(seed, gpu_count=8)
    box = make_box(topology, {})
    for _ in range(20):
        ordinals = sorted(chance.sample(range(8), chance.randint(2, 8)))
        assert links_in_words(box, mask_of(ordinals)) == slow_words(topology, ordinals)


@pytest.mark.parametrize("seed", range(20))
def test_the_worst_link_of_a_set_is_one_word(seed: int) -> None:
    chance = random.Random(seed)
    topology = random_topology(seed, gpu_count=8)
    for _ in range(20):
        ordinals = sorted(chance.sample(range(8), chance.randint(2, 3)))
        assert worst_link(make_box(topology, {}), mask_of(ordinals)) == slow_worst(topology, ordinals)


@pytest.mark.parametrize(("mask", "words"), [(0, "no GPU"), (0b100, "one GPU")])
def test_fewer_than_two_gpus_have_no_links(mask: int, words: str) -> None:
    box = make_box(random_topology(1, gpu_count=4), {})
    assert (links_in_words(box, mask), worst_link(box, mask)) == (words, "none")
