"""No interleaving gives a device twice, leaves a pod without its devices, or says anything untrue of why one waits:
schedules drawn by chance over real controllers.

`support.interleaver` says what takes part and what is checked. A schedule that breaks a rule is shrunk and printed as a
story; `support.interleaver.search.draw(seed)` draws it again. About 25 ms of one core each.

How many schedules, drawn from seed 0 on, found each fault when it was put back, and seconds of one core:

| fault | schedules | s |
|---|---|---|
| answers and ends act by claim, not by decision | 8,660 | 126 |
| cleared 2 s after the reservation was dropped | 15 | 1 |
| doubt counted from the decision | 2,766 | 40 |
| only the later of two with one device gives way | 668 | 11 |
| a new leader does not list claims | 3,264 | 59 |
| a stand-by queues work | 1 | 0 |
| only who had a reservation is asked about | 827 | 11 |
| a gate that the watch shows is a proof | 9,189 | 143 |
| what is reserved for nobody is never tended | 100 | 4 |
| what is in doubt is never tended | 96 | 1 |
| books differ from records | 71 | 1 |
| what rests is never tended | 107 | 4 |
| devices are not kept while others are evicted | 249 | 6 |
| what is kept is never tended; nothing is allocated for evictions | 125, 10 | 5, 0 |
| others are evicted for a pod only once | 553 | 14 |
| shares of a GPU are not counted (`sharing_scenario`) | 109 | 4 |
| quotas do not count what is being written (`quota_scenario`) | 82 | 4 |
| the same scenarios: books differ from records; a new leader does not list claims | 8, 612 | 0, 28 |
| made-up notes are believed; only what users left as it was is ours (`written_scenario`) | 8, 98 | 1, 3 |
| a gate of an earlier pod of the name counts (`changing_scenario`, `group_scenario`) | 24, 791 | 2, 47 |
| nobody is woken for slices, for nodes, for taint rules (`changing_scenario`) | 14, 44, 351 | 2 to 16 |
| no PodGroup comes first (`group_scenario`) | 323 | 20 |
| claims from templates count whoever they are for (`generated_scenario`) | 19 | 0 |
| parts of a GPU take nothing of it; books differ from records (`divided_scenario`) | 1, 67 | 0, 2 |
| nobody is woken for another driver's devices (`carded_scenario`) | 322 | 16 |
| nobody is woken; ends are lost; states are mixed or old | 2 to 17 | 0 |
| GPUs in use are said to be missing | 2 | 0 |

Six of them are looked for by `make test-long`; the others by `make test`, with the seed that found them last at first.
What was found is kept as stories in test_interleaving_stories.py and test_found_interleavings.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from _pytest.mark.structures import ParameterSet

from dracaena.controller.lifecycle.phases import Phase
from support.interleaver import faults
from support.interleaver.scenario import (
    Scenario,
    any_scenario,
    carded_scenario,
    changing_scenario,
    crowded_scenario,
    divided_scenario,
    generated_scenario,
    group_scenario,
    quota_scenario,
    sharing_scenario,
    written_scenario,
)
from support.interleaver.search import search
from support.seeds import in_tiers

Make = Callable[[random.Random], Scenario]


@dataclass(frozen=True)
class Drawn:
    """Schedules over scenarios of one kind."""

    make: Make
    what: str
    """What no schedule breaks."""
    found: tuple[tuple[faults.Fault, int], ...]
    """Faults, each with the seed that found it last."""


ALL = (
    Drawn(
        any_scenario,
        "no GPU is given twice, and nobody waits for ever",
        (
            (partial(faults.never_tends, Phase.UNRESERVED), 99),
            (partial(faults.never_tends, Phase.RESTING), 106),
            (partial(faults.never_tends, Phase.IN_DOUBT), 95),
            (faults.wakes_nobody, 1),
            (faults.forgets_ends_without_an_answer, 16),
            (faults.mixes_states, 2),
            (faults.takes_older_states, 1),
            (faults.keeps_books_of_its_own, 70),
            (faults.clears_after_two_seconds, 14),
            (faults.queues_while_standing_by, 0),
            (faults.calls_missing_what_is_in_use, 1),
        ),
    ),
    Drawn(
        crowded_scenario,
        "pods are evicted, in a third of them for a pod with a claim, and no other gets the devices that wait for it",
        (
            (faults.keeps_nothing_while_others_are_evicted, 248),
            (faults.never_allocates_for_preemption, 9),
            (partial(faults.never_tends, Phase.KEPT), 124),
            (faults.evicts_for_a_pod_only_once, 552),
        ),
    ),
    Drawn(
        sharing_scenario,
        "claims for half a GPU beside claims for whole ones: no GPU is given beyond all of it",
        ((faults.counts_no_shares, 108), (faults.keeps_books_of_its_own, 30)),
    ),
    Drawn(
        quota_scenario,
        "two namespaces race under two controllers: no quota is exceeded, and nobody waits who may have something",
        (
            (faults.counts_quotas_without_decisions, 81),
            (faults.keeps_books_of_its_own, 7),
            (faults.leads_without_a_list, 3602),
        ),
    ),
    Drawn(
        written_scenario,
        "users annotate claims as the controller never would, and replace them; some pods are made on a node",
        ((faults.believes_a_made_up_note, 7), (faults.owns_only_what_users_leave_as_it_was, 97)),
    ),
    Drawn(
        changing_scenario,
        "nodes, slices, the class and a taint rule come, change and go; some pods are at our gate",
        (
            (faults.remembers_gates_by_name, 23),
            (partial(faults.wakes_nobody_for, "slice_changed"), 13),
            (partial(faults.wakes_nobody_for, "node_changed"), 43),
            (partial(faults.wakes_nobody_for, "taint_rule_changed"), 350),
        ),
    ),
    Drawn(
        group_scenario,
        "a gang that is there and fits beside all pods that are bound is bound in the end",
        ((faults.lets_no_group_come_first, 322), (faults.remembers_gates_by_name, 790)),
    ),
    Drawn(
        generated_scenario,
        "claims are made from templates for pods that come again: none is reserved for another pod, none stays behind",
        ((faults.takes_claims_that_were_made_for_others, 18),),
    ),
    Drawn(
        divided_scenario,
        "GPUs are divided on demand and for good: no part overlaps another, or a GPU that is given as a whole",
        ((faults.overlaps_parts, 0), (faults.keeps_books_of_its_own, 66)),
    ),
    Drawn(
        carded_scenario,
        "pods want network cards beside GPUs, whose slices come one by one: GPUs wait only where cards are",
        ((faults.wakes_nobody_for_other_devices, 321),),
    ),
)
SCHEDULES = 200
"""Of each kind in `make test`: 2,000 together, in 45 s of one core. Most of what was ever found in a merged change was
found by far later seeds: these show that the search runs, and find what is broken badly."""
MORE_SCHEDULES = 800
"""Of each kind in `make test-search`: 8,000 together, in 200 s of one core."""
MANY_SCHEDULES = int(os.environ.get("SCHEDULES", "100000"))
"""Of `make test-long`, all kinds together."""
FIRST_OF_MANY = 1_000_000
SHARES = 4
"""Tests that the many are shared among, so that several workers take part."""

HALF_A_DAY_S = 12 * 3600


def name_of(value: object) -> str | None:
    """Return what a parameter is called in the name of its test."""
    if isinstance(value, Drawn):
        return value.make.__name__.removesuffix("_scenario")
    if isinstance(value, partial):
        return "-".join((value.func.__name__, *map(str, value.args)))
    return value.__name__ if callable(value) and hasattr(value, "__name__") else None


def samples() -> Iterator[ParameterSet]:
    """Yield each kind with the seeds of `make test`, and with those that `make test-search` draws besides."""
    for drawn in ALL:
        for one in in_tiers(range(SCHEDULES), range(SCHEDULES, MORE_SCHEDULES)):
            yield pytest.param(drawn, *one.values, marks=one.marks)


@pytest.mark.timeout(900)  # it may share its core with others
@pytest.mark.parametrize(("drawn", "seeds"), list(samples()), ids=name_of)
def test_no_schedule_of_a_sample_breaks_a_rule(drawn: Drawn, seeds: range) -> None:
    broken, count = search(seeds, make=drawn.make)
    assert broken is None, f"{drawn.what}: not so after {count} schedules\n{broken}"


@pytest.mark.long
@pytest.mark.timeout(HALF_A_DAY_S)
@pytest.mark.parametrize("drawn", ALL, ids=name_of)
@pytest.mark.parametrize("share", range(SHARES))
def test_no_schedule_of_many_breaks_a_rule(share: int, drawn: Drawn) -> None:
    size = MANY_SCHEDULES // SHARES // len(ALL)
    first = FIRST_OF_MANY + share * size
    broken, count = search(range(first, first + size), make=drawn.make)
    assert broken is None, f"{drawn.what}: not so after {count} schedules\n{broken}"


def is_found(fault: faults.Fault, make: Make, seeds: range, found_by: int | None = None) -> bool:
    """Search for a fault, beginning with the seed that found it last, as it does until scenarios change."""
    first = [] if found_by is None else [found_by]
    with fault():
        broken, _ = search([*first, *seeds], shrinks=False, make=make)
    return broken is not None


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("drawn", "fault", "found_by"), [(drawn, *one) for drawn in ALL for one in drawn.found], ids=name_of
)
def test_a_fault_of_the_past_is_found(drawn: Drawn, fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, drawn.make, range(MORE_SCHEDULES), found_by)


@pytest.mark.long
@pytest.mark.timeout(HALF_A_DAY_S)
@pytest.mark.parametrize(
    "fault",
    [
        faults.acts_by_claim,
        faults.doubts_since_the_decision,
        faults.only_the_later_gives_way,
        faults.leads_without_a_list,
        faults.forgets_binds_without_a_reservation,
        faults.trusts_gates_of_the_watch,
    ],
    ids=name_of,
)
def test_a_fault_of_the_past_that_seldom_matters_is_found(fault: faults.Fault) -> None:
    assert is_found(fault, any_scenario, range(20_000))
