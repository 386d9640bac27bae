"""No interleaving gives a device twice, or a pod without its devices: schedules drawn by chance over real controllers.

`support.interleaver` says what takes part and what is checked. A schedule that breaks a rule is shrunk and printed as a
story; `support.interleaver.search.draw(seed)` draws it again. About 30 ms of one core each, so 2,000 in a minute.

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
| what is reserved for nobody is never tended | 289 | 48 |
| what is in doubt is never tended | 96 | 1 |
| books differ from records | 71 | 1 |
| what rests is never tended | 6 | 0 |
| devices are not kept while others are evicted | 249 | 6 |
| what is kept is never tended; nothing is allocated for evictions | 102, 10 | 9, 0 |
| others are evicted for a pod only once | 553 | 14 |
| shares of a GPU are not counted (`sharing_scenario`) | 74 | 3 |
| quotas do not count what is being written (`quota_scenario`) | 8 | 0 |
| the same scenarios: books differ from records; a new leader does not list claims | 8, 142 | 0, 5 |
| made-up notes are believed; only what users left as it was is ours (`written_scenario`) | 8, 27 | 1, 2 |
| a gate of an earlier pod of the name counts (`changing_scenario`, `group_scenario`) | 13, 96 | 2, 15 |
| nobody is woken for slices, for nodes, for taint rules (`changing_scenario`) | 14, 44, 36 | 2 to 5 |
| no PodGroup comes first (`group_scenario`) | 42 | 8 |
| nobody is woken; ends are lost; states are mixed or old | 2 to 17 | 0 |

Six of them are looked for by `make test-long`; the others by `make test`, with the seed that found them last at first.
What was found is kept as stories in test_interleaving_stories.py and test_found_interleavings.py.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from functools import partial

import pytest
from _pytest.mark.structures import ParameterSet

from dracaena.controller.lifecycle.phases import Phase
from support.interleaver import faults
from support.interleaver.scenario import (
    Scenario,
    any_scenario,
    changing_scenario,
    crowded_scenario,
    group_scenario,
    quota_scenario,
    sharing_scenario,
    written_scenario,
)
from support.interleaver.search import search
from support.seeds import in_tiers

SCHEDULES = 200
CROWDED_SCHEDULES = 300
SHARING_SCHEDULES = 100
QUOTA_SCHEDULES = 150
WRITTEN_SCHEDULES = 200
CHANGING_SCHEDULES = 200
GROUP_SCHEDULES = 200
"""More than what the rarest faults take that are looked for here, but for two: 289 schedules, and 553 that evict."""
STRIDE = 4
"""`make test` draws each fourth of them, some 340 in 20 s of one core, `make test-search` all."""
MANY_SCHEDULES = int(os.environ.get("SCHEDULES", "100000"))
FIRST_OF_MANY = 1_000_000
SHARES = 4
"""Tests that the many are shared among, so that several workers take part."""

HALF_A_DAY_S = 12 * 3600


FOUND = (
    (partial(faults.never_tends, Phase.UNRESERVED), 288),
    (partial(faults.never_tends, Phase.RESTING), 5),
    (partial(faults.never_tends, Phase.IN_DOUBT), 95),
    (faults.wakes_nobody, 1),
    (faults.forgets_ends_without_an_answer, 16),
    (faults.mixes_states, 2),
    (faults.takes_older_states, 1),
    (faults.keeps_books_of_its_own, 70),
    (faults.clears_after_two_seconds, 14),
    (faults.queues_while_standing_by, 0),
)
FOUND_CROWDED = (
    (faults.keeps_nothing_while_others_are_evicted, 248),
    (faults.never_allocates_for_preemption, 9),
    (partial(faults.never_tends, Phase.KEPT), 101),
    (faults.evicts_for_a_pod_only_once, 552),
)
FOUND_SHARING = ((faults.counts_no_shares, 73), (faults.keeps_books_of_its_own, 30))
FOUND_WRITTEN = ((faults.believes_a_made_up_note, 7), (faults.owns_only_what_users_leave_as_it_was, 26))
FOUND_CHANGING = (
    (faults.remembers_gates_by_name, 12),
    (partial(faults.wakes_nobody_for, "slice_changed"), 13),
    (partial(faults.wakes_nobody_for, "node_changed"), 43),
    (partial(faults.wakes_nobody_for, "taint_rule_changed"), 35),
)
FOUND_GROUPS = ((faults.lets_no_group_come_first, 41), (faults.remembers_gates_by_name, 95))
FOUND_QUOTA = (
    (faults.counts_quotas_without_decisions, 7),
    (faults.keeps_books_of_its_own, 7),
    (faults.leads_without_a_list, 141),
)


def sample(schedules: int) -> list[ParameterSet]:
    """Return the seeds for `make test` and `make test-search`."""
    return in_tiers(range(0, schedules, STRIDE), range(schedules))


@pytest.mark.timeout(900)  # it may share its core with others
@pytest.mark.parametrize("seeds", sample(SCHEDULES))
def test_no_schedule_of_a_sample_breaks_a_rule(seeds: range) -> None:
    broken, count = search(seeds)
    assert broken is None, f"after {count} schedules\n{broken}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", sample(CROWDED_SCHEDULES))
def test_no_schedule_in_which_pods_are_evicted_breaks_a_rule(seeds: range) -> None:
    """About a third of them evict somebody for a pod with a claim."""
    broken, count = search(seeds, make=crowded_scenario)
    assert broken is None, f"after {count} schedules\n{broken}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", sample(SHARING_SCHEDULES))
def test_no_schedule_in_which_gpus_are_shared_breaks_a_rule(seeds: range) -> None:
    """Claims for half a GPU beside claims for whole ones: no GPU is given beyond all of it."""
    broken, count = search(seeds, make=sharing_scenario)
    assert broken is None, f"after {count} schedules\n{broken}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", sample(QUOTA_SCHEDULES))
def test_no_schedule_in_which_namespaces_race_for_their_quotas_breaks_a_rule(seeds: range) -> None:
    """Two controllers, of which one leads at a time, and two namespaces that want more than there is and than they may
    have: no quota is exceeded, no GPU is given twice, and nobody waits who may have something."""
    broken, count = search(seeds, make=quota_scenario)
    assert broken is None, f"after {count} schedules\n{broken}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", sample(WRITTEN_SCHEDULES))
def test_no_schedule_in_which_users_write_metadata_breaks_a_rule(seeds: range) -> None:
    """Users annotate claims as the controller never would, and replace them; some pods are made on a node."""
    broken, count = search(seeds, make=written_scenario)
    assert broken is None, f"after {count} schedules\n{broken}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", sample(CHANGING_SCHEDULES))
def test_no_schedule_in_which_nodes_slices_and_classes_change_breaks_a_rule(seeds: range) -> None:
    """Admins cordon, remove and add nodes, the class and a rule that taints every device; plugins withdraw and publish
    slices, and taint devices. Some pods are at our gate."""
    broken, count = search(seeds, make=changing_scenario)
    assert broken is None, f"after {count} schedules\n{broken}"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", sample(GROUP_SCHEDULES))
def test_no_schedule_in_which_gangs_compete_breaks_a_rule(seeds: range) -> None:
    """A gang that is there and that fits beside all pods that are bound is bound in the end."""
    broken, count = search(seeds, make=group_scenario)
    assert broken is None, f"after {count} schedules\n{broken}"


@pytest.mark.long
@pytest.mark.timeout(HALF_A_DAY_S)
@pytest.mark.parametrize(
    "make",
    [
        any_scenario,
        crowded_scenario,
        sharing_scenario,
        quota_scenario,
        written_scenario,
        changing_scenario,
        group_scenario,
    ],
)
@pytest.mark.parametrize("share", range(SHARES))
def test_no_schedule_of_many_breaks_a_rule(share: int, make: Callable[[random.Random], Scenario]) -> None:
    size = MANY_SCHEDULES // SHARES
    first = FIRST_OF_MANY + share * size
    broken, count = search(range(first, first + size), make=make)
    assert broken is None, f"after {count} schedules\n{broken}"


def is_found(
    fault: faults.Fault,
    within: int,
    make: Callable[[random.Random], Scenario] = any_scenario,
    *,
    found_by: int | None = None,
) -> bool:
    """Search the seeds from 0 on, after the one that found the fault last, as it does until scenarios change."""
    first = [] if found_by is None else [found_by]
    with fault():
        broken, _ = search([*first, *range(within)], shrinks=False, make=make)
    return broken is not None


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "found_by"), FOUND)
def test_a_fault_of_the_past_is_found(fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, SCHEDULES, found_by=found_by)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "found_by"), FOUND_CROWDED)
def test_a_fault_of_preemption_is_found(fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, CROWDED_SCHEDULES, crowded_scenario, found_by=found_by)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "found_by"), FOUND_SHARING)
def test_a_fault_with_shared_gpus_is_found(fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, SHARING_SCHEDULES, sharing_scenario, found_by=found_by)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "found_by"), FOUND_WRITTEN)
def test_a_fault_about_what_users_write_is_found(fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, WRITTEN_SCHEDULES, written_scenario, found_by=found_by)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "found_by"), FOUND_CHANGING)
def test_a_fault_with_changes_around_is_found(fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, CHANGING_SCHEDULES, changing_scenario, found_by=found_by)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "found_by"), FOUND_GROUPS)
def test_a_fault_with_gangs_is_found(fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, GROUP_SCHEDULES, group_scenario, found_by=found_by)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "found_by"), FOUND_QUOTA)
def test_a_fault_with_quotas_is_found(fault: faults.Fault, found_by: int) -> None:
    assert is_found(fault, QUOTA_SCHEDULES, quota_scenario, found_by=found_by)


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
)
def test_a_fault_of_the_past_that_seldom_matters_is_found(fault: faults.Fault) -> None:
    assert is_found(fault, 20_000)
